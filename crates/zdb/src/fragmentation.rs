//! `-M`: fragmentation and free segments of vdevs and of the normal class.

use std::io::Write;

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Outcome};
use engine::metaslab::table::MetaslabRecord;
use engine::vdev::config::{AllocBias, Kind};

use super::metaslabs::Space;
use super::target::Session;
use super::text::histogram;

/// Buckets of a histogram of ranges.
const BUCKETS: usize = 64;
/// A normal vdev with more metaslabs than this reserves one for the intent log.
const EMBEDDED_LOG_MIN_METASLABS: usize = 64;

/// Normal vdevs and the pool; `-MM` special vdevs, too.
#[doc(alias = "dump_metaslab_groups")]
pub fn run(session: &Session, space: &Space, ctx: &mut Ctx) -> Outcome {
    let mut class = [0_u64; BUCKETS];
    for (config, table) in &space.tops {
        let bias = space.bias(config.id);
        let normal = bias == AllocBias::Normal;
        let special = bias == AllocBias::Special && session.level('M') > 1;
        if !(normal || special) || matches!(config.kind, Kind::Indirect | Kind::Hole | Kind::Missing) {
            continue;
        }
        let sums = space.sums.vdevs.iter().find(|v| v.id == config.id);
        let percent = text(sums.and_then(|v| v.fragmentation()));
        let count = table.all.len();
        writeln!(ctx.out, "\tvdev {:>10}\t\tmetaslabs{count:>5}\t\tfragmentation{percent}", config.id)?;
        let known: Vec<&MetaslabRecord> = table.all.iter().flatten().collect();
        let counts = pieces(normal, &known, table.shift);
        histogram(&mut ctx.out, &counts, 0)?;
        if normal {
            class.iter_mut().zip(counts).for_each(|(to, n)| *to = to.saturating_add(n));
        }
    }
    let percent = text(space.sums.fragmentation());
    writeln!(ctx.out, "\tpool {}\tfragmentation\t{percent}", session.pool.name)?;
    histogram(&mut ctx.out, &class, 0)?;
    Ok(Exit::OK)
}

fn text(percent: Option<u64>) -> String {
    percent.map_or("  -".to_owned(), |p| format!("{p:>3}%"))
}

/// Free segments by size, without the metaslab that serves the intent log, which is the emptiest.
fn pieces(normal: bool, metaslabs: &[&MetaslabRecord], shift: u32) -> [u64; BUCKETS] {
    let keeps_one = normal && metaslabs.len() > EMBEDDED_LOG_MIN_METASLABS;
    let log = metaslabs.iter().min_by_key(|m| (m.allocated(), m.id)).filter(|_| keeps_one).map(|m| m.id);
    let mut counts = [0_u64; BUCKETS];
    for metaslab in metaslabs.iter().filter(|m| Some(m.id) != log) {
        let Some(head) = metaslab.head.as_ref().filter(|_| metaslab.has_histogram) else { continue };
        let from = usize::try_from(shift).unwrap_or(0);
        for (to, n) in counts.iter_mut().skip(from).zip(head.histogram) {
            *to = to.saturating_add(n);
        }
    }
    counts
}
