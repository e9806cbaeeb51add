//! The logical read: embedded blocks, copies in turn, then the transforms.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::{Blkptr, Dva};
use stdx::{AlignedBuf, Buf};

use super::drive::{Drive, Judge};
use super::gang::Nesting;
use super::stored::{Second, StoredCache, StoredPlace, Verdict};
use super::{DamagedCopy, Form, ReadDone, ReadOptions, ReadOutcome, Zio, gang, remap, transform, verify};
use crate::error::{Error, Kind, Result};
use crate::inject::FaultError;
use crate::taskq::Promise;
use crate::types::Bookmark;
use crate::vdev::plan::{Depth, Fault, PlanOutcome};
use crate::vdev::repair::{Mend, Repaired};
use crate::vdev::stats::IoClass;
use crate::vdev::top::Top;

/// Result of reading one copy.
#[derive(Debug, Default)]
pub(crate) struct CopyResult {
    /// Accepted bytes.
    pub(crate) data: Option<Buf>,
    /// Bad copies met.
    pub(crate) damage: Vec<DamagedCopy>,
    /// Why nothing could be tried, when it is not the bytes.
    pub(crate) error: Option<Error>,
}

/// Called once with the result of a copy.
pub(crate) type CopyDone = Box<dyn FnOnce(CopyResult) + Send>;

struct Logical {
    zio: Arc<Zio>,
    bp: Blkptr,
    at: Bookmark,
    options: ReadOptions,
    nesting: Nesting,
    judge: Judge,
    copies: VecDeque<Dva>,
    data: Option<Buf>,
    /// The members of a gang were read already.
    ganged: bool,
    damage: Vec<DamagedCopy>,
    /// Copies with something bad, for [`ReadOptions::heal`].
    spoilt: Vec<(Dva, Vec<DamagedCopy>)>,
    error: Option<Error>,
    done: ReadDone,
}

/// Starts a logical read; `nesting` knows the gangs that the block is a member of.
pub(crate) fn start(
    zio: &Arc<Zio>,
    bp: &Blkptr,
    at: Bookmark,
    options: ReadOptions,
    nesting: Nesting,
    done: ReadDone,
) {
    let early =
        |data: Result<Buf>| ReadOutcome { data: data.map_err(|e| e.at_block(at)), damage: Vec::new() };
    if bp.is_hole() || bp.is_redacted() {
        return done(early(hole(bp)));
    }
    if let Err(bad) = bp.verify(&ondisk::BlkptrLimits::default()) {
        return done(early(Err(Error::corrupt(bad.to_string()))));
    }
    if bp.is_embedded() {
        return done(early(transform::embedded(bp, options.form)));
    }
    let judge = match verify::judge(bp, zio.salted()) {
        Ok(judge) => judge,
        Err(e) => return done(early(Err(e))),
    };
    let logical = Logical {
        zio: Arc::clone(zio),
        bp: *bp,
        at,
        options,
        nesting,
        judge,
        copies: order(zio, bp),
        data: None,
        ganged: false,
        damage: Vec::new(),
        spoilt: Vec::new(),
        error: None,
        done,
    };
    Box::new(logical).begin();
}

fn hole(bp: &Blkptr) -> Result<Buf> {
    if bp.is_redacted() {
        return Err(Error::new(
            Kind::NotFound,
            "the block was redacted from the stream that made this dataset",
        ));
    }
    let size = usize::try_from(bp.lsize()).unwrap_or(0).min(16 << 20);
    Ok(AlignedBuf::zeroed(size).into())
}

/// Copies on vdevs that are there first.
fn order(zio: &Zio, bp: &Blkptr) -> VecDeque<Dva> {
    let tree = zio.tree();
    let mut copies: Vec<Dva> = bp.dvas().collect();
    copies.sort_by_key(|dva| !tree.top(u64::from(dva.vdev)).is_some_and(|top| top.is_readable()));
    copies.into()
}

impl Logical {
    /// Asks a cache device first, if one has the block.
    fn begin(self: Box<Self>) {
        let second = self.options.second;
        if second == Second::No || self.options.depth != Depth::First {
            return self.next();
        }
        let Some(stored) = self.zio.stored() else { return self.next() };
        let Some(found) = stored.find(&self.bp, second) else { return self.next() };
        let (leaf, offset, size) = (Arc::clone(&found.leaf), found.offset, found.size);
        let executor = Arc::clone(self.zio.executor());
        let done = Box::new(move |result: std::io::Result<Buf>| {
            executor.spawn(Box::new(move || self.cached(&*stored, &found, result.ok())));
        });
        leaf.read(offset, size, done);
    }

    /// Continues after the read of a cache device. Whatever it returned, the pool has the block, too.
    fn cached(mut self: Box<Self>, stored: &dyn StoredCache, found: &StoredPlace, data: Option<Buf>) {
        let psize = usize::try_from(self.bp.psize()).unwrap_or(usize::MAX);
        let data = data.filter(|data| data.len() >= psize).map(|data| data.slice(0..psize));
        let Some(data) = data else {
            stored.judged(&self.bp, found, Verdict::Unreadable);
            return self.next();
        };
        if !(self.judge)(&data) {
            stored.judged(&self.bp, found, Verdict::Wrong);
            return self.next();
        }
        stored.judged(&self.bp, found, Verdict::Good);
        self.data = Some(data);
        self.options.second = Second::No;
        self.finish();
    }

    fn next(mut self: Box<Self>) {
        let Some(dva) = self.copies.pop_front() else { return self.finish() };
        let zio = Arc::clone(&self.zio);
        let (depth, bp, nesting) = (self.options.depth, self.bp, self.nesting.clone());
        let injected = zio.inject.of_copy(&bp, self.at, &dva);
        let judge = if injected.is_some() { Arc::new(|_: &[u8]| false) } else { Arc::clone(&self.judge) };
        let (members_known, self_options) = (self.ganged, self.options);
        let done: CopyDone = Box::new(move |mut copy| {
            if injected == Some(FaultError::Io) {
                unreadable(&self.zio, &mut copy);
            }
            self.copied(dva, copy);
        });
        if dva.gang
            && let Some(error) = injected
        {
            let kind = if error == FaultError::Io { Kind::Io } else { Kind::Checksum };
            let error = Some(Error::new(kind, "the gang cannot be read (injected)"));
            return done(CopyResult { error, ..CopyResult::default() });
        }
        if dva.gang {
            let wanted = if members_known { gang::GangParts::Header } else { gang::GangParts::Block };
            gang::read(&zio, &bp, (dva, wanted), self_options, &nesting, done);
        } else {
            let birth = bp.physical_birth();
            read_range(&zio, Range::of(&dva, bp.psize(), birth), depth, judge, done);
        }
    }

    fn copied(mut self: Box<Self>, dva: Dva, copy: CopyResult) {
        if self.options.heal && !copy.damage.is_empty() {
            self.spoilt.push((dva, copy.damage.clone()));
        }
        self.damage.extend(copy.damage);
        self.error = self.error.or(copy.error);
        self.ganged |= dva.gang && copy.data.is_some();
        if self.data.is_none() {
            self.data = copy.data;
        }
        if self.data.is_some() && (self.options.depth == Depth::First || self.options.lead) {
            return self.finish();
        }
        self.next();
    }

    /// Repairs the bad copies when the bytes are known to be right. The read does not wait for it.
    fn heal(&self, data: &Buf) {
        // Log blocks are short-lived: they are left alone. Gangs mend their parts themselves.
        let algorithm = self.bp.checksum().filter(|kind| !kind.is_embedded()).and_then(verify::algorithm);
        let is_sure = algorithm.is_some_and(|algorithm| algorithm != checksum::Algorithm::Off);
        // Without a checksum, only stale copies are known to be bad.
        if is_sure || self.options.resilver {
            let spoilt = self.spoilt.iter().filter(|(dva, _)| !dva.gang);
            spoilt.for_each(|(dva, bad)| {
                mend(&self.zio, (dva, self.bp.physical_birth()), data, bad, self.options)
            });
        }
    }

    fn finish(self: Box<Self>) {
        if let Some(data) = &self.data {
            self.heal(data);
            if self.options.second != Second::No
                && let Some(stored) = self.zio.stored()
            {
                stored.offer(&self.bp, self.at, data, self.options.second);
            }
        }
        let Self { zio, bp, at, options, data, damage, error, done, .. } = *self;
        let data = match data {
            None => Err(error.unwrap_or_else(|| lost(&zio, &damage))),
            Some(data) if options.form == Form::Physical => Ok(data),
            Some(data) => match zio.inject.of_transform(&bp, at) {
                None => transform::logical(&zio, &bp, at, options.form, data),
                Some(error) => Err(untransformed(error)),
            },
        };
        done(ReadOutcome { data: data.map_err(|e| e.at_block(at)), damage });
    }
}

/// Overwrites the bad parts of the copy of `data` at a DVA, if the pool is written and the block stays in place; the parts of
/// a block of a removed vdev are overwritten where they are now. A resilver learns the births of parts that could not be written.
pub(super) fn mend(
    zio: &Arc<Zio>,
    (dva, birth): (&Dva, u64),
    data: &Buf,
    bad: &[DamagedCopy],
    options: ReadOptions,
) {
    let size = u64::try_from(data.len()).unwrap_or(u64::MAX);
    let parts = remap::parts(zio, Range::of(dva, size, birth), data);
    let is_stable = zio.is_settled(birth) && zio.is_recent(options.as_of) && zio.allocator().is_ok();
    match parts {
        Ok(parts) if is_stable => {
            parts.iter().for_each(|(place, bytes)| mend_part(zio, place, bytes, bad, options));
        }
        Ok(parts) => parts.iter().for_each(|(place, _)| not_mended(zio, place.birth, options)),
        Err(_) => not_mended(zio, birth, options),
    }
}

fn not_mended(zio: &Zio, birth: u64, options: ReadOptions) {
    if let Some(sink) = zio.faults.read().as_ref().filter(|_| options.resilver) {
        sink.not_mended(birth);
    }
}

fn mend_part(zio: &Arc<Zio>, place: &Range, data: &Buf, bad: &[DamagedCopy], options: ReadOptions) {
    let Some(top) = zio.tree().top(place.vdev) else { return not_mended(zio, place.birth, options) };
    let bad: Vec<_> = bad.iter().filter(|damage| damage.top == place.vdev).map(|damage| damage.bad).collect();
    let (sink, birth) = (zio.faults.read().clone(), place.birth);
    // The block stays in memory until its repair ends.
    let held = u64::try_from(data.len()).unwrap_or(u64::MAX);
    zio.stats.mending_held.fetch_add(held, Ordering::AcqRel);
    zio.stats.mending.fetch_add(1, Ordering::AcqRel);
    let theirs = Arc::clone(zio);
    let mended = Box::new(move |done: Repaired| {
        let count = u64::try_from(done.leaves.len()).unwrap_or(0);
        theirs.stats.mended.fetch_add(count, Ordering::Relaxed);
        theirs.stats.mended_bytes.fetch_add(done.bytes(), Ordering::Relaxed);
        let tree = theirs.tree();
        for (guid, bytes) in &done.leaves {
            if let Some(leaf) = tree.leaf(*guid) {
                leaf.note_repair(*bytes, birth, options.resilver);
            }
        }
        if let Some(sink) = sink.as_ref().filter(|_| done.failed) {
            sink.not_mended(birth);
        }
        if let Some(sink) = sink.filter(|_| options.resilver && !done.unserved.is_empty()) {
            sink.not_spared(birth, &done.unserved);
        }
        theirs.stats.mending_held.fetch_sub(held, Ordering::AcqRel);
        theirs.stats.mending.fetch_sub(1, Ordering::AcqRel);
    });
    let mend = if options.resilver { Mend::Stale } else { Mend::Unexpected };
    top.repair((place.offset, birth), data, &bad, mend, mended);
}

/// Turns the wrong bytes of an injected fault into failed reads, which count against the leaves.
fn unreadable(zio: &Zio, copy: &mut CopyResult) {
    let tree = zio.tree();
    for damage in copy.damage.iter_mut().filter(|damage| damage.bad.fault == Fault::Wrong) {
        damage.bad.fault = Fault::Unreadable;
        if let Some(leaf) = tree.leaf(damage.leaf) {
            leaf.errors.read.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The error of a good block that an injected fault keeps from being decrypted or decompressed.
fn untransformed(error: FaultError) -> Error {
    match error {
        FaultError::Decrypt => Error::new(Kind::Checksum, "the block's MAC does not match (injected)"),
        _ => Error::corrupt("a block with a good checksum does not decompress (injected)"),
    }
}

/// The error of a block of which no copy is good.
fn lost(zio: &Zio, damage: &[DamagedCopy]) -> Error {
    let tree = zio.tree();
    // For stripes that contradict their parity the wrong disk is unknown.
    let unreadable = !damage.is_empty() && damage.iter().all(|d| d.bad.fault == Fault::Unreadable);
    let (kind, what) = if unreadable {
        (Kind::Io, "no copy of the block can be read: devices are missing or fail")
    } else {
        (Kind::Checksum, "no copy of the block matches its checksum")
    };
    let error = Error::new(kind, what);
    match damage.first() {
        Some(d) => error.on_vdev(&tree.leaf_name(d.leaf, d.top)).at_offset(d.bad.read.offset),
        None => error,
    }
}

/// A byte range of a top-level vdev, born in a txg.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// Top-level vdev.
    pub(crate) vdev: u64,
    /// Byte offset in its address space.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Physical birth.
    pub(crate) birth: u64,
}

impl Range {
    /// The range that a DVA names.
    pub(crate) fn of(dva: &Dva, size: u64, birth: u64) -> Self {
        Self { vdev: u64::from(dva.vdev), offset: dva.offset, size, birth }
    }
}

/// Reads a range of a top-level vdev, through its mapping when it was removed.
pub(crate) fn read_range(zio: &Arc<Zio>, range: Range, depth: Depth, judge: Judge, done: CopyDone) {
    let Some(entered) = zio.top_to_use(range.vdev) else {
        let error = Error::corrupt(format!("top-level vdev {} does not exist", range.vdev));
        return done(CopyResult { error: Some(error), ..CopyResult::default() });
    };
    let top = Arc::clone(entered.top());
    if top.is_removed() {
        return remap::read(zio, &top, range, depth, judge, done);
    }
    match top.plan(range.offset, range.size, range.birth, depth) {
        Err(error) => done(CopyResult { error: Some(error), ..CopyResult::default() }),
        Ok(plan) => {
            let told = Arc::clone(&top);
            let executor = Arc::clone(zio.executor());
            let done = Box::new(move |outcome| {
                let result = copy_result(&told, outcome);
                // The callback may write or wait for a change of the tree.
                drop(entered);
                done(result);
            });
            // Only scrubs and their kin look at all copies.
            let class = (depth != Depth::First).then_some(IoClass::Scrub);
            Box::new(Drive { top, txg: range.birth, plan, judge, class, executor, done }).start();
        }
    }
}

fn copy_result(top: &Top, outcome: PlanOutcome) -> CopyResult {
    let damage = outcome.bad.into_iter().map(|bad| {
        let leaf = top.leaf(&bad.read);
        DamagedCopy { top: top.id, leaf: leaf.map_or(0, |l| l.guid), bad }
    });
    CopyResult { data: outcome.data, damage: damage.collect(), error: None }
}

/// Reads a range and waits, accepting any bytes.
pub(super) fn physical(zio: &Arc<Zio>, vdev: u64, offset: u64, size: u64) -> Result<Buf> {
    if size > ondisk::MAX_BLOCK_SIZE {
        return Err(Error::new(Kind::Limit, format!("{size} bytes are more than a block can have")));
    }
    let promise = Promise::default();
    let theirs = promise.clone();
    let range = Range { vdev, offset, size, birth: u64::MAX };
    read_range(zio, range, Depth::First, Arc::new(|_| true), Box::new(move |copy| theirs.set(copy)));
    let copy: CopyResult = promise.wait(&**zio.executor());
    copy.data.ok_or_else(|| copy.error.unwrap_or_else(|| lost(zio, &copy.damage)).at_offset(offset))
}
