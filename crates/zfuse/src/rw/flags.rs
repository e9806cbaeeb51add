//! Flags of files and projects, for `chattr`, `lsattr` and `xfs_io`.

use engine::{Error, Kind, Result};
use zpl::pflags;
use zpl::write::{Rewriting, Settings};

use super::Live;
use super::dos_flags;
use super::fs_swap::WRITES;
use super::rewriting;
use crate::attr::errno;
use crate::wire::{Errno, FileHandle, INodeNo, ReplyIoctl, Request};

/// `FS_IOC_GETFLAGS`: lsattr. The number encodes 8 bytes, but the kernel expects 4.
const GETFLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`: chattr.
const SETFLAGS: u32 = 0x4008_6602;
/// `FS_IOC_GETVERSION`: lsattr -v. As above.
const GETVERSION: u32 = 0x8008_7601;
/// `FS_IOC_FSGETXATTR`: `struct fsxattr`, 28 bytes: flags, extent size, extents, project, …
const FSGETXATTR: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
const FSSETXATTR: u32 = 0x401c_5820;
/// `ZFS_IOC_REWRITE`: `zfs_rewrite_args_t`, 32 bytes: offset, length, flags, 0.
const REWRITE: u32 = 0x4020_8303;
/// `ZFS_REWRITE_PHYSICAL`.
const PHYSICAL: u64 = 1;
const FSXATTR: usize = 28;
/// Offset of the project in `struct fsxattr`.
const PROJECT_AT: usize = 12;

/// The flag's value in both Linux interfaces and in ZFS.
const FLAGS: [(u32, u32, u64); 4] = [
    (0x0000_0010, 0x0000_0008, pflags::IMMUTABLE),
    (0x0000_0020, 0x0000_0010, pflags::APPENDONLY),
    (0x0000_0040, 0x0000_0080, pflags::NODUMP),
    (0x2000_0000, 0x0000_0200, pflags::PROJINHERIT),
];

/// Whether a request changes nothing.
fn is_reading(command: u32) -> bool {
    matches!(command, GETFLAGS | GETVERSION | FSGETXATTR | dos_flags::GET)
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..).and_then(|b| b.first_chunk());
    word.map(|b| u32::from_le_bytes(*b)).ok_or_else(|| Error::new(Kind::Invalid, "a short request"))
}

pub(super) fn long(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from(word(bytes, at)?) | u64::from(word(bytes, at + 4)?) << 32)
}

impl Live {
    /// Answers a request of the file that was opened as `handle`. The kernel checks the user's rights, except for a rewrite and for
    /// DOS attributes.
    pub(super) fn answer_ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        command: u32,
        input: &[u8],
        reply: ReplyIoctl,
    ) {
        if command == rewriting::CHOSEN {
            let answer = self.rewrite_chosen(ino, handle.0 & WRITES != 0, input);
            return reply.ioctl(0, &answer);
        }
        if command == REWRITE && handle.0 & WRITES == 0 {
            return reply.error(Errno::EBADF);
        }
        let object = match is_reading(command) {
            true => self.object(ino.0).ok_or_else(|| Error::unsupported("files of snapshots have no flags")),
            false => self.writable(ino.0),
        };
        match object.and_then(|object| self.ioctl(req, object, command, input)) {
            Ok(Some(answer)) => {
                if answer.is_empty() {
                    self.tell_changed(ino);
                }
                reply.ioctl(0, &answer);
            }
            Ok(None) => reply.error(Errno::ENOTTY),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Answers a request; `None` if it is none of these.
    fn ioctl(&self, req: &Request, object: u64, command: u32, input: &[u8]) -> Result<Option<Vec<u8>>> {
        match command {
            GETFLAGS => Ok(Some(self.linux_flags(object)?.0.to_le_bytes().to_vec())),
            GETVERSION => {
                let low = self.files.generation(object)? & u64::from(u32::MAX);
                Ok(Some(u32::try_from(low).unwrap_or(0).to_le_bytes().to_vec()))
            }
            FSGETXATTR => {
                let mut out = self.linux_flags(object)?.1.to_le_bytes().to_vec();
                out.resize(FSXATTR, 0);
                let project = u32::try_from(self.files.attr(object)?.projid).unwrap_or(0);
                if let Some(to) = out.get_mut(PROJECT_AT..PROJECT_AT + 4) {
                    to.copy_from_slice(&project.to_le_bytes());
                }
                Ok(Some(out))
            }
            SETFLAGS => {
                self.set_flags(object, word(input, 0)?, |(fs, _, _)| fs, None)?;
                Ok(Some(Vec::new()))
            }
            FSSETXATTR => {
                let project = u64::from(word(input, PROJECT_AT)?);
                let changed = self.files.attr(object)?.projid != project;
                self.set_flags(object, word(input, 0)?, |(_, xfs, _)| xfs, changed.then_some(project))?;
                Ok(Some(Vec::new()))
            }
            dos_flags::GET => self.dos_flags(object).map(Some),
            dos_flags::SET => self.set_dos_flags(req, object, input).map(|()| Some(Vec::new())),
            REWRITE => self.rewrite(object, input).map(|()| Some(Vec::new())),
            _ => Ok(None),
        }
    }

    fn rewrite(&self, object: u64, input: &[u8]) -> Result<()> {
        let [offset, len, flags, zero] = [0, 8, 16, 24].map(|at| long(input, at));
        let (offset, len, flags) = (offset?, len?, flags?);
        if flags & !PHYSICAL != 0 || zero? != 0 {
            return Err(Error::new(Kind::Invalid, "unknown flags of a rewrite"));
        }
        let how = if flags == PHYSICAL { Rewriting::Physical } else { Rewriting::Logical };
        self.files.rewrite(object, offset, len, how).map(drop)
    }

    /// Flags in the encodings of the two interfaces.
    fn linux_flags(&self, object: u64) -> Result<(u32, u32)> {
        let have = self.files.attr(object)?.flags;
        let shown = FLAGS.iter().filter(|(_, _, zfs)| have & zfs != 0);
        Ok(shown.fold((0, 0), |(a, b), (fs, xfs, _)| (a | fs, b | xfs)))
    }

    fn set_flags(
        &self,
        object: u64,
        wanted: u32,
        name: impl Fn((u32, u32, u64)) -> u32,
        projid: Option<u64>,
    ) -> Result<()> {
        let known = FLAGS.iter().fold(0, |all, flag| all | name(*flag));
        if wanted & !known != 0 {
            return Err(Error::unsupported("a flag that ZFS does not have"));
        }
        let set = FLAGS.iter().filter(|flag| wanted & name(**flag) != 0).fold(0, |all, flag| all | flag.2);
        let mask = FLAGS.iter().fold(0, |all, flag| all | flag.2);
        self.files.setattr(object, &Settings { flags: Some((set, mask)), projid, ..Settings::default() })
    }
}
