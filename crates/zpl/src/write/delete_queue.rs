//! The delete queue, a ZAP of object numbers: files without names that are still open, or are being freed. Frees such
//! files.
//!
//! [`super::drain`] frees long ones, and those that were in the queue when the file system was mounted.

use std::sync::atomic::Ordering;

use engine::Result;
use engine::dmu::Tx;
use engine::zap::{Zap, ZapEdit};
use ondisk::znode::dirent_object;

use super::fs::{DeleteQueue, FsWriter};
use super::node::Node;
use super::steps::Steps;
use super::xattr::XATTRS_IN_PIECE;
use crate::attr::FileKind;
use crate::dir::Dirent;

impl DeleteQueue<'_> {
    /// Adds a file, as a step.
    pub(super) fn add(self, steps: &Steps<'_>, number: u64) -> Result<()> {
        self.fs.may_fail()?;
        queue(self.fs, steps, number)?;
        steps.inverse(move |fs, tx| unqueue(fs, tx, number));
        Ok(())
    }

    /// Whether a file is in the queue.
    pub(super) fn contains(self, tx: &Tx, number: u64) -> Result<bool> {
        let _alone = self.fs.queue_lock.lock();
        ZapEdit::open(&mut self.fs.objset.handle(self.fs.queue)?.edit(tx))?.has_int(number)
    }

    /// Removes a file from the queue, as a step.
    pub(super) fn remove(self, steps: &Steps<'_>, number: u64) -> Result<()> {
        self.fs.may_fail()?;
        unqueue(self.fs, steps, number)?;
        steps.inverse(move |fs, tx| queue(fs, tx, number));
        Ok(())
    }

    /// Whether all that [`DeleteQueue::free_file`] frees can be read as far as freeing needs it.
    pub(super) fn check_freeable(self, node: &Node) -> Result<()> {
        node.handle.check_readable(0, u64::MAX)?;
        match node.word(self.fs.fields.xattr) {
            0 => Ok(()),
            number => self.check_xattr_dir(&*self.fs.node(number)?),
        }
    }

    /// Whether the files of the extended attributes in the directory can be freed.
    pub(super) fn check_xattr_dir(self, dir: &Node) -> Result<()> {
        dir.handle.check_readable(0, u64::MAX)?;
        for entry in Zap::open(&self.fs.object(dir)?)?.entries() {
            let object = dirent_object(entry?.value.first().unwrap_or(0));
            self.fs.objset.handle(object)?.check_readable(0, u64::MAX)?;
        }
        Ok(())
    }

    /// Frees a file's object, and the extended attributes in their directory, at the end of the operation.
    pub(super) fn free_file(self, steps: &Steps<'_>, node: &Node) -> Result<()> {
        let xattrs = node.word(self.fs.fields.xattr);
        if xattrs != 0 {
            self.free_xattr_dir(steps, xattrs)?;
        }
        if let Some(list) = self.fs.acls().list_object_of(&node.state.read().attrs)? {
            steps.free(list);
        }
        steps.free(node.number);
        self.fs.objset.stats.nunlinked.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Frees some of many extended attributes of a file without names. Returns false when there are none, whatever the size of
    /// their directory says.
    pub(super) fn free_some_xattrs(self, node: &Node) -> Result<bool> {
        let dir = self.fs.dir(node.word(self.fs.fields.xattr))?;
        let entries = Zap::open(&self.fs.object(&dir)?)?.entries().take(XATTRS_IN_PIECE);
        let entries: Vec<_> = entries.collect::<Result<_>>()?;
        if entries.is_empty() {
            return Ok(false);
        }
        let tx = self.fs.begin_for(0, true)?;
        let _names = self.fs.names.read();
        self.fs.attempt(&tx, |steps| {
            for entry in &entries {
                let object = dirent_object(entry.value.first().unwrap_or(0));
                self.fs.objset.handle(object)?.check_readable(0, u64::MAX)?;
                let entry = Dirent { name: entry.name().to_vec(), object, kind: None };
                self.fs.dirs().remove_entry(steps, &dir, &entry, FileKind::Regular)?;
                steps.free(object);
            }
            Ok(true)
        })
    }

    /// Frees the directory of extended attributes and the files in it, at the end of the operation.
    pub(super) fn free_xattr_dir(self, steps: &Steps<'_>, number: u64) -> Result<()> {
        let dir = self.fs.node(number)?;
        for entry in Zap::open(&self.fs.object(&dir)?)?.entries() {
            let object = dirent_object(entry?.value.first().unwrap_or(0));
            steps.free(object);
        }
        steps.free(number);
        Ok(())
    }
}

fn queue(fs: &FsWriter, tx: &Tx, number: u64) -> Result<()> {
    let _alone = fs.queue_lock.lock();
    ZapEdit::open(&mut fs.objset.handle(fs.queue)?.edit(tx))?.add_int(number)
}

fn unqueue(fs: &FsWriter, tx: &Tx, number: u64) -> Result<()> {
    let _alone = fs.queue_lock.lock();
    ZapEdit::open(&mut fs.objset.handle(fs.queue)?.edit(tx))?.remove_int(number)
}
