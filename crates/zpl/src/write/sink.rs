//! The interface between operations and the intent log.

use std::time::Duration;

use engine::Result;
use engine::dmu::Tx;
use ondisk::Blkptr;
use ondisk::acl::Ace;

use crate::attr::Time;

/// Which record a creation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// TX_CREATE and its forms.
    File,
    /// TX_MKDIR and its forms.
    Directory,
    /// TX_SYMLINK.
    Symlink,
    /// TX_MKXATTR: the hidden directory of extended attributes.
    XattrDirectory,
}

/// How a rename treats an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameKind {
    /// It is replaced.
    #[default]
    Plain,
    /// It must not be there.
    NoReplace,
    /// Both change places.
    Exchange,
    /// It is replaced, and a whiteout is left at the source.
    Whiteout,
    /// It must not be there, and a whiteout is left at the source.
    NoReplaceWhiteout,
}

impl RenameKind {
    /// Whether the target must not be there.
    pub fn keeps_target(self) -> bool {
        matches!(self, Self::NoReplace | Self::NoReplaceWhiteout)
    }

    /// Whether a whiteout is left at the source.
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::NoReplaceWhiteout)
    }
}

/// A file that was made: the words of `lr_create_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewFile {
    /// Its object.
    pub object: u64,
    /// Slots of its dnode; the record has one less in the high 8 bits of the object.
    pub slots: u8,
    /// Mode.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Txg of its creation.
    pub r#gen: u64,
    /// Moment of its creation.
    pub crtime: Time,
    /// Device number, 0 for files that are no device.
    pub rdev: u64,
}

/// Attributes that were set; `None`: not touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Permission bits (low 12 bits).
    pub mode: Option<u64>,
    /// Owner.
    pub uid: Option<u64>,
    /// Group.
    pub gid: Option<u64>,
    /// Size.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<Time>,
    /// Time of the last change of content.
    pub mtime: Option<Time>,
    /// Time of the last change of attributes; `None`: now. Not in the log.
    pub ctime: Option<Time>,
    /// Time of creation.
    pub crtime: Option<Time>,
    /// Flags to set, of those that users may change (see [`ondisk::znode::pflags`]), and which.
    pub flags: Option<(u64, u64)>,
    /// Project.
    pub projid: Option<u64>,
}

/// A completed operation. Files and directories are named by their objects.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields are those of the records")]
pub enum LogOp<'a> {
    /// A file was made; with `acl` when it inherited or was given more than its mode expresses.
    Create {
        what: Created,
        dir: u64,
        file: NewFile,
        name: &'a [u8],
        target: Option<&'a [u8]>,
        acl: Option<&'a [Ace]>,
    },
    /// A name was removed (TX_RMDIR when `dir_removed`). `object`: the file that it named.
    Remove { dir: u64, name: &'a [u8], object: u64, dir_removed: bool },
    /// A name was added to a file.
    Link { dir: u64, object: u64, name: &'a [u8] },
    /// A name was moved.
    Rename {
        kind: RenameKind,
        from: (u64, &'a [u8]),
        to: (u64, &'a [u8]),
        object: u64,
        whiteout: Option<NewFile>,
    },
    /// Bytes were written; they can be read back from the file while the transaction's txg is not on disk. `sync`:
    /// every commit writes it, not only one of this file.
    Write { object: u64, offset: u64, data: &'a [u8], block_size: u64, sync: bool },
    /// Blocks of a range became references to blocks of other files: `pointers`, holes included.
    Clone { object: u64, offset: u64, length: u64, block_size: u64, pointers: &'a [Blkptr] },
    /// A range was freed; length 0: the file was cut or extended to `offset`. `sync`: as above.
    Truncate { object: u64, offset: u64, length: u64, sync: bool },
    /// Attributes were set; `mode`, `uid` and `gid` as they are now.
    Setattr { object: u64, settings: &'a Settings, mode: u64, uid: u64, gid: u64 },
    /// An access control list was set; `flags`: the file's.
    Acl { object: u64, aces: &'a [Ace], flags: u64 },
    /// An extended attribute in the system attributes was set or removed.
    Xattr { object: u64, name: &'a [u8], value: Option<&'a [u8]> },
}

/// Takes notes for the intent log. Called under the operation's transaction, after its changes, while the locks that
/// order it among others are held: the order of calls is an order in which the operations can be done again.
pub trait LogSink: Send + Sync + std::fmt::Debug {
    /// An operation was done.
    fn log(&self, tx: &Tx, op: &LogOp<'_>);
    /// An operation was done that nothing in the log can describe.
    fn skip(&self, tx: &Tx);
    /// The last name of `object` goes. Its writes that no commit has asked for are forgotten: its number may soon be
    /// another file's, whose commits would write them.
    fn forget(&self, object: u64);
    /// An operation is over, its transaction, too: the log keeps it now if it keeps everything (`sync=always`).
    fn settle(&self, object: u64) -> Result<()>;
    /// A commit of `object` follows: one of another before it writes its changes, too. Returns the time that commits take, if
    /// it is known.
    fn expect(&self, object: u64) -> Option<Duration>;
    /// Returns when changes of `object` (0: of everything) survive a crash.
    fn commit(&self, object: u64) -> Result<()>;
}
