//! The POSIX layer: files, directories, attributes, extended attributes and ACLs of a dataset.
//!
//! No transport: FUSE, the browsing verbs and tests all sit on [`Filesystem`] and [`Inode`].
//!
//! ```text
//! Filesystem::open(&dataset)            master node, attribute tables, name rules
//!   └ inode(number) ─▶ Inode            attributes decoded once, from system attributes (version 5)
//!       ├ entries(), lookup(name)       or the old fixed znode (versions 1 to 4)
//!       ├ read_at, chunk, next_data     file data, holes, damage by range
//!       ├ readlink, xattr_*, acl
//!   └ resolve(path)                     bounded walk through symbolic links
//! ```
//!
//! Everything comes from the disk and none of it is believed: numbers are bounded, names may be any
//! bytes, and a directory tree that contains itself is the walker's to detect ([`path`] is bounded).
//!
//! Differs from OpenZFS: nothing is cached beyond the blocks; permission checks belong to the
//! transport; the intent log of a pool that was not exported is replayed in memory ([`replay`]), so that synchronous
//! writes are seen without writing to the pool.

pub mod acl;
pub mod attr;
pub mod differences;
mod dir;
mod file;
mod filesystem;
mod fuid;
mod inode;
mod master;
mod path;
mod record;
pub mod replay;
mod sa;
pub mod write;
mod xattr;

pub use acl::{Acl, AclForm};
pub use attr::{Attr, FileKind, Rdev, Time};
pub use dir::{Dirent, Entries};
pub use engine::dmu::{Span, Unreadable};
pub use file::Reader;
pub use filesystem::{CaseSensitivity, Filesystem, Statfs, VERSION_USERSPACE, pool_version_for, version_for};
pub use inode::Inode;
pub use ondisk::znode::pflags;
pub use path::MAX_SYMLINKS;

pub use engine::{Error, Kind, Result};
