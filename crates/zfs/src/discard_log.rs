//! `zfs discard-log`: discards an intent log that can't be replayed. OpenZFS has no such verb: it frees such
//! a log by itself.

use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::Dataset;
use engine::zil::replay::{Unreplayed, discard, waiting};
use engine::{Error, Kind};

/// Discard the records of an intent log
///
/// Frees the intent log of a file system or volume that is not in use, and lists the records that are lost with it:
/// synchronous writes before a crash that could not be replayed. -n only lists them.
#[derive(Debug, Args)]
pub struct DiscardLog {
    /// List the records, and keep them.
    #[arg(short = 'n')]
    pub dry: bool,
    /// The file system or volume.
    #[arg(value_name = "FILESYSTEM|VOLUME")]
    pub name: String,
}

impl Verb for DiscardLog {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let target = Target::of(&self.name, ctx)?;
        let dataset = target.dataset()?;
        let failed = |e: Error| match e.kind() {
            Kind::Busy => Failure::cannot("discard the log of", &self.name, "it is in use"),
            _ => Failure::cannot("discard the log of", &self.name, why(&e)),
        };
        if dataset.is_snapshot() {
            return Err(Failure::cannot("discard the log of", &self.name, "a snapshot has none"));
        }
        let lost = match self.dry {
            true => kept(&target, &dataset).map_err(failed)?,
            false => given_up(&target, &dataset).map_err(failed)?,
        };
        for record in &lost {
            writeln!(ctx.out, "{}", line(record))?;
        }
        let end = if self.dry { "wait" } else { "are lost" };
        writeln!(ctx.out, "{} records {end}", lost.len())?;
        Ok(Exit::OK)
    }
}

fn kept(target: &Target, dataset: &Dataset) -> engine::Result<Vec<Unreplayed>> {
    let _quiet = target.pool.quiet();
    let objset = dataset.objset()?;
    let header = objset.phys.zil_header;
    Ok(if header.log.is_hole() { Vec::new() } else { waiting(&objset) })
}

fn given_up(target: &Target, dataset: &Dataset) -> engine::Result<Vec<Unreplayed>> {
    let spa = target.pool.spa()?;
    let live = spa.datasets.open(&**spa, dataset.number)?;
    discard(&live.objset, spa.logs().host())
}

/// A record, as `zdb -i` begins its line.
fn line(record: &Unreplayed) -> String {
    let mut line = format!("TX_{:<16} txg {}, seq {}", record.kind, record.txg, record.seq);
    if let Some(object) = record.object {
        line += &format!(", object {object}");
    }
    if let Some((offset, length)) = record.range {
        line += &format!(", offset {offset:#x}, length {length:#x}");
    }
    if let Some(name) = &record.name {
        line += &format!(", name {}", String::from_utf8_lossy(name).escape_debug());
    }
    line
}
