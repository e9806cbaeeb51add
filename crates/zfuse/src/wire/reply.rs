//! Answers. Each may be sent from any thread, once; a dropped one sends `EIO`, so that no process waits for ever.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuse_transport::Reply;
use stdx::{AlignedBuf, Buf};

use super::encode::Out;
use super::{Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo};

/// Pieces of an answer that one system call takes (`IOV_MAX` is 1,024); more, which are small, are copied together.
const MOST_PIECES: usize = 256;

/// The reply channel of one request.
#[derive(Debug)]
pub struct Answer(Reply);

impl Answer {
    /// Uses a reply of the transport.
    pub fn new(reply: Reply) -> Self {
        Self(reply)
    }

    /// Sends the answer.
    pub fn send(self, parts: &[&[u8]]) {
        self.0.send(parts);
    }

    /// Answers with an error.
    pub fn fail(self, error: Errno) {
        self.0.fail(error.code());
    }
}

macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Answer);

        impl $name {
            /// Uses the reply channel of a request.
            pub fn new(answer: Answer) -> Self {
                Self(answer)
            }

            /// Answers with an error.
            pub fn error(self, error: Errno) {
                self.0.fail(error);
            }
        })*
    };
}

replies! {
    /// A name's file.
    ReplyEntry;
    /// Attributes.
    ReplyAttr;
    /// Attributes with the birth time.
    ReplyStatx;
    /// Bytes.
    ReplyData;
    /// A handle.
    ReplyOpen;
    /// The number of bytes written.
    ReplyWrite;
    /// The number of bytes copied.
    ReplyCopied;
    /// Success.
    ReplyEmpty;
    /// The usage of the file system.
    ReplyStatfs;
    /// The value of an extended attribute, or names.
    ReplyXattr;
    /// A new file and a handle.
    ReplyCreate;
    /// The result of an `ioctl`.
    ReplyIoctl;
    /// An offset.
    ReplyLseek;
}

impl ReplyEntry {
    /// The file, and the cache lifetimes of its attributes and the name.
    pub fn entry_with_ttls(
        self,
        keep_attr: &Duration,
        keep_name: &Duration,
        attr: &FileAttr,
        generation: Generation,
    ) {
        self.0.send(&[Out::default().entry((keep_name, keep_attr), attr, generation).bytes()]);
    }
}

impl ReplyAttr {
    /// Attributes, and their cache lifetime.
    pub fn attr(self, keep: &Duration, attr: &FileAttr) {
        let out = Out::default().u64(keep.as_secs()).u32(keep.subsec_nanos()).u32(0).attr(attr);
        self.0.send(&[out.bytes()]);
    }
}

impl ReplyStatx {
    /// Attributes, and their cache lifetime.
    pub fn statx(self, keep: &Duration, attr: &FileAttr) {
        let out = Out::default().u64(keep.as_secs()).u32(keep.subsec_nanos()).u32(0).raw(&[0; 16]);
        self.0.send(&[out.statx(attr).bytes()]);
    }
}

impl ReplyData {
    /// Bytes.
    pub fn data(self, data: &[u8]) {
        self.0.send(&[data]);
    }

    /// The bytes of all pieces, one after the other.
    pub fn pieces(self, pieces: &[Buf]) {
        let parts: Vec<&[u8]> = pieces.iter().map(|piece| &**piece).collect();
        if parts.len() <= MOST_PIECES {
            return self.0.send(&parts);
        }
        self.0.send(&[&AlignedBuf::concat(&parts)]);
    }
}

impl ReplyOpen {
    /// A handle.
    pub fn opened(self, handle: FileHandle, flags: FopenFlags) {
        self.0.send(&[Out::default().open(handle, flags).bytes()]);
    }
}

impl ReplyWrite {
    /// The number of bytes.
    pub fn written(self, size: u32) {
        self.0.send(&[Out::default().u32(size).u32(0).bytes()]);
    }
}

impl ReplyCopied {
    /// The number of bytes, at most `u32::MAX` unless the answer is `wide`.
    #[doc(alias("fuse_write_out", "fuse_copy_file_range_out"))]
    pub fn copied(self, bytes: u64, wide: bool) {
        let narrow = || u32::try_from(bytes).unwrap_or(u32::MAX);
        match wide {
            true => self.0.send(&[Out::default().u64(bytes).bytes()]),
            false => self.0.send(&[Out::default().u32(narrow()).u32(0).bytes()]),
        }
    }
}

impl ReplyEmpty {
    /// Success.
    pub fn ok(self) {
        self.0.send(&[]);
    }
}

impl ReplyStatfs {
    /// Blocks, free ones, and those for ordinary users; files and free ones; sizes.
    #[doc(alias = "fuse_kstatfs")]
    #[allow(clippy::too_many_arguments, reason = "as many as the protocol has")]
    pub fn statfs(
        self,
        blocks: u64,
        free: u64,
        available: u64,
        files: u64,
        files_free: u64,
        block: u32,
        longest: u32,
        fragment: u32,
    ) {
        let out = Out::default().u64(blocks).u64(free).u64(available).u64(files).u64(files_free);
        self.0.send(&[out.u32(block).u32(longest).u32(fragment).raw(&[0; 28]).bytes()]);
    }
}

impl ReplyXattr {
    /// The length of the value, for a request of the length.
    pub fn size(self, size: u32) {
        self.0.send(&[Out::default().u32(size).u32(0).bytes()]);
    }

    /// The value.
    pub fn data(self, data: &[u8]) {
        self.0.send(&[data]);
    }
}

impl ReplyCreate {
    /// A new file and a handle.
    pub fn created(
        self,
        keep: &Duration,
        attr: &FileAttr,
        generation: Generation,
        handle: FileHandle,
        flags: FopenFlags,
    ) {
        self.0.send(&[Out::default().entry((keep, keep), attr, generation).open(handle, flags).bytes()]);
    }
}

impl ReplyIoctl {
    /// The result, and bytes to return.
    pub fn ioctl(self, result: i32, data: &[u8]) {
        self.0.send(&[Out::default().i32(result).u32(0).u32(0).u32(0).bytes(), data]);
    }
}

impl ReplyLseek {
    /// An offset.
    pub fn offset(self, offset: i64) {
        self.0.send(&[Out::default().i64(offset).bytes()]);
    }
}

/// A listing that grows up to the requested size.
#[derive(Debug)]
struct Listing {
    answer: Answer,
    size: usize,
    out: Out,
}

impl Listing {
    fn add(&mut self, entry: &Out) -> bool {
        let full = self.out.bytes().len().saturating_add(entry.bytes().len()) > self.size;
        if !full {
            self.out = std::mem::take(&mut self.out).raw(entry.bytes());
        }
        full
    }
}

/// Names of a directory.
#[derive(Debug)]
pub struct ReplyDirectory(Listing);

impl ReplyDirectory {
    /// With a size limit.
    pub fn new(answer: Answer, size: usize) -> Self {
        Self(Listing { answer, size, out: Out::default() })
    }

    /// Adds a name; returns true if there was no room for it.
    pub fn add(&mut self, ino: INodeNo, next: u64, kind: FileType, name: impl AsRef<OsStr>) -> bool {
        self.0.add(&Out::default().dirent(ino.0, next, kind, name.as_ref().as_bytes()))
    }

    /// Ends the listing.
    pub fn ok(self) {
        self.0.answer.send(&[self.0.out.bytes()]);
    }

    /// Answers with an error.
    pub fn error(self, error: Errno) {
        self.0.answer.fail(error);
    }
}

/// Names of a directory with attributes of the files.
#[derive(Debug)]
pub struct ReplyDirectoryPlus(Listing);

impl ReplyDirectoryPlus {
    /// With a size limit.
    pub fn new(answer: Answer, size: usize) -> Self {
        Self(Listing { answer, size, out: Out::default() })
    }

    /// Adds a name and its file; returns true if there was no room for it.
    pub fn add(
        &mut self,
        ino: INodeNo,
        next: u64,
        name: impl AsRef<OsStr>,
        keep: &Duration,
        attr: &FileAttr,
        generation: Generation,
    ) -> bool {
        let out = Out::default().entry((keep, keep), attr, generation);
        self.0.add(&out.dirent(ino.0, next, attr.kind, name.as_ref().as_bytes()))
    }

    /// Adds a name without its file, which the kernel looks up on use; returns true if there was no room for it.
    pub fn name_only(&mut self, ino: INodeNo, next: u64, kind: FileType, name: impl AsRef<OsStr>) -> bool {
        /// Bytes of a file and its attributes.
        #[doc(alias = "fuse_entry_out")]
        const ENTRY: usize = 128;
        let out = Out::default().raw(&[0; ENTRY]);
        self.0.add(&out.dirent(ino.0, next, kind, name.as_ref().as_bytes()))
    }

    /// Ends the listing.
    pub fn ok(self) {
        self.0.answer.send(&[self.0.out.bytes()]);
    }

    /// Answers with an error.
    pub fn error(self, error: Errno) {
        self.0.answer.fail(error);
    }
}
