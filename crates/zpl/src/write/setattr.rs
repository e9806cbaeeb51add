//! Changes of attributes: mode, owners, size, times, flags, project.

use engine::dmu::Tx;
use engine::{Error, Kind, Result};
use ondisk::znode::pflags;

use super::aces::AclMode;
use super::fs::{FileAttrs, FsWriter};
use super::node::{Node, NodeState};
use super::restrictions::not_permitted;
use super::sink::{LogOp, Settings};
use super::xattr::XATTRS_IN_PIECE;
use crate::filesystem::{VERSION_FUID, VERSION_SA};

/// Flags that users can set.
const SETTABLE: u64 = pflags::READONLY
    | pflags::HIDDEN
    | pflags::SYSTEM
    | pflags::ARCHIVE
    | pflags::IMMUTABLE
    | pflags::NOUNLINK
    | pflags::APPENDONLY
    | pflags::NODUMP
    | pflags::OPAQUE
    | pflags::AV_QUARANTINED
    | pflags::AV_MODIFIED
    | pflags::REPARSE
    | pflags::OFFLINE
    | pflags::SPARSE
    | pflags::PROJINHERIT;

impl FileAttrs<'_> {
    /// Sets attributes. The caller checks permissions, except those that the file's own flags restrict.
    #[doc(alias = "zfs_setattr")]
    pub fn set(self, number: u64, settings: &Settings) -> Result<()> {
        self.fs.settled(number, || setattr_now(self.fs, number, settings))
    }

    /// Sets attributes other than the size, which the caller has set.
    pub(super) fn apply(self, tx: &Tx, node: &Node, set: &Settings) -> Result<()> {
        // No record describes the new size without the rest.
        let unlogged = |_: &Error| {
            if set.size.is_some() && !self.fs.is_replay() {
                self.fs.log_nothing(tx)
            }
        };
        apply_rest(self.fs, tx, node, set).inspect_err(unlogged)
    }

    /// Sets the project; files of old file systems get the attribute in its place, which readers rely on.
    #[doc(alias = "sa_add_projid")]
    pub(super) fn set_project(self, tx: &Tx, state: &mut NodeState, projid: u64) -> Result<()> {
        self.to_attributes(tx, state)?;
        if state.attrs.get(self.fs.fields.projid).is_some() {
            return state.attrs.set_word(self.fs.fields.projid, projid);
        }
        let mut rebuilt = engine::sa::SaAttrs::new();
        let f = &self.fs.fields;
        let head = [
            f.mode, f.size, f.r#gen, f.uid, f.gid, f.parent, f.flags, f.atime, f.mtime, f.ctime, f.crtime,
            f.links,
        ];
        for attr in head {
            if let Some(bytes) = state.attrs.get(attr) {
                rebuilt.set(attr, bytes)?;
            }
        }
        rebuilt.set_word(f.projid, projid)?;
        for (attr, bytes) in state.attrs.iter() {
            if rebuilt.get(attr).is_none() {
                rebuilt.set(attr, bytes)?;
            }
        }
        state.attrs = rebuilt.into();
        Ok(())
    }

    /// The project of new files in a directory.
    #[doc(alias = "zfs_inherit_projid")]
    pub(super) fn inherited_project(self, dir: &Node) -> u64 {
        match dir.word(self.fs.fields.flags) & pflags::PROJINHERIT {
            0 => 0,
            _ => dir.word(self.fs.fields.projid),
        }
    }
}

fn setattr_now(fs: &FsWriter, number: u64, settings: &Settings) -> Result<()> {
    let node = fs.node(number)?;
    fs.restrictions().check_unreserved(&node)?;
    if settings.flags.is_some() && fs.version() < VERSION_FUID && !fs.is_replay() {
        return Err(Error::new(
            Kind::Invalid,
            "files of this file system's version have no flags: zfs upgrade",
        ));
    }
    let only_flags = Settings { flags: settings.flags, ..Settings::default() } == *settings;
    if !only_flags && !fs.is_replay() && node.word(fs.fields.flags) & pflags::IMMUTABLE != 0 {
        return Err(not_permitted("the file is immutable"));
    }
    if settings.size.is_some() {
        fs.restrictions().check_writable(&node, None)?;
        fs.restrictions().check_granted(&node)?;
        fs.restrictions().check_appending(&node, false)?;
        if node.is_dir() {
            return Err(Error::new(Kind::IsDirectory, "is a directory"));
        }
    }
    let _range = settings.size.map(|_| node.ranges.lock(0..u64::MAX, true));
    // Users over a quota may still truncate files.
    let shrinks = settings.size.is_some_and(|size| size < node.word(fs.fields.size));
    if settings.size.is_some() && !fs.is_replay() {
        check_settings(fs, &node, settings)?;
    }
    if let Some(size) = settings.size.filter(|_| shrinks) {
        fs.data().free_end(&node, size)?;
    }
    let tx = fs.begin_for(0, shrinks)?;
    if let Some(size) = settings.size {
        fs.data().resize(&tx, &node, size)?;
    }
    let order = node.modes.lock();
    fs.attrs().apply(&tx, &node, settings)?;
    let owners = settings.uid.is_some() || settings.gid.is_some() || settings.projid.is_some();
    // A replayed record has one transaction.
    let in_pieces = owners && !fs.is_replay() && fs.xattrs().are_many(&node);
    if owners && !in_pieces {
        // The file itself has changed already.
        let unlogged = |_: &Error| {
            if !fs.is_replay() {
                fs.log_nothing(&tx)
            }
        };
        apply_to_xattrs(fs, &tx, &node, settings).inspect_err(unlogged)?;
    }
    let (mode, uid) = (node.word(fs.fields.mode), node.word(fs.fields.uid));
    let gid = node.word(fs.fields.gid);
    fs.log_of(&node, &tx, &LogOp::Setattr { object: number, settings, mode, uid, gid });
    drop(order);
    drop(tx);
    if in_pieces { apply_to_many_xattrs(fs, &node, settings) } else { Ok(()) }
}

/// As [`apply_to_xattrs`], some in each transaction: a crash may leave files of attributes with the old owners,
/// which only accounts show.
#[doc(alias = "zfs_setattr_dir")]
fn apply_to_many_xattrs(fs: &FsWriter, node: &Node, settings: &Settings) -> Result<()> {
    let owners =
        Settings { uid: settings.uid, gid: settings.gid, projid: settings.projid, ..Settings::default() };
    let number = node.word(fs.fields.xattr);
    for some in fs.dirs().entries(number)?.chunks(XATTRS_IN_PIECE) {
        let tx = fs.begin()?;
        for entry in some {
            match fs.node(entry.object) {
                Ok(file) => fs.attrs().apply(&tx, &file, &owners)?,
                // It was removed since.
                Err(e) if e.kind() == Kind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
    }
    let tx = fs.begin()?;
    fs.attrs().apply(&tx, &*fs.node(number)?, &owners)
}

/// Applies the file's owners to its hidden attribute directory.
fn apply_to_xattrs(fs: &FsWriter, tx: &Tx, node: &Node, settings: &Settings) -> Result<()> {
    let number = node.word(fs.fields.xattr);
    if number == 0 {
        return Ok(());
    }
    let owners =
        Settings { uid: settings.uid, gid: settings.gid, projid: settings.projid, ..Settings::default() };
    let dir = fs.node(number)?;
    for entry in fs.dirs().entries(number)? {
        fs.attrs().apply(tx, &*fs.node(entry.object)?, &owners)?;
    }
    fs.attrs().apply(tx, &dir, &owners)
}

/// Fails for attributes that [`FileAttrs::apply`] would refuse.
fn check_settings(fs: &FsWriter, node: &Node, set: &Settings) -> Result<()> {
    check_new_owners(fs, node, set)?;
    check_project(fs, node, set)?;
    if set.mode.is_none() {
        return Ok(());
    }
    let aclmode = fs.options.read().aclmode;
    let state = node.state.read();
    fs.acls().check_chmod(&state, aclmode)?;
    if aclmode == AclMode::Discard { Ok(()) } else { fs.acls().list_of(&state.attrs).map(drop) }
}

fn check_new_owners(fs: &FsWriter, node: &Node, set: &Settings) -> Result<()> {
    if set.uid.is_none() && set.gid.is_none() && set.projid.is_none() {
        return Ok(());
    }
    let uid = set.uid.unwrap_or_else(|| node.word(fs.fields.uid));
    let gid = set.gid.unwrap_or_else(|| node.word(fs.fields.gid));
    let project = set.projid.unwrap_or_else(|| node.word(fs.fields.projid));
    fs.quotas().check_owners(uid, gid, project)
}

fn apply_rest(fs: &FsWriter, tx: &Tx, node: &Node, set: &Settings) -> Result<()> {
    check_new_owners(fs, node, set)?;
    check_project(fs, node, set)?;
    let (f, now) = (&fs.fields, fs.now());
    let aclmode = fs.options.read().aclmode;
    fs.change(tx, node, |state| {
        if let Some(mode) = set.mode {
            let mode = state.word(f.mode) & !0o7777 | mode & 0o7777;
            fs.acls().chmod(tx, state, node.is_dir(), mode, aclmode)?;
        }
        for (attr, word) in [(f.uid, set.uid), (f.gid, set.gid)] {
            if let Some(word) = word {
                state.attrs.set_word(attr, word)?;
            }
        }
        for (attr, time) in [(f.atime, set.atime), (f.mtime, set.mtime), (f.crtime, set.crtime)] {
            if let Some(time) = time {
                state.time(attr, time)?;
            }
        }
        let mut flags = state.word(f.flags);
        if let Some((value, which)) = set.flags {
            let which = which & SETTABLE;
            flags = flags & !which | value & which;
        }
        if let Some(projid) = set.projid {
            fs.attrs().set_project(tx, state, projid)?;
            flags |= pflags::PROJID;
        }
        state.attrs.set_word(f.flags, flags)?;
        state.time(f.ctime, set.ctime.or(now))
    })
}

/// Fails when files are to get projects that the pool doesn't know of.
fn check_project(fs: &FsWriter, node: &Node, set: &Settings) -> Result<()> {
    let have = node.word(fs.fields.flags);
    let flag = set.flags.is_some_and(|(value, which)| (value ^ have) & which & pflags::PROJINHERIT != 0);
    let known = fs.options.read().projects && fs.version() >= VERSION_SA;
    if (flag || set.projid.is_some()) && !known {
        return Err(Error::unsupported("the pool has no projects (feature project_quota)"));
    }
    Ok(())
}
