//! `zfs holds`: lists the holds that keep snapshots from being destroyed.

use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::table::{Column, Table};
use clikit::output::time;
use clikit::source::PoolSource;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::props::holds::holds;

use super::entry::Entry;
use super::prop::Node;
use super::select::{Selection, Types, walk};

/// List holds of snapshots.
#[derive(Debug, Args)]
pub struct Holds {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// Include the snapshots of this name of all descendants.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Print no header, and separate columns by a single tab.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print times in seconds since 1970.
    #[arg(short = 'p')]
    pub literal: bool,
    /// Snapshots.
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub names: Vec<String>,
}

/// Snapshots that are looked at before changes may reach the disk.
const BREATH: usize = 256;

impl Verb for Holds {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let mut table = Table::new(["NAME", "TAG", "TIMESTAMP"].map(|h| Column::new(h, false)).to_vec());
        let (mut failed, mut unfit, mut has_any) = (false, false, false);
        for (count, name) in self.names.iter().enumerate() {
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            if count % BREATH == BREATH - 1 {
                ctx.breathe();
            }
            let Some((dataset, snap)) = name.split_once('@') else {
                ctx.warn(format!("'{name}' is not a snapshot"));
                unfit = true;
                continue;
            };
            let types = Types { snapshot: true, ..Types::NONE };
            let selection = Selection {
                types,
                recurse: true,
                depth: (!self.recurse).then_some(0),
                snapshots_by_pool: false,
            };
            let wanted = if self.recurse { dataset } else { name.as_str() };
            let found = walk(&self.source, &[wanted.to_owned()], &selection, ctx)?;
            failed |= found.failed;
            let named = |entry: &&Entry| entry.name.split_once('@').is_some_and(|(_, s)| s == snap);
            for entry in found.entries.iter().filter(named) {
                let Some(pool) = found.pools.get(entry.pool) else { continue };
                if let Some(Node::Dataset(snapshot, _)) = entry.open(&pool.pool)? {
                    has_any = true;
                    for hold in holds(&snapshot)? {
                        let time = if self.literal { hold.time.to_string() } else { time::date(hold.time) };
                        table.push(vec![snapshot.name.clone(), hold.tag, time]);
                    }
                }
            }
        }
        if !has_any {
            ctx.warn("no datasets available");
        }
        // As in OpenZFS the heading stands there, whatever was found.
        table.print(&mut *ctx.out, self.scripted)?;
        ctx.out.flush()?;
        Ok(if failed || unfit { Exit::FAILED } else { Exit::OK })
    }
}
