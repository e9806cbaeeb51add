//! Changes that the flags of files and directories forbid (immutable, append-only, read-only, …).
//!
//! The caller checks permissions; a replayed record is exempt, as its call was permitted.

use engine::{Error, Kind, Result};
use ondisk::znode::pflags;

use super::fs::Restrictions;
use super::node::Node;

impl Restrictions<'_> {
    /// Fails for a file that gets the content of another: it has no name, and nothing of it may be changed or read.
    pub(super) fn check_unreserved(self, node: &Node) -> Result<()> {
        match node.is_reserved() {
            true => Err(Error::new(Kind::Busy, "the file gets the content of another")),
            false => Ok(()),
        }
    }

    /// Fails for a file whose attributes may not be changed.
    pub(super) fn check_changeable(self, node: &Node) -> Result<()> {
        self.check_unreserved(node)?;
        if self.fs.is_replay() {
            return Ok(());
        }
        match node.word(self.fs.fields.flags) & (pflags::IMMUTABLE | pflags::APPENDONLY) {
            0 => Ok(()),
            _ => Err(not_permitted("the file is immutable or can only be appended to")),
        }
    }

    /// Fails for a file whose mode, owners and times may not be set.
    #[doc(alias = "notify_change")]
    pub fn check_settable(self, number: u64) -> Result<()> {
        self.check_changeable(&*self.fs.node(number)?)
    }

    /// Fails for a directory that may get no names, and with `removes` for one that may lose none. Replayed
    /// records are exempt: they happened before the flag was set.
    #[doc(alias("may_create", "may_delete"))]
    pub(super) fn check_names(self, dir: &Node, removes: bool) -> Result<()> {
        let forbids = pflags::IMMUTABLE | if removes { pflags::APPENDONLY } else { 0 };
        if dir.word(self.fs.fields.flags) & forbids == 0 || self.fs.is_replay() {
            return Ok(());
        }
        Err(not_permitted("the directory is immutable or can only get new names"))
    }

    /// Fails for a file that may not be removed or renamed.
    pub(super) fn check_removable(self, node: &Node) -> Result<()> {
        if self.fs.is_replay() {
            return Ok(());
        }
        match node.word(self.fs.fields.flags) & (pflags::IMMUTABLE | pflags::APPENDONLY | pflags::NOUNLINK) {
            0 => Ok(()),
            _ => Err(not_permitted("the file must not be removed")),
        }
    }

    /// Fails for a file whose bytes may not be changed; `offset`: of a write, which may append.
    pub(super) fn check_writable(self, node: &Node, offset: Option<u64>) -> Result<()> {
        self.check_unreserved(node)?;
        if self.fs.is_replay() {
            return Ok(());
        }
        let flags = node.word(self.fs.fields.flags);
        let appends = offset.is_none_or(|at| at >= node.word(self.fs.fields.size));
        let refused = flags & pflags::IMMUTABLE != 0 || (flags & pflags::APPENDONLY != 0 && !appends);
        if refused { Err(not_permitted("the file must not be changed")) } else { Ok(()) }
    }

    /// Fails for a file with the DOS attribute read-only, as if nothing granted the right to write. It does not concern writes,
    /// whose right was checked when the file was opened: a file may get the attribute while it is being written.
    #[doc(alias = "zfs_zaccess_common")]
    pub(super) fn check_granted(self, node: &Node) -> Result<()> {
        match node.word(self.fs.fields.flags) & pflags::READONLY != 0 && !self.fs.is_replay() {
            true => Err(not_permitted("the file is read-only")),
            false => Ok(()),
        }
    }

    /// Fails for an append-only file, unless the caller appends.
    pub(super) fn check_appending(self, node: &Node, appends: bool) -> Result<()> {
        if !appends && !self.fs.is_replay() && node.word(self.fs.fields.flags) & pflags::APPENDONLY != 0 {
            return Err(not_permitted("the file can only be appended to"));
        }
        Ok(())
    }

    /// Whether a file may be opened for writing; `appends`: only at its end.
    pub fn check_open_for_writing(self, number: u64, appends: bool) -> Result<()> {
        let node = self.fs.node(number)?;
        if node.word(self.fs.fields.flags) & pflags::IMMUTABLE != 0 {
            return Err(not_permitted("the file is immutable"));
        }
        self.check_appending(&node, appends)
    }

    /// A directory that hands its project on takes only files of that project.
    pub(super) fn check_projects(self, node: &Node, dir: &Node) -> Result<()> {
        let inherits = dir.word(self.fs.fields.flags) & pflags::PROJINHERIT != 0;
        // A replayed record was permitted, see `check_names`.
        if inherits
            && !self.fs.is_replay()
            && dir.word(self.fs.fields.projid) != node.word(self.fs.fields.projid)
        {
            return Err(Error::new(Kind::OtherDevice, "the directory's files have another project"));
        }
        Ok(())
    }
}

pub(super) fn not_permitted(what: &str) -> Error {
    Error::new(Kind::NotPermitted, what)
}
