//! Moving names.
//!
//! The target's old file goes as by unlink or rmdir; a directory that moves takes its `..` along. A directory is
//! never moved below itself. Source: `zfs_rename`, zfs_vnops_os.c, OpenZFS 2.3.

use std::sync::Arc;

use engine::dmu::Tx;
use engine::{Error, Kind, Result};
use ondisk::znode::pflags;

use super::fs::FsWriter;
use super::make::{Birth, Given, NewNode};
use super::node::Node;
use super::sink::{LogOp, RenameKind};
use crate::attr::FileKind;
use crate::dir::Dirent;

/// Directories above each other.
const MAX_DEPTH: usize = 1 << 16;

/// One end of a rename.
struct End {
    dir: Arc<Node>,
    name: Vec<u8>,
}

impl FsWriter {
    /// Moves the name `from` (directory, name) to `to`.
    pub fn rename(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        kind: RenameKind,
        ids: (u64, u64),
    ) -> Result<()> {
        self.settled(0, || self.rename_given(from, to, kind, ids, None))?;
        self.free_doomed();
        Ok(())
    }

    /// The same; `whiteout`: its values in a replayed record.
    pub(super) fn rename_given(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        kind: RenameKind,
        ids: (u64, u64),
        whiteout: Option<Given>,
    ) -> Result<()> {
        self.check_name(to.1)?;
        let source = End { dir: self.dir(from.0)?, name: from.1.to_vec() };
        let target = End { dir: self.dir(to.0)?, name: to.1.to_vec() };
        let tx = self.begin()?;
        let _names = self.names.write();
        let entry = self.need(&source.dir, &source.name)?;
        let node = self.node(entry.object)?;
        if target.dir.word(self.fields.links) == 0 {
            return Err(Error::not_found("the directory was removed"));
        }
        self.check_names(&source.dir, true)?;
        self.check_names(&target.dir, kind == RenameKind::Exchange)?;
        self.check_removable(&node)?;
        self.check_projects(&node, &target.dir)?;
        if node.is_dir() {
            self.check_not_below(&node, &target.dir)?;
        }
        let old = self.find(&target.dir, &target.name)?;
        if kind == RenameKind::Exchange {
            let old = old.ok_or_else(|| Error::not_found("no such file or directory"))?;
            self.exchange(&tx, (&source, &entry, &node), (&target, &old))?;
            return self.told(&tx, kind, (&source, &target), node.number, None);
        }
        let same_place = source.dir.number == target.dir.number;
        if let Some(old) = &old {
            let itself = same_place && old.name == entry.name;
            if old.object == entry.object && !(itself && entry.name != target.name) {
                // Both names are of one file: nothing happens.
                return if kind == RenameKind::NoReplace { Err(exists()) } else { Ok(()) };
            }
            if kind == RenameKind::NoReplace && !itself {
                return Err(exists());
            }
            if !itself {
                self.replace(&tx, &target, old, &node)?;
            }
        }
        self.remove_entry(&tx, &source.dir, &entry.name, node.kind)?;
        self.add_entry(&tx, &target.dir, &target.name, (node.number, node.kind))?;
        self.moved(&tx, &node, target.dir.number)?;
        let mut left = None;
        if kind == RenameKind::Whiteout {
            let new = NewNode { given: whiteout, ..NewNode::new(FileKind::CharDevice, 0, ids.0, ids.1) };
            let (made, file, _) = self.make(&tx, &source.dir, &new, Birth::Named)?;
            self.add_entry(&tx, &source.dir, &entry.name, (made.number, FileKind::CharDevice))?;
            left = Some(file);
        }
        self.told(&tx, kind, (&source, &target), node.number, left)
    }

    fn told(
        &self,
        tx: &Tx,
        kind: RenameKind,
        (source, target): (&End, &End),
        object: u64,
        whiteout: Option<super::sink::NewFile>,
    ) -> Result<()> {
        let (from, to) = ((source.dir.number, &*source.name), (target.dir.number, &*target.name));
        self.log(tx, &LogOp::Rename { kind, from, to, object, whiteout });
        Ok(())
    }

    /// Removes the file at the target.
    fn replace(&self, tx: &Tx, target: &End, old: &Dirent, node: &Node) -> Result<()> {
        self.check_names(&target.dir, true)?;
        let victim = self.node(old.object)?;
        match (node.is_dir(), victim.is_dir()) {
            (true, false) => return Err(Error::new(Kind::NotDirectory, "not a directory")),
            (false, true) => return Err(Error::new(Kind::IsDirectory, "is a directory")),
            (true, true) => self.check_empty(&victim)?,
            (false, false) => {}
        }
        self.check_removable(&victim)?;
        self.remove_entry(tx, &target.dir, &old.name, victim.kind)?;
        self.drop_link(tx, &victim)
    }

    /// The file has a new place.
    fn moved(&self, tx: &Tx, node: &Node, parent: u64) -> Result<()> {
        let now = self.now();
        self.change(tx, node, |state| {
            let flags = state.word(self.fields.flags) | pflags::AV_MODIFIED;
            state.attrs.set_word(self.fields.flags, flags)?;
            state.attrs.set_word(self.fields.parent, parent)?;
            state.time(self.fields.ctime, now)
        })
    }

    fn exchange(&self, tx: &Tx, one: (&End, &Dirent, &Arc<Node>), two: (&End, &Dirent)) -> Result<()> {
        let (source, entry, node) = one;
        let (target, old) = two;
        let other = self.node(old.object)?;
        self.check_removable(&other)?;
        self.check_projects(&other, &source.dir)?;
        if other.is_dir() {
            self.check_not_below(&other, &source.dir)?;
        }
        let subdirs = i64::from(other.is_dir()) - i64::from(node.is_dir());
        self.replace_entry(tx, &source.dir, &entry.name, (other.number, other.kind), subdirs)?;
        self.replace_entry(tx, &target.dir, &old.name, (node.number, node.kind), -subdirs)?;
        self.moved(tx, node, target.dir.number)?;
        self.moved(tx, &other, source.dir.number)
    }

    /// Fails when `dir` is `node` or lies below it.
    fn check_not_below(&self, node: &Node, dir: &Arc<Node>) -> Result<()> {
        let mut at = dir.number;
        for _ in 0..MAX_DEPTH {
            if at == node.number {
                return Err(Error::new(Kind::Invalid, "a directory cannot be moved below itself"));
            }
            if at == self.root {
                return Ok(());
            }
            at = self.node(at)?.word(self.fields.parent);
        }
        Err(Error::new(Kind::Loop, "directories that contain themselves"))
    }

    /// A directory that hands its project on takes only files of that project.
    pub(super) fn check_projects(&self, node: &Node, dir: &Node) -> Result<()> {
        let inherits = dir.word(self.fields.flags) & pflags::PROJINHERIT != 0;
        if inherits && dir.word(self.fields.projid) != node.word(self.fields.projid) {
            return Err(Error::new(Kind::OtherDevice, "the directory's files have another project"));
        }
        Ok(())
    }
}

fn exists() -> Error {
    Error::new(Kind::Exists, "a file of that name exists")
}
