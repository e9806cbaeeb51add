//! New files and new names.

use std::sync::Arc;

use engine::dmu::{Handle, NewObject, Tx};
use engine::sa::SaAttrs;
use engine::zap::{NewZap, ZapEdit};
use engine::{Error, Kind, Result};
use ondisk::ObjectType;
use ondisk::acl::Ace;
use ondisk::znode::pflags;

use super::aces::{self, AclDraft, Inheriting};
use super::fields::NewAttrs;
use super::fs::{Directories, FsWriter};
use super::node::{Node, NodeState};
use super::sink::{Created, LogOp, NewFile, Settings};
use super::steps::Steps;
use super::znode::{self, put_target};
use crate::attr::{FileKind, Time};
use crate::filesystem::{VERSION_FUID, VERSION_SA};

/// Longest target of a symbolic link.
const MAX_TARGET: usize = 4095;
const SETGID: u64 = 0o2000;

/// A file to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewNode<'a> {
    /// Type.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits (low 12 bits of a mode).
    pub perm: u64,
    /// Owner.
    pub uid: u64,
    /// Group; in a directory with the set-group-id bit, the directory's is used instead.
    pub gid: u64,
    /// Device number of a device, as it is stored.
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: Option<&'a [u8]>,
    /// An access control list, instead of the one from the directory and the mode.
    pub acl: Option<&'a [Ace]>,
    /// Flags, time of creation and project, when they are not to follow from the directory.
    pub settings: Option<Settings>,
    /// Values from a replayed record.
    pub given: Option<Given>,
}

/// Values that a record of the intent log fixes.
#[derive(Debug, Clone, Copy)]
pub struct Given {
    /// Its object.
    pub object: u64,
    /// Slots of its dnode.
    pub slots: usize,
    /// Txg of its creation.
    pub r#gen: u64,
    /// Moment of its creation.
    pub crtime: Time,
}

impl<'a> NewNode<'a> {
    /// A file of that type and mode.
    pub fn new(kind: FileKind, perm: u64, uid: u64, gid: u64) -> Self {
        Self { kind, perm, uid, gid, rdev: 0, target: None, acl: None, settings: None, given: None }
    }

    /// A symbolic link.
    pub fn symlink(target: &'a [u8], uid: u64, gid: u64) -> Self {
        Self { target: Some(target), ..Self::new(FileKind::Symlink, 0o777, uid, gid) }
    }

    /// A device.
    pub fn device(self, rdev: u64) -> Self {
        Self { rdev, ..self }
    }
}

/// How a file comes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Birth {
    /// With a name.
    Named,
    /// Without (O_TMPFILE).
    Unnamed,
    /// As the hidden directory of extended attributes, or in it.
    Hidden,
}

impl Directories<'_> {
    /// Creates a file of any type, for create, mkdir, mknod and symlink. Returns its object.
    #[doc(alias("zfs_create", "zfs_mkdir", "zfs_symlink"))]
    pub fn create(self, dir: u64, name: &[u8], new: &NewNode<'_>) -> Result<u64> {
        self.fs.settled(0, || create_now(self.fs, dir, name, new))
    }

    /// Creates a file with a name in `dir`, whose entries are locked. Also returns the values for the log.
    pub(super) fn make_in(
        self,
        steps: &Steps<'_>,
        dir: &Arc<Node>,
        name: &[u8],
        new: &NewNode<'_>,
        birth: Birth,
    ) -> Result<(Arc<Node>, NewFile, Option<Vec<Ace>>)> {
        if self.find(dir, name)?.is_some() {
            return Err(Error::new(Kind::Exists, "a file of that name exists"));
        }
        if dir.word(self.fs.fields.links) == 0 {
            return Err(Error::not_found("the directory was removed"));
        }
        self.fs.restrictions().check_names(dir, false)?;
        let (node, file, acl) = self.make(steps, dir, new, birth)?;
        if let Some(settings) = &new.settings {
            self.fs.attrs().apply(steps, &node, settings)?;
        }
        self.add_entry(steps, dir, name, (node.number, new.kind))?;
        Ok((node, file, acl))
    }

    /// Makes a file without a name (O_TMPFILE), open once: [`Directories::link`] can name it, closing it removes it.
    #[doc(alias = "zfs_tmpfile")]
    pub fn create_unnamed(self, dir: u64, new: &NewNode<'_>) -> Result<u64> {
        let dir = self.fs.dir(dir)?;
        self.fs.restrictions().check_names(&dir, false)?;
        let tx = self.fs.begin()?;
        let _names = self.fs.names.read();
        self.fs.attempt(&tx, |steps| {
            let (node, ..) = self.make(steps, &dir, new, Birth::Unnamed)?;
            self.fs.delete_queue().add(steps, node.number)?;
            node.opens.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            Ok(node.number)
        })
    }

    /// Creates the object. Also returns the list when it is not trivial.
    #[doc(alias = "zfs_mknode")]
    pub(super) fn make(
        self,
        steps: &Steps<'_>,
        dir: &Arc<Node>,
        new: &NewNode<'_>,
        birth: Birth,
    ) -> Result<(Arc<Node>, NewFile, Option<Vec<Ace>>)> {
        if new.target.is_some_and(|t| t.is_empty() || t.len() > MAX_TARGET) {
            return Err(Error::new(Kind::TooLong, "the target of a symbolic link has 1 to 4095 bytes"));
        }
        let tx: &Tx = steps;
        let is_dir = new.kind == FileKind::Directory;
        let (parent_mode, parent_flags) = (dir.word(self.fs.fields.mode), dir.word(self.fs.fields.flags));
        let (mut gid, mut mode) = (new.gid, u64::from(new.kind.mode_bits()) | new.perm & 0o7777);
        if parent_mode & SETGID != 0 && new.given.is_none() && birth != Birth::Hidden {
            gid = dir.word(self.fs.fields.gid);
            mode |= if is_dir { SETGID } else { 0 };
        }
        let projid = self.fs.attrs().inherited_project(dir);
        self.fs.quotas().check_owners(new.uid, gid, projid)?;
        let (acl, mode) = first_acl(self.fs, dir, new, mode, (new.uid, gid), birth)?;
        let version = self.fs.version();
        let is_znode = version < VERSION_SA;
        let has_project = self.fs.options().projects
            && !is_znode
            && matches!(new.kind, FileKind::Regular | FileKind::Directory);
        let flags = acl.hints | first_flags(version, birth, parent_flags, has_project);
        let now = new.given.map(|given| given.crtime).or_else(|| self.fs.now()).unwrap_or_default();
        let handle = make_object(self.fs, steps, new, is_znode)?;
        let attrs = NewAttrs {
            mode,
            size: if is_dir { 2 } else { 0 },
            r#gen: new.given.map_or(tx.txg(), |g| g.r#gen),
            uid: new.uid,
            gid,
            parent: dir.number,
            flags,
            now,
            links: if is_dir { 2 } else { u64::from(birth != Birth::Unnamed) },
            rdev: new.kind.is_device().then_some(new.rdev),
            projid: has_project.then_some(projid),
            acl: aces::encode(&acl.aces),
        };
        let mut built: SaAttrs = match is_znode {
            false => attrs.build(&self.fs.fields)?,
            true => attrs.build_znode(&self.fs.fields)?,
        };
        if is_znode {
            self.fs.acls().put_list(tx, &mut built, &acl.aces)?;
            if let Some(list) = self.fs.acls().list_object_of(&built)? {
                steps.inverse(move |fs, tx| fs.objset.free_object(tx, list));
            }
        }
        if let Some(target) = new.target {
            put_link(self.fs, tx, &handle, &mut built, target)?;
        }
        let slots = u8::try_from(handle.slots()).unwrap_or(1);
        let file = NewFile {
            object: handle.number,
            slots,
            mode,
            uid: new.uid,
            gid,
            r#gen: attrs.r#gen,
            crtime: now,
            rdev: attrs.rdev.unwrap_or(0),
        };
        self.fs.forget(handle.number);
        self.fs.may_fail()?;
        let node =
            Node::new(handle, NodeState { attrs: built.into(), spill: None, encoded: false }, new.kind);
        self.fs.store(tx, &node, &mut node.state.write())?;
        // A record has entries of the newer form; in an older file system the replay inherits the list again.
        let tells = acl.hints & pflags::ACL_TRIVIAL == 0 && version >= VERSION_FUID;
        let told = tells.then_some(acl.aces);
        Ok((self.fs.keep(node), file, told))
    }

    /// Adds a name to a file.
    #[doc(alias = "zfs_link")]
    pub fn link(self, object: u64, dir: u64, name: &[u8]) -> Result<()> {
        self.fs.settled(0, || link_now(self.fs, object, dir, name))
    }
}

fn create_now(fs: &FsWriter, dir: u64, name: &[u8], new: &NewNode<'_>) -> Result<u64> {
    fs.dirs().check_name(name)?;
    let dir = fs.dir(dir)?;
    let tx = fs.begin()?;
    let _names = fs.names.read();
    let _entries = dir.entries.lock();
    let (node, file, acl) =
        fs.attempt(&tx, |steps| fs.dirs().make_in(steps, &dir, name, new, Birth::Named))?;
    super::fault::break_off(name);
    let what = match new.kind {
        FileKind::Directory => Created::Directory,
        FileKind::Symlink => Created::Symlink,
        _ => Created::File,
    };
    let acl = acl.as_deref().filter(|_| what != Created::Symlink);
    fs.log(&tx, &LogOp::Create { what, dir: dir.number, file, name, target: new.target, acl });
    Ok(node.number)
}

/// Creates the object itself: at the number that a replay gives, otherwise at any.
fn make_object(fs: &FsWriter, steps: &Steps<'_>, new: &NewNode<'_>, is_znode: bool) -> Result<Arc<Handle>> {
    let tx: &Tx = steps;
    let is_dir = new.kind == FileKind::Directory;
    let kind = if is_dir { ObjectType::DIRECTORY_CONTENTS } else { ObjectType::PLAIN_FILE_CONTENTS };
    let dnode_size = new.given.map_or(fs.options().dnodesize, |g| g.slots * 512);
    let object = NewObject { dnode_size, ..znode::object(kind, ondisk::MIN_BLOCK_SIZE, is_znode) };
    fs.may_fail()?;
    let handle = match new.given {
        Some(given) => fs.objset.create_object_at(tx, given.object, object)?,
        None => fs.objset.create_object(tx, object)?,
    };
    let number = handle.number;
    steps.inverse(move |fs, tx| fs.free_object(tx, number));
    fs.may_fail()?;
    if is_dir {
        let salt = fs.random.lock().next_u64();
        let zap = NewZap { normflags: fs.dirs().normflags(), salt, ..NewZap::default() };
        ZapEdit::create(&mut handle.edit(tx), &zap)?;
    }
    Ok(handle)
}

/// Stores the target of a symbolic link, and its size.
fn put_link(fs: &FsWriter, tx: &Tx, handle: &Arc<Handle>, built: &mut SaAttrs, target: &[u8]) -> Result<()> {
    match fs.version() < VERSION_SA {
        false => built.set(fs.fields.symlink, target)?,
        true => put_target(tx, handle, built, target)?,
    }
    built.set_word(fs.fields.size, u64::try_from(target.len()).unwrap_or(0))
}

/// The first list of a file, and its mode.
fn first_acl(
    fs: &FsWriter,
    dir: &Node,
    new: &NewNode<'_>,
    mode: u64,
    ids: (u64, u64),
    birth: Birth,
) -> Result<(AclDraft, u64)> {
    if let Some(given) = new.acl {
        return Ok(aces::for_given(given, mode, ids));
    }
    let flags = dir.word(fs.fields.flags);
    let inherits = flags & pflags::INHERIT_ACE != 0 && flags & pflags::XATTR == 0 && birth != Birth::Hidden;
    let parent = if inherits { Some(fs.acls().of(dir)?) } else { None };
    let kind = match new.kind {
        FileKind::Regular => Inheriting::Regular,
        FileKind::Directory => Inheriting::Directory,
        FileKind::Symlink => Inheriting::Symlink,
        _ => Inheriting::Other,
    };
    let options = fs.options();
    let rules = (options.aclinherit, options.aclmode);
    Ok(aces::for_new(parent.as_deref(), mode, kind, rules, ids))
}

fn link_now(fs: &FsWriter, object: u64, dir: u64, name: &[u8]) -> Result<()> {
    fs.dirs().check_name(name)?;
    let (dir, node) = (fs.dir(dir)?, fs.node(object)?);
    if node.is_dir() {
        return Err(Error::new(Kind::NotPermitted, "a directory has one name only"));
    }
    fs.restrictions().check_changeable(&node)?;
    fs.restrictions().check_projects(&node, &dir)?;
    let tx = fs.begin()?;
    let _names = fs.names.read();
    let _entries = dir.entries.lock();
    // Again, under the lock: a file that gets the content of another never gets a name.
    fs.restrictions().check_unreserved(&node)?;
    if fs.dirs().find(&dir, name)?.is_some() {
        return Err(Error::new(Kind::Exists, "a file of that name exists"));
    }
    if dir.word(fs.fields.links) == 0 {
        return Err(Error::not_found("the directory was removed"));
    }
    fs.restrictions().check_names(&dir, false)?;
    let unnamed = fs.delete_queue().contains(&tx, object)?;
    if unnamed && !node.is_open() {
        return Err(Error::not_found("the file was removed"));
    }
    let (f, now) = (&fs.fields, fs.now());
    fs.attempt(&tx, |steps| {
        if unnamed {
            fs.delete_queue().remove(steps, object)?;
        }
        fs.change_step(steps, &node, [f.links, f.parent, f.ctime], |state| {
            // An unlink in another directory may have removed the last name since.
            if !unnamed && state.word(f.links) == 0 {
                return Err(Error::not_found("the file was removed"));
            }
            state.add(f.links, 1)?;
            state.attrs.set_word(f.parent, dir.number)?;
            state.time(f.ctime, now)
        })?;
        fs.dirs().add_entry(steps, &dir, name, (object, node.kind))
    })?;
    match unnamed {
        // The log knows nothing of a file that was made without a name.
        true => fs.log_nothing(&tx),
        false => fs.log(&tx, &LogOp::Link { dir: dir.number, object, name }),
    }
    Ok(())
}

/// The flags of a new file that do not follow from its access control list.
fn first_flags(version: u64, birth: Birth, of_parent: u64, has_project: bool) -> u64 {
    let mut flags = 0;
    if version >= VERSION_FUID {
        flags |= pflags::ARCHIVE | pflags::AV_MODIFIED;
    }
    if birth == Birth::Hidden || of_parent & pflags::XATTR != 0 {
        flags |= pflags::XATTR;
    }
    if has_project {
        flags |= pflags::PROJID | of_parent & pflags::PROJINHERIT;
    }
    flags
}
