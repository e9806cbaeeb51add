//! Writing a block in pieces when no single place is large enough.
//!
//! The pieces are blocks of their own (which may be gangs again); a header of three pointers, or of more where
//! `dynamic_gang_header` is active, names them and gets one copy more than the data, because its loss would lose
//! them all. A gang's DVA counts the header's space and
//! that of everything below it. Format source: `zio_gbh_phys_t`, zio.h, OpenZFS 2.3.
//!
//! A gang that the same txg wrote already is written over piece by piece ([`rewrite`]): passes over the MOS would find
//! no end if each allocated anew.
//!
//! Crash argument: as for any new block; the header is written after its pieces. Only blocks that nothing on
//! disk refers to are overwritten.
//!
//! Gangs within gangs make `dynamic_gang_header` active with the next txg, where the feature is enabled and larger
//! headers exist.
//!
//! Differs from OpenZFS: pieces have one size instead of the largest extents that are left; headers of the MOS have 512 bytes
//! even where `dynamic_gang_header` is active, because a program that has not read the features yet takes all for that size.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::gang::{GANG_SIZE, gang_nblkptrs};
use ondisk::{Blkptr, ChecksumType, CompressType, Dva, Eck, EckPhys, Endian, MIN_BLOCK_SIZE};
use parking_lot::Mutex;
use stdx::Buf;

use super::alloc::AllocRequest;
use super::gang::gang_members;
use super::write::{WriteDone, WriteProps, WriteRequest};
use super::{AllocUnits, Zio};
use crate::error::{Error, Result};
use crate::types::Bookmark;

/// A gang whose pieces are on their way.
struct Gang {
    bp: Blkptr,
    header: Vec<Dva>,
    /// Bytes of the header.
    header_size: usize,
    /// The header is where it was, and so are its pieces.
    in_place: bool,
    props: WriteProps,
    txg: u64,
}

struct Pieces {
    left: usize,
    pointers: Vec<Option<Result<Blkptr>>>,
    end: Option<(Gang, WriteDone)>,
}

/// Writes `data` (compressed and checksummed already, as `bp` records) as a gang.
pub(super) fn start(zio: &Arc<Zio>, bp: Blkptr, data: Buf, props: WriteProps, txg: u64, done: WriteDone) {
    let unit = u64::try_from(GANG_SIZE).unwrap_or(MIN_BLOCK_SIZE);
    let copies = match props.gang_copies {
        0 => (props.copies + 1).min(if bp.is_encrypted() { 2 } else { 3 }),
        given => given,
    };
    let request = AllocRequest {
        psize: unit,
        copies,
        class: props.class,
        txg,
        gang: true,
        evens_out: props.evens_out,
        fewer_will_do: true,
    };
    let header = match zio.allocator().and_then(|a| a.allocate(&request)) {
        Ok(header) => header,
        Err(e) => return done(Err(e)),
    };
    let header_size = new_header_size(zio, &header, &props);
    let parts = split(data.len(), header_size, zio.alloc_units());
    let parts = parts.into_iter().map(|part| (part, Blkptr::default())).collect();
    write_pieces(zio, Gang { bp, header, header_size, in_place: false, props, txg }, &data, parts, done);
}

/// Writes `data` over the gang `old` of the same size that the same txg wrote. Waits until headers were read.
#[doc(alias = "zio_rewrite_gang")]
pub(super) fn rewrite(
    zio: &Arc<Zio>,
    (bp, old): (Blkptr, &Blkptr),
    data: Buf,
    props: WriteProps,
    txg: u64,
    done: WriteDone,
) {
    let there = match gang_members(zio, old) {
        Ok(gang) => gang,
        Err(e) => return done(Err(e)),
    };
    let header_size = usize::try_from(there.header_size).unwrap_or(GANG_SIZE);
    let (mut parts, mut at) = (Vec::new(), 0);
    for member in there.members {
        let end = usize::try_from(member.psize()).map_or(usize::MAX, |size| size.saturating_add(at));
        parts.push((at..end, member));
        at = end;
    }
    if at != data.len() {
        return done(Err(Error::corrupt("the members of a gang are not as long as the block")));
    }
    let gang = Gang { bp, header: old.dvas().collect(), header_size, in_place: true, props, txg };
    write_pieces(zio, gang, &data, parts, done);
}

/// Writes pieces, each over the block that is there (or to new space for a hole), then the header.
fn write_pieces(
    zio: &Arc<Zio>,
    gang: Gang,
    data: &Buf,
    parts: Vec<(std::ops::Range<usize>, Blkptr)>,
    done: WriteDone,
) {
    let (props, txg) = (gang.props, gang.txg);
    // The header's DVAs account for the space below it copy by copy, so no piece may have more copies than
    // the header.
    let copies = u8::try_from(gang.header.len()).unwrap_or(u8::MAX);
    let props = WriteProps {
        copies: props.copies.min(copies),
        gang_copies: copies,
        compress: CompressType::Off,
        level: 0,
        embed: false,
        nopwrite: false,
        dedup: super::dedup::Dedup::Off,
        encrypt: false,
        ..props
    };
    let pointers = parts.iter().map(|_| None).collect();
    let pieces = Arc::new(Mutex::new(Pieces { left: parts.len(), pointers, end: Some((gang, done)) }));
    for (index, (part, old)) in parts.into_iter().enumerate() {
        let (ours, pieces) = (Arc::clone(zio), Arc::clone(&pieces));
        let request = WriteRequest {
            stored: None,
            data: data.slice(part),
            props,
            old,
            placed: None,
            keeps_birth: false,
            txg,
            at: Bookmark::default(),
            may_wait: true,
        };
        let done = move |result: Result<Blkptr>| {
            if let Ok(bp) = &result {
                let_go(&ours, &old, bp, txg);
            }
            piece_done(&ours, &pieces, index, result);
        };
        zio.write(request, Box::new(done));
    }
}

/// A piece that could not be written where it was has another place now.
fn let_go(zio: &Zio, old: &Blkptr, new: &Blkptr, txg: u64) {
    if let Ok(allocator) = zio.allocator()
        && !old.is_hole()
        && !old.same_block(new)
    {
        zio.suspended.forget(old.dvas());
        old.dvas().for_each(|dva| allocator.unallocate(&dva, txg));
    }
}

/// Bytes of a new header at `dvas`.
fn new_header_size(zio: &Zio, dvas: &[Dva], props: &WriteProps) -> usize {
    let may_be_wide = zio.has_wide_gangs() && !props.narrow_gang;
    let wide = may_be_wide.then(|| super::gang::wide_header(zio, dvas));
    wide.and_then(|size| usize::try_from(size).ok()).unwrap_or(GANG_SIZE)
}

/// Whole sectors, as even as can be, as many as a header of `header_size` bytes names; more than three are not smaller
/// than the smallest allocation of the pool.
fn split(len: usize, header_size: usize, units: AllocUnits) -> Vec<std::ops::Range<usize>> {
    let whole = AllocUnits { least: GANG_SIZE, step: GANG_SIZE };
    let units = if header_size > GANG_SIZE { units } else { whole };
    let (mut parts, mut at) = (Vec::new(), 0);
    for left in (1..=gang_nblkptrs(header_size)).rev() {
        let size = units.round_up((len - at).div_ceil(left)).min(len - at);
        if size > 0 {
            parts.push(at..at + size);
        }
        at += size;
    }
    parts
}

fn piece_done(zio: &Arc<Zio>, pieces: &Mutex<Pieces>, index: usize, result: Result<Blkptr>) {
    let ready = {
        let mut pieces = pieces.lock();
        if let Some(slot) = pieces.pointers.get_mut(index) {
            *slot = Some(result);
        }
        pieces.left -= 1;
        if pieces.left > 0 {
            return;
        }
        let pointers: Result<Vec<Blkptr>> = pieces.pointers.drain(..).flatten().collect();
        pieces.end.take().map(|end| (end, pointers))
    };
    let Some(((gang, done), pointers)) = ready else { return };
    match pointers {
        Ok(pointers) => write_header(zio, gang, &pointers, done),
        Err(e) => {
            if let Ok(allocator) = zio.allocator()
                && !gang.in_place
            {
                gang.header.iter().for_each(|dva| allocator.unallocate(dva, gang.txg));
            }
            done(Err(e));
        }
    }
}

fn write_header(zio: &Arc<Zio>, gang: Gang, members: &[Blkptr], done: WriteDone) {
    let Gang { mut bp, mut header, header_size, in_place, props, txg } = gang;
    for (i, dva) in header.iter_mut().enumerate().filter(|_| !in_place) {
        let below = members.iter().filter_map(|m| m.dvas().nth(i)).map(|d| d.asize);
        dva.asize = below.fold(dva.asize, u64::saturating_add);
        dva.gang = true;
    }
    note_nesting(zio, &header, members);
    bp.set_dvas(&header);
    bp.set_births(txg, txg);
    match header_bytes(zio, &bp, header_size, members) {
        Ok(bytes) => zio.write_at(bp, bytes, props, txg, done),
        Err(e) => done(Err(e)),
    }
}

/// Notes that a larger header would have named more pieces.
fn note_nesting(zio: &Zio, header: &[Dva], members: &[Blkptr]) {
    if members.iter().any(Blkptr::is_gang) && super::gang::wide_header(zio, header) > GANG_SIZE as u64 {
        zio.gangs_nest.store(true, Ordering::Relaxed);
    }
}

fn header_bytes(zio: &Arc<Zio>, bp: &Blkptr, size: usize, members: &[Blkptr]) -> Result<Buf> {
    // OpenZFS swaps a header by the order of its pointer.
    let endian = if bp.byteorder_is_little() { Endian::Little } else { Endian::Big };
    let mut bytes: Vec<u8> = members.iter().flat_map(Blkptr::to_bytes).collect();
    if endian == Endian::Big {
        bytes.chunks_exact_mut(8).for_each(<[u8]>::reverse);
    }
    bytes.resize(size - EckPhys::SIZE, 0);
    let trailer = |cksum| Eck { endian, cksum }.to_bytes();
    let verifier = ondisk::label::gang_verifier(bp);
    let unsigned: Vec<u8> = bytes.iter().copied().chain(trailer(verifier)).collect();
    let words = zio.checksum_of(ChecksumType::GangHeader, &unsigned, endian)?;
    let cksum = super::verify::stored_words(ChecksumType::GangHeader, bp, words, [0; 2]);
    bytes.extend(trailer(cksum));
    let whole = super::verify::gang_header(bp, &bytes);
    if !whole {
        return Err(Error::corrupt("a gang header that was just made does not match its checksum"));
    }
    Ok((&*bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(size: usize) -> AllocUnits {
        AllocUnits { least: size, step: size }
    }

    #[test]
    fn pieces_are_whole_sectors_and_cover_the_block() {
        for sectors in 1..100 {
            let parts = split(sectors * 512, 512, units(4096));
            assert!(parts.len() <= 3 && parts.iter().all(|p| p.len() % 512 == 0 && !p.is_empty()));
            assert_eq!(parts.iter().map(std::iter::ExactSizeIterator::len).sum::<usize>(), sectors * 512);
            assert!(parts.windows(2).all(|w| w[0].end == w[1].start));
        }
        assert_eq!(split(1024, 512, units(512)), [0..512, 512..1024]);
        let wide = split(128 << 10, 4096, units(4096));
        assert!(wide.len() == 31 && wide.iter().all(|part| part.len() % 4096 == 0), "{wide:?}");
        assert_eq!(split(6144, 4096, units(4096)), [0..4096, 4096..6144]);
        // A draid whose rows hold 32 KiB.
        assert_eq!(split(128 << 10, 32 << 10, units(32 << 10)).len(), 4);
    }
}
