//! Statistics of a ZAP: usage of its table, leaves and chunks.

use engine::dmu::Object;
use ondisk::zap::{BlockKind, FatHeader, Leaf, MicroZap};

use super::dump::{Done, Dump, out};

const STARS: &str = "****************************************";
/// Bars of a histogram; larger values count in the last.
const BARS: usize = 10;
/// Data bytes of a leaf chunk, and the size of the chunk.
const CHUNK_DATA: usize = 21;
const CHUNK: usize = 24;
/// Maximum leaves visited; a table of a hostile ZAP may name any number.
const MAX_LEAVES: u64 = 1 << 20;

type Histogram = [u64; BARS];

#[derive(Default)]
struct Stats {
    leaves_by_pointers: Histogram,
    leaves_by_entries: Histogram,
    leaves_by_fullness: Histogram,
    entries_by_chunks: Histogram,
    buckets_by_entries: Histogram,
}

/// Prints the statistics; nothing for an object that is not a ZAP.
pub fn print(dump: &mut Dump<'_>, object: &Object) -> Done {
    let Some(block) = dump.read(object.block(0)) else { return Ok(()) };
    match BlockKind::of(&block) {
        BlockKind::Micro => {
            let entries = MicroZap::from_bytes(&block).map_or(0, |z| z.entries().count());
            out!(dump, "\tmicrozap: {} bytes, {entries} entries\n", block.len());
            Ok(())
        }
        BlockKind::Header => match FatHeader::from_bytes(&block) {
            Ok(header) => fat(dump, object, &header, &block),
            Err(e) => {
                dump.problem(format_args!("object {}: {e}", object.number));
                Ok(())
            }
        },
        _ => {
            dump.problem(format_args!("object {} is not a ZAP", object.number));
            Ok(())
        }
    }
}

fn fat(dump: &mut Dump<'_>, object: &Object, header: &FatHeader, first: &[u8]) -> Done {
    let table = &header.ptrtbl;
    out!(dump, "\tFat ZAP stats:\n\t\tPointer table:\n");
    out!(dump, "\t\t\t{} elements\n", header.ptrtbl_len());
    out!(dump, "\t\t\tzt_blk: {}\n\t\t\tzt_numblks: {}\n", table.blk, table.numblks);
    out!(dump, "\t\t\tzt_shift: {}\n", table.shift);
    out!(dump, "\t\t\tzt_blks_copied: {}\n\t\t\tzt_nextblk: {}\n", table.blks_copied, table.nextblk);
    out!(dump, "\t\tZAP entries: {}\n", header.num_entries);
    out!(dump, "\t\tLeaf blocks: {}\n", header.num_leafs);
    out!(dump, "\t\tTotal blocks: {}\n", header.freeblk);
    let words = first.as_chunks::<8>().0;
    let word = |i: usize| words.get(i).map_or(0, |w| u64::from_le_bytes(*w));
    out!(dump, "\t\tzap_block_type: {:#x}\n\t\tzap_magic: {:#x}\n", word(0), word(1));
    out!(dump, "\t\tzap_salt: {:#x}\n", header.salt);
    let stats = gather(dump, object, header, first);
    let parts = [
        ("Leafs with 2^n pointers", &stats.leaves_by_pointers),
        ("Blocks with n*5 entries", &stats.leaves_by_entries),
        ("Blocks n/10 full", &stats.leaves_by_fullness),
        ("Entries with n chunks", &stats.entries_by_chunks),
        ("Buckets with n entries", &stats.buckets_by_entries),
    ];
    for (title, histogram) in parts {
        out!(dump, "\t\t{title}:\n");
        bars(dump, histogram)?;
    }
    Ok(())
}

/// Visits every leaf of the pointer table, in its order.
fn gather(dump: &mut Dump<'_>, object: &Object, header: &FatHeader, first: &[u8]) -> Stats {
    let mut stats = Stats::default();
    let limit = object.dnode.maxblkid.min(MAX_LEAVES);
    let (mut last, mut seen) = (0, 0);
    let mut table = None;
    let mut blocks = engine::dmu::Blocks::new(object);
    for index in 0..header.ptrtbl_len() {
        let Some((blk, at)) = header.ptr_location(index) else { break };
        let pointer = if blk == 0 {
            FatHeader::ptr_at(first, at)
        } else {
            if blk > object.dnode.maxblkid {
                break;
            }
            if table.as_ref().is_none_or(|(at, _)| *at != blk) {
                // A table has no holes, regardless of the length that its header claims.
                if !blocks.next_from(blk).is_ok_and(|next| next == Some(blk)) {
                    break;
                }
                let Some(block) = dump.read(object.block(blk)) else { break };
                table = Some((blk, block));
            }
            table.as_ref().and_then(|(_, block)| FatHeader::ptr_at(block, at))
        };
        let Some(leaf) = pointer.filter(|&p| p != last && p != 0) else { continue };
        last = leaf;
        seen += 1;
        if seen > limit {
            break;
        }
        stats.leaf(object, header, leaf);
    }
    stats
}

impl Stats {
    fn leaf(&mut self, object: &Object, header: &FatHeader, blkid: u64) {
        if blkid > object.dnode.maxblkid {
            return;
        }
        let Ok(block) = object.block(blkid) else { return };
        let Ok(leaf) = Leaf::from_bytes(&block) else { return };
        let own = leaf.header();
        let prefix = usize::from(own.prefix_len);
        let pointers = usize::try_from(header.ptrtbl.shift).unwrap_or(0).saturating_sub(prefix);
        count(&mut self.leaves_by_pointers, pointers);
        count(&mut self.leaves_by_entries, usize::from(own.nentries) / 5);
        let size = block.len();
        let used = size.saturating_sub(usize::from(own.nfree) * (CHUNK_DATA + 1));
        count(&mut self.leaves_by_fullness, used.saturating_mul(10) / size.max(1));
        self.entries(&leaf, size, prefix);
    }

    fn entries(&mut self, leaf: &Leaf<'_>, size: usize, prefix: usize) {
        let buckets = (size / 32).max(1);
        let bits = buckets.trailing_zeros();
        let mut fill = vec![0_usize; buckets];
        // A leaf cannot hold more entries than chunks.
        for entry in leaf.entries().flatten().take(size / CHUNK) {
            let value = usize::from(entry.value_numints) * usize::from(entry.value_intlen);
            let chunks =
                1 + usize::from(entry.name_numints).div_ceil(CHUNK_DATA) + value.div_ceil(CHUNK_DATA);
            count(&mut self.entries_by_chunks, chunks);
            let below = entry.hash.checked_shl(u32::try_from(prefix).unwrap_or(64)).unwrap_or(0);
            let bucket = below.checked_shr(64 - bits).unwrap_or(0);
            if let Some(slot) = usize::try_from(bucket).ok().and_then(|b| fill.get_mut(b)) {
                *slot += 1;
            }
        }
        fill.iter().for_each(|&n| count(&mut self.buckets_by_entries, n));
    }
}

fn count(histogram: &mut Histogram, n: usize) {
    if let Some(slot) = histogram.get_mut(n.min(BARS - 1)) {
        *slot += 1;
    }
}

/// Bars from the first to the last non-empty one, the longest limited to the string of stars.
fn bars(dump: &mut Dump<'_>, histogram: &Histogram) -> Done {
    let max = histogram.iter().copied().max().unwrap_or(0).max(STARS.len() as u64);
    let Some(first) = histogram.iter().position(|&n| n > 0) else { return Ok(()) };
    let last = histogram.iter().rposition(|&n| n > 0).unwrap_or(first);
    for (i, n) in histogram.iter().enumerate().take(last + 1).skip(first) {
        let skip = (max - n) * STARS.len() as u64 / max;
        let stars = usize::try_from(skip).ok().and_then(|s| STARS.get(s..)).unwrap_or_default();
        out!(dump, "\t\t\t{i:>3}: {n:6} {stars}\n");
    }
    Ok(())
}
