//! `-m`: metaslabs, their space maps and the pool's logs of them.

use std::collections::HashMap;
use std::io::Write;

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};
use engine::dmu::Object;
use engine::metaslab::log::{MetaslabChange, SpaceMapLog, Unflushed, logs};
use engine::metaslab::table::{MetaslabRecord, Metaslabs};
use engine::metaslab::{each, head};
use engine::spa::space::PoolSpace;
use engine::vdev::config::{AllocBias, Kind, VdevConfig};
use ondisk::names::vdev_top;
use ondisk::space_map::{SpaceMapDecoder, SpaceMapItem};
use zcommon::features::Feature;

use super::indirect;
use super::options::parse_number;
use super::target::Session;
use super::text::{Numbers, histogram};

/// The vdev number that zdb prints for entries without one.
const NO_VDEV: u64 = 1 << 24;

/// Smaller free segments are not in the list by size, and not among the segments that zdb counts.
#[doc(alias = "metaslab_by_size_min_shift")]
const MIN_LISTED: u64 = 1 << 14;

/// State that several parts need.
pub struct Space {
    /// Top-level vdevs and their metaslabs.
    pub tops: Vec<(VdevConfig, Metaslabs)>,
    /// The pool's logs.
    logs: Vec<SpaceMapLog>,
    /// The unflushed changes of the logs.
    unflushed: Unflushed,
    /// The pool's totals.
    pub sums: PoolSpace,
    has_logs: bool,
    exit: Exit,
}

impl Space {
    /// Reads the headers of all maps, and the logs; damaged ones are reported and omitted.
    pub fn load(session: &Session, ctx: &mut Ctx) -> Self {
        let pool = &session.pool;
        let mut exit = Exit::OK;
        let mut tell = |what: String| {
            ctx.warn(what);
            exit = Exit::FAILED;
        };
        let mut tops = Vec::new();
        for config in &pool.tree().config.children {
            match Metaslabs::load(&pool.mos, config) {
                Ok(table) => {
                    for (id, one) in table.all.iter().enumerate() {
                        if let Err(e) = one {
                            tell(format!("metaslab {id} of vdev {}: {e}", config.id));
                        }
                    }
                    tops.push((config.clone(), table));
                }
                Err(e) => tell(format!("metaslabs of vdev {}: {e}", config.id)),
            }
        }
        let logs = logs(&pool.mos).unwrap_or_else(|e| {
            tell(format!("log space maps: {e}"));
            Vec::new()
        });
        let by_id: HashMap<u64, (u32, &Metaslabs)> =
            tops.iter().map(|(config, table)| (config.id, (config.metaslab_shift, table))).collect();
        let unflushed = Unflushed::load(&logs, &by_id).unwrap_or_else(|e| {
            tell(format!("log space maps: {e}"));
            Unflushed::default()
        });
        let has_logs = pool.features.is_active(Feature::LogSpacemap.info().guid);
        let mut notes = Vec::new();
        let sums = PoolSpace::of(pool, &mut notes);
        Self { tops, logs, unflushed, sums, has_logs, exit }
    }

    /// The class of a vdev, which its configuration may lack.
    pub fn bias(&self, vdev: u64) -> AllocBias {
        self.sums.vdevs.iter().find(|v| v.id == vdev).map_or(AllocBias::Normal, |v| v.bias)
    }

    /// The unflushed changes of a metaslab.
    pub fn unflushed(&self, vdev: u64, metaslab: u64) -> Option<&MetaslabChange> {
        self.unflushed.change(vdev, metaslab)
    }

    /// Fragmentation of a metaslab in percent.
    fn fragmentation(&self, vdev: u64, metaslab: u64) -> Option<u64> {
        let vdev = self.sums.vdevs.iter().find(|v| v.id == vdev)?;
        vdev.metaslabs.get(usize::try_from(metaslab).ok()?)?.fragmentation
    }
}

/// Prints metaslabs, all or those in the operands: `VDEV [METASLAB…]`.
pub fn run(session: &Session, space: &Space, ctx: &mut Ctx) -> Outcome {
    writeln!(ctx.out, "\nMetaslabs:")?;
    let wanted: Vec<u64> = session.rest.iter().filter_map(|word| parse_number(word)).collect();
    let wanted = if session.options.has('d') { Vec::new() } else { wanted };
    let Some((vdev, ids)) = wanted.split_first() else {
        for (config, table) in &space.tops {
            one_vdev(session, space, config, table, None, ctx)?;
        }
        return Ok(space.exit);
    };
    let Some((config, table)) = space.tops.iter().find(|(config, _)| config.id == *vdev) else {
        return Err(Failure::failed(format!("zdb: bad vdev id: {vdev}")));
    };
    if ids.is_empty() {
        for (config, table) in space.tops.iter().filter(|(config, _)| config.id == *vdev) {
            one_vdev(session, space, config, table, None, ctx)?;
        }
        return Ok(space.exit);
    }
    one_vdev(session, space, config, table, Some(ids), ctx)?;
    Ok(space.exit)
}

fn one_vdev(
    session: &Session,
    space: &Space,
    config: &VdevConfig,
    table: &Metaslabs,
    ids: Option<&[u64]>,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let bias = match space.bias(config.id) {
        AllocBias::Normal => "",
        AllocBias::Log => "log",
        AllocBias::Special => "special",
        AllocBias::Dedup => "dedup",
    };
    write!(ctx.out, "\tvdev {:>10}   {bias}", config.id)?;
    if table.unflushed_object != 0 {
        write!(ctx.out, "   ms_unflushed_phys object {}", table.unflushed_object)?;
    }
    let count = table.all.len();
    writeln!(
        ctx.out,
        "\n\t{:<10}{count:>5}   {:<19}   {:<15}   {:<12}",
        "metaslabs", "offset", "spacemap", "free"
    )?;
    let rule = |n| "-".repeat(n);
    writeln!(ctx.out, "\t{}   {}   {}   {}", rule(15), rule(19), rule(15), rule(12))?;
    match ids {
        None => {
            // A vdev under removal has a mapping in addition to its metaslabs.
            if config.kind == Kind::Indirect || config.indirect_object != 0 {
                indirect::run(session, config, ctx)?;
            }
            for metaslab in table.all.iter().flatten() {
                one(session, space, config, table, metaslab, ctx)?;
            }
        }
        Some(ids) => {
            for &id in ids {
                let found = usize::try_from(id).ok().and_then(|i| table.all.get(i));
                match found {
                    Some(Ok(metaslab)) => one(session, space, config, table, metaslab, ctx)?,
                    Some(Err(_)) => {}
                    None => ctx.warn(format!("bad metaslab number {id}")),
                }
            }
        }
    }
    Ok(writeln!(ctx.out)?)
}

#[doc(alias = "dump_metaslab")]
fn one(
    session: &Session,
    space: &Space,
    config: &VdevConfig,
    table: &Metaslabs,
    metaslab: &MetaslabRecord,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let level = session.level('m');
    let numbers = Numbers { exact: session.options.parsable() };
    let free = numbers.count(metaslab.size.saturating_sub(metaslab.allocated()));
    let MetaslabRecord { id, start, space_map, .. } = *metaslab;
    writeln!(
        ctx.out,
        "\tmetaslab {id:>6}   offset {start:>12x}   spacemap {space_map:>6}   free    {free:>5}"
    )?;
    if level > 2 && !session.options.has('L') {
        in_memory(numbers, config, table, metaslab, ctx)?;
    }
    let has_histograms = session.pool.features.is_active(Feature::SpacemapHistogram.info().guid);
    if let Some(head) = metaslab.head.as_ref().filter(|_| level > 1 && has_histograms) {
        let percent = space.fragmentation(config.id, metaslab.id).unwrap_or(u64::MAX);
        writeln!(ctx.out, "\tOn-disk histogram:\t\tfragmentation {percent}")?;
        histogram(&mut ctx.out, &head.histogram, u64::from(table.shift))?;
    }
    if space_map != 0 {
        match session.pool.mos.object(space_map) {
            Ok(object) => {
                let decoder = SpaceMapDecoder::new(table.shift, metaslab.start, metaslab.size);
                map(session, &object, decoder, ctx)?;
            }
            Err(e) => ctx.warn(format!("space map {space_map}: {e}")),
        }
    }
    if space.has_logs {
        writeln!(ctx.out, "\tFlush data:\n\tunflushed txg={}\n", metaslab.unflushed_txg)?;
    }
    Ok(())
}

/// Free segments of the metaslab's own map: as in zdb, without the changes in the logs.
#[doc(alias = "dump_metaslab_stats")]
fn in_memory(
    numbers: Numbers,
    config: &VdevConfig,
    table: &Metaslabs,
    metaslab: &MetaslabRecord,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let free = match table.free(metaslab, None) {
        Ok(free) => free,
        Err(e) => {
            ctx.warn(format!("metaslab {} of vdev {}: {e}", metaslab.id, config.id));
            return Ok(());
        }
    };
    let largest = free.iter().map(|(start, end)| end - start).max().unwrap_or(0);
    let percent = (u128::from(free.covered()) * 100).checked_div(u128::from(metaslab.size)).unwrap_or(0);
    let listed = free.iter().filter(|(start, end)| end - start >= MIN_LISTED).count();
    let largest = numbers.count(largest);
    writeln!(
        ctx.out,
        "\t {:>25} {listed:>10}   {:>7}  {largest:>6}   {:>4} {percent:>4}%",
        "segments", "maxsize", "freepct"
    )?;
    writeln!(ctx.out, "\tIn-memory histogram:")?;
    let mut counts = [0_u64; 64];
    for (start, end) in free.iter() {
        let bucket = usize::try_from((end - start).ilog2()).unwrap_or(0);
        counts.iter_mut().skip(bucket).take(1).for_each(|n| *n += 1);
    }
    Ok(histogram(&mut ctx.out, &counts, 0)?)
}

/// A space map: its header, and with `-mmmm` (or `-dddddd`) every entry.
#[doc(alias = "dump_spacemap")]
pub fn map(
    session: &Session,
    object: &Object,
    decoder: SpaceMapDecoder,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    writeln!(ctx.out, "space map object {}:", object.number)?;
    let head = match head(object) {
        Ok(head) => head,
        Err(e) => {
            ctx.warn(e);
            return Ok(());
        }
    };
    writeln!(ctx.out, "  smp_length = 0x{:x}\n  smp_alloc = 0x{:x}", head.length, head.alloc)?;
    if session.level('d') < 6 && session.level('m') < 4 {
        return Ok(());
    }
    let (mut index, mut alloc) = (0_u64, 0_i64);
    let mut written = Ok(());
    let read = each(object, decoder, &mut |item| {
        let line = item_text(&item, &mut alloc);
        if written.is_ok() {
            written = writeln!(ctx.out, "\t    [{index:>6}] {line}");
        }
        index += 1;
    });
    written?;
    match read {
        Err(e) => ctx.warn(e),
        Ok(()) if alloc != head.alloc => {
            let summary = head.alloc;
            writeln!(
                ctx.out,
                "space_map_object alloc ({alloc}) INCONSISTENT with space map summary ({summary})"
            )?;
        }
        Ok(()) => {}
    }
    Ok(())
}

fn item_text(item: &SpaceMapItem, alloc: &mut i64) -> String {
    match item {
        SpaceMapItem::Debug(debug) if debug.txg == 0 => "PADDING".to_owned(),
        SpaceMapItem::Debug(debug) => {
            let action = if debug.action == 0 { "ALLOC" } else { "FREE" };
            format!("{action}: txg {} pass {}", debug.txg, debug.sync_pass)
        }
        SpaceMapItem::Entry(entry, words) => {
            let run = i64::try_from(entry.run).unwrap_or(i64::MAX);
            *alloc = alloc.saturating_add(if entry.free { -run } else { run });
            let kind = if entry.free { 'F' } else { 'A' };
            let end = entry.offset.saturating_add(entry.run);
            let vdev = entry.vdev.map_or(NO_VDEV, u64::from);
            let (start, run) = (entry.offset, entry.run);
            format!(
                "   {kind}  range: {start:010x}-{end:010x}  size: {run:06x} vdev: {vdev:06} words: {words}"
            )
        }
    }
}

/// The space that the pool's checkpoint holds: every entry, with `-mmmm`.
pub fn run_checkpoint(session: &Session, ctx: &mut Ctx) -> Outcome {
    let pool = &session.pool;
    for config in &pool.tree().config.children {
        let Some(zap) = pool.dsl.zap(config.top_zap)? else { continue };
        let Some(number) = zap.u64(vdev_top::POOL_CHECKPOINT_SM)?.filter(|&n| n != 0) else { continue };
        let decoder = SpaceMapDecoder::new(config.ashift, 0, config.asize);
        map(session, &pool.mos.object(number)?, decoder, ctx)?;
    }
    Ok(Exit::OK)
}

/// The logs, and the number of their entries that are still unflushed.
#[doc(alias = "dump_log_spacemaps")]
pub fn run_logs(session: &Session, space: &Space, ctx: &mut Ctx) -> Outcome {
    if !space.has_logs {
        return Ok(Exit::OK);
    }
    writeln!(ctx.out, "\nLog Space Maps in Pool:")?;
    for log in &space.logs {
        writeln!(ctx.out, "Log Spacemap object {} txg {}", log.object.number, log.txg)?;
        map(session, &log.object, SpaceMapDecoder::for_log(), ctx)?;
    }
    writeln!(ctx.out, "\nLog Space Map Obsolete Entry Statistics:")?;
    let (mut valid, mut total) = (0_u64, 0_u64);
    for (txg, counts) in &space.unflushed.counts {
        writeln!(ctx.out, "{:<8} valid entries out of {:<8} - txg {txg}", counts.valid, counts.total)?;
        valid += counts.valid;
        total += counts.total;
    }
    writeln!(ctx.out, "{valid:<8} valid entries out of {total:<8} - total\n")?;
    Ok(Exit::OK)
}
