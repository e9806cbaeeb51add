//! Removes names, and files with their last name.
//!
//! A file that is still open when its last name goes waits in the delete queue ([`super::delete_queue`]) until it is closed, or
//! until the file system is opened the next time. A long file waits there, too, while it is freed ([`super::drain`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Error, Kind, Result};

use super::fs::{Directories, FsWriter};
use super::node::{Node, StoredWhen};
use super::sink::LogOp;
use super::steps::Steps;
use crate::attr::Attr;

impl Directories<'_> {
    /// Removes a name of a file that is no directory.
    #[doc(alias = "zfs_remove")]
    pub fn unlink(self, dir: u64, name: &[u8]) -> Result<()> {
        self.unlink_and_look(dir, name).map(drop)
    }

    /// As [`Directories::unlink`]; returns number and attributes of a file that lost its last name.
    pub fn unlink_and_look(self, dir: u64, name: &[u8]) -> Result<Option<(u64, Attr)>> {
        let last = self.fs.settled(0, || unlink_now(self.fs, dir, name))?;
        self.fs.delete_queue().free_doomed();
        Ok(last)
    }

    /// Removes an empty directory.
    #[doc(alias = "zfs_rmdir")]
    pub fn rmdir(self, dir: u64, name: &[u8]) -> Result<()> {
        self.fs.settled(0, || rmdir_now(self.fs, dir, name))?;
        self.fs.delete_queue().free_doomed();
        Ok(())
    }

    /// Whether a directory can be removed.
    pub(super) fn check_empty(self, node: &Node) -> Result<()> {
        if !node.is_dir() {
            return Err(Error::new(Kind::NotDirectory, "not a directory"));
        }
        if node.number == self.fs.root {
            return Err(Error::new(Kind::Busy, "the root directory cannot be removed"));
        }
        if node.word(self.fs.fields.size) > 2 {
            return Err(Error::new(Kind::NotEmpty, "the directory is not empty"));
        }
        Ok(())
    }

    /// A name of `node` is gone. With the last one goes the file, unless it is open. Returns whether it was the last one.
    pub(super) fn drop_link(self, steps: &Steps<'_>, node: &Arc<Node>) -> Result<bool> {
        let now = self.fs.now();
        let attrs = [self.fs.fields.links, self.fs.fields.ctime];
        let left = self.fs.change_step_as(steps, node, attrs, |state| {
            let links = state.word(self.fs.fields.links).saturating_sub(1);
            // A directory's own `.` doesn't keep it.
            let links = if node.is_dir() && links <= 1 { 0 } else { links };
            state.attrs.set_word(self.fs.fields.links, links)?;
            state.time(self.fs.fields.ctime, now)?;
            // The bonus buffer of most files that go is freed with them.
            Ok((links, if links == 0 { StoredWhen::Later } else { StoredWhen::Now }))
        })?;
        if left == 0 {
            drop_file(self.fs, steps, node)?;
        }
        Ok(left == 0)
    }
}

fn unlink_now(fs: &FsWriter, dir: u64, name: &[u8]) -> Result<Option<(u64, Attr)>> {
    let dir = fs.dir(dir)?;
    let tx = fs.begin_for(0, true)?;
    let _names = fs.names.read();
    let _entries = dir.entries.lock();
    let entry = fs.dirs().need(&dir, name)?;
    fs.restrictions().check_names(&dir, true)?;
    let node = fs.node(entry.object)?;
    if node.is_dir() {
        return Err(Error::new(Kind::IsDirectory, "is a directory"));
    }
    fs.restrictions().check_removable(&node)?;
    let last = fs.attempt(&tx, |steps| {
        fs.dirs().remove_entry(steps, &dir, &entry, node.kind)?;
        let last = fs.dirs().drop_link(steps, &node)?;
        Ok(if last { fs.attrs().of(&node).ok().map(|attr| (node.number, attr)) } else { None })
    })?;
    let op = LogOp::Remove { dir: dir.number, name: &entry.name, object: node.number, dir_removed: false };
    fs.log(&tx, &op);
    Ok(last)
}

fn rmdir_now(fs: &FsWriter, dir: u64, name: &[u8]) -> Result<()> {
    let dir = fs.dir(dir)?;
    let tx = fs.begin_for(0, true)?;
    let _names = fs.names.write();
    let entry = fs.dirs().need(&dir, name)?;
    let node = fs.node(entry.object)?;
    fs.restrictions().check_names(&dir, true)?;
    fs.dirs().check_empty(&node)?;
    fs.restrictions().check_removable(&node)?;
    fs.attempt(&tx, |steps| {
        fs.dirs().remove_entry(steps, &dir, &entry, node.kind)?;
        fs.dirs().drop_link(steps, &node)
    })?;
    let op = LogOp::Remove { dir: dir.number, name: &entry.name, object: node.number, dir_removed: true };
    fs.log(&tx, &op);
    Ok(())
}

/// The last name of `node` is gone.
fn drop_file(fs: &FsWriter, steps: &Steps<'_>, node: &Arc<Node>) -> Result<()> {
    fs.objset.stats.nunlinks.fetch_add(1, Ordering::Relaxed);
    // Without the mark, an open could succeed until the file is freed at the end of the operation.
    if !node.doom_unless_open() {
        return keep_unnamed(fs, steps, node);
    }
    let doomed = Arc::clone(node);
    steps.inverse(move |_, _| {
        doomed.spare();
        Ok(())
    });
    if node.is_long() || fs.xattrs().are_many(node) {
        keep_unnamed(fs, steps, node)?;
        let node = Arc::clone(node);
        steps.at_last(move |fs, _| fs.delete_queue().free_later(node));
        return Ok(());
    }
    match fs.delete_queue().check_freeable(node) {
        Ok(()) => fs.delete_queue().free_file(steps, node),
        // A file that can't be freed because of damage stays in the queue, without a name.
        Err(_) => keep_unnamed(fs, steps, node),
    }
}

/// A file without a name stays: it goes to the delete queue, and its attributes to its bonus buffer.
fn keep_unnamed(fs: &FsWriter, steps: &Steps<'_>, node: &Arc<Node>) -> Result<()> {
    fs.store_now(steps, node)?;
    fs.delete_queue().add(steps, node.number)
}
