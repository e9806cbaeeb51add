//! `-S`: simulates the dedup table of all data of the pool.
//!
//! Memory is bounded: when the table grows too large, only keys of one share (by checksum) are kept, and the walk
//! is repeated for the other shares.

use std::collections::HashMap;
use std::io::Write;

use clikit::ctx::Ctx;
use clikit::interrupt::Interrupt;
use clikit::verb::{Exit, Failure, Outcome};
use engine::ddt::Totals;
use engine::scan::{ReferenceKind, Stop, Visit, Visitor, traverse};
use engine::types::Bookmark;
use engine::vdev::tree::Tree;
use engine::zio::deflated;
use ondisk::ChecksumType;
use ondisk::ddt::{DdtKey, DdtStat};

use super::ddt::{print_histogram, ratio};
use super::target::Session;

/// Maximum entries in memory: about 150 MiB.
const MAX_ENTRIES: usize = 1 << 20;

/// Accumulated references to one block.
#[derive(Default)]
struct Sum {
    refs: u64,
    lsize: u64,
    psize: u64,
    dsize: u64,
}

struct Simulation<'a> {
    tree: &'a Tree,
    table: HashMap<DdtKey, Sum>,
    /// Keys whose checksum modulo `shares` is `share` are counted in this walk.
    share: u64,
    shares: u64,
    unreadable: u64,
    limit: usize,
    interrupt: Interrupt,
}

impl Simulation<'_> {
    fn is_mine(&self, key: &DdtKey) -> bool {
        let [word, ..] = key.cksum;
        word % self.shares == self.share
    }

    /// Halves the kept keys, on the first walk only: later walks use the resulting number of shares.
    fn shrink(&mut self) {
        self.shares *= 2;
        let (share, shares) = (self.share, self.shares);
        self.table.retain(|key, _| {
            let [word, ..] = key.cksum;
            word % shares == share
        });
    }

    fn drain(&mut self, totals: &mut Totals) {
        for (_, sum) in self.table.drain() {
            let each = |n: u64| n.checked_div(sum.refs).unwrap_or(0);
            let stat = DdtStat {
                blocks: 1,
                lsize: each(sum.lsize),
                psize: each(sum.psize),
                dsize: each(sum.dsize),
                ref_blocks: sum.refs,
                ref_lsize: sum.lsize,
                ref_psize: sum.psize,
                ref_dsize: sum.dsize,
            };
            totals.count(&stat, sum.refs);
        }
    }
}

impl Visitor for Simulation<'_> {
    fn block(&mut self, visit: &Visit<'_>) -> Result<(), Stop> {
        if self.interrupt.is_set() {
            return Err(Stop);
        }
        let bp = visit.bp;
        let off = bp.checksum() == Some(ChecksumType::Off);
        if visit.origin == ReferenceKind::Deferred
            || bp.is_hole()
            || bp.is_embedded()
            || off
            || bp.is_metadata()
        {
            return Ok(());
        }
        let key = DdtKey::of(bp);
        if !self.is_mine(&key) {
            return Ok(());
        }
        let sum = self.table.entry(key).or_default();
        sum.refs += 1;
        sum.lsize += bp.lsize();
        sum.psize += bp.psize();
        sum.dsize += deflated(self.tree, bp);
        while self.share == 0 && self.table.len() > self.limit && self.shares < 1 << 32 {
            self.shrink();
        }
        Ok(())
    }

    fn unreadable(&mut self, _at: Bookmark, _error: &engine::Error) {
        self.unreadable += 1;
    }
}

/// Walks the pool and prints the table.
pub fn run(session: &Session, ctx: &mut Ctx) -> Outcome {
    let tree = session.pool.tree();
    let mut totals = Totals::default();
    let mut simulation = Simulation {
        tree: &tree,
        table: HashMap::new(),
        share: 0,
        shares: 1,
        unreadable: 0,
        limit: MAX_ENTRIES,
        interrupt: ctx.interrupt.clone(),
    };
    while simulation.share < simulation.shares {
        simulation.unreadable = 0;
        if traverse(&session.pool, &mut simulation).is_err() {
            return Err(Failure::Interrupted);
        }
        simulation.drain(&mut totals);
        simulation.share += 1;
    }
    let sum = totals.all();
    writeln!(ctx.out, "Simulated DDT histogram:")?;
    print_histogram(&totals.histogram, Some(&sum), &mut ctx.out)?;
    ratio(&sum, &mut ctx.out)?;
    if simulation.unreadable > 0 {
        ctx.warn(format!("{} indirect or metadata blocks could not be read", simulation.unreadable));
        return Ok(Exit::FAILED);
    }
    Ok(Exit::OK)
}
