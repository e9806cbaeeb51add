//! Writing a block: from bytes to a pointer.
//!
//! ```text
//!  zeros → hole │ compress → small: embedded │ encrypt ([`super::seal`]) → checksum → as before: keep → stored already:
//!  share ([`super::dedup`]) → in place, or allocate → (gang) → every copy
//! ```
//!
//! Runs on the executor; devices complete on their threads; a callback receives the result.
//!
//! Crash argument: a new block goes to space that no uberblock on disk refers to. A block is written in place
//! only when the same txg wrote it before, so nothing on disk refers to it either.
//!
//! Differs from OpenZFS: one function a stage instead of a generic pipeline; a copy that could not be written is
//! allocated anew elsewhere at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use compress::zstd;
use crypt::BlockParams;
use ondisk::blkptr::Properties;
use ondisk::{Blkptr, ChecksumType, CompressType, Dva, Endian, ObjectType, blkptr};
use parking_lot::Mutex;
use stdx::{AlignedBuf, Buf};

use super::Zio;
use super::alloc::{AllocRequest, MetaslabClass};
use super::dedup::{Dedup, DedupCandidate, Prepared};
use super::suspend::is_of_devices;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::plug::plugged;
use crate::types::Bookmark;
use crate::vdev::stats::IoClass;

/// How often a copy that can't be written is tried elsewhere.
const TRIES: u32 = 3;

/// How a block is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteProps {
    /// Type of its content.
    pub object_type: ObjectType,
    /// 0 for data.
    pub level: u8,
    /// How it is checked.
    pub checksum: ChecksumType,
    /// How it is compressed if that saves an eighth.
    pub compress: CompressType,
    /// Level of compression; 0: the default, or the level in the compression's name.
    pub complevel: u8,
    /// Copies.
    pub copies: u8,
    /// Copies of the header, should it become a gang; 0: one more than of the block, as far as its pointer has room.
    #[doc(alias = "zp_gang_copies")]
    pub gang_copies: u8,
    /// Should it become a gang, its header is no larger than it was before `dynamic_gang_header`: blocks of the MOS are read
    /// before it is known which features are active.
    pub narrow_gang: bool,
    /// The bytes are not kept in memory after the write (`primarycache`).
    pub uncached: bool,
    /// A new block of a file that the system's page cache has as well.
    pub paged: bool,
    /// A block that takes no more than this goes to the special class, while that has room beyond its reserve for metadata; 0:
    /// none.
    #[doc(alias = "zp_zpl_smallblk")]
    pub small: u64,
    /// Allocation class.
    pub class: MetaslabClass,
    /// It goes to the vdevs of the class that are less full than the others.
    pub evens_out: bool,
    /// It may lie in its pointer.
    pub embed: bool,
    /// A hole remembers its birth.
    pub hole_birth: bool,
    /// When it is as it was, nothing is written.
    pub nopwrite: bool,
    /// Whether a stored copy takes its place.
    pub dedup: Dedup,
    /// It belongs to an encrypted dataset: it is encrypted or gets a MAC, whatever its type wants.
    pub encrypt: bool,
}

/// Properties of bytes from a raw send stream, which are written as they were on the sender's disks.
#[doc(alias("ZIO_FLAG_RAW_COMPRESS", "ZIO_FLAG_RAW_ENCRYPT"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsStored {
    /// Logical bytes of the block.
    pub lsize: u64,
    /// How the bytes are compressed.
    pub compress: CompressType,
    /// Salt, IV and MAC of bytes that are encrypted or authenticated already; `None`: they are sealed if the dataset is
    /// encrypted.
    pub crypt: Option<BlockParams>,
    /// Byte order in which the sender's system wrote them.
    #[doc(alias = "zp_byteorder")]
    pub endian: Endian,
}

impl AsStored {
    /// Whether the stored bytes are the logical ones.
    pub(crate) fn is_logical(&self) -> bool {
        self.compress == CompressType::Off && self.crypt.is_none()
    }
}

/// A block to be written.
#[derive(Debug, Clone)]
pub struct WriteRequest {
    /// Its logical bytes; with [`WriteRequest::stored`] the bytes as they lie on disk.
    pub data: Buf,
    /// Set when the bytes are neither compressed nor, perhaps, encrypted here.
    pub stored: Option<AsStored>,
    /// How.
    pub props: WriteProps,
    /// The present block at its place; overwritten when this txg wrote it.
    pub old: Blkptr,
    /// The same block, written for the intent log in this txg already: it becomes the stored copy if the dedup tables have
    /// none. Another pointer than this one means that the caller frees it.
    #[doc(alias = "io_bp_override")]
    pub placed: Option<Blkptr>,
    /// The data are those of `old`, a stored or embedded block, and only move: the new block keeps the logical birth of
    /// `old`. A gang, an embedded block and a new entry of a dedup table are new all the same, as OpenZFS has it.
    #[doc(alias = "zp_rewrite")]
    pub keeps_birth: bool,
    /// The txg that is being written.
    pub txg: u64,
    /// Where it stands.
    pub at: Bookmark,
    /// When no device takes it, it waits until the pool is resumed. False for callers that hold a transaction
    /// and have another way.
    pub may_wait: bool,
}

/// Called with the pointer; the caller sets its fill count.
pub(crate) type WriteDone = Box<dyn FnOnce(Result<Blkptr>) + Send>;

/// A block's stored form.
enum Stored {
    Hole,
    Embedded(Blkptr),
    Block(Buf, CompressType),
}

impl Zio {
    /// Starts writing a block; `done` is called with the result.
    pub fn write(self: &Arc<Self>, request: WriteRequest, done: WriteDone) {
        let zio = Arc::clone(self);
        self.executor().spawn_waiting(Box::new(move || zio.write_now(&request, done)));
    }

    /// Starts writing several blocks, one after the other on one thread; neighbours on a device are written together.
    pub(crate) fn write_batch(self: &Arc<Self>, batch: Vec<(WriteRequest, WriteDone)>) {
        let zio = Arc::clone(self);
        self.executor().spawn_waiting(Box::new(move || {
            plugged(|| batch.into_iter().for_each(|(request, done)| zio.write_now(&request, done)));
        }));
    }

    fn write_now(self: &Arc<Self>, request: &WriteRequest, done: WriteDone) {
        match DedupCandidate::of_placed(request) {
            Some(block) => self.write_shared(block, None, done),
            None => self.write_prepared(request, done),
        }
    }

    /// Compresses, seals and checksums a block, and writes it.
    pub(super) fn write_prepared(self: &Arc<Self>, request: &WriteRequest, done: WriteDone) {
        let (data, compress) = match self.shrink(request) {
            Stored::Hole => return done(Ok(hole(request))),
            Stored::Embedded(bp) => return done(Ok(bp)),
            Stored::Block(data, compress) => (data, compress),
        };
        let props = &request.props;
        let psize = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let endian = request.stored.map_or(Endian::Little, |stored| stored.endian);
        let mut bp = Blkptr::stored(&Properties {
            lsize: lsize(request),
            psize,
            compress,
            checksum: props.checksum,
            object_type: props.object_type,
            level: props.level,
            crypt: props.encrypt,
            dedup: false,
        })
        .with_order(endian);
        let (data, mac) = match super::seal::seal(self, request, &mut bp, data) {
            Ok(sealed) => sealed,
            Err(e) => return done(Err(e.at_block(request.at))),
        };
        match self.checksum_of(props.checksum, &data, endian) {
            Ok(words) => bp.set_checksum(super::verify::stored_words(props.checksum, &bp, words, mac)),
            Err(e) => return done(Err(e.at_block(request.at))),
        }
        let old = &request.old;
        let as_many = old.ndvas() == usize::from(props.copies);
        if props.nopwrite && !props.encrypt && as_many && same_content(old, &bp) && !self.is_on_removed(old) {
            return done(Ok(*old));
        }
        let block = Prepared { request: request.clone(), bp, data };
        match props.dedup {
            Dedup::Off | Dedup::Later => self.write_placed(block, done),
            Dedup::On | Dedup::Verify => self.write_shared(block.into(), None, done),
        }
    }

    /// Whether a copy is on a removed vdev: writing the block again moves it from there.
    #[doc(alias = "zio_nop_write")]
    fn is_on_removed(&self, bp: &Blkptr) -> bool {
        bp.dvas().any(|dva| self.tree().top(u64::from(dva.vdev)).is_some_and(|top| top.is_removed()))
    }

    /// Writes a prepared block: in place, or where the allocator chooses.
    pub(super) fn write_placed(self: &Arc<Self>, block: Prepared, done: WriteDone) {
        let Prepared { request, mut bp, data } = block;
        let (props, old, psize) = (&request.props, &request.old, bp.psize());
        let logical = if request.keeps_birth { old.logical_birth() } else { request.txg };
        let is_moved = logical < request.txg;
        bp.set_births(request.txg, request.txg);
        let in_place = !old.is_hole()
            && !old.is_embedded()
            && !old.dedup()
            && old.logical_birth() == request.txg
            && old.physical_birth() == request.txg
            && old.psize() == psize;
        let may_wait = request.may_wait;
        if in_place && old.is_gang() {
            return super::gang_write::rewrite(self, (bp, old), data, *props, request.txg, done);
        }
        if in_place {
            bp.set_dvas(&old.dvas().collect::<Vec<_>>());
            let job = WriteJob { bp, data, props: *props, txg: request.txg, tries: 0, in_place, may_wait };
            return self.write_copies(job, done);
        }
        match self.place(props, psize, request.txg) {
            Ok(dvas) => bp.set_dvas(&dvas),
            // The pieces of a gang wait for devices, each for its own: not for a caller that must not.
            Err(e) if e.kind() == Kind::Fragmented && may_wait => {
                return super::gang_write::start(self, bp, data, *props, request.txg, done);
            }
            Err(e) if may_wait && is_of_devices(&e) => return self.write_later(&request, e, done),
            Err(e) => return done(Err(e.at_block(request.at))),
        }
        if is_moved {
            bp.set_moved(logical, request.txg);
        }
        self.write_copies(
            WriteJob { bp, data, props: *props, txg: request.txg, tries: 0, in_place, may_wait },
            done,
        );
    }

    /// Handles an allocation that failed because metadata could not be read.
    pub(super) fn write_later(self: &Arc<Self>, request: &WriteRequest, why: Error, done: WriteDone) {
        let (zio, request) = (Arc::clone(self), request.clone());
        let held = why.clone();
        self.suspended.hold(
            &held,
            self.suspended.turn(),
            Box::new(move |again| match again {
                true => zio.write(request, done),
                false => done(Err(why.at_block(request.at))),
            }),
        );
    }

    /// Compresses when that is worth it.
    fn shrink(&self, request: &WriteRequest) -> Stored {
        let (data, props) = (&request.data, &request.props);
        if let Some(stored) = request.stored {
            // A block of dnodes without any is a hole on the sender's side, too.
            let hole = props.object_type.has_fill() && is_zero(data);
            return if hole { Stored::Hole } else { Stored::Block(data.clone(), stored.compress) };
        }
        let whole = || Stored::Block(data.clone(), CompressType::Off);
        if props.compress == CompressType::Off {
            return whole();
        }
        if is_zero(data) {
            return Stored::Hole;
        }
        let Some((algorithm, level)) = algorithm(props.compress, props.complevel) else { return whole() };
        let limit = self.compressed_limit(props.compress, data.len());
        // A block that is to be shared equals those that OpenZFS has written, with their checksums.
        let is_shared = props.dedup.is_sought() && !self.memory.limits.is_on(Limit::DedupFastGzip);
        let small = if is_shared && algorithm == compress::Algorithm::Gzip {
            compress::compress_as_openzfs(algorithm, level, data, limit)
        } else {
            self.compress(algorithm, level, data, limit)
        };
        let Some(small) = small else { return whole() };
        let kind = if props.compress == CompressType::On { CompressType::Lzjb } else { props.compress };
        let may_embed = props.embed && !props.encrypt && props.level == 0 && !props.object_type.has_fill();
        if may_embed && small.len() <= blkptr::EMBEDDED_PAYLOAD_SIZE && !small.is_empty() {
            let (lsize, txg) = (lsize(request), request.txg);
            return Stored::Embedded(Blkptr::embedded(
                &small,
                lsize,
                kind,
                props.object_type,
                props.level,
                txg,
            ));
        }
        let psize = self.alloc_units().round_up(small.len());
        if psize >= data.len() {
            return whole();
        }
        let mut stored = AlignedBuf::zeroed(psize);
        for (to, from) in stored.iter_mut().zip(&small) {
            *to = *from;
        }
        Stored::Block(stored.into(), kind)
    }

    /// The compressed form of `data`, if it takes no more than `most` bytes; counts a large workspace as memory in use.
    fn compress(
        &self,
        algorithm: compress::Algorithm,
        level: u8,
        data: &[u8],
        most: usize,
    ) -> Option<Vec<u8>> {
        if algorithm != compress::Algorithm::Zstd {
            return compress::compress(algorithm, level, data, most);
        }
        let (level, limits) = (zstd::Level::from_number(level)?, &self.memory.limits);
        let tries_first =
            limits.get(Limit::ZstdEarlyAbort) > 0 && data.len() as u64 >= limits.get(Limit::ZstdAbortSize);
        if tries_first && !zstd::promises(level, data, most) {
            return None;
        }
        let mut encoder = zstd::Encoder::new(level, data.len())?;
        let _counted = self.memory.hold_workspace(encoder.large());
        encoder.compress(data, most)
    }

    /// The longest compressed form of `len` bytes that saves space.
    #[doc(alias = "zio_get_compression_max_size")]
    fn compressed_limit(&self, compress: CompressType, len: usize) -> usize {
        let (limit, units) = (len - len / 8, self.alloc_units());
        // Zle does not succeed with exactly so much room.
        if compress == CompressType::Zle {
            return limit;
        }
        let limit = limit - limit % units.step.max(1);
        if limit < units.least { blkptr::EMBEDDED_PAYLOAD_SIZE } else { limit }
    }

    /// The checksum of a block that a system of this byte order has written.
    pub(super) fn checksum_of(&self, kind: ChecksumType, data: &[u8], endian: Endian) -> Result<[u64; 4]> {
        if kind.is_dedup_strong() {
            self.stats.summed.fetch_add(1, Ordering::Relaxed);
        }
        let swap = endian == Endian::Big;
        let algorithm = super::verify::algorithm(kind)
            .ok_or_else(|| Error::new(Kind::Invalid, "a block is written without a checksum function"))?;
        if !algorithm.is_salted() {
            return Ok(checksum::digest(algorithm, data, None, swap));
        }
        let salted =
            self.salted().ok_or_else(|| Error::corrupt("a salted checksum in a pool without a salt"))?;
        Ok(salted.digest(algorithm, data, swap))
    }

    pub(super) fn place(&self, props: &WriteProps, psize: u64, txg: u64) -> Result<Vec<Dva>> {
        let allocator = self.allocator()?;
        let small = psize <= props.small && props.class == MetaslabClass::Normal && allocator.takes_small();
        let request = AllocRequest {
            psize,
            copies: props.copies,
            class: if small { MetaslabClass::Special } else { props.class },
            txg,
            gang: false,
            evens_out: props.evens_out,
            fewer_will_do: false,
        };
        allocator.allocate(&request)
    }

    /// Writes every copy.
    pub(super) fn write_copies(self: &Arc<Self>, job: WriteJob, done: WriteDone) {
        self.stats.writes.fetch_add(1, Ordering::Relaxed);
        // A failed write may leave parts of the old block and of the new one.
        self.suspended.forget(job.bp.dvas());
        let dvas: Vec<Dva> = job.bp.dvas().collect();
        let turn = self.suspended.turn();
        let left = Mutex::new(Left { copies: dvas.len(), failed: Vec::new(), turn, end: Some((job, done)) });
        let left = Arc::new(left);
        let (data, txg, class) = match &left.lock().end {
            Some((job, _)) => (job.data.clone(), job.txg, io_class(&job.bp)),
            None => return,
        };
        for (index, dva) in dvas.into_iter().enumerate() {
            let (zio, left) = (Arc::clone(self), Arc::clone(&left));
            let finish = Box::new(move |outcome: Result<Vec<u64>>| zio.copy_done(&left, index, outcome));
            match self.top_to_use(u64::from(dva.vdev)) {
                Some(top) => top.top().write_as(class, dva.offset, data.clone(), txg, finish),
                None => finish(Err(Error::new(Kind::NoDevice, "no such top-level vdev"))),
            }
        }
    }

    fn copy_done(self: &Arc<Self>, left: &Mutex<Left>, index: usize, outcome: Result<Vec<u64>>) {
        let (end, turn) = {
            let mut left = left.lock();
            left.copies -= 1;
            if let Err(e) = outcome {
                left.failed.push((index, e));
            }
            if left.copies > 0 {
                return;
            }
            (left.end.take().map(|(job, done)| (job, done, std::mem::take(&mut left.failed))), left.turn)
        };
        let Some((job, done, failed)) = end else { return };
        if failed.is_empty() {
            if job.bp.object_type() != ObjectType::INTENT_LOG {
                self.suspended.note_written(&job.bp);
            }
            return done(Ok(job.bp));
        }
        // A new place may need a space map to be read: not on a device's thread.
        let zio = Arc::clone(self);
        self.executor().spawn_waiting(Box::new(move || zio.retry(job, (failed, turn), done)));
    }

    /// Copies that could not be written get another place.
    fn retry(
        self: &Arc<Self>,
        mut job: WriteJob,
        (failed, turn): (Vec<(usize, Error)>, u64),
        done: WriteDone,
    ) {
        let why = failed.into_iter().next().map(|(_, e)| e);
        let why = why.unwrap_or_else(|| Error::new(Kind::Io, "a block could not be written"));
        job.tries += 1;
        if job.tries > TRIES || job.bp.is_gang() {
            return self.give_up(job, (why, turn), done);
        }
        let old: Vec<Dva> = job.bp.dvas().collect();
        let psize = job.bp.psize();
        let placed = self.place(&job.props, psize, job.txg);
        match (placed, self.allocator()) {
            (Ok(dvas), Ok(allocator)) => {
                // The caller that overwrites a block frees it, since the new block is elsewhere.
                if !std::mem::take(&mut job.in_place) {
                    old.iter().for_each(|dva| allocator.unallocate(dva, job.txg));
                }
                job.bp.set_dvas(&dvas);
                self.write_copies(job, done);
            }
            _ => self.give_up(job, (why, turn), done),
        }
    }

    /// No device takes the block: it waits until the pool is resumed, if it may. A writer of an intent-log
    /// block can wait for the txg instead; such a block keeps its space, others free theirs.
    fn give_up(self: &Arc<Self>, mut job: WriteJob, (why, turn): (Error, u64), done: WriteDone) {
        let is_log = job.bp.object_type() == ObjectType::INTENT_LOG;
        if is_log || !is_of_devices(&why) {
            return done(Err(why));
        }
        if !job.may_wait {
            if let Ok(allocator) = self.allocator() {
                job.bp.dvas().for_each(|dva| allocator.unallocate(&dva, job.txg));
            }
            return done(Err(why));
        }
        let (zio, held) = (Arc::clone(self), why.clone());
        self.suspended.hold(
            &held,
            turn,
            Box::new(move |again| {
                if !again {
                    return done(Err(why));
                }
                job.tries = 0;
                zio.write_copies(job, done);
            }),
        );
    }

    /// Writes a block that has its place already: an intent-log block, a gang header.
    pub(crate) fn write_at(
        self: &Arc<Self>,
        bp: Blkptr,
        data: Buf,
        props: WriteProps,
        txg: u64,
        done: WriteDone,
    ) {
        self.write_copies(
            WriteJob { bp, data, props, txg, tries: TRIES, in_place: false, may_wait: true },
            done,
        );
    }
}

/// A block that knows its place.
pub(super) struct WriteJob {
    pub(crate) bp: Blkptr,
    pub(crate) data: Buf,
    pub(crate) props: WriteProps,
    pub(crate) txg: u64,
    pub(crate) tries: u32,
    /// Overwrites a block that this txg wrote there.
    pub(crate) in_place: bool,
    /// As in the request.
    pub(crate) may_wait: bool,
}

struct Left {
    copies: usize,
    failed: Vec<(usize, Error)>,
    /// The turn of suspensions in which it began.
    turn: u64,
    end: Option<(WriteJob, WriteDone)>,
}

fn lsize(request: &WriteRequest) -> u64 {
    if let Some(stored) = request.stored {
        return stored.lsize;
    }
    u64::try_from(request.data.len()).unwrap_or(u64::MAX)
}

/// The pointer of a block of zeros.
fn hole(request: &WriteRequest) -> Blkptr {
    // A place that never held anything needs no birth: readers of changes see zeros before and after.
    if !request.props.hole_birth || request.old.logical_birth() == 0 {
        return Blkptr::default();
    }
    Blkptr::hole(lsize(request), request.props.object_type, request.props.level, request.txg)
}

fn is_zero(data: &[u8]) -> bool {
    let (words, tail) = data.as_chunks::<64>();
    words.iter().all(|w| *w == [0; 64]) && tail.iter().all(|&b| b == 0)
}

fn same_content(old: &Blkptr, new: &Blkptr) -> bool {
    !old.is_hole()
        && !old.is_embedded()
        && old.prop() == new.prop()
        && old.checksum_words() == new.checksum_words()
}

/// The algorithm and level behind a compression number.
pub(super) fn algorithm(kind: CompressType, level: u8) -> Option<(compress::Algorithm, u8)> {
    use compress::Algorithm;
    Some(match kind {
        CompressType::Inherit | CompressType::Off | CompressType::Empty => return None,
        CompressType::On | CompressType::Lzjb => (Algorithm::Lzjb, 0),
        CompressType::Zle => (Algorithm::Zle, 0),
        CompressType::Lz4 => (Algorithm::Lz4, 0),
        CompressType::Zstd => (Algorithm::Zstd, level),
        gzip => (Algorithm::Gzip, gzip.raw().saturating_sub(CompressType::Gzip1.raw()) + 1),
    })
}

/// Callers wait for blocks of intent logs.
fn io_class(bp: &Blkptr) -> IoClass {
    if bp.object_type() == ObjectType::INTENT_LOG { IoClass::SyncWrite } else { IoClass::AsyncWrite }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_levels_follow_their_numbers() {
        assert_eq!(algorithm(CompressType::Gzip1, 0), Some((compress::Algorithm::Gzip, 1)));
        assert_eq!(algorithm(CompressType::Gzip9, 0), Some((compress::Algorithm::Gzip, 9)));
        assert_eq!(algorithm(CompressType::Zstd, 7), Some((compress::Algorithm::Zstd, 7)));
        assert!(is_zero(&[0; 100]) && !is_zero(&[0, 1]));
    }
}
