//! `.zfs` and operations in `.zfs/snapshot`: creating, removing and renaming a directory there does the same to the
//! snapshot, as with OpenZFS's `zfs_admin_snapshot`. The directory's mode admits all users: the permission is
//! checked on each operation.

use std::time::Duration;

use crate::wire::Generation;
use engine::{Error, Kind, Result};

use super::files::Entry;
use super::{Asker, Live, Snapdir, SnapshotAdmin};
use crate::node::{Node, What};

const SNAPDIR: Node = Node { slot: 0, what: What::SnapDir };

/// Whether an inode number is that of `.zfs/snapshot`.
pub fn is_snapdir(ino: u64) -> bool {
    Node::decode(ino) == SNAPDIR
}

impl Live {
    /// Resolves a name in a directory of the live file system, including `.zfs`. Only a holder of a file handle
    /// looks up `.` and `..`, with any file as the directory.
    pub(super) fn lookup_any(&self, dir: u64, name: &[u8]) -> Result<Entry> {
        match name {
            b"." => self.entry(dir),
            b".." => self.entry(self.files.attrs().get(dir)?.parent),
            b".zfs" if dir == self.files.root && self.options.read().snapdir != Snapdir::Disabled => {
                self.below_ctl(Node { slot: 0, what: What::Ctl })
            }
            _ => self.find(dir, name),
        }
    }

    /// Whether only the kernel can create or remove a name, so that it may cache the answer.
    pub(super) fn is_kept(&self, name: &[u8]) -> bool {
        self.files.dirs().names_are_exact() && name != b".zfs"
    }

    /// Snapshots are created and destroyed without the kernel: names are looked up each time.
    fn below_ctl(&self, node: Node) -> Result<Entry> {
        let attr = self.frozen.attr(node)?;
        Ok(Entry { attr, generation: Generation(0), keep: Duration::ZERO, keep_attr: Duration::ZERO })
    }

    fn admin(&self) -> Result<&dyn SnapshotAdmin> {
        let admin = self.admin.as_deref().filter(|_| !self.options.read().read_only);
        admin.ok_or_else(|| Error::new(Kind::ReadOnly, "snapshots cannot be changed here"))
    }

    /// `mkdir .zfs/snapshot/NAME`
    #[doc(alias = "zfsctl_snapdir_mkdir")]
    pub(super) fn take_snapshot(&self, name: &[u8], who: Asker) -> Result<Entry> {
        self.admin()?.create(text(name)?, who)?;
        self.below_ctl(self.frozen.find(SNAPDIR, name)?)
    }

    /// `rmdir .zfs/snapshot/NAME`
    #[doc(alias = "zfsctl_snapdir_remove")]
    pub(super) fn destroy_snapshot(&self, name: &[u8], who: Asker) -> Result<()> {
        self.admin()?.destroy(text(name)?, who)
    }

    /// `mv .zfs/snapshot/OLD .zfs/snapshot/NEW`
    #[doc(alias = "zfsctl_snapdir_rename")]
    pub(super) fn rename_snapshot(&self, old: &[u8], new: &[u8], who: Asker) -> Result<()> {
        self.admin()?.rename(text(old)?, text(new)?, who)
    }
}

fn text(name: &[u8]) -> Result<&str> {
    std::str::from_utf8(name).map_err(|_| Error::new(Kind::Invalid, "no name of a snapshot"))
}
