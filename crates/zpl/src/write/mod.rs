//! Changing file systems (versions 1 to 5 of the POSIX layer).
//!
//! ```text
//!  FsWriter ── nodes: files in use ([`node`]), each with its attributes and its object's handle
//!     │           attributes are written back with every change, so nothing is lost with a node
//!     ├ names     create, link, unlink, rename; the delete queue
//!     ├ data      read, write, truncate, holes; range locks
//!     ├ setattr, xattr, acl, quota
//!     ├ steps     operations of several steps happen whole or not at all
//!     ├ sink      what each operation did, for the intent log ([`log`])
//!     └ mount     properties, the intent log, space
//! ```
//!
//! **Lock order**: range lock of a file → transaction → [names of the file system → entries of one directory →
//! attributes of one file]. The begin of a transaction may wait for those of the txg before; so a holder of
//! one of the locks in brackets must not begin a transaction, and a holder of a transaction must not wait for
//! a range lock. Of the locks in brackets, at most one of each kind is held at a time, `names` shared for
//! operations on one directory and exclusive for `rename` and `rmdir`, which touch several.
//!
//! Differs from OpenZFS: renames and removals of directories stop other changes of names in the file system for
//! their duration, instead of locking names one by one. A transaction is taken before names are looked up, so an
//! operation that is refused has held one for nothing.

pub mod aces;
mod clone;
mod counting;
pub mod create;
mod crowd;
mod data;
mod data_replay;
mod dirs;
mod drain;
mod fault;
pub mod fields;
mod fs;
mod log;
mod make;
mod mount;
mod node;
mod owed;
mod quota;
mod quota_kind;
mod reblock;
mod remove;
mod rename;
mod replay;
mod rewrite;
mod setattr;
pub mod sink;
mod steps;
mod xattr;
mod znode;

pub use aces::{AclInherit, AclMode};
pub use clone::CloneFrom;
pub use create::{NewFs, create_fs};
pub use data::{Found, ReadHow, Seek};
pub use fs::{FsWriter, Options, Transactions};
pub use make::{Given, NewNode};
pub use mount::{Overrides, Space, mount, mount_after};
pub use node::Node;
pub use quota_kind::QuotaKind;
pub use reblock::{Finish, Reblocked};
pub use rewrite::{RewriteHow, Rewriting, Tally, Which};
pub use sink::{LogOp, LogSink, RenameKind, Settings};
pub use xattr::XattrMode;
