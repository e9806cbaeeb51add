//! Random operations on files, and their effects on the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::{Kind, Result};
use ondisk::acl::{Ace, ace_flags, ace_mask, ace_type};
use zpl::FileKind;
use zpl::write::{CloneFrom, FsWriter, NewNode, QuotaKind, RenameKind, Rewriting, Seek, Settings, XattrMode};

use crate::actor::{Actor, MARK, is_refusal};
use crate::content::Content;
use crate::model::{Item, Name, Tree};
use crate::world::POOL;

/// The bit that makes a directory pass on its group.
const SETGID: u32 = 0o2000;
/// Number of different names in a directory.
const NAMES: u64 = 9;
/// Tested quotas of users.
const QUOTAS: [u64; 4] = [0, 0, 100 << 10, 2 << 20];
/// Maximum size of an ordinary file.
const SPAN: u64 = 40 << 10;
/// Maximum size of a file that fills the pool.
const LARGE: u64 = 400 << 10;

/// Size of a filler file, and their maximum number.
const FILLER: u64 = 1 << 20;
const MOST_FILLERS: usize = 200;

/// Writes bytes into the model of a file.
pub(crate) fn overlay(item: &mut Item, offset: u64, bytes: &[u8]) {
    Arc::make_mut(&mut item.bytes).write(offset, bytes);
}

/// The target of an operation: directory, name, and the file it names.
struct Place {
    dir: u64,
    name: Name,
    there: Option<u64>,
}

/// Checks that an allowed operation succeeds, and a forbidden one is refused.
pub(crate) fn expected<T>(result: Result<T>, allowed: bool, what: &str) -> Result<Option<T>> {
    match result {
        Err(e) if is_refusal(&e) => Ok(None),
        Ok(value) if allowed => Ok(Some(value)),
        Err(e) if allowed => Err(e),
        Err(_) => Ok(None),
        Ok(_) => Err(engine::Error::corrupt(format!("{what} was done and should have been refused"))),
    }
}

impl Actor {
    /// Bytes of all live files.
    fn stored(&self) -> u64 {
        let trees = self.model.heads.values().map(|head| &head.tree);
        trees.flat_map(|tree| tree.items.values()).map(|item| item.bytes.stored()).sum()
    }

    fn place(&mut self, tree: &Tree) -> Option<Place> {
        let dirs: Vec<u64> = tree.names.keys().copied().collect();
        let dir = self.pick(&dirs)?;
        let long = if self.random.below(12) == 0 { "x".repeat(60) } else { String::new() };
        let name = match (self.random.below(4), tree.names.get(&dir)) {
            // Also names from the original pool.
            (0, Some(names)) if dir_has_others(names) => {
                let names: Vec<Name> = names.keys().filter(|name| *name != MARK).cloned().collect();
                self.pick(&names)?
            }
            _ => format!("n{}{long}", self.random.below(NAMES)).into_bytes(),
        };
        let there = tree.get(dir, &name);
        Some(Place { dir, name, there })
    }

    fn some_file(&mut self, tree: &Tree) -> Option<u64> {
        let is_file = |item: &Item| item.kind == FileKind::Regular;
        let files: Vec<u64> = tree.items.iter().filter(|(_, i)| is_file(i)).map(|(&n, _)| n).collect();
        // The first is the mark, in the root file system.
        self.pick(&files)
    }

    /// Bytes: random, repeated, or zeros.
    pub(crate) fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        match self.random.below(6) {
            0 => {}
            1 | 2 => {
                let word = self.random.next_u64().to_le_bytes();
                bytes.iter_mut().zip(word.iter().cycle()).for_each(|(to, from)| *to = *from);
            }
            _ => self.random.fill(&mut bytes),
        }
        bytes
    }

    /// One operation on a file of `dataset`.
    pub(crate) fn file_op(&mut self, dataset: &str) -> Result<()> {
        let (fs, tree) = (self.writer(dataset)?, self.tree(dataset));
        let Some(place) = self.place(&tree) else { return Ok(()) };
        let target = self.some_file(&tree).filter(|n| dataset != POOL || tree.get(fs.root, MARK) != Some(*n));
        let what = self.random.below(28);
        let name = String::from_utf8_lossy(&place.name);
        self.tell(format!(
            "{dataset}: file operation {what} at {}/{name}={:?} on {target:?}",
            place.dir, place.there
        ));
        match (what, target) {
            (0..4, _) => self.create(dataset, &fs, &place),
            (4, _) => self.make_dir(dataset, &fs, &place),
            (5, _) => self.symlink(dataset, &fs, &place),
            (6, Some(number)) => self.link(dataset, &fs, &place, number),
            (7 | 8, _) => self.unlink(dataset, &fs, &place),
            (9, _) => self.rmdir(dataset, &fs, &place),
            (10 | 11, _) => self.rename(dataset, &fs, &place),
            (12..15, Some(number)) => self.overwrite(dataset, &fs, number),
            (15, Some(number)) => self.truncate(dataset, &fs, number),
            (16, Some(number)) => self.punch(dataset, &fs, number),
            (17 | 18, Some(number)) => self.set_xattr(dataset, &fs, number),
            (19, Some(number)) => self.chmod(dataset, &fs, number),
            (20, Some(number)) => self.fill(dataset, &fs, number),
            (21, _) => self.close_one(),
            (22, Some(number)) => self.set_acl(dataset, &fs, number),
            (23, _) => self.set_quota(dataset, &fs),
            (24, Some(number)) => self.clone_range(dataset, &fs, number),
            (25, Some(number)) => self.rewrite(dataset, &fs, number),
            _ => self.look(dataset),
        }
    }

    /// Creates a file; a setgid directory passes on its group, and the bit to directories.
    fn add(&mut self, dataset: &str, place: &Place, number: u64, mut item: Item) -> Result<()> {
        let (fs, tree) = (self.writer(dataset)?, self.tree(dataset));
        let (perm, group) = match tree.items.get(&place.dir) {
            Some(dir) => (dir.perm, dir.ids.1),
            // The model has no item for the root, which is never changed.
            None => fs.attrs().get(place.dir).map(|root| (root.perm, root.group))?,
        };
        if perm & SETGID != 0 {
            item.ids.1 = group;
            item.perm |= if item.kind == FileKind::Directory { SETGID } else { 0 };
        }
        item.acl = fs.acls().get(number)?;
        self.edit(dataset, |tree| {
            tree.set(place.dir, &place.name, number);
            if item.kind == FileKind::Directory {
                tree.names.insert(number, Arc::default());
            }
            tree.items.insert(number, Arc::new(item));
        });
        Ok(())
    }

    fn create(&mut self, dataset: &str, fs: &FsWriter, place: &Place) -> Result<()> {
        let owner = self.random.below(3);
        let new = NewNode::new(FileKind::Regular, 0o644, owner, 0);
        let made = expected(fs.dirs().create(place.dir, &place.name, &new), place.there.is_none(), "create")?;
        let Some(number) = made else { return Ok(()) };
        self.add(dataset, place, number, Item { ids: (owner, 0), ..Item::new(FileKind::Regular, 0o644) })?;
        let len = self.random.below(SPAN);
        // Many files are small, so that some are embedded in their pointers.
        let len = if self.random.below(2) == 0 { len / 256 } else { len };
        self.write(dataset, fs, number, 0, len)
    }

    fn write(&mut self, dataset: &str, fs: &FsWriter, number: u64, offset: u64, len: u64) -> Result<()> {
        let bytes = self.bytes(len);
        if expected(fs.data().write(number, offset, &bytes, true), true, "write")?.is_some() && len > 0 {
            self.edit(dataset, |tree| tree.change(number, |item| overlay(item, offset, &bytes)));
        }
        Ok(())
    }

    fn overwrite(&mut self, dataset: &str, fs: &FsWriter, number: u64) -> Result<()> {
        let (offset, len) = (self.random.below(SPAN), self.random.below(SPAN / 2) + 1);
        self.write(dataset, fs, number, offset, len)
    }

    /// Creates a large file, or truncates one if there are enough of them.
    fn fill(&mut self, dataset: &str, fs: &FsWriter, number: u64) -> Result<()> {
        if self.stored() > self.budget {
            return self.cut(dataset, fs, number, 0);
        }
        let len = self.random.below(LARGE);
        self.write(dataset, fs, number, 0, len)
    }

    fn truncate(&mut self, dataset: &str, fs: &FsWriter, number: u64) -> Result<()> {
        let size = self.random.below(SPAN);
        self.cut(dataset, fs, number, size)
    }

    fn cut(&mut self, dataset: &str, fs: &FsWriter, number: u64, size: u64) -> Result<()> {
        if expected(fs.data().truncate(number, size), true, "truncate")?.is_some() {
            self.edit(dataset, |tree| {
                tree.change(number, |item| Arc::make_mut(&mut item.bytes).resize(size))
            });
        }
        Ok(())
    }

    fn punch(&mut self, dataset: &str, fs: &FsWriter, number: u64) -> Result<()> {
        let (offset, len) = (self.random.below(SPAN), self.random.below(SPAN) + 1);
        if expected(fs.data().punch(number, offset, len), true, "punch")?.is_some() {
            self.edit(dataset, |tree| {
                tree.change(number, |item| Arc::make_mut(&mut item.bytes).zero(offset, offset + len))
            });
        }
        Ok(())
    }

    /// Makes blocks of a file references to those of another one, maybe in another file system.
    fn clone_range(&mut self, dataset: &str, fs: &FsWriter, number: u64) -> Result<()> {
        let mounted: Vec<String> = self.mounted_files();
        let from = match self.random.below(2) {
            0 => self.pick(&mounted).unwrap_or_else(|| dataset.to_owned()),
            _ => dataset.to_owned(),
        };
        let (theirs, tree) = (self.writer(&from)?, self.tree(&from));
        let Some(source) = self.some_file(&tree) else { return Ok(()) };
        let handle = theirs.objset.handle(source)?;
        // Blocks that are not written yet are waited for, which closes the txg.
        if !handle.is_clean() && !self.may_split && !self.syncs_splits {
            return Ok(());
        }
        let block = handle.dnode().datablksz();
        let mut offset = || if self.random.below(3) == 0 { self.random.below(3) * block } else { 0 };
        let (at, to) = (offset(), offset());
        let len = if self.random.below(2) == 0 { self.random.below(4) * block } else { LARGE };
        let cloned = fs.clones().clone_range((CloneFrom::File(&theirs, source), at), (number, to), len, true);
        let left_to_us = |e: &engine::Error| {
            matches!(e.kind(), Kind::Invalid | Kind::OtherDevice | Kind::Unsupported | Kind::Busy)
        };
        let cloned = match cloned {
            Err(e) if left_to_us(&e) => return Ok(()),
            other => expected(other, true, "clone")?.unwrap_or(0),
        };
        let Some(item) = tree.items.get(&source) else { return Ok(()) };
        let bytes: Vec<u8> = (at..at.saturating_add(cloned)).map(|byte| item.bytes.byte(byte)).collect();
        if cloned > 0 {
            self.edit(dataset, |tree| tree.change(number, |item| overlay(item, to, &bytes)));
        }
        Ok(())
    }

    /// Writes a file's blocks again, which changes nothing.
    fn rewrite(&mut self, _: &str, fs: &FsWriter, number: u64) -> Result<()> {
        let how = if self.random.below(2) == 0 { Rewriting::Logical } else { Rewriting::Physical };
        match fs.rewrites().rewrite(number, self.random.below(SPAN), self.random.below(SPAN), how) {
            // An old pool.
            Err(e) if how == Rewriting::Physical && e.kind() == Kind::Unsupported => Ok(()),
            done => expected(done, true, "rewrite").map(drop),
        }
    }

    fn make_dir(&mut self, dataset: &str, fs: &FsWriter, place: &Place) -> Result<()> {
        let new = NewNode::new(FileKind::Directory, 0o755, 0, 0);
        let made = expected(fs.dirs().create(place.dir, &place.name, &new), place.there.is_none(), "mkdir")?;
        if let Some(number) = made {
            self.add(dataset, place, number, Item::new(FileKind::Directory, 0o755))?;
        }
        Ok(())
    }

    fn symlink(&mut self, dataset: &str, fs: &FsWriter, place: &Place) -> Result<()> {
        let target = "t".repeat(usize::try_from(self.random.below(200)).unwrap_or(0) + 1).into_bytes();
        let new = NewNode::symlink(&target, 0, 0);
        let made =
            expected(fs.dirs().create(place.dir, &place.name, &new), place.there.is_none(), "symlink")?;
        if let Some(number) = made {
            let item = Item { bytes: Arc::new(Content::of(&target)), ..Item::new(FileKind::Symlink, 0o777) };
            self.add(dataset, place, number, item)?;
        }
        Ok(())
    }

    fn link(&mut self, dataset: &str, fs: &FsWriter, place: &Place, number: u64) -> Result<()> {
        let done = expected(fs.dirs().link(number, place.dir, &place.name), place.there.is_none(), "link")?;
        if done.is_some() {
            self.edit(dataset, |tree| {
                tree.set(place.dir, &place.name, number);
                tree.change(number, |item| item.links += 1);
            });
        }
        Ok(())
    }

    /// Removes a name; a file may stay open without one.
    fn unlink(&mut self, dataset: &str, fs: &FsWriter, place: &Place) -> Result<()> {
        let tree = self.tree(dataset);
        let file = place.there.filter(|n| !tree.is_dir(*n));
        let stays = file.filter(|n| {
            tree.items.get(n).is_some_and(|i| i.links == 1 && i.kind == FileKind::Regular)
                && self.random.below(4) == 0
        });
        if let Some(number) = stays {
            fs.open_file(number)?;
            self.open.push((dataset.to_owned(), number));
        }
        if expected(fs.dirs().unlink(place.dir, &place.name), file.is_some(), "unlink")?.is_some() {
            self.edit(dataset, |tree| tree.unlink(place.dir, &place.name));
        }
        Ok(())
    }

    /// Closes a file that was unlinked while open.
    fn close_one(&mut self) -> Result<()> {
        match self.open.pop() {
            Some((dataset, number)) => self.writer(&dataset)?.close_file(number),
            None => Ok(()),
        }
    }

    fn rmdir(&mut self, dataset: &str, fs: &FsWriter, place: &Place) -> Result<()> {
        let tree = self.tree(dataset);
        let empty = place.there.is_some_and(|n| tree.names.get(&n).is_some_and(|names| names.is_empty()));
        if expected(fs.dirs().rmdir(place.dir, &place.name), empty, "rmdir")?.is_some() {
            self.edit(dataset, |tree| tree.unlink(place.dir, &place.name));
        }
        Ok(())
    }

    fn rename(&mut self, dataset: &str, fs: &FsWriter, from: &Place) -> Result<()> {
        let tree = self.tree(dataset);
        let Some(to) = self.place(&tree) else { return Ok(()) };
        let kinds = [RenameKind::Plain, RenameKind::NoReplace, RenameKind::Exchange];
        let Some(kind) = self.pick(&kinds) else { return Ok(()) };
        let allowed = may_rename(&tree, from, &to, kind);
        self.tell(format!("{kind:?} to {}/{}={:?}", to.dir, String::from_utf8_lossy(&to.name), to.there));
        let done = fs.dirs().rename((from.dir, &from.name), (to.dir, &to.name), kind, (0, 0));
        let Some(moved) = from.there.filter(|_| allowed) else {
            return expected(done, false, "rename").map(|_| ());
        };
        if expected(done, true, "rename")?.is_none() || to.there == Some(moved) {
            return Ok(());
        }
        self.edit(dataset, |tree| {
            match (kind, to.there) {
                (RenameKind::Exchange, Some(other)) => {
                    tree.set(from.dir, &from.name, other);
                }
                (_, replaced) => {
                    if let Some(names) = tree.names.get_mut(&from.dir) {
                        Arc::make_mut(names).remove(&from.name);
                    }
                    replaced.into_iter().for_each(|number| tree.drop_link(number));
                }
            }
            tree.set(to.dir, &to.name, moved);
        });
        Ok(())
    }

    fn set_xattr(&mut self, dataset: &str, fs: &FsWriter, number: u64) -> Result<()> {
        let name = format!("user.a{}", self.random.below(3)).into_bytes();
        let has = self.tree(dataset).items.get(&number).is_some_and(|i| i.xattrs.contains_key(&name));
        let value = match self.random.below(4) {
            0 if has => None,
            1 => Some(self.random.below(9000)),
            _ => Some(self.random.below(60)),
        };
        let value = value.map(|len| self.bytes(len));
        let done = fs.xattrs().set(number, &name, value.as_deref(), XattrMode::Set);
        if expected(done, true, "set an attribute")?.is_some() {
            let set = |all: &mut BTreeMap<Name, Vec<u8>>| match value {
                Some(value) => all.insert(name, value),
                None => all.remove(&name),
            };
            self.edit(dataset, |tree| {
                tree.change(number, |item| {
                    set(&mut item.xattrs);
                });
            });
        }
        Ok(())
    }

    fn chmod(&mut self, dataset: &str, fs: &FsWriter, number: u64) -> Result<()> {
        let perm = u32::try_from(self.random.below(0o1000)).unwrap_or(0);
        let settings = Settings { mode: Some(perm.into()), ..Settings::default() };
        if expected(fs.attrs().set(number, &settings), true, "chmod")?.is_some() {
            let acl = fs.acls().get(number)?;
            self.edit(dataset, |tree| tree.change(number, |item| (item.perm, item.acl) = (perm, acl)));
        }
        Ok(())
    }

    /// Sets a list of a few entries. The resulting mode is not judged here, only that it stays.
    fn set_acl(&mut self, dataset: &str, fs: &FsWriter, number: u64) -> Result<()> {
        let masks = [ace_mask::READ_DATA, ace_mask::WRITE_DATA | ace_mask::APPEND_DATA, ace_mask::READ_ACL];
        let mut list = Vec::new();
        for who in 0..self.random.below(12) + 1 {
            let ace_type = if self.random.below(3) == 0 { ace_type::DENY } else { ace_type::ALLOW };
            let (who, flags) = match self.random.below(3) {
                0 => (u64::MAX, ace_flags::EVERYONE),
                1 => (who, ace_flags::IDENTIFIER_GROUP),
                _ => (who, 0),
            };
            let access_mask = self.pick(&masks).unwrap_or(0);
            list.push(Ace { ace_type, flags, access_mask, who, object: None });
        }
        if expected(fs.acls().set(number, &list), true, "set a list")?.is_some() {
            let perm = fs.attrs().get(number)?.perm;
            self.edit(dataset, |tree| tree.change(number, |item| (item.perm, item.acl) = (perm, list)));
        }
        Ok(())
    }

    fn set_quota(&mut self, dataset: &str, fs: &FsWriter) -> Result<()> {
        // Not for the owner of the mark.
        let (id, limit) = (self.random.below(2) + 1, self.pick(&QUOTAS).unwrap_or(0));
        if expected(fs.quotas().set(QuotaKind::User, id, limit), true, "set a quota")?.is_some() {
            self.edit(dataset, |tree| match limit {
                0 => drop(tree.quotas.remove(&id)),
                limit => drop(tree.quotas.insert(id, limit)),
            });
        }
        Ok(())
    }

    /// Writes files until the pool is full, removes them again, and makes all of it one step.
    pub(crate) fn fill_up(&mut self) -> Result<()> {
        self.tell("fill up".into());
        let (fs, mut made) = (self.writer(POOL)?, Vec::new());
        let mut refused = false;
        for number in 0..MOST_FILLERS {
            let name = format!("filler{number}").into_bytes();
            let bytes = self.bytes_at_random(FILLER);
            let done = fs.dirs().create(fs.root, &name, &NewNode::new(FileKind::Regular, 0o600, 0, 0));
            let Some(file) = expected(done, true, "create")? else { break };
            made.push(name);
            if expected(fs.data().write(file, 0, &bytes, true), true, "write")?.is_none() {
                refused = true;
                break;
            }
        }
        if !refused && made.len() < MOST_FILLERS {
            self.tell("no name found room".into());
        }
        self.spa.sync()?;
        for name in made {
            fs.dirs().unlink(fs.root, &name)?;
        }
        // Freed space is available to others after some txgs.
        (0..4).try_for_each(|_| self.spa.sync())?;
        self.change()?;
        self.spa.sync()
    }

    fn bytes_at_random(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        self.random.fill(&mut bytes);
        bytes
    }

    /// Compares one file of a live file system with the model.
    pub(crate) fn look(&mut self, dataset: &str) -> Result<()> {
        if self.tree(dataset).is_volume() {
            return self.look_at_volume(dataset);
        }
        let (fs, tree) = (self.writer(dataset)?, self.tree(dataset));
        let Some(number) = self.some_file(&tree) else { return Ok(()) };
        let Some(item) = tree.items.get(&number) else { return Ok(()) };
        let next = |at| fs.data().seek(number, at, Seek::Data);
        let found =
            Content::read(fs.attrs().get(number)?.size, next, |at, out| fs.data().read(number, at, out))?;
        crate::model::same_bytes(&found, &item.bytes)
            .map_err(|why| engine::Error::new(Kind::Corrupt, format!("object {number} of {dataset}: {why}")))
    }
}

fn dir_has_others(names: &BTreeMap<Name, u64>) -> bool {
    names.keys().any(|name| name != MARK)
}

fn may_rename(tree: &Tree, from: &Place, to: &Place, kind: RenameKind) -> bool {
    let Some(moved) = from.there else { return false };
    if tree.is_dir(moved) && tree.is_below(moved, to.dir) {
        return false;
    }
    let is_empty = |number: u64| tree.names.get(&number).is_some_and(|names| names.is_empty());
    match (kind, to.there) {
        (RenameKind::Exchange, None) => false,
        (RenameKind::Exchange, Some(old)) => !(tree.is_dir(old) && tree.is_below(old, from.dir)),
        (_, None) => true,
        (RenameKind::NoReplace, Some(_)) => false,
        (_, Some(old)) => {
            old == moved || (tree.is_dir(old) == tree.is_dir(moved) && (!tree.is_dir(old) || is_empty(old)))
        }
    }
}
