//! The header of a cache device, and the log blocks that list its contents.

use std::collections::HashSet;
use std::io::Write;

use blkdev::{BlockDevice, FileDevice};
use clikit::ctx::Ctx;
use clikit::verb::Failure;
use ondisk::l2arc::{L2arcDevHdr, L2arcLogBlkptr, L2arcLogEnt, L2arcProp, decode_log_block};
use ondisk::label::LABEL_START_SIZE;

use super::options::Options;

/// Bytes read for the header: the largest sector.
const HEADER_SIZE: usize = 64 << 10;
/// Largest log block: head and entries.
const MAX_BLOCK: u64 = 1 << 20;
/// Maximum number of followed log blocks.
const MAX_BLOCKS: usize = 1 << 20;

/// Prints header and log blocks; returns false if their sums contradict the header.
pub fn run(options: &Options, device: &FileDevice, ctx: &mut Ctx) -> Result<bool, Failure> {
    let bytes = blkdev::read_at(device, LABEL_START_SIZE, HEADER_SIZE).ok();
    let header = bytes.as_deref().and_then(|b| L2arcDevHdr::from_either(b).ok());
    let Some(header) = header else {
        if !options.has('q') {
            writeln!(ctx.out, "L2ARC device header not found\n")?;
        }
        return Ok(true);
    };
    if !options.has('q') {
        print_header(&header, ctx)?;
    }
    log_blocks(options, device, &header, ctx)
}

fn title(ctx: &mut Ctx, text: &str) -> Result<(), Failure> {
    let rule = "-".repeat(36);
    Ok(writeln!(ctx.out, "{rule}\n{text}\n{rule}")?)
}

fn print_header(h: &L2arcDevHdr, ctx: &mut Ctx) -> Result<(), Failure> {
    title(ctx, "L2ARC device header")?;
    let [first, second] = &h.start_lbps;
    let lines = [
        ("magic", h.magic),
        ("version", h.version),
        ("pool_guid", h.spa_guid),
        ("flags", h.flags),
        ("start_lbps[0]", first.daddr),
        ("start_lbps[1]", second.daddr),
        ("log_blk_ent", h.log_entries),
        ("start", h.start),
        ("end", h.end),
        ("evict", h.evict),
        ("lb_asize_refcount", h.lb_asize),
        ("lb_count_refcount", h.lb_count),
        ("trim_action_time", h.trim_action_time),
        ("trim_state", h.trim_state),
    ];
    for (name, value) in lines {
        writeln!(ctx.out, "    {name}: {value}")?;
    }
    Ok(writeln!(ctx.out)?)
}

/// Follows both chains of log blocks, newest first.
fn log_blocks(
    options: &Options,
    device: &FileDevice,
    header: &L2arcDevHdr,
    ctx: &mut Ctx,
) -> Result<bool, Failure> {
    let quiet = options.has('q');
    if !quiet {
        title(ctx, "L2ARC device log blocks")?;
    }
    let (mut count, mut asize, mut failed) = (0_u64, 0_u64, 0_u64);
    let [mut at, mut next] = header.start_lbps;
    let mut seen = HashSet::new();
    while at.daddr != 0 && seen.insert(at.daddr) && seen.len() < MAX_BLOCKS {
        let size = L2arcProp(at.prop).psize();
        match block(options, device, &at, count + 1, ctx)? {
            Some(before) => {
                count += 1;
                asize = asize.saturating_add(size);
                at = std::mem::replace(&mut next, before);
            }
            None => {
                failed += 1;
                break;
            }
        }
    }
    if quiet {
        return Ok(failed == 0);
    }
    if count == 0 && failed == 0 {
        writeln!(ctx.out, "No log blocks to read\n")?;
        return Ok(true);
    }
    let sums = |name: &str, n: u64| format!("    {name} {n}");
    writeln!(ctx.out, "log_blk_count:\t {count} with valid cksum")?;
    writeln!(ctx.out, "\t\t {failed} with invalid cksum")?;
    writeln!(ctx.out, "log_blk_asize:\t {asize}\n")?;
    let balanced = count == header.lb_count;
    if !balanced {
        writeln!(ctx.out, "Mismatch between header and log blocks:")?;
        writeln!(ctx.out, "{}", sums("in the header:", header.lb_count))?;
        writeln!(ctx.out, "{}", sums("found:", count))?;
    }
    Ok(failed == 0 && balanced)
}

/// Prints one log block, the `number`th of the chain; returns the location of the previous one, or `None` if it
/// cannot be read.
fn block(
    options: &Options,
    device: &FileDevice,
    at: &L2arcLogBlkptr,
    number: u64,
    ctx: &mut Ctx,
) -> Result<Option<L2arcLogBlkptr>, Failure> {
    let prop = L2arcProp(at.prop);
    let (lsize, psize) = (prop.lsize(), prop.psize());
    let end = at.daddr.checked_add(psize).filter(|&end| end <= device.geometry().size);
    if end.is_none() || lsize > MAX_BLOCK {
        return Ok(None);
    }
    let stored = blkdev::read_at(device, at.daddr, usize::try_from(psize).unwrap_or(0));
    let Ok(stored) = stored else { return Ok(None) };
    if checksum::digest(checksum::Algorithm::Fletcher4, &stored, None, false) != at.cksum {
        return Ok(None);
    }
    let mut plain = vec![0; usize::try_from(lsize).unwrap_or(0)];
    let unpacked = match prop.compress().map(|c| c.name()) {
        Some("lz4") => compress::decompress(compress::Algorithm::Lz4, &stored, &mut plain).is_ok(),
        _ => {
            plain.iter_mut().zip(&stored[..]).for_each(|(to, from)| *to = *from);
            true
        }
    };
    let Some((head, entries)) = decode_log_block(&plain).ok().filter(|_| unpacked) else { return Ok(None) };
    if options.level('l') > 1 && !options.has('q') {
        writeln!(ctx.out, "lb[{number:>4}]\tmagic: {}", head.magic)?;
        writeln!(ctx.out, "|\t\tdaddr: {}", at.daddr)?;
        writeln!(ctx.out, "|\t\tpayload_asize: {}", at.payload_asize)?;
        writeln!(ctx.out, "|\t\tpayload_start: {}", at.payload_start)?;
        writeln!(ctx.out, "|\t\tlsize: {lsize}\n|\t\tasize: {psize}")?;
        writeln!(
            ctx.out,
            "|\t\tcompralgo: {}\n|\t\tcksumalgo: {}",
            at.prop >> 32 & 0x7f,
            prop.checksum_raw()
        )?;
        writeln!(ctx.out, "|\n")?;
    }
    if options.level('l') > 2 && !options.has('q') {
        for (i, entry) in (1..).zip(&entries).filter(|(_, e)| e.daddr != 0) {
            print_entry(number, i, entry, ctx)?;
        }
        writeln!(ctx.out)?;
    }
    Ok(Some(head.prev_lbp))
}

/// Prints the `i`th buffer of the `number`th log block.
fn print_entry(number: u64, i: u64, entry: &L2arcLogEnt, ctx: &mut Ctx) -> Result<(), Failure> {
    let (prop, dva) = (L2arcProp(entry.prop), entry.dva());
    writeln!(
        ctx.out,
        "lb[{number:>4}]\tle[{i:>4}]\tDVA asize: {}, vdev: {}, offset: {}",
        dva.asize, dva.vdev, dva.offset
    )?;
    let lines = [
        ("birth", entry.birth),
        ("lsize", prop.lsize()),
        ("psize", prop.psize()),
        ("compr", prop.0 >> 32 & 0x7f),
        ("complevel", entry.complevel & 0xff),
        // On disk, 0 means no type.
        ("type", (prop.0 >> 48 & 0xff).saturating_sub(1)),
        ("protected", prop.0 >> 56 & 1),
        ("prefetch", u64::from(prop.prefetch())),
        ("address", entry.daddr),
        ("ARC state", prop.0 >> 57 & 0xf),
    ];
    for (name, value) in lines {
        writeln!(ctx.out, "|\t\t\t\t{name}: {value}")?;
    }
    Ok(writeln!(ctx.out, "|")?)
}
