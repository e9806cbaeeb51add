//! Changing file systems (versions 1 to 5 of the POSIX layer).
//!
//! ```text
//!  FsWriter ── nodes: files in use ([`node`]), each with its attributes and its object's handle
//!     │           attributes are written back with every change, so nothing is lost with a node
//!     ├ steps     operations of several steps happen whole or not at all
//!     ├ sink      what each operation did, for the intent log ([`log`])
//!     ├ mount     properties, the intent log, space
//!     └ subjects ([`fs`]), each a borrowed view with the methods of the files in brackets
//!         ├ dirs(), delete_queue()         [dirs make remove rename] [delete_queue drain]
//!         ├ data(), clones()               [data holes] [clone]; range locks
//!         ├ rewrites(), reblocking()       [rewrite] [reblock]
//!         ├ attrs(), acls(), xattrs()      [getattr setattr znode] [acls znode] [xattr]
//!         ├ restrictions(), quotas()       [restrictions] [quota]
//!         └ replay()                       [replay data_replay]
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
mod acls;
mod clone;
mod counting;
pub mod create;
mod crowd;
mod data;
mod data_replay;
mod delete_queue;
mod dirs;
mod drain;
mod fault;
pub mod fields;
mod fs;
mod getattr;
mod holes;
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
mod restrictions;
mod rewrite;
mod setattr;
pub mod sink;
mod steps;
mod xattr;
mod znode;

pub use aces::{AclInherit, AclMode};
pub use clone::CloneFrom;
pub use create::{NewFs, create_fs};
pub use data::ReadHow;
pub use fs::{
    Acls, Clones, DeleteQueue, Directories, FileAttrs, FileData, FsWriter, Options, OwnerQuotas, Reblocking,
    RecordReplay, Restrictions, Rewrites, Transactions, Xattrs,
};
pub use holes::{Found, Seek};
pub use make::{Given, NewNode};
pub use mount::{Overrides, Space, mount, mount_after};
pub use node::Node;
pub use quota_kind::QuotaKind;
pub use reblock::{Finish, Reblocked};
pub use rewrite::{RewriteHow, Rewriting, Tally, Which};
pub use sink::{LogOp, LogSink, RenameKind, Settings};
pub use xattr::XattrMode;
