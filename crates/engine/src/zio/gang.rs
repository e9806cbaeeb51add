//! Gang blocks: a block for which no contiguous space was found, stored as a header of block pointers
//! to its pieces (which may be gangs again).
//!
//! The header carries its own SHA-256, made with the identity of the gang's first DVA, so one judge
//! serves every copy. Pieces have checksums of their own; those cover the data. The gang pointer's own
//! checksum is that of the assembled bytes, but OpenZFS never compares it, so neither do we.
//!
//! Until `dynamic_gang_header` is active a header is 512 bytes; from then on it fills the smallest allocation of its
//! vdevs. Both sizes may stand in one pool.
//!
//! Format source: `zio_gbh_phys_t`, zio.h, OpenZFS 2.3; `dynamic_gang_header`, OpenZFS 2.4.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::{Blkptr, Dva, EckPhys, Endian};
use stdx::{AlignedBuf, Buf};

use super::drive::Judge;
use super::read::{CopyDone, CopyResult, Range, mend, read_range};
use super::stored::Second;
use super::suspend::is_of_devices;
use super::{DamagedCopy, Form, ReadOptions, Zio, verify};
use crate::error::{Error, Kind, Result};
use crate::taskq::Promise;
use crate::types::Bookmark;
use crate::vdev::plan::Depth;

/// Header size of pools without `dynamic_gang_header`.
#[doc(alias = "SPA_OLD_GANGBLOCKSIZE")]
const OLD_HEADER: u64 = 512;
/// The largest header: a row of the widest draid stays below it.
const MAX_HEADER: u64 = 1 << 24;
/// Gangs within gangs; allocation never nests deeper than a few.
const MAX_NESTING: u32 = 16;
/// Headers that one read may look at, whatever its size.
const MIN_HEADERS: u64 = 64;
const BLKPTR: usize = 128;

/// The gangs around a block, and how many more headers the whole read may look at: a header that names
/// itself, in several copies, would otherwise be read again and again without end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nesting {
    depth: u32,
    left: Option<Arc<AtomicU64>>,
}

impl Nesting {
    /// Inside the gang `bp`; `None` when that is too deep.
    fn enter(&self, bp: &Blkptr) -> Option<Self> {
        // A header holds at least one sector of data; there may be three copies of each.
        let all = (3 * bp.psize() / OLD_HEADER).saturating_add(MIN_HEADERS);
        let left = self.left.clone().unwrap_or_else(|| Arc::new(AtomicU64::new(all)));
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        (self.depth < MAX_NESTING && taken.is_ok()).then(|| Self { depth: self.depth + 1, left: Some(left) })
    }
}

struct Gang {
    zio: Arc<Zio>,
    bp: Blkptr,
    dva: Dva,
    options: ReadOptions,
    nesting: Nesting,
    sizes: VecDeque<u64>,
    wanted: GangParts,
    done: CopyDone,
}

/// The parts of a gang to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GangParts {
    /// The block's bytes.
    Block,
    /// Only whether this copy of the header is good. All copies name the same members: when every copy of everything
    /// is to be looked at, gangs within gangs would else be read again for each copy of each header around them.
    Header,
}

/// Reads the copy of `bp` whose gang header stands at `dva`. `nesting` knows the gangs around it.
pub(crate) fn read(
    zio: &Arc<Zio>,
    bp: &Blkptr,
    (dva, wanted): (Dva, GangParts),
    options: ReadOptions,
    nesting: &Nesting,
    done: CopyDone,
) {
    let Some(nesting) = nesting.enter(bp) else {
        let error = Error::new(Kind::Loop, "gang blocks are nested without end");
        return done(CopyResult { error: Some(error), ..CopyResult::default() });
    };
    let sizes = header_sizes(zio, bp).into();
    Box::new(Gang { zio: Arc::clone(zio), bp: *bp, dva, options, nesting, sizes, wanted, done }).header();
}

impl Gang {
    fn header(mut self: Box<Self>) {
        let Some(size) = self.sizes.pop_front() else {
            return (self.done)(CopyResult::default());
        };
        let judge = judge(&self.bp);
        let range = Range::of(&self.dva, size, self.bp.physical_birth());
        let (zio, depth) = (Arc::clone(&self.zio), self.options.depth);
        let done: CopyDone = Box::new(move |copy| self.headed(copy));
        read_range(&zio, range, depth, judge, done);
    }

    fn headed(self: Box<Self>, copy: CopyResult) {
        if let Some(header) = copy.data.as_ref().filter(|_| self.options.heal && !copy.damage.is_empty()) {
            mend(&self.zio, (&self.dva, self.bp.physical_birth()), header, &copy.damage, self.options);
        }
        match copy.data {
            Some(_) if self.wanted == GangParts::Header => (self.done)(copy),
            Some(header) => self.members(&header, copy.damage),
            // Damage of a size that was only a guess is not damage.
            None if !self.sizes.is_empty() => self.header(),
            None => (self.done)(copy),
        }
    }

    fn members(self: Box<Self>, header: &Buf, damage: Vec<DamagedCopy>) {
        let Ok(size) = usize::try_from(self.bp.psize()) else {
            return (self.done)(CopyResult::default());
        };
        let mut left = self.bp.psize();
        let mut members = VecDeque::new();
        for member in pointers(header) {
            left = left.saturating_sub(member.psize());
            members.push_back(member);
        }
        if left > 0 {
            let error = Error::corrupt("a gang header's members are shorter than the block");
            return (self.done)(CopyResult { error: Some(error), damage, data: None });
        }
        let Self { zio, options, nesting, done, .. } = *self;
        let data = AlignedBuf::zeroed(size);
        Box::new(Assemble { zio, options, nesting, members, data, filled: 0, damage, done }).next();
    }
}

/// The header size and the pieces of a gang.
#[derive(Debug, Clone)]
pub struct GangMembers {
    /// Bytes of the header.
    pub header_size: u64,
    /// Its pieces.
    pub members: Vec<Blkptr>,
}

/// Reads the header of a gang from whichever copy is good; waits.
///
/// # Errors
/// The errors of devices first: a copy that cannot be read now may be good.
pub fn gang_members(zio: &Arc<Zio>, bp: &Blkptr) -> Result<GangMembers> {
    let mut error = Error::corrupt("not a gang block");
    for dva in bp.dvas().filter(|dva| dva.gang) {
        for size in header_sizes(zio, bp) {
            let promise = Promise::default();
            let theirs = promise.clone();
            let range = Range::of(&dva, size, bp.physical_birth());
            read_range(zio, range, Depth::First, judge(bp), Box::new(move |copy| theirs.set(copy)));
            let copy: CopyResult = promise.wait(&**zio.executor());
            match copy.data {
                Some(header) => return Ok(GangMembers { header_size: size, members: pointers(&header) }),
                None if is_of_devices(&error) => {}
                None => {
                    error = copy
                        .error
                        .unwrap_or_else(|| Error::new(Kind::Checksum, "no copy of a gang header is good"))
                }
            }
        }
    }
    Err(error)
}

/// The pieces that a header of a gang that is to be freed names, or the reason why they are lost: no copy of the header is good,
/// and their space cannot be found. A thread that may wait ([`super::suspend::be_patient`]) waits for devices that are gone; a
/// header that still cannot be read after the pool was resumed is lost.
///
/// Differs from OpenZFS, which waits for devices that are gone only, not after a failed read.
fn members_to_free(zio: &Arc<Zio>, bp: &Blkptr) -> Result<std::result::Result<Vec<Blkptr>, Error>> {
    let mut again = true;
    loop {
        match gang_members(zio, bp) {
            Ok(gang) => return Ok(Ok(gang.members)),
            Err(e) if e.kind() == Kind::NoDevice => {
                if !zio.suspended.wait_for(&e) {
                    return Err(e);
                }
            }
            Err(e) => {
                if !std::mem::take(&mut again) || !zio.suspended.wait_for(&e) {
                    return Ok(Err(e));
                }
            }
        }
    }
}

/// The pointers to all space of a gang: its header, its pieces, and those of gangs within it, each place once. Headers that name
/// themselves, or more than the block can need, end the walk: space that only they reference stays allocated.
///
/// # Errors
/// A header cannot be read.
pub fn gang_parts(zio: &Arc<Zio>, bp: &Blkptr) -> Result<Vec<Blkptr>> {
    walk(bp, &mut |part| Ok(gang_members(zio, part)?.members))
}

/// As [`gang_parts`], of a gang that is to be freed. The pieces of a damaged header are left out, and the error says so.
///
/// # Errors
/// When devices are gone and the thread does not wait for them.
pub(crate) fn parts_to_free(zio: &Arc<Zio>, bp: &Blkptr) -> Result<(Vec<Blkptr>, Option<Error>)> {
    let mut lost = None;
    let parts = walk(bp, &mut |part| {
        let members = members_to_free(zio, part)?;
        Ok(members.unwrap_or_else(|why| {
            lost.get_or_insert(why);
            Vec::new()
        }))
    })?;
    Ok((parts, lost))
}

fn walk(bp: &Blkptr, members: &mut dyn FnMut(&Blkptr) -> Result<Vec<Blkptr>>) -> Result<Vec<Blkptr>> {
    // A header or piece holds at least one sector of data; there may be three copies of each.
    let most = usize::try_from(3 * bp.psize() / OLD_HEADER + MIN_HEADERS).unwrap_or(usize::MAX);
    let (mut parts, mut seen) = (Vec::new(), BTreeSet::new());
    let mut waiting = vec![(*bp, 0)];
    while let Some((part, depth)) = waiting.pop().filter(|_| parts.len() < most) {
        let places: Vec<_> = part.dvas().map(|dva| (dva.vdev, dva.offset)).collect();
        if places.iter().any(|place| seen.contains(place)) {
            continue;
        }
        seen.extend(places);
        if part.is_gang() && depth < MAX_NESTING {
            let members = members(&part)?;
            waiting.extend(members.into_iter().take(most).map(|member| (member, depth + 1)));
        }
        parts.push(part);
    }
    Ok(parts)
}

fn judge(bp: &Blkptr) -> Judge {
    let bp = *bp;
    Arc::new(move |bytes| verify::gang_header(&bp, bytes))
}

/// Bytes of a header whose copies stand at `dvas`, where `dynamic_gang_header` is active: the smallest allocation of
/// the vdev where that is smallest.
#[doc(alias = "vdev_gang_header_psize")]
pub(super) fn wide_header(zio: &Zio, dvas: &[Dva]) -> u64 {
    let tree = zio.tree();
    let sizes =
        dvas.iter().map(|dva| tree.top(u64::from(dva.vdev)).map_or(OLD_HEADER, |top| top.min_alloc()));
    sizes.min().unwrap_or(OLD_HEADER).clamp(OLD_HEADER, MAX_HEADER)
}

/// Sizes that a header may have, the likelier first.
fn header_sizes(zio: &Zio, bp: &Blkptr) -> Vec<u64> {
    if !zio.has_wide_gangs() {
        return vec![OLD_HEADER];
    }
    // Headers that are older than the feature's first use keep their size.
    match wide_header(zio, &bp.dvas().collect::<Vec<_>>()) {
        OLD_HEADER => vec![OLD_HEADER],
        wide => vec![wide, OLD_HEADER],
    }
}

/// The block pointers of a header, in order, little-endian already or swapped.
fn pointers(header: &[u8]) -> Vec<Blkptr> {
    let big = ondisk::Eck::from_trailer(header).is_ok_and(|eck| eck.endian == Endian::Big);
    let body = header.len().saturating_sub(EckPhys::SIZE);
    let slots = header.get(..body).unwrap_or_default().chunks_exact(BLKPTR);
    let decode = |slot: &[u8]| {
        let mut bytes = slot.to_vec();
        if big {
            bytes.chunks_exact_mut(8).for_each(<[u8]>::reverse);
        }
        Blkptr::from_bytes(&bytes)
    };
    // No piece is so short that it is embedded.
    slots.filter_map(decode).filter(|bp| !bp.is_hole() && !bp.is_embedded()).collect()
}

struct Assemble {
    zio: Arc<Zio>,
    options: ReadOptions,
    nesting: Nesting,
    members: VecDeque<Blkptr>,
    data: AlignedBuf,
    filled: usize,
    damage: Vec<DamagedCopy>,
    done: CopyDone,
}

impl Assemble {
    fn next(mut self: Box<Self>) {
        let full = self.filled >= self.data.len();
        let Some(member) = self.members.pop_front().filter(|_| !full) else {
            let Self { data, damage, done, .. } = *self;
            return done(CopyResult { data: Some(data.into()), damage, error: None });
        };
        let zio = Arc::clone(&self.zio);
        // A member is no block of its own for a cache device.
        let options = ReadOptions { form: Form::Physical, second: Second::No, ..self.options };
        let nesting = self.nesting.clone();
        let done = Box::new(move |outcome| self.arrived(outcome));
        super::read::start(&zio, &member, Bookmark::default(), options, nesting, done);
    }

    fn arrived(mut self: Box<Self>, outcome: super::ReadOutcome) {
        self.damage.extend(outcome.damage);
        match outcome.data {
            Err(error) => {
                let Self { damage, done, .. } = *self;
                done(CopyResult { data: None, damage, error: Some(error) });
            }
            Ok(bytes) => {
                let room = self.data.get_mut(self.filled..).unwrap_or_default();
                let take = room.len().min(bytes.len());
                for (to, from) in room.iter_mut().zip(bytes.iter()) {
                    *to = *from;
                }
                self.filled += take;
                self.next();
            }
        }
    }
}
