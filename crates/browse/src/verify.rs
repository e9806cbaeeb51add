//! `aquifer verify`: read and check every block.
//!
//! Exit codes: 0 no error; 1 damage that redundancy covers, leaks, or missing devices; 2 data is lost; 130 stopped
//! by the user (the findings so far are shown).

mod json;
mod places;
mod text;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::progress::Progress;
use clikit::source::PoolSource;
use clikit::verb::{Exit, Outcome, Verb};
use engine::dsl::due_log::{DamagedLog, damaged_logs};
use engine::scan::account::WalkEvent;
use engine::scan::verify::{Report, VerifyOptions, VerifyScope, verify};
use engine::vdev::plan::Depth;

use places::Places;

/// Damage that redundancy covers.
const DAMAGED: Exit = Exit(1);
/// Data is lost.
const LOST: Exit = Exit(2);

/// Read and check every block of a pool: all datasets and snapshots, every copy and all parity, and the space
/// maps.
#[derive(Debug, Args)]
pub struct Verify {
    #[command(flatten)]
    pub(crate) source: PoolSource,

    /// Read each block only until its bytes are good: not its other copies, nor its parity.
    #[arg(long)]
    pub first_copy: bool,

    /// Check metadata only.
    #[arg(long)]
    pub metadata: bool,

    /// Do not check for leaks.
    #[arg(short = 'L', long)]
    pub no_leaks: bool,

    /// Show no progress.
    #[arg(short, long)]
    pub quiet: bool,

    /// Script mode: no headings, cells separated by tabs.
    #[arg(short = 'H')]
    pub scripted: bool,

    /// Exact numbers.
    #[arg(short = 'p')]
    pub parsable: bool,

    /// Print JSON.
    #[arg(short = 'j', long)]
    pub json: bool,

    /// Print numbers in JSON as numbers.
    #[arg(long, requires = "json")]
    pub json_int: bool,

    /// The pool, by name or guid.
    pub pool: String,
}

impl Verb for Verify {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let pool = self.source.open(&self.pool, ctx)?;
        let stop = ctx.interrupt.flag();
        let options = VerifyOptions {
            which: if self.metadata { VerifyScope::Metadata } else { VerifyScope::All },
            depth: if self.first_copy { Depth::First } else { Depth::All },
            leaks: !self.no_leaks,
            ..VerifyOptions::new(&stop)
        };
        let mut bar = Progress::bytes("verify", 0, self.quiet);
        let mut total = 0;
        let report = verify(
            &pool,
            &options,
            &mut |done| {
                if done.total != total {
                    total = done.total;
                    bar.set_total(total);
                }
                bar.set(done.bytes);
            },
            &mut |_: &WalkEvent<'_>| (),
        );
        bar.finish();
        let findings = Findings {
            places: Places::new(&pool, &report, &stop),
            logs: damaged_logs(&pool.dsl, &stop),
            report,
        };
        if self.json {
            json::print(&self, &pool, &findings, ctx)?;
        } else {
            text::print(&self, &pool, &findings, ctx)?;
        }
        Ok(exit(&findings))
    }
}

/// All that a verification found.
#[derive(Debug)]
struct Findings {
    report: Report,
    places: Places,
    /// The walk over the pool's blocks ends each log at its first unreadable block: only here it shows whether the log had more.
    logs: Vec<DamagedLog>,
}

impl Findings {
    fn is_lost(&self) -> bool {
        self.report.is_lost() || !self.logs.is_empty()
    }
}

fn exit(findings: &Findings) -> Exit {
    let report = &findings.report;
    if findings.is_lost() {
        LOST
    } else if report.account.stopped {
        Exit::INTERRUPTED
    } else if report.is_damaged() {
        DAMAGED
    } else {
        Exit::OK
    }
}
