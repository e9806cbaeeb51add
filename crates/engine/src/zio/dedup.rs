//! Writing a block that the pool may hold already.
//!
//! ```text
//!  prepared block → claim ─┬─ Shared: the pointer names the stored copy
//!                          ├─ Compare: read the stored copy ─┬─ equal: claim again
//!                          │                                 └─ differs: stronger checksum, or an ordinary write
//!                          ├─ Write: allocate, write, tell the table
//!                          ├─ InFlight: wait for the write of the same block, or for a look-up; then claim again
//!                          └─ Refused: an ordinary write
//! ```
//!
//! The tables stand above zio (the module `ddt`); zio uses them through [`DedupTables`]. No lock of the
//! tables is held while a block is read or written.
//!
//! Crash argument: as of any other write. The table entry and the pointer reach the disk with the same txg, and a stored
//! copy with an entry is freed only in the sync of a txg in which its last reference ends.
//!
//! A block that the intent log has placed has its checksum already and is known by that ([`Dedup::Later`]). It is compressed and
//! checksummed once more only when its properties changed meanwhile, or the table needs more copies of it.
//!
//! Differs from OpenZFS: `verify` compares stored bytes, not logical ones, of all blocks that the intent log has not placed; a
//! write that finds the same block in flight starts over when that has ended, instead of becoming a parent of its zio; an
//! encrypted block of the intent log has salt and IV of its content, so that it can be shared.

use std::fmt::Debug;
use std::sync::Arc;

use ondisk::ddt::DdtKey;
use ondisk::{Blkptr, ChecksumType};
use parking_lot::Mutex;
use stdx::Buf;

use super::suspend::is_of_devices;
use super::write::{WriteDone, WriteJob, WriteProps, WriteRequest};
use super::{Form, ReadOptions, Zio};
use crate::error::Result;

/// Whether a block is looked up in the dedup tables before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dedup {
    /// It is not.
    #[default]
    Off,
    /// Equal checksums count as equal blocks.
    On,
    /// Blocks with equal checksums are compared.
    Verify,
    /// It is written at once, and enters the tables with its txg: see [`WriteRequest::placed`].
    Later,
}

/// Where a continuation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// On this thread, which may wait.
    Here,
    /// On a thread of the executor.
    Elsewhere,
}

/// A continuation that claims again.
pub type ClaimAgain = Box<dyn FnOnce(Where) + Send>;

/// Parameters of a deduplicated write besides its block.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Copies, 1 to 3.
    pub copies: u8,
    /// Txg of the write.
    pub(crate) txg: u64,
    /// A stored copy counts only when it was compared.
    pub(crate) verify: bool,
    /// The stored copy that was compared and is equal.
    pub equal: Option<Blkptr>,
    /// The block whose data only move: if it is the stored copy itself, nothing changes.
    pub(crate) moves: Option<Blkptr>,
    /// It waited once: its entry was looked up with others, or that failed.
    pub(crate) looked_up: bool,
}

/// The tables' decision on a block that is to be deduplicated.
#[derive(Debug)]
pub enum Claim {
    /// This pointer names a stored copy; its reference is counted.
    Shared(Blkptr),
    /// The block that was to be moved is the stored copy: it stays as it is, and no reference is added.
    Kept,
    /// This stored copy must be compared first.
    Compare(Blkptr),
    /// The caller writes so many copies, then calls [`DedupTables::written`].
    Write {
        /// Copies that are missing.
        copies: u8,
        /// The entry has some copies already.
        extends: bool,
    },
    /// The same block is being written, or its entry is looked up with others: the continuation runs when that has ended.
    InFlight,
    /// The block is written without dedup.
    Refused,
}

/// The dedup tables, as the write path uses them. All methods may be called from any thread, in syncing context.
pub trait DedupTables: Send + Sync + Debug {
    /// Looks a block up: `bp` has everything but copies and births. `again` is taken if and only if the result is
    /// [`Claim::InFlight`].
    ///
    /// # Errors
    /// When the table cannot be read.
    fn claim(&self, bp: &Blkptr, want: &Want, again: &mut Option<ClaimAgain>) -> Result<Claim>;

    /// Ends a [`Claim::Write`]: `written` has the new copies; `None` when there are none. Returns the pointer with all
    /// copies of the entry, its reference counted.
    fn written(&self, bp: &Blkptr, want: &Want, written: Option<&Blkptr>) -> Option<Blkptr>;
}

/// The pointer of a block that no table lists.
fn unlisted(mut bp: Blkptr) -> Blkptr {
    bp.set_dedup(false);
    bp
}

/// A block that is compressed, sealed and checksummed.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(crate) request: WriteRequest,
    /// Everything but copies and births.
    pub(crate) bp: Blkptr,
    /// The stored bytes.
    pub(crate) data: Buf,
}

/// A block whose key is known.
#[derive(Debug, Clone)]
pub(super) struct DedupCandidate {
    request: WriteRequest,
    /// Its key, and its salt and IV; copies and births do not count.
    bp: Blkptr,
    /// The stored bytes; `None`: the intent log has placed them.
    data: Option<Buf>,
    /// As in [`Want`].
    looked_up: bool,
}

impl From<Prepared> for DedupCandidate {
    fn from(block: Prepared) -> Self {
        Self { request: block.request, bp: block.bp, data: Some(block.data), looked_up: false }
    }
}

impl DedupCandidate {
    /// The block where the intent log has placed it, if its checksum is the one of the tables.
    #[doc(alias = "zio_write_bp_init")]
    pub(super) fn of_placed(request: &WriteRequest) -> Option<Self> {
        let (bp, props) = (request.placed?, &request.props);
        let is_of_tables = props.dedup.is_sought() && bp.checksum() == Some(props.checksum);
        let is_whole = bp.lsize() == u64::try_from(request.data.len()).unwrap_or(u64::MAX) && !bp.is_gang();
        let usable = is_of_tables && is_whole && bp.uses_crypt() == props.encrypt;
        usable.then(|| Self { request: request.clone(), bp, data: None, looked_up: false })
    }

    /// The same block where the intent log has it, for the tables.
    fn placed(&self) -> Option<Blkptr> {
        let mut placed = self.request.placed?;
        let is_same = placed.checksum() == self.bp.checksum() && DdtKey::of(&placed) == DdtKey::of(&self.bp);
        let is_sealed_alike = !placed.uses_crypt() || placed.words().get(4..6) == self.bp.words().get(4..6);
        placed.set_dedup(true);
        (is_same && is_sealed_alike).then_some(placed)
    }
}

impl Dedup {
    /// Whether the tables are asked now.
    pub(super) fn is_sought(self) -> bool {
        matches!(self, Self::On | Self::Verify)
    }
}

impl Zio {
    /// Sets the dedup tables; without them blocks are written without dedup.
    pub fn set_dedup(&self, tables: Arc<dyn DedupTables>) {
        *self.dedup.write() = Some(tables);
    }

    /// Writes a block that is to be deduplicated, or refers to a stored copy.
    #[doc(alias = "zio_ddt_write")]
    pub(super) fn write_shared(
        self: &Arc<Self>,
        mut block: DedupCandidate,
        equal: Option<Blkptr>,
        done: WriteDone,
    ) {
        let Some(tables) = self.dedup.read().clone() else { return self.write_alone(block, done) };
        block.bp.set_dedup(true);
        let WriteProps { copies, dedup, .. } = block.request.props;
        let (txg, old) = (block.request.txg, block.request.old);
        let moves = block.request.keeps_birth.then_some(old);
        let want =
            Want { copies, txg, verify: dedup == Dedup::Verify, equal, moves, looked_up: block.looked_up };
        let bp = block.bp;
        let held = Arc::new(Mutex::new(Some((block, done))));
        let (zio, theirs) = (Arc::clone(self), Arc::clone(&held));
        let mut again: Option<ClaimAgain> = Some(Box::new(move |place| {
            let Some((mut block, done)) = theirs.lock().take() else { return };
            block.looked_up = true;
            let next = Arc::clone(&zio);
            let go_on = move || next.write_shared(block, equal, done);
            match place {
                Where::Here => go_on(),
                Where::Elsewhere => zio.executor().spawn_waiting(Box::new(go_on)),
            }
        }));
        let claim = tables.claim(&bp, &want, &mut again);
        if matches!(claim, Ok(Claim::InFlight)) {
            return;
        }
        let Some((block, done)) = held.lock().take() else { return };
        match claim {
            Ok(Claim::Shared(bp)) => done(Ok(bp)),
            Ok(Claim::Kept) => done(Ok(old)),
            Ok(Claim::Compare(stored)) => self.compare(block, stored, done),
            Ok(Claim::Write { copies, extends }) => self.lead(&tables, block, &want, (copies, extends), done),
            Ok(Claim::Refused | Claim::InFlight) => self.write_alone(block, done),
            Err(e) if block.request.may_wait && is_of_devices(&e) => {
                self.write_later(&block.request, e, done);
            }
            // A damaged table costs the savings of dedup, not the write.
            Err(_) => self.write_alone(block, done),
        }
    }

    /// Writes the block as an ordinary one, unless the intent log has done that.
    fn write_alone(self: &Arc<Self>, block: DedupCandidate, done: WriteDone) {
        match block.placed() {
            Some(placed) => done(Ok(unlisted(placed))),
            None => self.write_ordinary(block, done),
        }
    }

    /// Writes the block as an ordinary one.
    fn write_ordinary(self: &Arc<Self>, block: DedupCandidate, done: WriteDone) {
        let DedupCandidate { mut request, mut bp, data, .. } = block;
        request.props.dedup = Dedup::Off;
        bp.set_dedup(false);
        match data {
            Some(data) => self.write_placed(Prepared { request, bp, data }, done),
            None => self.write_prepared(&request, done),
        }
    }

    /// Reads the stored copy and compares it with the bytes to be written.
    #[doc(alias = "zio_ddt_collision")]
    fn compare(self: &Arc<Self>, block: DedupCandidate, stored: Blkptr, done: WriteDone) {
        let (zio, at) = (Arc::clone(self), block.request.at);
        // Equal keys mean equal sizes, compression and salts: stored bytes can be compared as they are, without a key. Those of a
        // block that the intent log has placed are not in memory.
        let (form, bytes) = match &block.data {
            Some(stored) => (Form::Physical, stored.clone()),
            None => (Form::Logical, block.request.data.clone()),
        };
        let options = ReadOptions { speculative: true, form, ..ReadOptions::default() };
        let compared = move |outcome: super::ReadOutcome| {
            let same = outcome.data.is_ok_and(|data| *data == *bytes);
            let next = Arc::clone(&zio);
            let job = move || match same {
                true => next.write_shared(block, Some(stored), done),
                false => next.write_differing(block, done),
            };
            zio.executor().spawn_waiting(Box::new(job));
        };
        self.read(&stored, at, options, Box::new(compared));
    }

    /// Writes a block whose checksum is that of a stored copy with other bytes.
    fn write_differing(self: &Arc<Self>, block: DedupCandidate, done: WriteDone) {
        if block.request.props.checksum.is_dedup_strong() {
            return self.write_alone(block, done);
        }
        let mut request = block.request;
        request.props.checksum = ChecksumType::Sha256;
        self.write(request, done);
    }

    /// Writes the copies that the entry lacks.
    fn lead(
        self: &Arc<Self>,
        tables: &Arc<dyn DedupTables>,
        block: DedupCandidate,
        want: &Want,
        (copies, extends): (u8, bool),
        done: WriteDone,
    ) {
        let (tables, want, bp) = (Arc::clone(tables), *want, block.bp);
        let enough = |placed: &Blkptr| !extends && placed.dvas().count() >= usize::from(copies);
        if let Some(placed) = block.placed().filter(enough) {
            let whole = tables.written(&bp, &want, Some(&placed));
            return done(Ok(whole.unwrap_or_else(|| unlisted(placed))));
        }
        let Some(data) = block.data.clone() else {
            // Its bytes are needed: the block comes again, with them.
            tables.written(&bp, &want, None);
            return self.write_prepared(&block.request, done);
        };
        let mut own = Prepared { request: block.request.clone(), bp, data };
        own.request.props.dedup = Dedup::Off;
        own.request.props.copies = copies;
        (own.request.old, own.request.keeps_birth) = (Blkptr::default(), false);
        if !extends {
            let finish = move |outcome: Result<Blkptr>| {
                // A write that waited for devices was repeated, perhaps with another IV.
                let ours =
                    |written: &Blkptr| written.dedup() && written.checksum_words() == bp.checksum_words();
                let kept = outcome.as_ref().ok().filter(|written| ours(written));
                let whole = tables.written(&bp, &want, kept);
                done(outcome.map(|written| whole.unwrap_or(written)));
            };
            return self.write_placed(own, Box::new(finish));
        }
        // All copies of an entry are of one kind: there are no gangs among new ones.
        let Prepared { request, mut bp, data } = own;
        let (props, txg, may_wait) = (request.props, request.txg, request.may_wait);
        match self.place(&props, bp.psize(), txg) {
            Ok(dvas) => bp.set_dvas(&dvas),
            Err(_) => {
                tables.written(&bp, &want, None);
                return self.write_ordinary(block, done);
            }
        }
        bp.set_births(txg, txg);
        let finish = move |outcome: Result<Blkptr>| {
            let whole = tables.written(&bp, &want, outcome.as_ref().ok());
            done(outcome.map(|written| whole.unwrap_or(written)));
        };
        let job = WriteJob { bp, data, props, txg, tries: 0, in_place: false, may_wait };
        self.write_copies(job, Box::new(finish));
    }
}
