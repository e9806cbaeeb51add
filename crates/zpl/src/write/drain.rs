//! Long files that lost their last name, and files that the delete queue had when the file system was mounted: they are freed
//! behind users, a bounded piece in each transaction, while other writers go on.
//!
//! ```text
//!  unlink, close ─▶ delete queue (on disk) and `doomed` (in memory) ─▶ steps of a background activity of the pool ─▶ free
//!  mount ─▶ the queue's numbers ─▶ the same
//! ```
//!
//! Interrupted files are in the delete queue, and the next mount continues with them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::dmu::dirty::{LONG, PIECE};
use engine::spa::{Activity, ActivityStep as Turn};
use engine::zap::Zap;
use engine::{Kind, Result};
use parking_lot::Mutex;

use super::fs::{DeleteQueue, FsWriter};
use super::node::Node;
use crate::attr::FileKind;

/// The files to be freed.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// Files that can't be opened any more.
    doomed: Mutex<VecDeque<Arc<Node>>>,
    /// Its steps are started.
    active: AtomicBool,
    /// Held during a step.
    step: Mutex<Step>,
}

#[derive(Debug, Default)]
struct Step {
    /// The delete queue's entries from before the mount are still to be processed.
    look: bool,
    numbers: VecDeque<u64>,
    /// Where the first of `doomed` goes on.
    at: u64,
}

impl Drain {
    /// Waits until no step is under way, and drops the remaining work.
    pub fn end(&self) {
        *self.step.lock() = Step::default();
        self.doomed.lock().clear();
    }
}

/// Whether a step that failed so may succeed later.
fn is_for_later(kind: Kind) -> bool {
    matches!(kind, Kind::NoSpace | Kind::Quota | Kind::Suspended)
}

impl DeleteQueue<'_> {
    /// A file of the delete queue is removed when it is not open; [`DeleteQueue::free_doomed`] frees it.
    pub(super) fn doom(self, node: &Arc<Node>) {
        if node.doom_unless_open() {
            self.free_later(Arc::clone(node));
        }
    }

    /// The next [`DeleteQueue::free_doomed`] frees this doomed file of the delete queue.
    pub(super) fn free_later(self, node: Arc<Node>) {
        self.fs.drain.doomed.lock().push_back(node);
    }

    /// Frees doomed files, in the background where the pool has threads. Call it without locks or
    /// transactions.
    pub(super) fn free_doomed(self) {
        let nothing = self.fs.drain.doomed.lock().is_empty();
        if !nothing {
            start_drain(self.fs);
        }
    }

    /// Begins to remove the files that were unlinked while they were open, or were not freed to their end.
    #[doc(alias = "zfs_unlinked_drain")]
    pub fn drain(self) -> Result<()> {
        let view = self.fs.objset.view();
        if Zap::open(&view.object(self.fs.queue)?)?.entries().next().is_none() {
            return Ok(());
        }
        self.fs.drain.step.lock().look = true;
        start_drain(self.fs);
        Ok(())
    }

    /// Frees the rest of a file of the delete queue that is not open.
    pub(super) fn free_unlinked(self, node: &Node) -> Result<()> {
        self.check_freeable(node)?;
        let tx = self.fs.begin_for(0, true)?;
        let _names = self.fs.names.read();
        self.fs.attempt(&tx, |steps| {
            self.remove(steps, node.number)?;
            self.free_file(steps, node)
        })
    }
}

fn start_drain(fs: &FsWriter) {
    if fs.drain.active.swap(true, Ordering::AcqRel) {
        return;
    }
    match (fs.spa(), fs.me.upgrade()) {
        (Some(spa), Some(me)) => spa.background().start_steps(&(me as Arc<dyn Activity>)),
        // Files that fail stay in the delete queue.
        _ => while fs.step().is_ok_and(|turn| turn == Turn::More) {},
    }
}

fn queued(fs: &FsWriter) -> Result<VecDeque<u64>> {
    let view = fs.objset.view();
    let queue = Zap::open(&view.object(fs.queue)?)?;
    let numbers = queue.entries().map(|entry| Ok(entry?.value.first()));
    numbers.filter_map(Result::transpose).collect()
}

/// Dooms a file that the delete queue had when the file system was mounted, if it still has it.
fn doom_queued(fs: &FsWriter, number: u64) -> Result<()> {
    let node = fs.node(number);
    if let Ok(node) = &node
        && node.is_dir()
    {
        fs.delete_queue().check_xattr_dir(node)?;
    }
    let tx = fs.begin_for(0, true)?;
    let _names = fs.names.read();
    if !fs.delete_queue().contains(&tx, number)? {
        return Ok(());
    }
    match node {
        // A file that has a name must not be freed.
        Ok(node) if node.word(fs.fields.links) > 0 => {
            fs.attempt(&tx, |steps| fs.delete_queue().remove(steps, number))
        }
        Ok(node) if node.kind == FileKind::Directory && node.word(fs.fields.size) > 2 => {
            fs.attempt(&tx, |steps| {
                fs.delete_queue().remove(steps, number)?;
                fs.delete_queue().free_xattr_dir(steps, number)
            })
        }
        Ok(node) => {
            fs.delete_queue().doom(&node);
            Ok(())
        }
        Err(e) if e.kind() == Kind::NotFound => {
            fs.attempt(&tx, |steps| fs.delete_queue().remove(steps, number))
        }
        Err(e) => Err(e),
    }
}

/// Frees the next piece of a file of the delete queue that is not open; false: that was the last.
#[doc(alias = "zfs_rmnode")]
fn free_piece(fs: &FsWriter, node: &Node, at: &mut u64) -> Result<bool> {
    if fs.xattrs().are_many(node) && fs.delete_queue().free_some_xattrs(node)? {
        return Ok(true);
    }
    if node.handle.max_block().saturating_sub(*at) >= LONG {
        let piece = node.handle.piece(*at, u64::MAX, PIECE)?;
        if !piece.last {
            let tx = fs.begin_for(0, true)?;
            tx.frees(piece.blocks);
            node.handle.free_blocks(&tx, *at, piece.end)?;
            *at = piece.end;
            return Ok(true);
        }
    }
    fs.delete_queue().free_unlinked(node)?;
    Ok(false)
}

/// Does one step with the first file; unreadable files stay in the delete queue. Returns false when
/// nothing is left.
fn next_piece(fs: &FsWriter, step: &mut Step) -> Result<bool> {
    if std::mem::take(&mut step.look) {
        step.numbers = queued(fs).unwrap_or_default();
    }
    let first = fs.drain.doomed.lock().front().cloned();
    let done = match (first, step.numbers.front()) {
        (Some(node), _) => match free_piece(fs, &node, &mut step.at) {
            Ok(true) => return Ok(true),
            Err(e) if is_for_later(e.kind()) => return Err(e),
            _ => fs.drain.doomed.lock().pop_front().is_some(),
        },
        (None, Some(&number)) => match doom_queued(fs, number) {
            Err(e) if is_for_later(e.kind()) => return Err(e),
            _ => step.numbers.pop_front().is_some(),
        },
        (None, None) => false,
    };
    step.at = 0;
    Ok(done)
}

impl Activity for FsWriter {
    fn step(&self) -> Result<Turn> {
        let mut step = self.drain.step.lock();
        if !self.closed.load(Ordering::Acquire) && next_piece(self, &mut step)? {
            return Ok(Turn::More);
        }
        self.drain.active.store(false, Ordering::Release);
        // Something may have been added since.
        let more = !self.drain.doomed.lock().is_empty() && !self.closed.load(Ordering::Acquire);
        let again = more && !self.drain.active.swap(true, Ordering::AcqRel);
        Ok(if again { Turn::More } else { Turn::Done })
    }
}
