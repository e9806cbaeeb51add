//! Removes names, and files with their last name.
//!
//! A file that is still open when its last name goes waits in the *delete queue*, a ZAP of object numbers, until
//! it is closed, or until the file system is opened the next time. A long file waits there, too, while it is freed
//! ([`super::drain`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::dmu::Tx;
use engine::zap::{Zap, ZapEdit};
use engine::{Error, Kind, Result};
use ondisk::znode::dirent_object;

use super::fs::FsWriter;
use super::node::{Node, StoredWhen};
use super::sink::LogOp;
use super::steps::Steps;
use crate::attr::{Attr, FileKind};
use crate::dir::Dirent;

/// Files with more extended attributes in files give them up in pieces.
const XATTRS_AT_ONCE: u64 = 1024;
/// Attributes of such a piece.
pub(super) const XATTRS_IN_PIECE: usize = 512;

impl FsWriter {
    /// Removes a name of a file that is no directory.
    #[doc(alias = "zfs_remove")]
    pub fn unlink(&self, dir: u64, name: &[u8]) -> Result<()> {
        self.unlink_and_look(dir, name).map(drop)
    }

    /// As [`FsWriter::unlink`]; returns number and attributes of a file that lost its last name.
    pub fn unlink_and_look(&self, dir: u64, name: &[u8]) -> Result<Option<(u64, Attr)>> {
        let last = self.settled(0, || self.unlink_now(dir, name))?;
        self.free_doomed();
        Ok(last)
    }

    fn unlink_now(&self, dir: u64, name: &[u8]) -> Result<Option<(u64, Attr)>> {
        let dir = self.dir(dir)?;
        let tx = self.begin_for(0, true)?;
        let _names = self.names.read();
        let _entries = dir.entries.lock();
        let entry = self.need(&dir, name)?;
        self.check_names(&dir, true)?;
        let node = self.node(entry.object)?;
        if node.is_dir() {
            return Err(Error::new(Kind::IsDirectory, "is a directory"));
        }
        self.check_removable(&node)?;
        let last = self.attempt(&tx, |steps| {
            self.remove_entry(steps, &dir, &entry, node.kind)?;
            let last = self.drop_link(steps, &node)?;
            Ok(if last { self.attr_of(&node).ok().map(|attr| (node.number, attr)) } else { None })
        })?;
        let op =
            LogOp::Remove { dir: dir.number, name: &entry.name, object: node.number, dir_removed: false };
        self.log(&tx, &op);
        Ok(last)
    }

    /// Removes an empty directory.
    #[doc(alias = "zfs_rmdir")]
    pub fn rmdir(&self, dir: u64, name: &[u8]) -> Result<()> {
        self.settled(0, || self.rmdir_now(dir, name))?;
        self.free_doomed();
        Ok(())
    }

    fn rmdir_now(&self, dir: u64, name: &[u8]) -> Result<()> {
        let dir = self.dir(dir)?;
        let tx = self.begin_for(0, true)?;
        let _names = self.names.write();
        let entry = self.need(&dir, name)?;
        let node = self.node(entry.object)?;
        self.check_names(&dir, true)?;
        self.check_empty(&node)?;
        self.check_removable(&node)?;
        self.attempt(&tx, |steps| {
            self.remove_entry(steps, &dir, &entry, node.kind)?;
            self.drop_link(steps, &node)
        })?;
        let op = LogOp::Remove { dir: dir.number, name: &entry.name, object: node.number, dir_removed: true };
        self.log(&tx, &op);
        Ok(())
    }

    /// Whether a directory can be removed.
    pub(super) fn check_empty(&self, node: &Node) -> Result<()> {
        if !node.is_dir() {
            return Err(Error::new(Kind::NotDirectory, "not a directory"));
        }
        if node.number == self.root {
            return Err(Error::new(Kind::Busy, "the root directory cannot be removed"));
        }
        if node.word(self.fields.size) > 2 {
            return Err(Error::new(Kind::NotEmpty, "the directory is not empty"));
        }
        Ok(())
    }

    /// A name of `node` is gone. With the last one goes the file, unless it is open. Returns whether it was the last one.
    pub(super) fn drop_link(&self, steps: &Steps<'_>, node: &Arc<Node>) -> Result<bool> {
        let now = self.now();
        let attrs = [self.fields.links, self.fields.ctime];
        let left = self.change_step_as(steps, node, attrs, |state| {
            let links = state.word(self.fields.links).saturating_sub(1);
            // A directory's own `.` doesn't keep it.
            let links = if node.is_dir() && links <= 1 { 0 } else { links };
            state.attrs.set_word(self.fields.links, links)?;
            state.time(self.fields.ctime, now)?;
            // The bonus buffer of most files that go is freed with them.
            Ok((links, if links == 0 { StoredWhen::Later } else { StoredWhen::Now }))
        })?;
        if left == 0 {
            self.drop_file(steps, node)?;
        }
        Ok(left == 0)
    }

    /// The last name of `node` is gone.
    fn drop_file(&self, steps: &Steps<'_>, node: &Arc<Node>) -> Result<()> {
        self.objset.stats.nunlinks.fetch_add(1, Ordering::Relaxed);
        // Without the mark, an open could succeed until the file is freed at the end of the operation.
        if !node.doom_unless_open() {
            return self.keep_unnamed(steps, node);
        }
        let doomed = Arc::clone(node);
        steps.inverse(move |_, _| {
            doomed.spare();
            Ok(())
        });
        if node.is_long() || self.has_many_xattrs(node) {
            self.keep_unnamed(steps, node)?;
            let node = Arc::clone(node);
            steps.at_last(move |fs, _| fs.free_later(node));
            return Ok(());
        }
        match self.check_freeable(node) {
            Ok(()) => self.free_file(steps, node),
            // A file that can't be freed because of damage stays in the queue, without a name.
            Err(_) => self.keep_unnamed(steps, node),
        }
    }

    /// A file without a name stays: it goes to the delete queue, and its attributes to its bonus buffer.
    fn keep_unnamed(&self, steps: &Steps<'_>, node: &Arc<Node>) -> Result<()> {
        self.store_now(steps, node)?;
        self.enqueue(steps, node.number)
    }

    /// Frees blocks `[start, end)` of a file but for the last piece.
    pub(super) fn free_in_pieces(&self, node: &Node, start: u64, end: u64) -> Result<()> {
        node.handle.free_long(start, end, &|| self.begin_for(0, true)).map(drop)
    }

    pub(super) fn enqueue(&self, steps: &Steps<'_>, number: u64) -> Result<()> {
        self.may_fail()?;
        self.queue(steps, number)?;
        steps.inverse(move |fs, tx| fs.unqueue(tx, number));
        Ok(())
    }

    fn queue(&self, tx: &Tx, number: u64) -> Result<()> {
        let _alone = self.queue_lock.lock();
        ZapEdit::open(&mut self.objset.handle(self.queue)?.edit(tx))?.add_int(number)
    }

    fn unqueue(&self, tx: &Tx, number: u64) -> Result<()> {
        let _alone = self.queue_lock.lock();
        ZapEdit::open(&mut self.objset.handle(self.queue)?.edit(tx))?.remove_int(number)
    }

    pub(super) fn in_queue(&self, tx: &Tx, number: u64) -> Result<bool> {
        let _alone = self.queue_lock.lock();
        ZapEdit::open(&mut self.objset.handle(self.queue)?.edit(tx))?.has_int(number)
    }

    pub(super) fn dequeue(&self, steps: &Steps<'_>, number: u64) -> Result<()> {
        self.may_fail()?;
        self.unqueue(steps, number)?;
        steps.inverse(move |fs, tx| fs.queue(tx, number));
        Ok(())
    }

    /// Whether all that [`FsWriter::free_file`] frees can be read as far as freeing needs it.
    pub(super) fn check_freeable(&self, node: &Node) -> Result<()> {
        node.handle.check_readable(0, u64::MAX)?;
        match node.word(self.fields.xattr) {
            0 => Ok(()),
            number => self.check_xattr_dir(&*self.node(number)?),
        }
    }

    pub(super) fn check_xattr_dir(&self, dir: &Node) -> Result<()> {
        dir.handle.check_readable(0, u64::MAX)?;
        for entry in Zap::open(&self.object(dir)?)?.entries() {
            let object = dirent_object(entry?.value.first().unwrap_or(0));
            self.objset.handle(object)?.check_readable(0, u64::MAX)?;
        }
        Ok(())
    }

    /// Frees a file's object, and the extended attributes in their directory, at the end of the operation.
    pub(super) fn free_file(&self, steps: &Steps<'_>, node: &Node) -> Result<()> {
        let xattrs = node.word(self.fields.xattr);
        if xattrs != 0 {
            self.free_xattr_dir(steps, xattrs)?;
        }
        if let Some(list) = self.list_object_of(&node.state.read().attrs)? {
            steps.free(list);
        }
        steps.free(node.number);
        self.objset.stats.nunlinked.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether it has more extended attributes in files than are freed, or changed, at once.
    pub(super) fn has_many_xattrs(&self, node: &Node) -> bool {
        let number = node.word(self.fields.xattr);
        number != 0 && self.node(number).is_ok_and(|dir| dir.word(self.fields.size) > XATTRS_AT_ONCE)
    }

    /// Frees some of many extended attributes of a file without names. Returns false when there are none, whatever the size of
    /// their directory says.
    pub(super) fn free_some_xattrs(&self, node: &Node) -> Result<bool> {
        let dir = self.dir(node.word(self.fields.xattr))?;
        let entries = Zap::open(&self.object(&dir)?)?.entries().take(XATTRS_IN_PIECE);
        let entries: Vec<_> = entries.collect::<Result<_>>()?;
        if entries.is_empty() {
            return Ok(false);
        }
        let tx = self.begin_for(0, true)?;
        let _names = self.names.read();
        self.attempt(&tx, |steps| {
            for entry in &entries {
                let object = dirent_object(entry.value.first().unwrap_or(0));
                self.objset.handle(object)?.check_readable(0, u64::MAX)?;
                let entry = Dirent { name: entry.name().to_vec(), object, kind: None };
                self.remove_entry(steps, &dir, &entry, FileKind::Regular)?;
                steps.free(object);
            }
            Ok(true)
        })
    }

    pub(super) fn free_xattr_dir(&self, steps: &Steps<'_>, number: u64) -> Result<()> {
        let dir = self.node(number)?;
        for entry in Zap::open(&self.object(&dir)?)?.entries() {
            let object = dirent_object(entry?.value.first().unwrap_or(0));
            steps.free(object);
        }
        steps.free(number);
        Ok(())
    }
}
