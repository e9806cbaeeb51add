//! Requests told apart by what they may wait for, and how many of them may.

use crate::wire::Opcode;

/// What a request may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// A block of metadata that is not in memory: names, attributes, listings.
    Names,
    /// A block of a file.
    Read,
    /// Room among the dirty data, with all the bytes of the request.
    Write,
    /// The same with a name or attributes.
    Change,
    /// The disk.
    Sync,
}

/// How many lanes there are.
pub const LANES: usize = 5;
/// Threads at work in all lanes of all mounts, from which on a lane of a mount has one.
pub const ALL_THREADS: usize = 256;
/// Bytes of requests of one mount and of all, from which on no more are taken in.
pub const BYTES: (usize, usize) = (40 << 20, 48 << 20);
/// What a request costs beside its bytes.
pub const COST: usize = 256;

impl Lane {
    /// Where a request belongs; `None`: it is answered in no time.
    pub fn of(opcode: Opcode) -> Option<Self> {
        Some(match opcode {
            Opcode::Lookup
            | Opcode::Getattr
            | Opcode::Statx
            | Opcode::Readlink
            | Opcode::Open
            | Opcode::Statfs
            | Opcode::Getxattr
            | Opcode::Listxattr
            | Opcode::Flush
            | Opcode::Opendir
            | Opcode::Readdir
            | Opcode::Readdirplus
            | Opcode::Releasedir => Self::Names,
            Opcode::Read | Opcode::Lseek => Self::Read,
            Opcode::Write => Self::Write,
            Opcode::Fsync | Opcode::Fsyncdir => Self::Sync,
            Opcode::Setattr
            | Opcode::Symlink
            | Opcode::Mknod
            | Opcode::Mkdir
            | Opcode::Unlink
            | Opcode::Rmdir
            | Opcode::Rename
            | Opcode::Rename2
            | Opcode::Link
            // The last one of a file that has no name frees it.
            | Opcode::Release
            | Opcode::Setxattr
            | Opcode::Removexattr
            | Opcode::Create
            | Opcode::Tmpfile
            | Opcode::Ioctl
            | Opcode::Fallocate => Self::Change,
            Opcode::Forget
            | Opcode::BatchForget
            | Opcode::Init
            | Opcode::Interrupt
            | Opcode::Destroy
            | Opcode::Other => return None,
        })
    }

    /// Threads of one mount that may be at work in it.
    pub fn threads(self) -> usize {
        match self {
            // As many as a disk can make use of.
            Self::Names | Self::Read => 16,
            // What waits for room waits for the same: more of them make no more.
            Self::Write | Self::Change => 8,
            // One write of the log serves all that wait.
            Self::Sync => 32,
        }
    }

    /// Its place among all.
    pub fn index(self) -> usize {
        match self {
            Self::Names => 0,
            Self::Read => 1,
            Self::Write => 2,
            Self::Change => 3,
            Self::Sync => 4,
        }
    }
}
