//! Lists of block pointers: as objects, and as pending frees.

use std::sync::Arc;

use engine::dmu::Object;
use engine::zap::Zap;
use engine::{Error, Result};
use ondisk::Blkptr;
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::bpobj::{Bpobj, is_free_entry};
use ondisk::dsl::{Bptree, BptreeEntry};
use ondisk::names::mos;

use super::dump::{Done, Dump, out};

/// Pointers read at a time.
const BATCH: u64 = 1024;
/// Lists within lists; OpenZFS never nests more than a few.
const MAX_DEPTH: usize = 32;
/// Maximum lists visited in one dump: a list that names itself would never end.
const MAX_LISTS: u64 = 1 << 20;

/// The bonus buffer of a list, and its pointers.
pub fn header(dump: &mut Dump<'_>, object: &Object) -> Done {
    let Some(list) = dump.read(decode(object)) else { return Ok(()) };
    let phys = list.phys;
    let (bytes, comp, uncomp) = (dump.nice(phys.bytes), dump.nice(phys.comp), dump.nice(phys.uncomp));
    out!(dump, "\t\tnum_blkptrs = {}\n", phys.num_blkptrs);
    out!(dump, "\t\tbytes = {bytes}\n");
    // zdb tests the space for the bonus buffer, not its length: all generations look alike.
    out!(dump, "\t\tcomp = {comp}\n\t\tuncomp = {uncomp}\n");
    out!(dump, "\t\tsubobjs = {}\n\t\tnum_subobjs = {}\n", phys.subobjs, phys.num_subobjs);
    out!(dump, "\t\tnum_freed = {}\n", phys.num_freed);
    if dump.d < 5 {
        return Ok(());
    }
    let count = bounded(object, phys.num_blkptrs);
    let mut at = 0;
    while at < count {
        dump.poll()?;
        let many = BATCH.min(count - at);
        let Some(pointers) = dump.read(batch(object, at, many)) else { return Ok(()) };
        for bp in &pointers {
            pointer(dump, bp)?;
        }
        at += many;
    }
    Ok(())
}

/// An entry: a block, and in livelists whether it was freed.
fn pointer(dump: &mut Dump<'_>, bp: &Blkptr) -> Done {
    let mut text = dump.short(bp);
    if is_free_entry(bp) && !bp.is_embedded() {
        text = text.replace(" cksum=", " FREE cksum=");
    }
    out!(dump, "\t{text}\n");
    Ok(())
}

fn decode(object: &Object) -> Result<Bpobj> {
    Bpobj::from_bonus(object.dnode.bonus())
        .map_err(|e| Error::corrupt(format!("object {}: {e}", object.number)))
}

/// The number of pointers, limited to the object's capacity.
fn bounded(object: &Object, count: u64) -> u64 {
    count.min(object.stored_prefix() / BLKPTR_SIZE as u64)
}

fn batch(object: &Object, first: u64, count: u64) -> Result<Vec<Blkptr>> {
    let size = BLKPTR_SIZE as u64;
    let bytes = object.read_vec(first * size, usize::try_from(count * size).unwrap_or(0))?;
    Ok(bytes.chunks_exact(BLKPTR_SIZE).filter_map(Blkptr::from_bytes).collect())
}

/// The object with the numbers of the sublists.
pub fn subobjs(dump: &mut Dump<'_>, object: &Object) -> Done {
    let words = object.max_offset().min(1 << 20) / 8;
    let bytes = object.read_vec(0, usize::try_from(words * 8).unwrap_or(0));
    let Some(bytes) = dump.read(bytes) else { return Ok(()) };
    let numbers: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
    let used = numbers.iter().rposition(|&n| n != 0).map_or(0, |i| i + 1);
    for number in numbers.iter().take(used) {
        out!(dump, "\t{number}\n");
    }
    Ok(())
}

/// A list with all its sublists; with `-ddddd` every pointer, the newest first.
pub fn full(dump: &mut Dump<'_>, number: u64, name: &str, indent: usize) -> Done {
    let mut left = MAX_LISTS;
    lines(dump, number, name, indent, &mut left)?;
    if dump.d >= 5 && indent == 0 {
        let mut left = MAX_LISTS;
        pointers(dump, number, 0, &mut left)?;
        out!(dump, "\n");
    }
    Ok(())
}

fn lines(dump: &mut Dump<'_>, number: u64, name: &str, indent: usize, left: &mut u64) -> Done {
    let mos = Arc::clone(&dump.session.pool.mos);
    let opened = mos.object(number).and_then(|object| Ok((decode(&object)?, object)));
    let (list, _) = match opened {
        Ok(opened) => opened,
        Err(e) if indent > 0 => {
            out!(dump, "ERROR while trying to open subobj id {number}: {e}\n");
            return Ok(());
        }
        Err(e) => {
            dump.problem(e);
            return Ok(());
        }
    };
    let (phys, width) = (list.phys, indent * 8);
    let bytes = dump.nice(phys.bytes);
    let freed = if list.have_freed { format!("{} freed, ", phys.num_freed) } else { String::new() };
    let count = phys.num_blkptrs;
    if !list.have_subobj || phys.subobjs == 0 {
        out!(dump, "    {name:>width$}: object {number}, {count} blkptrs, {freed}{bytes}\n");
        return Ok(());
    }
    let (comp, uncomp) = (dump.nice(phys.comp), dump.nice(phys.uncomp));
    out!(
        dump,
        "    {name:>width$}: object {number}, {count} local blkptrs, {freed}{} subobjs in object {}, {bytes} \
         ({comp}/{uncomp} comp)\n",
        phys.num_subobjs,
        phys.subobjs
    );
    for below in below(dump, &list) {
        if indent >= MAX_DEPTH || *left == 0 {
            dump.problem("a list of blocks contains itself");
            break;
        }
        *left -= 1;
        lines(dump, below, "subobj", indent + 1, left)?;
    }
    Ok(())
}

/// Numbers of the sublists.
fn below(dump: &mut Dump<'_>, list: &Bpobj) -> Vec<u64> {
    if !list.have_subobj || list.phys.subobjs == 0 {
        return Vec::new();
    }
    let read = dump.session.pool.mos.object(list.phys.subobjs).and_then(|object| {
        let count = list.phys.num_subobjs.min(object.max_offset() / 8).min(1 << 20);
        object.read_vec(0, usize::try_from(count * 8).unwrap_or(0))
    });
    let bytes = dump.read(read).unwrap_or_default();
    bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect()
}

/// A list's own pointers from the last to the first, then those of its sublists, the last first.
fn pointers(dump: &mut Dump<'_>, number: u64, depth: usize, left: &mut u64) -> Done {
    let mos = Arc::clone(&dump.session.pool.mos);
    let opened = mos.object(number).and_then(|object| Ok((decode(&object)?, object)));
    let Ok((list, object)) = opened else { return Ok(()) };
    let mut end = bounded(&object, list.phys.num_blkptrs);
    while end > 0 {
        dump.poll()?;
        let start = end.saturating_sub(BATCH);
        let Some(some) = dump.read(batch(&object, start, end - start)) else { return Ok(()) };
        for bp in some.iter().rev() {
            pointer(dump, bp)?;
        }
        end = start;
    }
    for number in below(dump, &list).into_iter().rev() {
        if depth >= MAX_DEPTH || *left == 0 {
            break;
        }
        *left -= 1;
        pointers(dump, number, depth + 1, left)?;
    }
    Ok(())
}

/// Trees of destroyed datasets that are still to be freed.
pub fn bptree(dump: &mut Dump<'_>, directory: &Zap) -> Done {
    let found = dump.read(directory.u64(mos::BPTREE_OBJ)).flatten().filter(|&n| n != 0);
    let Some(number) = found else { return Ok(()) };
    let Some(object) = dump.read(dump.session.pool.mos.object(number)) else { return Ok(()) };
    let head = Bptree::from_bytes(object.dnode.bonus());
    let Some(head) = dump.read(head.map_err(|e| Error::corrupt(e.to_string()))) else { return Ok(()) };
    if dump.d < 3 {
        return Ok(());
    }
    let (bytes, comp, uncomp) = (dump.nice(head.bytes), dump.nice(head.comp), dump.nice(head.uncomp));
    let count = head.end.saturating_sub(head.begin);
    out!(dump, "\n    Pool dataset frees: {count} datasets, {bytes} ({comp}/{uncomp} comp)\n");
    if dump.d < 5 {
        return Ok(());
    }
    out!(dump, "\n");
    let size = BptreeEntry::SIZE as u64;
    let room = object.stored_prefix() / size;
    for i in head.begin..head.end.min(room) {
        let read = object.read_vec(i * size, BptreeEntry::SIZE);
        let Some(bytes) = dump.read(read) else { break };
        let Ok(entry) = BptreeEntry::from_bytes(&bytes) else { break };
        let text = dump.short(&entry.bp);
        out!(dump, "\t{text}\n");
    }
    Ok(())
}
