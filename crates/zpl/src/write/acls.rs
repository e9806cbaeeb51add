//! Access control lists of files, and modes, which change with them. The rules themselves are in [`super::aces`].

use engine::dmu::Tx;
use engine::{Error, Kind, Result};
use ondisk::acl::{Ace, ace_flags};
use ondisk::znode::pflags;

use super::aces::{self, AclDraft, AclMode};
use super::fs::{Acls, FsWriter};
use super::node::{Node, NodeState};
use super::restrictions::not_permitted;
use super::sink::LogOp;
use crate::filesystem::VERSION_FUID;

/// Flags of a list as a whole, which a change of mode keeps.
#[doc(alias = "V4_ACL_WIDE_FLAGS")]
const WIDE: u64 = pflags::ACL_AUTO_INHERIT | pflags::ACL_DEFAULTED | pflags::ACL_PROTECTED;
/// Flags that follow from a list.
#[doc(alias = "ZFS_ACL_WIDE_FLAGS")]
const FROM_LIST: u64 =
    WIDE | pflags::INHERIT_ACE | pflags::ACL_OBJ_ACE | pflags::ACL_TRIVIAL | pflags::NO_EXECS_DENIED;

impl Acls<'_> {
    /// Fails for a list that forbids a new mode.
    pub(super) fn check_chmod(self, state: &NodeState, aclmode: AclMode) -> Result<()> {
        let is_trivial = state.word(self.fs.fields.flags) & pflags::ACL_TRIVIAL != 0;
        match aclmode == AclMode::Restricted && !is_trivial && !self.fs.is_replay() {
            true => Err(not_permitted("the mode of a file with such a list cannot be changed")),
            false => Ok(()),
        }
    }

    /// Sets a new mode, and adapts the list.
    #[doc(alias = "zfs_acl_chmod_setattr")]
    pub(super) fn chmod(
        self,
        tx: &Tx,
        state: &mut NodeState,
        dir: bool,
        mode: u64,
        aclmode: AclMode,
    ) -> Result<()> {
        let flags = state.word(self.fs.fields.flags);
        let before = state.word(self.fs.fields.mode);
        let changed = before ^ mode;
        if self.fs.is_replay() && changed != 0 && changed & !(before & 0o6000) == 0 {
            // A write that cleared set-id bits has no effect on the list, unlike a change to the same mode.
            return state.attrs.set_word(self.fs.fields.mode, mode);
        }
        self.check_chmod(state, aclmode)?;
        let old = if aclmode == AclMode::Discard { Vec::new() } else { self.list_of(&state.attrs)? };
        let mut draft = AclDraft { aces: old, hints: flags & WIDE };
        aces::chmod(&mut draft, mode, dir, true, aclmode == AclMode::GroupMask);
        state.attrs.set_word(self.fs.fields.mode, mode)?;
        set_list(self.fs, tx, state, &draft)
    }

    /// The list of a file.
    pub(super) fn of(self, node: &Node) -> Result<Vec<Ace>> {
        self.list_of(&node.state.read().attrs)
    }

    /// The access control list of a file (NFSv4).
    #[doc(alias = "zfs_getacl")]
    pub fn get(self, number: u64) -> Result<Vec<Ace>> {
        self.of(&*self.fs.node(number)?)
    }

    /// Sets the access control list of a file (NFSv4); the mode follows from it.
    #[doc(alias = "zfs_setacl")]
    pub fn set(self, number: u64, list: &[Ace]) -> Result<()> {
        self.fs.settled(number, || set_acl_now(self.fs, number, list))
    }
}

fn set_list(fs: &FsWriter, tx: &Tx, state: &mut NodeState, draft: &AclDraft) -> Result<()> {
    fs.acls().put_list(tx, &mut state.attrs, &draft.aces)?;
    let mode = state.word(fs.fields.mode);
    let mut flags = state.word(fs.fields.flags) & !FROM_LIST | draft.hints;
    flags |= aces::exec_hint(mode, &draft.aces);
    if aces::is_trivial(&draft.aces) {
        flags |= pflags::ACL_TRIVIAL;
    }
    state.attrs.set_word(fs.fields.flags, flags)
}

fn set_acl_now(fs: &FsWriter, number: u64, list: &[Ace]) -> Result<()> {
    let node = fs.node(number)?;
    if list.is_empty() || list.len() > 1024 {
        return Err(Error::new(Kind::Invalid, "a list has 1 to 1024 entries"));
    }
    if !fs.is_replay() && node.word(fs.fields.flags) & pflags::IMMUTABLE != 0 {
        return Err(not_permitted("the file is immutable"));
    }
    let tx = fs.begin()?;
    let _order = node.modes.lock();
    let now = fs.now();
    let flags = fs.change(&tx, &node, |state| {
        let ids = (state.word(fs.fields.uid), state.word(fs.fields.gid));
        let (mut draft, mode) = aces::for_given(list, state.word(fs.fields.mode), ids);
        draft.hints |= state.word(fs.fields.flags) & WIDE;
        let inheritable = ace_flags::FILE_INHERIT | ace_flags::DIRECTORY_INHERIT;
        if node.is_dir() && list.iter().any(|a| a.flags & inheritable != 0) {
            draft.hints |= pflags::INHERIT_ACE;
        }
        state.attrs.set_word(fs.fields.mode, mode)?;
        set_list(fs, &tx, state, &draft)?;
        state.time(fs.fields.ctime, now)?;
        Ok(state.word(fs.fields.flags))
    })?;
    match fs.version() < VERSION_FUID {
        // The record has entries of the newer form.
        true => fs.log_nothing(&tx),
        false => fs.log_of(&node, &tx, &LogOp::Acl { object: number, aces: list, flags }),
    }
    Ok(())
}
