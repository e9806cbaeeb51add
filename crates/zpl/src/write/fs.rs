//! A file system open for writing: opening, transactions, files in memory, the intent log. All else is a method of a subject
//! ([`subjects`]).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use engine::dmu::{LiveObjset, Object, SpecialObject, Tx};
use engine::sa::{SaAttrs, SaTables};
use engine::spa::Spa;
use engine::{Error, Kind, Result};
use ondisk::ObjectType;
use ondisk::dnode::DNODE_SHIFT;
use parking_lot::{Mutex, RwLock};
use stdx::clock::Clock;
use stdx::rng::Rng;
use zcommon::features::Feature;

use super::aces::{AclInherit, AclMode};
use super::crowd::Crowd;
use super::fields::Fields;
use super::mount::Mounted;
use super::node::{Node, NodeState};
use super::sink::{LogOp, LogSink};
use crate::attr::{FileKind, Time};
use crate::filesystem::{CaseSensitivity, VERSION_SA};
use crate::master::Master;

mod subjects;

pub use self::subjects::{
    Acls, Clones, DeleteQueue, Directories, FileAttrs, FileData, OwnerQuotas, Reblocking, RecordReplay,
    Restrictions, Rewrites, Xattrs,
};

/// Begins transactions, and refuses when there is no space.
pub trait Transactions: Send + Sync + std::fmt::Debug {
    /// A transaction that changes blocks of at most `bytes` bytes; `frees`: it frees more than it takes.
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx>;
    /// As [`Transactions::begin`]. If `is_dirty` returns true, given a txg, that txg writes all these blocks already, and the change
    /// adds at most `grows` bytes to them: then it does not wait for space of its own.
    fn begin_within(&self, bytes: u64, _grows: u64, _is_dirty: &dyn Fn(u64) -> bool) -> Result<Tx> {
        self.begin(bytes, false)
    }
    /// Waits until all that was changed so far is on disk.
    fn sync(&self) -> Result<()>;
    /// The file system uses a feature from this transaction on. True when that is nothing new.
    fn use_feature(&self, feature: Feature, tx: &Tx) -> Result<bool>;
}

impl Transactions for Spa {
    fn begin(&self, _: u64, frees: bool) -> Result<Tx> {
        if frees { self.begin_free(None) } else { Self::begin(self) }
    }

    fn sync(&self) -> Result<()> {
        Self::sync(self)
    }

    fn use_feature(&self, _: Feature, _: &Tx) -> Result<bool> {
        Ok(true)
    }
}

/// Settings from properties.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Largest block of a file (`recordsize`).
    pub recordsize: u64,
    /// Extended attributes go to the system attributes while they fit (`xattr=sa`).
    pub xattr_sa: bool,
    /// `aclmode`.
    pub aclmode: AclMode,
    /// `aclinherit`.
    pub aclinherit: AclInherit,
    /// Bytes of new dnodes (`dnodesize`).
    pub dnodesize: usize,
    /// Longest name: 255, or 1023 (`longname`).
    pub max_name: usize,
    /// `atime`.
    pub atime: bool,
    /// `relatime`: access times are updated only where that adds information.
    pub relatime: bool,
    /// New files have projects (feature `project_quota`).
    pub projects: bool,
    /// Files are read ahead (`prefetch=all`).
    pub reads_ahead: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            recordsize: 128 << 10,
            xattr_sa: true,
            aclmode: AclMode::Discard,
            aclinherit: AclInherit::Restricted,
            dnodesize: 512,
            max_name: 255,
            atime: true,
            relatime: true,
            projects: true,
            reads_ahead: true,
        }
    }
}

/// A file system open for writing. See the module's text for the order of locks.
///
/// Files are read and changed by the methods of its subjects, as in `fs.data().write(number, 0, b"bytes", false)`.
#[derive(Debug)]
pub struct FsWriter {
    /// Its object set.
    pub objset: Arc<LiveObjset>,
    /// Object of the root directory.
    pub root: u64,
    pub(super) txs: Arc<dyn Transactions>,
    /// `None`: changes leave the times of files as they are.
    pub(super) clock: Option<Arc<dyn Clock>>,
    /// Version of the POSIX layer, 1 to 5; it may grow.
    pub(super) version: AtomicU64,
    pub(super) fields: Fields,
    pub(super) tables: Mutex<SaTables>,
    pub(super) random: Mutex<Rng>,
    pub(super) queue: u64,
    pub(super) case: CaseSensitivity,
    pub(super) utf8only: bool,
    pub(super) normalization: u64,
    pub(super) options: RwLock<Options>,
    pub(super) quota_tables: RwLock<super::quota::Quotas>,
    /// Bytes that open txgs add to the usage of owners.
    pub(super) owed: super::owed::Owed,
    /// The group on disk when tables of quotas were last looked for.
    pub(super) quotas_as_of: AtomicU64,
    /// Held shared to change names in one directory, exclusive to change them in several.
    pub(super) names: RwLock<()>,
    /// Held to change the delete queue.
    pub(super) queue_lock: Mutex<()>,
    /// Files of the delete queue that are freed behind users.
    pub(super) drain: super::drain::Drain,
    pub(super) me: Weak<Self>,
    nodes: Mutex<Crowd<Node>>,
    /// Bytes that nodes have beside themselves, about.
    pub(super) spilled: AtomicUsize,
    sink: RwLock<Option<Arc<dyn LogSink>>>,
    pub(super) mounted: OnceLock<Mounted>,
    /// The record that is being replayed names files without regard to case.
    pub(super) ignores_case: AtomicBool,
    /// Records of the intent log are being done again: quotas don't count.
    pub(super) replaying: AtomicBool,
    /// It was unmounted.
    pub(super) closed: AtomicBool,
    /// Steps until one fails: see [`FsWriter::fail_step`].
    pub(super) fails: AtomicU64,
}

impl FsWriter {
    /// Opens the file system in `objset` and removes files that were unlinked while open before the last
    /// unmount or crash. `seed`: any number.
    pub fn open(
        objset: &Arc<LiveObjset>,
        txs: Arc<dyn Transactions>,
        clock: Arc<dyn Clock>,
        options: Options,
        seed: u64,
    ) -> Result<Arc<Self>> {
        let fs = Self::load(objset, txs, clock, options, seed)?;
        fs.delete_queue().drain()?;
        Ok(fs)
    }

    /// As [`FsWriter::open`], but unlinked files stay: for the replay of an intent log, which comes first.
    pub fn load(
        objset: &Arc<LiveObjset>,
        txs: Arc<dyn Transactions>,
        clock: Arc<dyn Clock>,
        options: Options,
        seed: u64,
    ) -> Result<Arc<Self>> {
        Self::load_as(objset, txs, Some(clock), options, seed)
    }

    fn load_as(
        objset: &Arc<LiveObjset>,
        txs: Arc<dyn Transactions>,
        clock: Option<Arc<dyn Clock>>,
        options: Options,
        seed: u64,
    ) -> Result<Arc<Self>> {
        let view = objset.view();
        let master = Master::read(&view)?;
        let tables = match master.sa_attrs {
            0 if master.version < VERSION_SA => SaTables::new(0),
            object => SaTables::load(&view, object)?,
        };
        let (fields, quotas) = (Fields::of(&tables)?, super::quota::Quotas::load(&master.zap)?);
        Ok(Arc::new_cyclic(|me| Self {
            objset: Arc::clone(objset),
            root: master.root,
            txs,
            clock,
            version: AtomicU64::new(master.version),
            fields,
            tables: Mutex::new(tables),
            random: Mutex::new(Rng::new(seed)),
            queue: master.unlinked_set,
            case: master.case,
            utf8only: master.utf8only,
            normalization: master.normalization,
            options: RwLock::new(options),
            quota_tables: RwLock::new(quotas),
            owed: super::owed::Owed::default(),
            quotas_as_of: AtomicU64::new(0),
            names: RwLock::default(),
            queue_lock: Mutex::default(),
            drain: super::drain::Drain::default(),
            me: Weak::clone(me),
            nodes: Mutex::default(),
            spilled: AtomicUsize::new(0),
            sink: RwLock::default(),
            mounted: OnceLock::new(),
            ignores_case: AtomicBool::new(false),
            replaying: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            fails: AtomicU64::new(0),
        }))
    }

    /// For the replay of an intent log on an object set that is never written. Times of changes are not those of the replay, as a
    /// copy of the files would keep them: what records do not say stays as it was.
    pub(crate) fn load_for_log(
        objset: &Arc<LiveObjset>,
        txs: Arc<dyn Transactions>,
        options: Options,
    ) -> Result<Arc<Self>> {
        let fs = Self::load_as(objset, txs, None, options, 0)?;
        fs.replaying.store(true, Ordering::Release);
        Ok(fs)
    }

    /// Properties changed.
    pub fn set_options(&self, options: Options) {
        *self.options.write() = options;
    }

    /// Settings from properties.
    pub fn options(&self) -> Options {
        *self.options.read()
    }

    /// Sets the receiver of operations; `None`: none.
    pub fn set_sink(&self, sink: Option<Arc<dyn LogSink>>) {
        *self.sink.write() = sink;
    }

    pub(super) fn log(&self, tx: &Tx, op: &LogOp<'_>) {
        let sink = self.sink.read().clone();
        if let Some(sink) = sink {
            sink.log(tx, op);
        }
    }

    /// Logs an operation on a file, or on its extended attributes. A file without a name needs no record: it
    /// is gone after a crash, and no record about it could be replayed.
    pub(super) fn log_of(&self, node: &Node, tx: &Tx, op: &LogOp<'_>) {
        if node.word(self.fields.links) > 0 {
            self.log(tx, op);
        }
    }

    /// Frees the object of a file that is not open. First the log drops its unwritten records: the next file
    /// with the number must not get these writes.
    pub(super) fn free_object(&self, tx: &Tx, object: u64) -> Result<()> {
        if let Some(sink) = self.sink.read().clone() {
            sink.forget(object);
        }
        let handle = self.objset.handle(object)?;
        tx.frees(handle.max_block().saturating_add(1).min(engine::dmu::dirty::LONG));
        handle.free(tx)?;
        self.forget(object);
        Ok(())
    }

    /// The moment, which changes note; `None`: they note none.
    pub(super) fn now(&self) -> Option<Time> {
        let (sec, nsec) = self.clock.as_ref()?.wall();
        Some(Time { sec, nsec })
    }

    /// An operation that nothing in the log can describe.
    pub(super) fn log_nothing(&self, tx: &Tx) {
        let sink = self.sink.read().clone();
        if let Some(sink) = sink {
            sink.skip(tx);
        }
    }

    /// Does `work` on `object` (0: on several), and has the log keep it if it keeps everything.
    pub(super) fn settled<T>(&self, object: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work()?;
        let sink = self.sink.read().clone();
        sink.map_or(Ok(()), |sink| sink.settle(object))?;
        Ok(done)
    }

    /// Returns when changes of `object` (0: of all) survive a crash. Commits the log, or, without one, syncs
    /// everything.
    #[doc(alias = "zfs_fsync")]
    pub fn fsync(&self, object: u64) -> Result<()> {
        let sink = self.sink.read().clone();
        match sink {
            Some(sink) => sink.commit(object),
            None => self.txs.sync(),
        }
    }

    /// An [`FsWriter::fsync`] of `object` follows: one of another file before it writes the records of this one, too. Returns the time
    /// that it takes by those before it, if there were any.
    pub fn expect_fsync(&self, object: u64) -> Option<Duration> {
        self.sink.read().as_ref().and_then(|sink| sink.expect(object))
    }

    pub(super) fn begin(&self) -> Result<Tx> {
        self.begin_for(0, false)
    }

    /// A transaction that changes blocks of at most `bytes` bytes; `frees`: and frees more in the end.
    pub(super) fn begin_for(&self, bytes: u64, frees: bool) -> Result<Tx> {
        self.check_open()?;
        // A committed change must not fail for lack of reserved space.
        self.txs.begin(bytes, frees || self.replaying.load(Ordering::Acquire))
    }

    /// Whether reads may leave bytes of files in memory (`primarycache=all`), the kernel's included.
    pub fn keeps_data(&self) -> bool {
        self.objset.keeps_data()
    }

    /// Fails once the file system was unmounted.
    pub(super) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            // As OpenZFS answers for open files after a forced unmount.
            true => Err(Error::new(Kind::Io, "the file system was unmounted")),
            false => Ok(()),
        }
    }

    /// The file of that object.
    pub fn node(&self, number: u64) -> Result<Arc<Node>> {
        loop {
            let looks = {
                let nodes = self.nodes.lock();
                if let Some(node) = nodes.map.get(&number) {
                    return Ok(Arc::clone(node));
                }
                nodes.looks()
            };
            let fresh = read_node(self, number)?;
            if let Some(node) = keep_if(self, fresh, Some(looks)) {
                return Ok(node);
            }
        }
    }

    /// Puts a node among those in memory; the one that is there already wins.
    pub(super) fn keep(&self, fresh: Arc<Node>) -> Arc<Node> {
        let kept = keep_if(self, Arc::clone(&fresh), None);
        kept.unwrap_or(fresh)
    }

    pub(super) fn forget(&self, number: u64) {
        let mut nodes = self.nodes.lock();
        nodes.map.remove(&number);
        nodes.take_left(number);
    }

    /// The file as its object, for reading.
    pub(super) fn object(&self, node: &Node) -> Result<Object> {
        self.objset.object(&self.objset.view(), node.number)
    }

    /// A file is open: it stays readable when its last name goes.
    pub fn open_file(&self, number: u64) -> Result<Arc<Node>> {
        let node = self.node(number)?;
        node.opens.fetch_add(1, Ordering::SeqCst);
        if node.handle.is_free() || node.is_doomed() {
            node.opens.fetch_sub(1, Ordering::AcqRel);
            return Err(Error::not_found("the file was removed"));
        }
        Ok(node)
    }

    /// No object has a higher number than this.
    pub fn last_object(&self) -> u64 {
        let meta = self.objset.special(SpecialObject::Meta).map(|meta| meta.dnode());
        meta.map_or(0, |meta| (meta.maxblkid + 1).saturating_mul(meta.datablksz() >> DNODE_SHIFT))
    }

    /// Bytes that the attributes of files in memory take beyond those of ordinary files, about.
    pub fn attribute_bytes(&self) -> usize {
        self.spilled.load(Ordering::Relaxed)
    }

    /// Files that are open.
    pub fn open_files(&self) -> Vec<u64> {
        let nodes = self.nodes.lock();
        let here = nodes.map.values().filter(|node| node.is_open()).map(|node| node.number);
        here.chain(nodes.left()).collect()
    }

    /// Files that are open in `before` and are still the same are open here as often.
    pub(super) fn take_over(&self, before: &Self) {
        for number in before.open_files() {
            let (Ok(old), Ok(new)) = (before.node(number), self.node(number)) else { continue };
            if old.kind == new.kind && old.word(before.fields.r#gen) == new.word(self.fields.r#gen) {
                new.opens.store(old.opens.load(Ordering::Acquire), Ordering::Release);
            }
        }
    }

    /// The counterpart of [`FsWriter::open_file`]; the last one removes a file without names.
    pub fn close_file(&self, number: u64) -> Result<()> {
        let node = self.node(number)?;
        if node.opens.fetch_sub(1, Ordering::AcqRel) > 1 || node.word(self.fields.links) > 0 {
            return Ok(());
        }
        {
            let _names = self.names.read();
            if node.handle.is_free() || node.word(self.fields.links) > 0 {
                return Ok(());
            }
            if node.is_long() || self.xattrs().are_many(&node) {
                self.delete_queue().doom(&node);
            } else if node.doom_unless_open() {
                drop(_names);
                return self.delete_queue().free_unlinked(&node);
            }
        }
        self.delete_queue().free_doomed();
        Ok(())
    }

    /// The directory of that object.
    pub(super) fn dir(&self, number: u64) -> Result<Arc<Node>> {
        let node = self.node(number)?;
        if !node.is_dir() {
            return Err(Error::new(Kind::NotDirectory, "not a directory"));
        }
        Ok(node)
    }

    /// The regular file of that object.
    pub(super) fn file(&self, number: u64) -> Result<Arc<Node>> {
        let node = self.node(number)?;
        match node.kind {
            FileKind::Regular => Ok(node),
            FileKind::Directory => Err(Error::new(Kind::IsDirectory, "is a directory")),
            _ => Err(Error::new(Kind::Invalid, "not a regular file")),
        }
    }

    /// Whether a record of the intent log is being replayed. Its call was permitted: a flag that would refuse it now was set
    /// later, or the change that cleared the flag is in no record before it.
    pub(super) fn is_replay(&self) -> bool {
        self.replaying.load(Ordering::Acquire)
    }
}

fn read_node(fs: &FsWriter, number: u64) -> Result<Arc<Node>> {
    let handle = fs.objset.handle(number)?;
    let spill = handle.spill()?;
    let tables = fs.tables.lock();
    let attrs = handle.with_dnode(|dnode| match dnode.bonustype {
        ObjectType::SA => SaAttrs::decode(&tables, dnode.bonus(), spill.as_deref()),
        ObjectType::ZNODE => SaAttrs::decode_znode(dnode.bonus()),
        _ => Err(Error::corrupt(format!("object {number} is not a file"))),
    })?;
    drop(tables);
    let mode = attrs.word(fs.fields.mode).unwrap_or(0);
    let kind = FileKind::from_mode(mode);
    let kind = kind.ok_or_else(|| Error::corrupt(format!("mode {mode:o} names no known file type")))?;
    let state = NodeState { attrs: attrs.into(), spill: spill.map(|s| s.to_vec()), encoded: false };
    Ok(Node::new(handle, state, kind))
}

/// As [`FsWriter::keep`]; `None` when nodes have gone since there had been so many `looks`: the node may have been read
/// before one with a newer state went.
fn keep_if(fs: &FsWriter, fresh: Arc<Node>, looks: Option<u64>) -> Option<Arc<Node>> {
    let mut nodes = fs.nodes.lock();
    if let Some(node) = nodes.map.get(&fresh.number) {
        return Some(Arc::clone(node));
    }
    if looks.is_some_and(|looks| looks != nodes.looks()) {
        return None;
    }
    let looked = nodes.make_room(fs.objset.share(), fs.spilled.load(Ordering::Relaxed), Node::fate);
    if looked > 0 {
        let beside = nodes.map.values().map(|node| node.spilled.load(Ordering::Relaxed)).sum();
        nodes.has_beside(beside);
        fs.spilled.store(beside, Ordering::Relaxed);
    }
    fs.spilled.fetch_add(fresh.spilled.load(Ordering::Relaxed), Ordering::Relaxed);
    fresh.opens.fetch_add(nodes.take_left(fresh.number), Ordering::SeqCst);
    nodes.map.insert(fresh.number, Arc::clone(&fresh));
    drop(nodes);
    if looked > 0 {
        fs.objset.forget_unused();
    }
    Some(fresh)
}
