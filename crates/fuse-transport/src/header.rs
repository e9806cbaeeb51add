//! The header that all requests have in common.

use crate::words::Words;

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "fuse_opcode")]
#[allow(missing_docs)]
pub enum Opcode {
    Lookup,
    Forget,
    Getattr,
    Setattr,
    Readlink,
    Symlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Rename,
    Link,
    Open,
    Read,
    Write,
    Statfs,
    Release,
    Fsync,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Flush,
    Init,
    Opendir,
    Readdir,
    Releasedir,
    Fsyncdir,
    Create,
    Interrupt,
    Destroy,
    Ioctl,
    NotifyReply,
    BatchForget,
    Fallocate,
    Readdirplus,
    Rename2,
    Lseek,
    CopyFileRange,
    CopyFileRange64,
    Tmpfile,
    Statx,
    /// An unknown operation.
    Other,
}

impl Opcode {
    fn of(number: u32) -> Self {
        match number {
            1 => Self::Lookup,
            2 => Self::Forget,
            3 => Self::Getattr,
            4 => Self::Setattr,
            5 => Self::Readlink,
            6 => Self::Symlink,
            8 => Self::Mknod,
            9 => Self::Mkdir,
            10 => Self::Unlink,
            11 => Self::Rmdir,
            12 => Self::Rename,
            13 => Self::Link,
            14 => Self::Open,
            15 => Self::Read,
            16 => Self::Write,
            17 => Self::Statfs,
            18 => Self::Release,
            20 => Self::Fsync,
            21 => Self::Setxattr,
            22 => Self::Getxattr,
            23 => Self::Listxattr,
            24 => Self::Removexattr,
            25 => Self::Flush,
            26 => Self::Init,
            27 => Self::Opendir,
            28 => Self::Readdir,
            29 => Self::Releasedir,
            30 => Self::Fsyncdir,
            35 => Self::Create,
            36 => Self::Interrupt,
            38 => Self::Destroy,
            39 => Self::Ioctl,
            41 => Self::NotifyReply,
            42 => Self::BatchForget,
            43 => Self::Fallocate,
            44 => Self::Readdirplus,
            45 => Self::Rename2,
            46 => Self::Lseek,
            47 => Self::CopyFileRange,
            51 => Self::Tmpfile,
            52 => Self::Statx,
            53 => Self::CopyFileRange64,
            _ => Self::Other,
        }
    }
}

/// The common header of requests.
#[derive(Debug, Clone, Copy)]
#[doc(alias = "fuse_in_header")]
pub struct Header {
    /// The operation.
    pub opcode: Opcode,
    /// Its number.
    pub unique: u64,
    /// The file or directory.
    pub node: u64,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The process.
    pub pid: u32,
}

/// Its bytes.
#[doc(alias = "fuse_in_header")]
pub const HEADER: usize = 40;

impl Header {
    /// Splits a request into its header and the rest.
    pub fn split(bytes: &[u8]) -> Option<(Self, Words<'_>)> {
        let mut words = Words::new(bytes, &[]);
        let (_len, header) = Self::read(&mut words)?;
        Some((header, words))
    }

    /// The length of the whole request according to its header, and the header.
    pub fn read(words: &mut Words<'_>) -> Option<(u32, Self)> {
        let (len, opcode, unique) = (words.u32()?, Opcode::of(words.u32()?), words.u64()?);
        let (node, uid, gid, pid) = (words.u64()?, words.u32()?, words.u32()?, words.u32()?);
        let (_extensions, _padding) = (words.u16()?, words.u16()?);
        Some((len, Self { opcode, unique, node, uid, gid, pid }))
    }
}
