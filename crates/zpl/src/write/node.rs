//! A file in use.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use engine::dmu::prefetch::SharedPrefetch;
use engine::dmu::{Handle, Tx};
use engine::sa::SaAttrs;
use engine::{Error, Result};
use ondisk::ObjectType;
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::sa::SaAttr;
use parking_lot::{Mutex, RwLock};
use stdx::Buf;

use super::crowd::Fate;
use super::fs::FsWriter;
use crate::attr::{FileKind, Time};
use engine::dmu::range_lock::Ranges;

/// Attributes that are copied when they are changed while others hold them: a change, what undoes it and what compares before
/// and after share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attrs(Arc<SaAttrs>);

impl From<SaAttrs> for Attrs {
    fn from(attrs: SaAttrs) -> Self {
        Self(Arc::new(attrs))
    }
}

impl Deref for Attrs {
    type Target = SaAttrs;

    fn deref(&self) -> &SaAttrs {
        &self.0
    }
}

impl DerefMut for Attrs {
    fn deref_mut(&mut self) -> &mut SaAttrs {
        Arc::make_mut(&mut self.0)
    }
}

/// A file's present attributes, and the spill block that holds part of them.
#[derive(Debug, Clone)]
pub struct NodeState {
    pub attrs: Attrs,
    pub spill: Option<Vec<u8>>,
    /// The bonus buffer is as the attributes are encoded here: one that was read from disk may be laid out otherwise.
    pub encoded: bool,
}

impl NodeState {
    pub fn word(&self, attr: SaAttr) -> u64 {
        self.attrs.word(attr).unwrap_or(0)
    }

    /// Adds to a word; it doesn't go below 0.
    pub fn add(&mut self, attr: SaAttr, delta: i64) -> Result<()> {
        let word = self.word(attr).saturating_add_signed(delta);
        self.attrs.set_word(attr, word)
    }

    /// Sets a time, if there is one.
    pub fn time(&mut self, attr: SaAttr, time: impl Into<Option<Time>>) -> Result<()> {
        match time.into() {
            Some(time) => self.attrs.set(attr, super::fields::time_bytes(time)),
            None => Ok(()),
        }
    }
}

/// When changed attributes go to the bonus buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredWhen {
    /// At once.
    Now,
    /// Never, if the same operation frees the file; else it calls [`FsWriter::store_now`].
    Later,
}

/// Bytes of attributes that an ordinary file has at most.
const ORDINARY: usize = 512;

/// Bytes that a file's attributes take beyond those of an ordinary one: of a spill block, and of a large bonus buffer.
fn spilled(state: &NodeState) -> usize {
    let spill = state.spill.as_ref().map_or(0, Vec::len);
    state.attrs.size().saturating_sub(ORDINARY).saturating_add(spill)
}

/// A file in use. Attributes are written back with every change.
#[derive(Debug)]
pub struct Node {
    /// Its object.
    pub number: u64,
    pub(super) handle: Arc<Handle>,
    pub(super) kind: FileKind,
    pub(super) state: RwLock<NodeState>,
    /// Held to change entries of a directory.
    pub(super) entries: Mutex<()>,
    pub(super) ranges: Ranges,
    pub(super) readers: SharedPrefetch,
    /// Held while the mode changes and until that is logged, so that records have the order of the changes. Taken under a
    /// transaction.
    pub(super) modes: Mutex<()>,
    /// How often it is open.
    pub(super) opens: AtomicU64,
    /// Bytes of its spill block and of the attributes in there.
    pub(super) spilled: AtomicUsize,
    /// It has no name and is open no more: its blocks are being freed.
    doomed: AtomicBool,
    /// It receives the content of another file ([`super::reblock`]) and refuses other writes.
    reserved: AtomicU64,
    /// The token of its owner; 0: it is not lent.
    lent: AtomicU64,
}

impl Node {
    pub(super) fn new(handle: Arc<Handle>, state: NodeState, kind: FileKind) -> Arc<Self> {
        let spilled = AtomicUsize::new(spilled(&state));
        Arc::new(Self {
            number: handle.number,
            handle,
            kind,
            spilled,
            state: RwLock::new(state),
            entries: Mutex::default(),
            ranges: Ranges::default(),
            readers: SharedPrefetch::default(),
            modes: Mutex::default(),
            opens: AtomicU64::new(0),
            doomed: AtomicBool::new(false),
            reserved: AtomicU64::new(0),
            lent: AtomicU64::new(0),
        })
    }

    /// Its type.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(super) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }

    /// Whether its blocks are being freed.
    pub(super) fn is_doomed(&self) -> bool {
        self.doomed.load(Ordering::SeqCst)
    }

    /// Its reduced form when there are too many: of an open file only the number of its opens is needed.
    pub(super) fn fate(self: &Arc<Self>) -> Fate {
        let opens = self.opens.load(Ordering::SeqCst);
        let is_marked = self.is_reserved() || self.lent.load(Ordering::Acquire) != 0;
        match Arc::strong_count(self) > 1 || (opens > 0 && is_marked) {
            true => Fate::Stays,
            false => Fate::Leaves(opens),
        }
    }

    /// Marks the file as doomed, so that it can't be opened any more. Returns false when it is doomed
    /// already, or open.
    pub(super) fn doom_unless_open(&self) -> bool {
        if self.doomed.swap(true, Ordering::SeqCst) {
            return false;
        }
        // A concurrent open either sees the mark, or is counted here.
        let open = self.opens.load(Ordering::SeqCst) > 0;
        self.doomed.store(!open, Ordering::SeqCst);
        !open
    }

    /// Reverts [`Node::doom_unless_open`].
    pub(super) fn spare(&self) {
        self.doomed.store(false, Ordering::SeqCst);
    }

    /// From now on it gets the content of the file `number`, and nothing else.
    pub(super) fn reserve_for(&self, number: u64) {
        self.reserved.store(number, Ordering::Release);
    }

    /// Whether it gets the content of the file `number`.
    pub(super) fn is_reserved_for(&self, number: u64) -> bool {
        number != 0 && self.reserved.load(Ordering::Acquire) == number
    }

    pub(super) fn lend(&self, token: u64) {
        self.lent.store(token, Ordering::Release);
    }

    pub(super) fn is_lent(&self, token: u64) -> bool {
        token != 0 && self.lent.load(Ordering::Acquire) == token
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.reserved.load(Ordering::Acquire) != 0
    }

    /// Whether it has more blocks than are freed at once.
    pub(super) fn is_long(&self) -> bool {
        self.handle.max_block() >= engine::dmu::dirty::LONG
    }

    pub(super) fn word(&self, attr: SaAttr) -> u64 {
        self.state.read().word(attr)
    }
}

impl FsWriter {
    /// Changes a file's attributes.
    pub(super) fn change<T>(
        &self,
        tx: &Tx,
        node: &Node,
        work: impl FnOnce(&mut NodeState) -> Result<T>,
    ) -> Result<T> {
        self.replace(tx, node, |state| Ok((work(state)?, StoredWhen::Now))).map(|(done, _)| done)
    }

    /// Changes a file's attributes. Also returns those before, if they differ.
    pub(super) fn replace<T>(
        &self,
        tx: &Tx,
        node: &Node,
        work: impl FnOnce(&mut NodeState) -> Result<(T, StoredWhen)>,
    ) -> Result<(T, Option<Attrs>)> {
        let mut state = node.state.write();
        if node.handle.is_free() {
            return Err(Error::not_found("the file was removed"));
        }
        let mut new = state.clone();
        let (result, stored) = work(&mut new)?;
        if new.attrs == state.attrs {
            return Ok((result, None));
        }
        if stored == StoredWhen::Later {
            new.encoded = false;
        } else if state.encoded && state.spill.is_none() && new.attrs.has_layout_of(&state.attrs) {
            self.patch(tx, node, &new.attrs, &state.attrs)?;
        } else {
            // A failure may leave another buffer than that of the present attributes.
            state.encoded = false;
            self.store(tx, node, &mut new)?;
        }
        let before = std::mem::replace(&mut *state, new).attrs;
        Ok((result, Some(before)))
    }

    /// Stores the attributes that [`StoredWhen::Later`] left in memory.
    pub(super) fn store_now(&self, tx: &Tx, node: &Node) -> Result<()> {
        self.store(tx, node, &mut node.state.write())
    }

    /// Writes attributes that have the layout of `before`, which the bonus buffer holds, in place.
    fn patch(&self, tx: &Tx, node: &Node, attrs: &SaAttrs, before: &SaAttrs) -> Result<()> {
        node.handle.patch_bonus(tx, |bonus| attrs.patch(before, bonus))?;
        #[cfg(debug_assertions)]
        {
            let space = bonus_space(node);
            let built = attrs.encode(&mut self.tables.lock(), space)?;
            let same = node.handle.with_dnode(|dnode| dnode.bonus() == built.bonus);
            assert!(same && built.spill.is_none(), "the bonus buffer of object {} differs", node.number);
        }
        Ok(())
    }

    /// Writes attributes to bonus buffer and spill block.
    pub(super) fn store(&self, tx: &Tx, node: &Node, state: &mut NodeState) -> Result<()> {
        let is_znode = state.attrs.znode_tail().is_some();
        let space = bonus_space(node);
        let mut tables = self.tables.lock();
        let built = state.attrs.encode(&mut tables, space)?;
        if !is_znode && !tables.is_stored() {
            tables.store(&self.objset.within(tx), &mut self.random.lock())?;
        }
        drop(tables);
        let kind = if is_znode { ObjectType::ZNODE } else { ObjectType::SA };
        if built.spill != state.spill {
            match &built.spill {
                Some(bytes) => {
                    node.handle.set_typed_bonus(tx, kind, &built.bonus)?;
                    node.handle.set_spill(tx, Some(Buf::from(bytes.as_slice())))?;
                }
                None => node.handle.set_spill(tx, None)?,
            }
        }
        node.handle.set_typed_bonus(tx, kind, &built.bonus)?;
        (state.spill, state.encoded) = (built.spill, true);
        let (now, before) = (spilled(state), node.spilled.load(Ordering::Relaxed));
        node.spilled.store(now, Ordering::Relaxed);
        self.spilled.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
        Ok(())
    }
}

/// Bytes that a file's bonus buffer may have.
fn bonus_space(node: &Node) -> usize {
    let (pointers, size) = node.handle.with_dnode(|dnode| (dnode.nblkptr(), dnode.size()));
    // A file that had a znode may have more than the one pointer of others.
    let more = pointers.saturating_sub(1) * BLKPTR_SIZE;
    size.saturating_sub(super::create::BONUS_LESS + more)
}
