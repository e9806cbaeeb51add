//! The intent log of a dataset that is being written.
//!
//! ```text
//!  operations ─ assign(record, tx) ─▶ lists by txg ([`super::itx`])
//!                                           │ commit(object)
//!                                           ▼
//!      one caller writes for all waiting ones ([`super::writer`]): blocks, then flush ─▶ all callers return
//!                                           │
//!      syncing context: txgs that reach the disk free the blocks of the chain that they cover
//! ```
//!
//! **States of a block**: *open* (allocated, the last of the chain, nothing written) → *issued* (being written) →
//! *done* (on disk, or failed and waited for) → freed with the first txg that covers its records and its own
//! allocation.
//!
//! **States of a log**: *unreplayed* (claimed at import, records wait) → *replaying* → *ready*; *ready* → *broken*
//! when a block could not be written or allocated → *ready* when all txgs that it covered are on disk and the chain
//! is gone. A log that is not ready, is suspended, or belongs to a pool before version 27, writes nothing: commits
//! wait for the txg instead.
//!
//! **Crash argument.** A commit returns when (a) all blocks with its records are durable, and (b) all blocks before
//! them in the chain are: they were made durable by earlier commits, or are in the same flush. The chain's header,
//! in the root block on disk, names the first block that is not freed: the very first block is not used before the
//! txg with that header is on disk; a block is freed only in a txg whose root block names a later one, and its
//! space is reused two txgs later. The next import therefore finds all records up to and including the last commit
//! that returned. When a block cannot be written the commit waits until its changes are on disk with their txgs; it
//! does not return until one of them holds.
//!
//! **Group commit.** One caller writes at a time; it takes all existing records, including those of waiting callers. So
//! concurrent commits share one write. All callers that wait are woken at its end at once, those whose records it wrote
//! return, and one of the others writes next.
//!
//! Lock order: `turn` → `itxs` → `chain`. A commit holds the turn ([`super::turn`]) while it writes and while it
//! waits for txgs; the turn is never taken in syncing context.
//!
//! Differs from OpenZFS: a commit's blocks are written together and flushed once, instead of each block with its
//! own flush; the next commit's blocks are not issued before.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ondisk::Blkptr;
use ondisk::zil::LrWrite;
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::commit_time::CommitTime;
use super::itx::{Itx, Itxs};
use super::policy::{LogPolicy, SyncMode};
use super::sync::{Destroy, Filled, LogSpace, places, space_of};
use super::turn::Turns;
use super::writer::{self, CommitWrite};

use crate::dmu::{LiveObjset, Objset, Tx};
use crate::error::{Error, Kind, Result};
use crate::memory::dataset_stats::ZilStat;
use crate::txg::{SIZE, slot};

/// First pool version whose snapshots may be taken while a log is written; the chain header is at the front of its
/// blocks, too.
#[doc(alias = "SPA_VERSION_FAST_SNAP")]
const FAST_SNAP: u64 = 27;
/// Number of recent commits whose sizes predict the next.
const RECENT: usize = 16;

/// The operations of the pool that a log needs.
pub trait LogHost: Send + Sync + std::fmt::Debug {
    /// A transaction in the open txg, without waiting for space: log writes help other callers to continue.
    fn begin(&self) -> Result<Tx>;
    /// The last txg on disk.
    fn synced(&self) -> u64;
    /// The last txg that was written; in a frozen pool it is not on disk.
    fn written(&self) -> u64 {
        self.synced()
    }
    /// Whether the pool is frozen: no later txg reaches the disk.
    fn is_frozen(&self) -> bool {
        false
    }
    /// Waits until a txg is written.
    fn wait_synced(&self, txg: u64) -> Result<()>;
    /// Waits until all changes so far are on disk.
    fn wait_all(&self) -> Result<()>;
    /// A reference to a block ends (syncing context).
    fn free(&self, bp: &Blkptr, tx: &Tx) -> Result<()>;
    /// Any number.
    fn random(&self) -> u64;
    /// Monotonic time.
    fn now(&self) -> Duration;
    /// With `tx` begins the first chain of an object set.
    fn begins(&self, _objset: &LiveObjset, _tx: &Tx) {}
    /// The pool's version.
    fn version(&self) -> u64;
    /// Whether there are dedicated log vdevs.
    fn has_log_devices(&self) -> bool;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LwbState {
    Open,
    Issued,
    Done,
}

/// A block of the chain.
#[doc(alias = "lwb_t")]
#[derive(Debug)]
pub(super) struct Lwb {
    pub(crate) bp: Blkptr,
    /// The txg of its allocation.
    pub(crate) alloc_txg: u64,
    /// The highest txg of its records.
    pub(crate) max_txg: u64,
    pub(crate) state: LwbState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Commits go to the log.
    Ready,
    /// Logging is disabled.
    Off,
    /// Records from before the import wait.
    Unreplayed,
    /// The record of this number is being replayed.
    Replaying(u64),
    /// A block could not be written.
    Broken,
}

#[derive(Debug)]
pub(super) struct ChainState {
    pub(crate) mode: Mode,
    suspended: u64,
    pub(crate) lwbs: VecDeque<Lwb>,
    pub(crate) destroy: Option<Destroy>,
    /// Highest number of a replayed record in each txg.
    pub(crate) replayed: [u64; SIZE],
    /// Number of the last record.
    seq: u64,
    recent: VecDeque<u64>,
}

impl ChainState {
    fn find(&mut self, bp: &Blkptr) -> Option<&mut Lwb> {
        // The blocks of a commit are the last of many.
        self.lwbs.iter_mut().rev().find(|lwb| lwb.bp == *bp)
    }

    pub(super) fn mark(&mut self, bp: &Blkptr, max_txg: u64, state: LwbState) {
        if let Some(lwb) = self.find(bp) {
            (lwb.max_txg, lwb.state) = (max_txg, state);
        }
    }

    pub(super) fn set_state(&mut self, bp: &Blkptr, state: LwbState) {
        if let Some(lwb) = self.find(bp) {
            lwb.state = state;
        }
    }

    fn expected(&self) -> u64 {
        self.recent.iter().copied().max().unwrap_or(0)
    }
}

/// The intent log of one dataset that is being written.
#[doc(alias = "zilog_t")]
#[derive(Debug)]
pub struct Zil {
    pub(super) host: Arc<dyn LogHost>,
    objset: Weak<LiveObjset>,
    pub(super) itxs: Mutex<Itxs>,
    turns: Turns,
    average: CommitTime,
    pub(super) chain: Mutex<ChainState>,
    pub(super) policy: RwLock<LogPolicy>,
    /// The txg with which it is closed.
    closing: Mutex<Option<u64>>,
}

impl Zil {
    /// Opens the log of an object set. While records wait ([`Zil::needs_replay`]) nothing is logged until
    /// [`super::replay::replay`] was called.
    ///
    /// # Errors
    /// `Busy` if it is already open.
    #[doc(alias("zil_open", "zil_alloc"))]
    pub fn open(objset: &Arc<LiveObjset>, host: Arc<dyn LogHost>) -> Result<Arc<Self>> {
        let header = objset.zil_header();
        let usable = host.version() >= FAST_SNAP;
        let claimed = header.claim_txg != 0 && !header.log.is_hole();
        let mode = match (usable, claimed) {
            (_, true) => Mode::Unreplayed,
            (true, _) => Mode::Ready,
            (false, _) => Mode::Off,
        };
        let mut lwbs = VecDeque::new();
        if mode == Mode::Ready && !header.log.is_hole() {
            lwbs.push_back(Lwb { bp: header.log, alloc_txg: 0, max_txg: 0, state: LwbState::Open });
        }
        let chain = ChainState {
            mode,
            suspended: 0,
            lwbs,
            destroy: None,
            replayed: [0; SIZE],
            seq: 0,
            recent: VecDeque::new(),
        };
        let zil = Arc::new(Self {
            host,
            objset: Arc::downgrade(objset),
            itxs: Mutex::default(),
            turns: Turns::default(),
            average: CommitTime::default(),
            chain: Mutex::new(chain),
            policy: RwLock::default(),
            closing: Mutex::default(),
        });
        match objset.set_log(Some(Arc::clone(&zil) as _)) {
            true => Ok(zil),
            false => Err(Error::new(Kind::Busy, "the dataset's intent log is open")),
        }
    }

    pub(super) fn objset(&self) -> Result<Arc<LiveObjset>> {
        self.objset.upgrade().ok_or_else(|| Error::new(Kind::Invalid, "the object set has been closed"))
    }

    /// Adds to a counter of this log and of all.
    pub(super) fn count(&self, of: ZilStat, count: u64) {
        if let Some(objset) = self.objset.upgrade() {
            objset.stats.zil.add(of, count);
            objset.arc().memory().stats.zil.add(of, count);
        }
    }

    /// Whether records from before the import wait to be replayed.
    pub fn needs_replay(&self) -> bool {
        self.chain.lock().mode == Mode::Unreplayed
    }

    /// Whether there are dedicated log vdevs: then large writes go to the log, too, which is faster.
    pub(crate) fn has_log_devices(&self) -> bool {
        self.host.has_log_devices()
    }

    /// Records an operation under `tx`. During a replay it records instead that the record has been replayed with
    /// `tx`: an operation of several transactions must call this in its last one only.
    #[doc(alias = "zil_itx_assign")]
    pub fn assign(&self, itx: Itx, tx: &Tx) {
        if self.replayed_in(tx) {
            return;
        }
        if self.chain.lock().mode != Mode::Off {
            self.itxs.lock().assign(itx, tx.txg());
        }
    }

    /// Records that the record being replayed has been done with `tx`. Returns false if no replay is in progress.
    #[doc(alias = "zil_replaying")]
    pub fn replayed_in(&self, tx: &Tx) -> bool {
        let mut chain = self.chain.lock();
        let Mode::Replaying(seq) = chain.mode else { return false };
        if let Some(last) = chain.replayed.get_mut(slot(tx.txg())) {
            *last = (*last).max(seq);
        }
        drop(chain);
        // A destroyed object set has no log either.
        if let Some(objset) = self.objset.upgrade() {
            let _ = objset.touch(tx);
        }
        true
    }

    /// Whether a replay is in progress.
    pub(super) fn is_replaying(&self) -> bool {
        matches!(self.chain.lock().mode, Mode::Replaying(_))
    }

    /// `tx` contains a change that no record describes: the next commit waits for its txg instead, so that no later
    /// change is in the log without it.
    pub fn skip(&self, tx: &Tx) {
        if !self.replayed_in(tx) {
            self.itxs.lock().skip(tx.txg());
        }
    }

    /// Makes the next commit write the records of `object` (0: all), before a name of it changes.
    #[doc(alias = "zil_async_to_sync")]
    pub fn want(&self, object: u64) {
        self.itxs.lock().want(object);
    }

    /// Drops writes to a removed object, unless a commit requires them.
    #[doc(alias = "zil_remove_async")]
    pub fn forget(&self, object: u64) {
        self.itxs.lock().forget_object(object);
    }

    /// Returns when the changes of `object` (0: all objects), and all synchronous ones, survive a crash. The caller
    /// must not hold a transaction.
    ///
    /// # Errors
    /// If neither the log nor the txg could be written: the pool is suspended.
    #[doc(alias = "zil_commit")]
    pub fn commit(&self, object: u64) -> Result<()> {
        if self.policy().sync == SyncMode::Disabled {
            return Ok(());
        }
        self.count(ZilStat::Commits, 1);
        let ticket = {
            let mut itxs = self.itxs.lock();
            itxs.want(object);
            itxs.requested += 1;
            itxs.requested
        };
        let Some(mut turn) = self.turns.commit(ticket) else { return Ok(()) };
        self.count(ZilStat::Writers, 1);
        let begun = self.host.now();
        let (covered, batch) = {
            let Some(mut itxs) = self.logged()? else {
                turn.done = self.whole_txg()?;
                self.average.record(self.host.now().saturating_sub(begun));
                return Ok(());
            };
            (itxs.requested, itxs.take(self.host.synced()))
        };
        if batch.is_empty() && self.is_usable() {
            turn.done = covered;
            return Ok(());
        }
        let newest = batch.iter().map(|itx| itx.txg).max().unwrap_or(0);
        let written = self.write(batch);
        if let Err(why) = &written {
            self.count(if why.kind() == Kind::Busy { ZilStat::Suspended } else { ZilStat::Errors }, 1);
        }
        if let Err(why) = written
            && let Err(lost) = self.fall_back()
        {
            // No list contains these records any more. Their txgs continue when the pool does: the next commit
            // waits for them.
            let mut itxs = self.itxs.lock();
            itxs.unlogged = itxs.unlogged.max(newest);
            return Err(lost.because(why));
        }
        self.average.record(self.host.now().saturating_sub(begun));
        turn.done = covered;
        Ok(())
    }

    /// The average time of the last commits; `None` before the first one.
    pub fn commit_time(&self) -> Option<Duration> {
        self.average.get()
    }

    /// The lists, once all changes without records are on disk; `None` when there are more by then.
    fn logged(&self) -> Result<Option<MutexGuard<'_, Itxs>>> {
        let unlogged = self.itxs.lock().unlogged;
        if unlogged > self.host.written() {
            self.count(ZilStat::Stalls, 1);
            self.host.wait_synced(unlogged)?;
        }
        let itxs = self.itxs.lock();
        Ok((itxs.unlogged <= self.host.written()).then_some(itxs))
    }

    /// Waits until all changes so far are on disk, without the log: callers that make changes without records all the time must
    /// not delay a commit for ever. Returns the last commit that this covers.
    fn whole_txg(&self) -> Result<u64> {
        let covered = self.itxs.lock().requested;
        self.host.wait_all()?;
        Ok(covered)
    }

    fn is_usable(&self) -> bool {
        let chain = self.chain.lock();
        chain.mode == Mode::Ready && chain.suspended == 0
    }

    /// Writes records and makes them durable.
    fn write(&self, mut itxs: Vec<Itx>) -> Result<()> {
        if !self.is_usable() {
            return Err(Error::new(Kind::Busy, "the log is not written now"));
        }
        if itxs.is_empty() {
            return Ok(());
        }
        let objset = self.objset()?;
        let last = self.chain.lock().lwbs.back().map(|lwb| lwb.bp);
        let bp = match last {
            Some(bp) => bp,
            None => self.create(&objset, itxs.iter().map(Itx::size).fold(0, u64::saturating_add))?,
        };
        // Txgs reach the disk while a chain is begun.
        let synced = self.host.synced();
        itxs.retain(|itx| itx.txg > synced);
        if itxs.is_empty() {
            return Ok(());
        }
        let placed = self.place(&objset, itxs)?;
        let mut batch = CommitWrite::new(self, objset, bp, &placed, synced + 1);
        let added = placed.itxs.into_iter().try_for_each(|itx| batch.add(itx));
        let expected = self.chain.lock().expected();
        let finished = batch.finish(expected);
        added?;
        let mut chain = self.chain.lock();
        chain.recent.push_back(finished?);
        if chain.recent.len() > RECENT {
            chain.recent.pop_front();
        }
        Ok(())
    }

    /// The log is unavailable: waits for the txgs.
    fn fall_back(&self) -> Result<()> {
        {
            let mut chain = self.chain.lock();
            if chain.mode == Mode::Ready && chain.suspended == 0 {
                chain.mode = Mode::Broken;
            }
        }
        if let Some(objset) = self.objset.upgrade() {
            // So that this txg ends a broken chain.
            let tx = self.host.begin()?;
            objset.touch(&tx)?;
        }
        self.host.wait_all()
    }

    /// The first block of a new chain. It may be used when the root block that names it is on disk.
    #[doc(alias = "zil_create")]
    fn create(&self, objset: &Arc<LiveObjset>, bytes: u64) -> Result<Blkptr> {
        let (bp, txg) = {
            let tx = self.host.begin()?;
            objset.touch(&tx)?;
            self.host.begins(objset, &tx);
            let mut bp = writer::allocate(objset, writer::block_size(bytes), tx.txg())?;
            bp.set_checksum([self.host.random(), self.host.random(), objset.id, 1]);
            let lwb = Lwb { bp, alloc_txg: tx.txg(), max_txg: 0, state: LwbState::Open };
            self.chain.lock().lwbs.push_back(lwb);
            (bp, tx.txg())
        };
        self.host.wait_synced(txg)?;
        Ok(bp)
    }

    pub(super) fn next_seq(&self) -> u64 {
        let mut chain = self.chain.lock();
        chain.seq += 1;
        chain.seq
    }

    /// The current bytes of a write in the object; `None` if the object no longer exists.
    pub(super) fn read_data(&self, objset: &LiveObjset, lr: &LrWrite) -> Result<Option<Vec<u8>>> {
        let handle = match objset.handle(lr.foid) {
            Ok(handle) => handle,
            Err(e) if e.kind() == Kind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let len = usize::try_from(lr.length).unwrap_or(usize::MAX);
        let mut out = Vec::new();
        while out.len() < len {
            let at = lr.offset.saturating_add(u64::try_from(out.len()).unwrap_or(0));
            let size = handle.dnode().datablksz().max(1);
            let block = handle.block(at / size)?;
            let skip = usize::try_from(at % size).unwrap_or(0);
            let piece = block.get(skip..).unwrap_or(&[]);
            let piece = piece.get(..len - out.len()).unwrap_or(piece);
            if piece.is_empty() {
                // The object's block size was changed during the read, or it was freed.
                if objset.handle(lr.foid).is_err() {
                    return Ok(None);
                }
                continue;
            }
            out.extend_from_slice(piece);
        }
        Ok(Some(out))
    }

    /// Begins to close the log, whose records are no longer needed: [`Zil::close`] waits for this. So many logs are
    /// closed with one txg. In a frozen pool no txg reaches the disk, so the log takes what it has not written yet.
    pub fn begin_close(&self) -> Result<()> {
        if self.host.is_frozen() {
            self.commit(0)?;
        }
        let _alone = self.turns.alone();
        self.cover().map(drop)
    }

    /// The txg that covers all logged records.
    fn cover(&self) -> Result<u64> {
        let mut closing = self.closing.lock();
        if let Some(txg) = *closing {
            return Ok(txg);
        }
        let Some(objset) = self.objset.upgrade() else { return Ok(0) };
        let tx = self.host.begin()?;
        objset.touch(&tx)?;
        Ok(*closing.insert(tx.txg()))
    }

    /// Closes the log: everything is on disk, and no more records are accepted. The chain's last block stays for
    /// the next opener.
    #[doc(alias = "zil_close")]
    pub fn close(&self) -> Result<()> {
        let _alone = self.turns.alone();
        let txg = self.cover()?;
        self.host.wait_synced(txg)?;
        if let Some(objset) = self.objset.upgrade() {
            objset.set_log(None);
        }
        Ok(())
    }

    /// Ends the use of a log that cannot be written any more: the pool is suspended.
    pub fn abandon(&self) {
        if let Some(objset) = self.objset.upgrade() {
            objset.set_log(None);
        }
    }

    /// Ends the chain and logs nothing until [`Zil::resume`]: commits wait for txgs.
    #[doc(alias = "zil_suspend")]
    pub fn suspend(&self) -> Result<()> {
        let _alone = self.turns.alone();
        self.chain.lock().suspended += 1;
        self.host.wait_all()?;
        if self.chain.lock().mode != Mode::Ready {
            return Ok(());
        }
        self.destroy(None, None)
    }

    /// Reverts one [`Zil::suspend`].
    #[doc(alias = "zil_resume")]
    pub(crate) fn resume(&self) {
        let mut chain = self.chain.lock();
        chain.suspended = chain.suspended.saturating_sub(1);
    }

    /// Frees a chain and clears its header, and waits for that txg. `claimed`: what a claimed chain refers to; `None`
    /// frees the blocks in use.
    #[doc(alias = "zil_destroy")]
    fn destroy(&self, claimed: Option<(Vec<LogSpace>, Vec<Blkptr>)>, first: Option<Blkptr>) -> Result<()> {
        let objset = self.objset()?;
        let txg = {
            let tx = self.host.begin()?;
            objset.touch(&tx)?;
            let mut chain = self.chain.lock();
            // A txg that is synced meanwhile frees blocks of the list: those that are left belong to this one.
            let left = std::mem::take(&mut chain.lwbs);
            let (space, clones) = claimed
                .unwrap_or_else(|| (left.iter().flat_map(|lwb| places(&lwb.bp)).collect(), Vec::new()));
            chain.destroy = Some(Destroy { txg: tx.txg(), space, clones, first });
            tx.txg()
        };
        self.host.wait_synced(txg)
    }

    pub(super) fn begin_replay(&self) -> bool {
        let mut chain = self.chain.lock();
        let due = chain.mode == Mode::Unreplayed;
        if due {
            chain.mode = Mode::Replaying(0);
        }
        due
    }

    pub(super) fn set_replaying(&self, seq: u64) {
        self.chain.lock().mode = Mode::Replaying(seq);
    }

    pub(super) fn abandon_replay(&self) {
        self.chain.lock().mode = Mode::Unreplayed;
    }

    /// The claimed log is no longer needed.
    pub(super) fn end_replay(&self, view: &Arc<Objset>, keep_first: bool) -> Result<()> {
        let header = view.phys.zil_header;
        let usable = self.host.version() >= FAST_SNAP;
        // An encrypted block that may have been written must not be written again: its IV would be used twice.
        let again = header.log.byteorder_is_little() && !header.log.uses_crypt();
        let keep = keep_first && usable && again;
        let space = if keep { Default::default() } else { space_of(view)? };
        let first = keep.then_some(header.log);
        self.destroy(Some(space), first)?;
        let mut chain = self.chain.lock();
        chain.mode = if usable { Mode::Ready } else { Mode::Off };
        if let Some(bp) = self.objset()?.zil_header().log.filled() {
            chain.lwbs.push_back(Lwb { bp, alloc_txg: 0, max_txg: 0, state: LwbState::Open });
        }
        Ok(())
    }
}
