//! Classifies requests by the resources they may wait for, and bounds each class.

use crate::header::Opcode;

/// The resource that a request may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// A block of metadata that is not in memory: names, attributes, listings.
    Names,
    /// A block of a file.
    Read,
    /// Space among the dirty data, with all the bytes of the request.
    Write,
    /// The same for a name or attributes.
    Change,
    /// The disk.
    Sync,
}

/// The number of lanes.
pub const LANES: usize = 5;
/// Total working threads above which a lane of a mount is limited to one.
pub const ALL_THREADS: usize = 256;
/// Bytes of requests of one mount and of all mounts above which no more are read.
pub const BYTES: (usize, usize) = (40 << 20, 48 << 20);
/// The cost of a request in addition to its bytes.
pub const COST: usize = 256;

impl Lane {
    /// The lane of a request; `None` if it never waits.
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
            // Blocks to clone may have to be on disk first.
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => Self::Sync,
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
            // The last release of a file without a name frees it.
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
            | Opcode::NotifyReply
            | Opcode::Other => return None,
        })
    }

    /// Maximum working threads of one mount in this lane.
    pub fn threads(self) -> usize {
        match self {
            // More than this delay names that are in memory.
            Self::Names => 64,
            // As many as disks can use.
            Self::Read => 32,
            // All requests that wait for space wait for the same event: more threads gain nothing.
            Self::Write | Self::Change => 8,
            // One log write serves all that wait.
            Self::Sync => 32,
        }
    }

    /// Its index.
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
