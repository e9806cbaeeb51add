//! Moving names.
//!
//! The new name is added before the old one goes, because the target's ZAP may have no space for it. The target's old
//! file goes last, as by unlink or rmdir; a directory that moves takes its `..` along. A directory is
//! never moved below itself. Source: `zfs_rename`, zfs_vnops_os.c, OpenZFS 2.3.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::dmu::Tx;
use engine::{Error, Kind, Result};
use ondisk::znode::pflags;

use super::fs::FsWriter;
use super::make::{Birth, Given, NewNode};
use super::node::Node;
use super::sink::{LogOp, NewFile, RenameKind};
use super::steps::Steps;
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
            self.attempt(&tx, |steps| self.exchange(steps, (&source, &entry, &node), (&target, &old)))?;
            return self.told(&tx, kind, (&source, &target), node.number, None);
        }
        let same_place = source.dir.number == target.dir.number;
        let mut over = None;
        if let Some(old) = &old {
            let itself = same_place && old.name == entry.name;
            if old.object == entry.object && !(itself && entry.name != target.name) {
                // Both names are of one file: nothing happens.
                return if kind.keeps_target() { Err(exists()) } else { Ok(()) };
            }
            if kind.keeps_target() && !itself {
                return Err(exists());
            }
            if !itself {
                over = Some((old, self.victim(&target, old, &node)?));
            }
        }
        let leaves = kind
            .leaves_whiteout()
            .then(|| NewNode { given: whiteout, ..NewNode::new(FileKind::CharDevice, 0, ids.0, ids.1) });
        let left = self.attempt(&tx, |steps| {
            self.add_target(steps, &target, over.as_ref(), &node)?;
            let left = self.remove_source(steps, &source.dir, (&entry, &node), leaves.as_ref())?;
            self.moved(steps, &node, &target.dir)?;
            if let Some((_, victim)) = &over {
                self.drop_link(steps, victim)?;
            }
            Ok(left)
        })?;
        self.told(&tx, kind, (&source, &target), node.number, left)
    }

    fn told(
        &self,
        tx: &Tx,
        kind: RenameKind,
        (source, target): (&End, &End),
        object: u64,
        whiteout: Option<NewFile>,
    ) -> Result<()> {
        let (from, to) = ((source.dir.number, &*source.name), (target.dir.number, &*target.name));
        self.log(tx, &LogOp::Rename { kind, from, to, object, whiteout });
        Ok(())
    }

    /// Gives the file its new name, in place of the file that has it.
    fn add_target(
        &self,
        steps: &Steps<'_>,
        target: &End,
        over: Option<&(&Dirent, Arc<Node>)>,
        node: &Node,
    ) -> Result<()> {
        let to = (node.number, node.kind);
        match over {
            Some((old, victim)) if old.name == target.name => {
                self.replace_entry(steps, &target.dir, (*old, victim.kind), to)
            }
            Some((old, victim)) => {
                self.add_entry(steps, &target.dir, &target.name, to)?;
                self.remove_entry(steps, &target.dir, old, victim.kind)
            }
            None => self.add_entry(steps, &target.dir, &target.name, to),
        }
    }

    /// Removes the old name, or leaves a new file there.
    fn remove_source(
        &self,
        steps: &Steps<'_>,
        dir: &Arc<Node>,
        (entry, node): (&Dirent, &Node),
        leaves: Option<&NewNode<'_>>,
    ) -> Result<Option<NewFile>> {
        let Some(new) = leaves else {
            return self.remove_entry(steps, dir, entry, node.kind).map(|()| None);
        };
        let (made, file, _) = self.make(steps, dir, new, Birth::Named)?;
        self.replace_entry(steps, dir, (entry, node.kind), (made.number, made.kind))?;
        Ok(Some(file))
    }

    /// The file that stands at the target, which can be replaced.
    fn victim(&self, target: &End, old: &Dirent, node: &Node) -> Result<Arc<Node>> {
        self.check_names(&target.dir, true)?;
        let victim = self.node(old.object)?;
        match (node.is_dir(), victim.is_dir()) {
            (true, false) => return Err(Error::new(Kind::NotDirectory, "not a directory")),
            (false, true) => return Err(Error::new(Kind::IsDirectory, "is a directory")),
            (true, true) => self.check_empty(&victim)?,
            (false, false) => {}
        }
        self.check_removable(&victim)?;
        Ok(victim)
    }

    /// The file has a new place. A directory that hands its project on hands on that it does so, too.
    fn moved(&self, steps: &Steps<'_>, node: &Arc<Node>, parent: &Node) -> Result<()> {
        let (f, now) = (&self.fields, self.now());
        let added = pflags::AV_MODIFIED | parent.word(f.flags) & pflags::PROJINHERIT;
        let parent = parent.number;
        self.change_step(steps, node, [f.flags, f.parent, f.ctime], |state| {
            let flags = state.word(f.flags) | added;
            state.attrs.set_word(f.flags, flags)?;
            state.attrs.set_word(f.parent, parent)?;
            state.time(f.ctime, now)
        })
    }

    fn exchange(
        &self,
        steps: &Steps<'_>,
        one: (&End, &Dirent, &Arc<Node>),
        two: (&End, &Dirent),
    ) -> Result<()> {
        let (source, entry, node) = one;
        let (target, old) = two;
        let other = self.node(old.object)?;
        self.check_removable(&other)?;
        self.check_projects(&other, &source.dir)?;
        if other.is_dir() {
            self.check_not_below(&other, &source.dir)?;
        }
        self.replace_entry(steps, &source.dir, (entry, node.kind), (other.number, other.kind))?;
        self.replace_entry(steps, &target.dir, (old, other.kind), (node.number, node.kind))?;
        self.moved(steps, node, &target.dir)?;
        self.moved(steps, &other, &source.dir)
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
        // A replayed record was permitted, see `check_names`.
        if inherits
            && !self.replaying.load(Ordering::Acquire)
            && dir.word(self.fields.projid) != node.word(self.fields.projid)
        {
            return Err(Error::new(Kind::OtherDevice, "the directory's files have another project"));
        }
        Ok(())
    }
}

fn exists() -> Error {
    Error::new(Kind::Exists, "a file of that name exists")
}
