//! An object's blocks: the tree of pointers, and the stored segments.

use engine::dmu::Object;
use ondisk::{Blkptr, CompressType, Dnode, ObjectType, dnode};

use super::dump::{Done, Dump, out};
use super::view::View;

/// Prints every pointer with a birth, parents before children.
pub fn indirect(dump: &mut Dump<'_>, view: &View, object: &Object) -> Done {
    out!(dump, "Indirect blocks:\n");
    let _ = view;
    let top = object.dnode.nlevels.saturating_sub(1);
    let pointers: Vec<Blkptr> = object.dnode.blkptrs().to_vec();
    for (blkid, bp) in (0_u64..).zip(&pointers) {
        visit(dump, object, bp, top, blkid)?;
    }
    out!(dump, "\n");
    Ok(())
}

/// One pointer and everything below it; levels only decrease, so the depth is bounded by the dnode's.
fn visit(dump: &mut Dump<'_>, object: &Object, bp: &Blkptr, level: u8, blkid: u64) -> Done {
    if bp.accounting_birth() == 0 {
        return Ok(());
    }
    let top = object.dnode.nlevels.saturating_sub(1);
    let (before, after) = (usize::from(top.saturating_sub(level)), usize::from(level) + 1);
    out!(dump, "{:16x} ", offset(&object.dnode, level, blkid));
    out!(dump, "{:before$}L{level:x}{:after$}", "", "");
    let text = dump.short(bp);
    let zstd = zstd_header(dump, bp);
    out!(dump, "{text}{zstd}\n");
    if level == 0 || bp.is_hole() {
        return Ok(());
    }
    dump.poll()?;
    let Some(block) = dump.read(object.indirect(bp, level, blkid)) else { return Ok(()) };
    let shift = object.dnode.blocks_per_indirect_shift();
    for (slot, raw) in (0_u64..).zip(block.chunks_exact(ondisk::blkptr::BLKPTR_SIZE)) {
        let Some(child) = Blkptr::from_bytes(raw) else { break };
        let below = blkid.checked_shl(shift).unwrap_or(u64::MAX).saturating_add(slot);
        visit(dump, object, &child, level - 1, below)?;
    }
    Ok(())
}

/// With `-Z` and `-dddddd`, the header before a zstd block's frame.
#[doc(alias = "snprintf_zstd_header")]
fn zstd_header(dump: &Dump<'_>, bp: &Blkptr) -> String {
    let wanted = dump.session.options.has('Z') && !dump.session.options.all && dump.d > 5;
    if !wanted || bp.is_hole() || bp.compress() != Some(CompressType::Zstd) {
        return String::new();
    }
    let (bytes, kind) = match bp.dva(0) {
        _ if bp.is_embedded() => (bp.embedded_payload().to_vec(), "EMBEDDED"),
        Some(dva) if !bp.is_encrypted() => {
            let read = dump.session.pool.zio.read_physical(u64::from(dva.vdev), dva.offset, bp.psize());
            let Ok(block) = read else { return String::new() };
            (block.to_vec(), "NORMAL")
        }
        _ => return String::new(),
    };
    compress::zstd::Header::parse(&bytes).map_or_else(String::new, |(header, _)| {
        format!(" ZSTD:size={}:version={}:level={}:{kind}", header.len, header.version, header.level)
    })
}

/// Byte offset of a pointer's range.
fn offset(dnode: &Dnode, level: u8, blkid: u64) -> u64 {
    let shift = u32::from(level).saturating_mul(dnode.blocks_per_indirect_shift());
    blkid.checked_shl(shift).unwrap_or(u64::MAX).wrapping_mul(dnode.datablksz())
}

/// Prints the stored segments: for dnodes those in use, for other objects all except holes.
pub fn segments(dump: &mut Dump<'_>, object: &Object) -> Done {
    let mut segments = Segments { open: None };
    if object.dnode.object_type == ObjectType::DNODE {
        dnodes(dump, object, &mut segments)?;
    } else {
        blocks(dump, object, &mut segments)?;
    }
    segments.end(dump)
}

/// Merges neighbours before printing.
struct Segments {
    open: Option<(u64, u64)>,
}

impl Segments {
    fn add(&mut self, dump: &mut Dump<'_>, start: u64, end: u64) -> Done {
        match &mut self.open {
            Some((_, last)) if *last == start => *last = end,
            _ => {
                self.end(dump)?;
                self.open = Some((start, end));
            }
        }
        Ok(())
    }

    fn end(&mut self, dump: &mut Dump<'_>) -> Done {
        if let Some((start, end)) = self.open.take() {
            let size = dump.nice(end - start);
            out!(dump, "\t\tsegment [{start:016x}, {end:016x}) size {size:>5}\n");
        }
        Ok(())
    }
}

fn blocks(dump: &mut Dump<'_>, object: &Object, segments: &mut Segments) -> Done {
    let size = object.dnode.datablksz();
    stored(dump, object, |dump, blkid| {
        let start = blkid.saturating_mul(size);
        segments.add(dump, start, start.saturating_add(size))
    })
}

/// Every stored block; parts with unreadable indirect blocks are skipped.
fn stored(dump: &mut Dump<'_>, object: &Object, mut each: impl FnMut(&mut Dump<'_>, u64) -> Done) -> Done {
    let mut next = Some(0);
    while let Some(from) = next {
        match object.next_block(from) {
            Ok(Some(blkid)) => {
                each(dump, blkid)?;
                next = blkid.checked_add(1);
            }
            Ok(None) => next = None,
            // Reported when the tree was printed.
            Err((past, _)) => next = past,
        }
        dump.poll()?;
    }
    Ok(())
}

/// Dnodes in use. Like zdb, the search for the end of a run treats any block that counts fewer objects than slots
/// as one with free slots; if large dnodes fill it, the search, and with it the list, ends there.
fn dnodes(dump: &mut Dump<'_>, object: &Object, segments: &mut Segments) -> Done {
    let size = object.dnode.datablksz();
    let mut runs = Runs { open: None, next: 0, done: false };
    stored(dump, object, |dump, blkid| {
        if runs.done {
            return Ok(());
        }
        let start = blkid.saturating_mul(size);
        if runs.open.is_some() && runs.next != start {
            runs.close(dump, segments)?;
        }
        let Ok(block) = object.block(blkid) else { return Ok(()) };
        let continued = runs.open.is_some();
        let mut free = false;
        for (slot, bytes) in dnode::slots(&block) {
            let at = start.saturating_add(u64::try_from(slot).unwrap_or(0) << dnode::DNODE_SHIFT);
            let len = u64::try_from(bytes.len()).unwrap_or(0);
            if bytes.first() == Some(&ObjectType::NONE.raw()) {
                free = true;
                runs.close(dump, segments)?;
            } else {
                runs.open.get_or_insert(at);
                runs.next = at.saturating_add(len);
            }
        }
        let fill = object.blkptr(0, blkid).ok().flatten().map_or(0, |bp| bp.fill());
        if continued && !free && fill < size >> dnode::DNODE_SHIFT {
            runs.close(dump, segments)?;
            runs.done = true;
        }
        Ok(())
    })?;
    runs.close(dump, segments)
}

/// A run of dnodes in use.
struct Runs {
    open: Option<u64>,
    next: u64,
    done: bool,
}

impl Runs {
    fn close(&mut self, dump: &mut Dump<'_>, segments: &mut Segments) -> Done {
        match self.open.take() {
            Some(start) => segments.add(dump, start, self.next),
            None => Ok(()),
        }
    }
}
