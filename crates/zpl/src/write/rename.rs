//! Moving names.
//!
//! The new name is added before the old one goes, because the target's ZAP may have no space for it. The target's old
//! file goes last, as by unlink or rmdir; a directory that moves takes its `..` along. A directory is
//! never moved below itself. Source: `zfs_rename`, zfs_vnops_os.c, OpenZFS 2.3.

use std::sync::Arc;

use engine::dmu::Tx;
use engine::{Error, Kind, Result};
use ondisk::znode::pflags;

use super::fs::{Directories, FsWriter};
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

impl Directories<'_> {
    /// Moves the name `from` (directory, name) to `to`.
    pub fn rename(
        self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        kind: RenameKind,
        ids: (u64, u64),
    ) -> Result<()> {
        self.fs.settled(0, || self.rename_given(from, to, kind, ids, None))?;
        self.fs.delete_queue().free_doomed();
        Ok(())
    }

    /// The same; `whiteout`: its values in a replayed record.
    pub(super) fn rename_given(
        self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        kind: RenameKind,
        ids: (u64, u64),
        whiteout: Option<Given>,
    ) -> Result<()> {
        self.check_name(to.1)?;
        let source = End { dir: self.fs.dir(from.0)?, name: from.1.to_vec() };
        let target = End { dir: self.fs.dir(to.0)?, name: to.1.to_vec() };
        let tx = self.fs.begin()?;
        let _names = self.fs.names.write();
        let entry = self.need(&source.dir, &source.name)?;
        let node = self.fs.node(entry.object)?;
        if target.dir.word(self.fs.fields.links) == 0 {
            return Err(Error::not_found("the directory was removed"));
        }
        self.fs.restrictions().check_names(&source.dir, true)?;
        self.fs.restrictions().check_names(&target.dir, kind == RenameKind::Exchange)?;
        self.fs.restrictions().check_removable(&node)?;
        self.fs.restrictions().check_projects(&node, &target.dir)?;
        if node.is_dir() {
            check_not_below(self.fs, &node, &target.dir)?;
        }
        let old = self.find(&target.dir, &target.name)?;
        if kind == RenameKind::Exchange {
            let old = old.ok_or_else(|| Error::not_found("no such file or directory"))?;
            self.fs
                .attempt(&tx, |steps| exchange(self.fs, steps, (&source, &entry, &node), (&target, &old)))?;
            return told(self.fs, &tx, kind, (&source, &target), node.number, None);
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
                over = Some((old, victim(self.fs, &target, old, &node)?));
            }
        }
        let leaves = kind
            .leaves_whiteout()
            .then(|| NewNode { given: whiteout, ..NewNode::new(FileKind::CharDevice, 0, ids.0, ids.1) });
        let left = self.fs.attempt(&tx, |steps| {
            add_target(self.fs, steps, &target, over.as_ref(), &node)?;
            let left = remove_source(self.fs, steps, &source.dir, (&entry, &node), leaves.as_ref())?;
            moved(self.fs, steps, &node, &target.dir)?;
            if let Some((_, victim)) = &over {
                self.drop_link(steps, victim)?;
            }
            Ok(left)
        })?;
        told(self.fs, &tx, kind, (&source, &target), node.number, left)
    }
}

fn told(
    fs: &FsWriter,
    tx: &Tx,
    kind: RenameKind,
    (source, target): (&End, &End),
    object: u64,
    whiteout: Option<NewFile>,
) -> Result<()> {
    let (from, to) = ((source.dir.number, &*source.name), (target.dir.number, &*target.name));
    fs.log(tx, &LogOp::Rename { kind, from, to, object, whiteout });
    Ok(())
}

/// Enters the file under its new name, in place of the file that has it.
fn add_target(
    fs: &FsWriter,
    steps: &Steps<'_>,
    target: &End,
    over: Option<&(&Dirent, Arc<Node>)>,
    node: &Node,
) -> Result<()> {
    let to = (node.number, node.kind);
    match over {
        Some((old, victim)) if old.name == target.name => {
            fs.dirs().replace_entry(steps, &target.dir, (*old, victim.kind), to)
        }
        Some((old, victim)) => {
            fs.dirs().add_entry(steps, &target.dir, &target.name, to)?;
            fs.dirs().remove_entry(steps, &target.dir, old, victim.kind)
        }
        None => fs.dirs().add_entry(steps, &target.dir, &target.name, to),
    }
}

/// Removes the old name, or leaves a new file there.
fn remove_source(
    fs: &FsWriter,
    steps: &Steps<'_>,
    dir: &Arc<Node>,
    (entry, node): (&Dirent, &Node),
    leaves: Option<&NewNode<'_>>,
) -> Result<Option<NewFile>> {
    let Some(new) = leaves else {
        return fs.dirs().remove_entry(steps, dir, entry, node.kind).map(|()| None);
    };
    let (made, file, _) = fs.dirs().make(steps, dir, new, Birth::Named)?;
    fs.dirs().replace_entry(steps, dir, (entry, node.kind), (made.number, made.kind))?;
    Ok(Some(file))
}

/// The file that stands at the target, which can be replaced.
fn victim(fs: &FsWriter, target: &End, old: &Dirent, node: &Node) -> Result<Arc<Node>> {
    fs.restrictions().check_names(&target.dir, true)?;
    let victim = fs.node(old.object)?;
    match (node.is_dir(), victim.is_dir()) {
        (true, false) => return Err(Error::new(Kind::NotDirectory, "not a directory")),
        (false, true) => return Err(Error::new(Kind::IsDirectory, "is a directory")),
        (true, true) => fs.dirs().check_empty(&victim)?,
        (false, false) => {}
    }
    fs.restrictions().check_removable(&victim)?;
    Ok(victim)
}

/// The file has a new place. A directory that hands its project on hands on that it does so, too.
fn moved(fs: &FsWriter, steps: &Steps<'_>, node: &Arc<Node>, parent: &Node) -> Result<()> {
    let (f, now) = (&fs.fields, fs.now());
    let added = pflags::AV_MODIFIED | parent.word(f.flags) & pflags::PROJINHERIT;
    let parent = parent.number;
    fs.change_step(steps, node, [f.flags, f.parent, f.ctime], |state| {
        let flags = state.word(f.flags) | added;
        state.attrs.set_word(f.flags, flags)?;
        state.attrs.set_word(f.parent, parent)?;
        state.time(f.ctime, now)
    })
}

fn exchange(
    fs: &FsWriter,
    steps: &Steps<'_>,
    one: (&End, &Dirent, &Arc<Node>),
    two: (&End, &Dirent),
) -> Result<()> {
    let (source, entry, node) = one;
    let (target, old) = two;
    let other = fs.node(old.object)?;
    fs.restrictions().check_removable(&other)?;
    fs.restrictions().check_projects(&other, &source.dir)?;
    if other.is_dir() {
        check_not_below(fs, &other, &source.dir)?;
    }
    fs.dirs().replace_entry(steps, &source.dir, (entry, node.kind), (other.number, other.kind))?;
    fs.dirs().replace_entry(steps, &target.dir, (old, other.kind), (node.number, node.kind))?;
    moved(fs, steps, node, &target.dir)?;
    moved(fs, steps, &other, &source.dir)
}

/// Fails when `dir` is `node` or lies below it.
fn check_not_below(fs: &FsWriter, node: &Node, dir: &Arc<Node>) -> Result<()> {
    let mut at = dir.number;
    for _ in 0..MAX_DEPTH {
        if at == node.number {
            return Err(Error::new(Kind::Invalid, "a directory cannot be moved below itself"));
        }
        if at == fs.root {
            return Ok(());
        }
        at = fs.node(at)?.word(fs.fields.parent);
    }
    Err(Error::new(Kind::Loop, "directories that contain themselves"))
}

fn exists() -> Error {
    Error::new(Kind::Exists, "a file of that name exists")
}
