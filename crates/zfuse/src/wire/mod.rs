//! FUSE's protocol: decodes the kernel's requests, encodes answers and notifications.
//!
//! `fuser` contains this, too, but only behind a session that owns its threads: each mount takes threads of its
//! own, a request cannot be examined before it is answered, and the descriptors are cloned for each thread. Its
//! plain types stay in use; requests and answers here have the shapes of `fuser`'s.

mod dispatch;
mod encode;
mod filesystem;
mod greeting;
mod notifier;
mod reply;

pub use dispatch::Served;
pub use filesystem::{Filesystem, Request};
pub use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, LockOwner, OpenAccMode, OpenFlags, RenameFlags, TimeOrNow, WriteFlags,
};
pub use greeting::{KernelConfig, greet};
pub use notifier::Notifier;
pub use reply::{
    ReplyAttr, ReplyCopied, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
};
