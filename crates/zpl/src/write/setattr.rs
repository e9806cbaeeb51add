//! Attributes: mode, owners, size, times, flags, project; and which files may be changed at all.

use std::sync::atomic::Ordering;

use engine::dmu::Tx;
use engine::{Error, Kind, Result};
use ondisk::acl::{Ace, ace_flags};
use ondisk::znode::pflags;

use super::aces::{self, AclDraft, AclMode};
use super::fs::FsWriter;
use super::node::{Node, NodeState};
use super::remove::XATTRS_IN_PIECE;
use super::sink::{LogOp, Settings};
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
/// Flags of a list as a whole, which a change of mode keeps.
#[doc(alias = "V4_ACL_WIDE_FLAGS")]
const WIDE: u64 = pflags::ACL_AUTO_INHERIT | pflags::ACL_DEFAULTED | pflags::ACL_PROTECTED;
/// Flags that follow from a list.
#[doc(alias = "ZFS_ACL_WIDE_FLAGS")]
const FROM_LIST: u64 =
    WIDE | pflags::INHERIT_ACE | pflags::ACL_OBJ_ACE | pflags::ACL_TRIVIAL | pflags::NO_EXECS_DENIED;

impl FsWriter {
    /// Whether a record of the intent log is being replayed. Its call was permitted: a flag that would refuse it now was set
    /// later, or the change that cleared the flag is in no record before it.
    fn is_replay(&self) -> bool {
        self.replaying.load(Ordering::Acquire)
    }

    /// Fails for a file that gets the content of another: it has no name, and nothing of it may be changed or read.
    pub(super) fn check_unreserved(&self, node: &Node) -> Result<()> {
        match node.is_reserved() {
            true => Err(Error::new(Kind::Busy, "the file gets the content of another")),
            false => Ok(()),
        }
    }

    /// Fails for a file whose attributes may not be changed.
    pub(super) fn check_changeable(&self, node: &Node) -> Result<()> {
        self.check_unreserved(node)?;
        if self.is_replay() {
            return Ok(());
        }
        match node.word(self.fields.flags) & (pflags::IMMUTABLE | pflags::APPENDONLY) {
            0 => Ok(()),
            _ => Err(not_permitted("the file is immutable or can only be appended to")),
        }
    }

    /// Fails for a file whose mode, owners and times may not be set.
    #[doc(alias = "notify_change")]
    pub fn check_settable(&self, number: u64) -> Result<()> {
        self.check_changeable(&*self.node(number)?)
    }

    /// Fails for a directory that may get no names, and with `removes` for one that may lose none. Replayed
    /// records are exempt: they happened before the flag was set.
    #[doc(alias("may_create", "may_delete"))]
    pub(super) fn check_names(&self, dir: &Node, removes: bool) -> Result<()> {
        let forbids = pflags::IMMUTABLE | if removes { pflags::APPENDONLY } else { 0 };
        if dir.word(self.fields.flags) & forbids == 0 || self.is_replay() {
            return Ok(());
        }
        Err(not_permitted("the directory is immutable or can only get new names"))
    }

    /// Fails for a file that may not be removed or renamed.
    pub(super) fn check_removable(&self, node: &Node) -> Result<()> {
        if self.is_replay() {
            return Ok(());
        }
        match node.word(self.fields.flags) & (pflags::IMMUTABLE | pflags::APPENDONLY | pflags::NOUNLINK) {
            0 => Ok(()),
            _ => Err(not_permitted("the file must not be removed")),
        }
    }

    /// Fails for a file whose bytes may not be changed; `offset`: of a write, which may append.
    pub(super) fn check_writable(&self, node: &Node, offset: Option<u64>) -> Result<()> {
        self.check_unreserved(node)?;
        if self.is_replay() {
            return Ok(());
        }
        let flags = node.word(self.fields.flags);
        let appends = offset.is_none_or(|at| at >= node.word(self.fields.size));
        let refused = flags & pflags::IMMUTABLE != 0 || (flags & pflags::APPENDONLY != 0 && !appends);
        if refused { Err(not_permitted("the file must not be changed")) } else { Ok(()) }
    }

    /// Fails for a file with the DOS attribute read-only, as if nothing granted the right to write. It does not concern writes,
    /// whose right was checked when the file was opened: a file may get the attribute while it is being written.
    #[doc(alias = "zfs_zaccess_common")]
    pub(super) fn check_granted(&self, node: &Node) -> Result<()> {
        match node.word(self.fields.flags) & pflags::READONLY != 0 && !self.is_replay() {
            true => Err(not_permitted("the file is read-only")),
            false => Ok(()),
        }
    }

    /// Fails for an append-only file, unless the caller appends.
    fn check_appending(&self, node: &Node, appends: bool) -> Result<()> {
        if !appends && !self.is_replay() && node.word(self.fields.flags) & pflags::APPENDONLY != 0 {
            return Err(not_permitted("the file can only be appended to"));
        }
        Ok(())
    }

    /// Whether a file may be opened for writing; `appends`: only at its end.
    pub fn check_open_for_writing(&self, number: u64, appends: bool) -> Result<()> {
        let node = self.node(number)?;
        if node.word(self.fields.flags) & pflags::IMMUTABLE != 0 {
            return Err(not_permitted("the file is immutable"));
        }
        self.check_appending(&node, appends)
    }

    /// Sets attributes. The caller checks permissions, except those that the file's own flags restrict.
    #[doc(alias = "zfs_setattr")]
    pub fn setattr(&self, number: u64, settings: &Settings) -> Result<()> {
        self.settled(number, || self.setattr_now(number, settings))
    }

    fn setattr_now(&self, number: u64, settings: &Settings) -> Result<()> {
        let node = self.node(number)?;
        self.check_unreserved(&node)?;
        if settings.flags.is_some() && self.version() < VERSION_FUID && !self.is_replay() {
            return Err(Error::new(
                Kind::Invalid,
                "files of this file system's version have no flags: zfs upgrade",
            ));
        }
        let only_flags = Settings { flags: settings.flags, ..Settings::default() } == *settings;
        if !only_flags && !self.is_replay() && node.word(self.fields.flags) & pflags::IMMUTABLE != 0 {
            return Err(not_permitted("the file is immutable"));
        }
        if settings.size.is_some() {
            self.check_writable(&node, None)?;
            self.check_granted(&node)?;
            self.check_appending(&node, false)?;
            if node.is_dir() {
                return Err(Error::new(Kind::IsDirectory, "is a directory"));
            }
        }
        let _range = settings.size.map(|_| node.ranges.lock(0..u64::MAX, true));
        // Users over a quota may still truncate files.
        let shrinks = settings.size.is_some_and(|size| size < node.word(self.fields.size));
        if settings.size.is_some() && !self.is_replay() {
            self.check_settings(&node, settings)?;
        }
        if let Some(size) = settings.size.filter(|_| shrinks) {
            self.free_end(&node, size)?;
        }
        let tx = self.begin_for(0, shrinks)?;
        if let Some(size) = settings.size {
            self.resize(&tx, &node, size)?;
        }
        let order = node.modes.lock();
        self.apply(&tx, &node, settings)?;
        let owners = settings.uid.is_some() || settings.gid.is_some() || settings.projid.is_some();
        // A replayed record has one transaction.
        let in_pieces = owners && !self.is_replay() && self.has_many_xattrs(&node);
        if owners && !in_pieces {
            // The file itself has changed already.
            let unlogged = |_: &Error| {
                if !self.is_replay() {
                    self.log_nothing(&tx)
                }
            };
            self.apply_to_xattrs(&tx, &node, settings).inspect_err(unlogged)?;
        }
        let (mode, uid) = (node.word(self.fields.mode), node.word(self.fields.uid));
        let gid = node.word(self.fields.gid);
        self.log_of(&node, &tx, &LogOp::Setattr { object: number, settings, mode, uid, gid });
        drop(order);
        drop(tx);
        if in_pieces { self.apply_to_many_xattrs(&node, settings) } else { Ok(()) }
    }

    /// As [`FsWriter::apply_to_xattrs`], some in each transaction: a crash may leave files of attributes with the old owners,
    /// which only accounts show.
    #[doc(alias = "zfs_setattr_dir")]
    fn apply_to_many_xattrs(&self, node: &Node, settings: &Settings) -> Result<()> {
        let owners =
            Settings { uid: settings.uid, gid: settings.gid, projid: settings.projid, ..Settings::default() };
        let number = node.word(self.fields.xattr);
        for some in self.entries(number)?.chunks(XATTRS_IN_PIECE) {
            let tx = self.begin()?;
            for entry in some {
                match self.node(entry.object) {
                    Ok(file) => self.apply(&tx, &file, &owners)?,
                    // It was removed since.
                    Err(e) if e.kind() == Kind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
        }
        let tx = self.begin()?;
        self.apply(&tx, &*self.node(number)?, &owners)
    }

    /// Applies the file's owners to its hidden attribute directory.
    fn apply_to_xattrs(&self, tx: &Tx, node: &Node, settings: &Settings) -> Result<()> {
        let number = node.word(self.fields.xattr);
        if number == 0 {
            return Ok(());
        }
        let owners =
            Settings { uid: settings.uid, gid: settings.gid, projid: settings.projid, ..Settings::default() };
        let dir = self.node(number)?;
        for entry in self.entries(number)? {
            self.apply(tx, &*self.node(entry.object)?, &owners)?;
        }
        self.apply(tx, &dir, &owners)
    }

    /// Sets attributes other than the size, which the caller has set.
    pub(super) fn apply(&self, tx: &Tx, node: &Node, set: &Settings) -> Result<()> {
        // No record describes the new size without the rest.
        let unlogged = |_: &Error| {
            if set.size.is_some() && !self.is_replay() {
                self.log_nothing(tx)
            }
        };
        self.apply_rest(tx, node, set).inspect_err(unlogged)
    }

    /// Fails for attributes that [`FsWriter::apply`] would refuse.
    fn check_settings(&self, node: &Node, set: &Settings) -> Result<()> {
        self.check_new_owners(node, set)?;
        self.check_project(node, set)?;
        if set.mode.is_none() {
            return Ok(());
        }
        let aclmode = self.options.read().aclmode;
        let state = node.state.read();
        self.check_chmod(&state, aclmode)?;
        if aclmode == AclMode::Discard { Ok(()) } else { self.list_of(&state.attrs).map(drop) }
    }

    fn check_new_owners(&self, node: &Node, set: &Settings) -> Result<()> {
        if set.uid.is_none() && set.gid.is_none() && set.projid.is_none() {
            return Ok(());
        }
        let uid = set.uid.unwrap_or_else(|| node.word(self.fields.uid));
        let gid = set.gid.unwrap_or_else(|| node.word(self.fields.gid));
        let project = set.projid.unwrap_or_else(|| node.word(self.fields.projid));
        self.check_owner_quota(uid, gid, project)
    }

    fn apply_rest(&self, tx: &Tx, node: &Node, set: &Settings) -> Result<()> {
        self.check_new_owners(node, set)?;
        self.check_project(node, set)?;
        let (f, now) = (&self.fields, self.now());
        let aclmode = self.options.read().aclmode;
        self.change(tx, node, |state| {
            if let Some(mode) = set.mode {
                let mode = state.word(f.mode) & !0o7777 | mode & 0o7777;
                self.chmod(tx, state, node.is_dir(), mode, aclmode)?;
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
                self.set_project(tx, state, projid)?;
                flags |= pflags::PROJID;
            }
            state.attrs.set_word(f.flags, flags)?;
            state.time(f.ctime, set.ctime.or(now))
        })
    }

    /// Fails when files are to get projects that the pool doesn't know of.
    fn check_project(&self, node: &Node, set: &Settings) -> Result<()> {
        let have = node.word(self.fields.flags);
        let flag = set.flags.is_some_and(|(value, which)| (value ^ have) & which & pflags::PROJINHERIT != 0);
        let known = self.options.read().projects && self.version() >= VERSION_SA;
        if (flag || set.projid.is_some()) && !known {
            return Err(Error::unsupported("the pool has no projects (feature project_quota)"));
        }
        Ok(())
    }

    /// Sets the project; files of old file systems get the attribute in its place, which readers rely on.
    #[doc(alias = "sa_add_projid")]
    pub(super) fn set_project(&self, tx: &Tx, state: &mut NodeState, projid: u64) -> Result<()> {
        self.to_attributes(tx, state)?;
        if state.attrs.get(self.fields.projid).is_some() {
            return state.attrs.set_word(self.fields.projid, projid);
        }
        let mut rebuilt = engine::sa::SaAttrs::new();
        let f = &self.fields;
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

    /// Fails for a list that forbids a new mode.
    fn check_chmod(&self, state: &NodeState, aclmode: AclMode) -> Result<()> {
        let is_trivial = state.word(self.fields.flags) & pflags::ACL_TRIVIAL != 0;
        match aclmode == AclMode::Restricted && !is_trivial && !self.is_replay() {
            true => Err(not_permitted("the mode of a file with such a list cannot be changed")),
            false => Ok(()),
        }
    }

    /// Sets a new mode, and adapts the list.
    #[doc(alias = "zfs_acl_chmod_setattr")]
    fn chmod(&self, tx: &Tx, state: &mut NodeState, dir: bool, mode: u64, aclmode: AclMode) -> Result<()> {
        let flags = state.word(self.fields.flags);
        let before = state.word(self.fields.mode);
        let changed = before ^ mode;
        if self.is_replay() && changed != 0 && changed & !(before & 0o6000) == 0 {
            // A write that cleared set-id bits has no effect on the list, unlike a change to the same mode.
            return state.attrs.set_word(self.fields.mode, mode);
        }
        self.check_chmod(state, aclmode)?;
        let old = if aclmode == AclMode::Discard { Vec::new() } else { self.list_of(&state.attrs)? };
        let mut draft = AclDraft { aces: old, hints: flags & WIDE };
        aces::chmod(&mut draft, mode, dir, true, aclmode == AclMode::GroupMask);
        state.attrs.set_word(self.fields.mode, mode)?;
        self.set_list(tx, state, &draft)
    }

    fn set_list(&self, tx: &Tx, state: &mut NodeState, draft: &AclDraft) -> Result<()> {
        self.put_list(tx, &mut state.attrs, &draft.aces)?;
        let mode = state.word(self.fields.mode);
        let mut flags = state.word(self.fields.flags) & !FROM_LIST | draft.hints;
        flags |= aces::exec_hint(mode, &draft.aces);
        if aces::is_trivial(&draft.aces) {
            flags |= pflags::ACL_TRIVIAL;
        }
        state.attrs.set_word(self.fields.flags, flags)
    }

    /// The list of a file.
    pub(super) fn aces(&self, node: &Node) -> Result<Vec<Ace>> {
        self.list_of(&node.state.read().attrs)
    }

    /// The access control list of a file (NFSv4).
    #[doc(alias = "zfs_getacl")]
    pub fn acl(&self, number: u64) -> Result<Vec<Ace>> {
        self.aces(&*self.node(number)?)
    }

    /// Sets the access control list of a file (NFSv4); the mode follows from it.
    #[doc(alias = "zfs_setacl")]
    pub fn set_acl(&self, number: u64, list: &[Ace]) -> Result<()> {
        self.settled(number, || self.set_acl_now(number, list))
    }

    fn set_acl_now(&self, number: u64, list: &[Ace]) -> Result<()> {
        let node = self.node(number)?;
        if list.is_empty() || list.len() > 1024 {
            return Err(Error::new(Kind::Invalid, "a list has 1 to 1024 entries"));
        }
        if !self.is_replay() && node.word(self.fields.flags) & pflags::IMMUTABLE != 0 {
            return Err(not_permitted("the file is immutable"));
        }
        let tx = self.begin()?;
        let _order = node.modes.lock();
        let now = self.now();
        let flags = self.change(&tx, &node, |state| {
            let ids = (state.word(self.fields.uid), state.word(self.fields.gid));
            let (mut draft, mode) = aces::for_given(list, state.word(self.fields.mode), ids);
            draft.hints |= state.word(self.fields.flags) & WIDE;
            let inheritable = ace_flags::FILE_INHERIT | ace_flags::DIRECTORY_INHERIT;
            if node.is_dir() && list.iter().any(|a| a.flags & inheritable != 0) {
                draft.hints |= pflags::INHERIT_ACE;
            }
            state.attrs.set_word(self.fields.mode, mode)?;
            self.set_list(&tx, state, &draft)?;
            state.time(self.fields.ctime, now)?;
            Ok(state.word(self.fields.flags))
        })?;
        match self.version() < VERSION_FUID {
            // The record has entries of the newer form.
            true => self.log_nothing(&tx),
            false => self.log_of(&node, &tx, &LogOp::Acl { object: number, aces: list, flags }),
        }
        Ok(())
    }

    /// The project of new files in a directory.
    #[doc(alias = "zfs_inherit_projid")]
    pub(super) fn inherited_project(&self, dir: &Node) -> u64 {
        match dir.word(self.fields.flags) & pflags::PROJINHERIT {
            0 => 0,
            _ => dir.word(self.fields.projid),
        }
    }
}

fn not_permitted(what: &str) -> Error {
    Error::new(Kind::NotPermitted, what)
}
