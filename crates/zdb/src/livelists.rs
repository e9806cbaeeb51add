//! `-y`: checks the livelists of clones under deletion, and the space maps, against themselves and each other.
//!
//! A livelist records the blocks that a clone allocated and freed for itself; when the clone is deleted, the
//! remaining allocations are freed from it. So no part of a livelist may free a block that it did not allocate, and
//! all remaining allocations must be allocated in the space maps, too.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::verb::Exit;
use clikit::verb::{Failure, Outcome};
use engine::dmu::Object;
use engine::metaslab;
use engine::metaslab::table::{MetaslabRecord, Metaslabs};
use engine::scan::lists::bpobj;
use engine::spa::Pool;
use ondisk::bpobj::is_free_entry;
use ondisk::names::mos;
use ondisk::space_map::SpaceMapDecoder;
use stdx::RangeSet;

use super::metaslabs::Space;
use super::target::Session;

/// Locations that livelists record as allocated: vdev, offset, bytes.
type Places = BTreeSet<(u32, u64, u64)>;

/// Maximum pointers of one part of a livelist, as elsewhere.
const MAX_PART: usize = 1 << 20;

/// Runs all checks; problems are printed and do not fail the run, as in OpenZFS.
#[doc(alias = "livelist_metaslab_validate")]
pub fn run(session: &Session, ctx: &mut Ctx) -> Outcome {
    let pool = Arc::clone(&session.pool);
    writeln!(ctx.out, "Verifying deleted livelist entries")?;
    let mut live = Places::new();
    for part in parts(&pool)? {
        verify_part(&pool, part, &mut live, ctx)?;
    }
    writeln!(ctx.out, "Verifying metaslab entries")?;
    let space = Space::load(session, ctx);
    for (config, table) in &space.tops {
        let count = table.all.len();
        for (id, metaslab) in table.all.iter().enumerate() {
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            if ctx.err_is_terminal {
                write!(ctx.err, "\rverifying concrete vdev {}, metaslab {id} of {count} ...", config.id)?;
            }
            let Ok(metaslab) = metaslab else { continue };
            let allocated = verify_map(&pool, config.id, table, metaslab, ctx)?;
            let change = space.unflushed(config.id, metaslab.id);
            check_live(config.id, metaslab, allocated, change, &mut live, ctx)?;
        }
    }
    if ctx.err_is_terminal {
        writeln!(ctx.err)?;
    }
    for (vdev, offset, size) in live {
        writeln!(ctx.out, "ERROR: livelist DVA {vdev}:{offset:x}:{size:x} lies in no metaslab")?;
    }
    Ok(Exit::OK)
}

/// The parts of all livelists of deleted clones.
fn parts(pool: &Pool) -> Result<Vec<u64>, Failure> {
    let Some(number) = pool.directory()?.u64(mos::DELETED_CLONES)?.filter(|&n| n != 0) else {
        return Ok(Vec::new());
    };
    let mut parts = Vec::new();
    for list in pool.dsl.zap(number)?.into_iter().flat_map(|zap| zap.entries()) {
        let list = pool.dsl.zap(list?.value.first().unwrap_or(0))?;
        for part in list.into_iter().flat_map(|zap| zap.entries()) {
            parts.extend(part?.value.first());
        }
    }
    Ok(parts)
}

/// Pairs each free of a part with its allocation; the remaining allocations are live.
#[doc(alias = "sublivelist_verify_func")]
fn verify_part(pool: &Pool, part: u64, live: &mut Places, ctx: &mut Ctx) -> Result<(), Failure> {
    let (mut allocated, mut freed) = (Places::new(), Vec::new());
    let mut doubled = Vec::new();
    let mut tell = |bp: &ondisk::Blkptr, _| {
        let places = (0..3).filter_map(|n| bp.dva(n)).filter(|dva| dva.asize > 0);
        for place in places.map(|dva| (dva.vdev, dva.offset, dva.asize)) {
            match is_free_entry(bp) {
                true => freed.push(place),
                false if !allocated.insert(place) => doubled.push(place),
                false => {}
            }
        }
        if allocated.len() + freed.len() > MAX_PART { Err(engine::scan::Stop) } else { Ok(()) }
    };
    let _ = bpobj(pool, part, &mut tell)?;
    for (vdev, offset, size) in doubled {
        writeln!(ctx.out, "\tERROR: Duplicate ALLOC: {vdev}:{offset:x}:{size:x}")?;
    }
    let unmatched = freed.iter().filter(|place| !allocated.remove(place)).count();
    if unmatched > 0 {
        writeln!(ctx.out, "\tERROR: {unmatched} unmatched FREE(s) in livelist part {part}")?;
    }
    live.append(&mut allocated);
    Ok(())
}

/// Replays a metaslab's own map; no range may be allocated or freed twice.
#[doc(alias = "metaslab_spacemap_validation_cb")]
fn verify_map(
    pool: &Pool,
    vdev: u64,
    table: &Metaslabs,
    metaslab: &MetaslabRecord,
    ctx: &mut Ctx,
) -> Result<RangeSet, Failure> {
    let mut allocated = RangeSet::new();
    let mut wrong = Vec::new();
    let object: Option<Object> =
        (metaslab.space_map != 0).then(|| pool.mos.object(metaslab.space_map)).transpose()?;
    let decoder = SpaceMapDecoder::new(table.shift, metaslab.start, metaslab.size);
    let mut replay = |entry: ondisk::space_map::SpaceMapEntry| {
        let (start, end) = (entry.offset, entry.offset.saturating_add(entry.run));
        let word = match entry.free {
            true if !allocated.contains(start, end) => Some("FREE"),
            false if allocated.overlaps(start, end) => Some("ALLOC"),
            _ => None,
        };
        if let Some(word) = word {
            wrong.push((word, start, entry.run));
        }
        if entry.free {
            allocated.remove(start, end)
        } else {
            allocated.insert(start, end)
        };
    };
    if let Some(object) = object {
        metaslab::replay(&object, decoder, &mut replay)?;
    }
    for (word, offset, size) in wrong {
        writeln!(
            ctx.out,
            "ERROR: DOUBLE {word}: vdev {vdev} metaslab {} [{offset:x}:{size:x}]",
            metaslab.id
        )?;
    }
    Ok(allocated)
}

/// Checks that the livelists' allocations in this metaslab are allocated, and removes them from the set.
fn check_live(
    vdev: u64,
    metaslab: &MetaslabRecord,
    mut allocated: RangeSet,
    change: Option<&metaslab::log::MetaslabChange>,
    live: &mut Places,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    if let Some(change) = change {
        for (start, end) in change.freed.iter() {
            allocated.remove(start, end);
        }
        for (start, end) in change.allocated.iter() {
            allocated.insert(start, end);
        }
    }
    let Ok(vdev) = u32::try_from(vdev) else { return Ok(()) };
    let (from, to) = ((vdev, metaslab.start, 0), (vdev, metaslab.start.saturating_add(metaslab.size), 0));
    let here: Vec<_> = live.range(from..to).copied().collect();
    for (vdev, offset, size) in here {
        live.remove(&(vdev, offset, size));
        if !allocated.contains(offset, offset.saturating_add(size)) {
            writeln!(ctx.out, "ERROR: FREED BY LIVELIST AND SPACE MAP: {vdev}:{offset:x}:{size:x}")?;
        }
    }
    Ok(())
}
