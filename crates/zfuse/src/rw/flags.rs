//! Flags of files and projects, for `chattr`, `lsattr` and `xfs_io`.

use engine::{Error, Kind, Result};
use zpl::write::{Rewriting, Settings};

use super::Live;
use super::dos_flags;
use super::fs_swap::WRITES;
use super::privileges::Setter;
use super::rewriting;
use crate::attr::errno;
use crate::file_flags::{self, FLAGS, PROJECT_AT};
use crate::wire::{Errno, FileHandle, INodeNo, ReplyIoctl, Request};

/// `FS_IOC_SETFLAGS`: chattr.
const SETFLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSSETXATTR`.
const FSSETXATTR: u32 = 0x401c_5820;
/// `ZFS_IOC_REWRITE`: `zfs_rewrite_args_t`, 32 bytes: offset, length, flags, 0.
const REWRITE: u32 = 0x4020_8303;
/// `ZFS_REWRITE_PHYSICAL`.
const PHYSICAL: u64 = 1;

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..).and_then(|b| b.first_chunk());
    word.map(|b| u32::from_le_bytes(*b)).ok_or_else(|| Error::new(Kind::Invalid, "a short request"))
}

pub(super) fn long(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from(word(bytes, at)?) | u64::from(word(bytes, at + 4)?) << 32)
}

impl Live {
    /// Answers a request of the file that was opened as `handle`. The kernel checks the user's rights, except for a rewrite and
    /// for DOS attributes.
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
            return self.answer_chosen(req, ino, handle, input, reply);
        }
        if command == REWRITE && handle.0 & WRITES == 0 {
            return reply.error(Errno::EBADF);
        }
        let object = match file_flags::is_reading(command) {
            true => match self.object(ino.0) {
                Some(object) => Ok(object),
                None => return self.frozen.answer_ioctl(ino, command, reply),
            },
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

    /// Answers a request of this program's own: see [`rewriting`].
    fn answer_chosen(
        &self,
        req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        input: &[u8],
        reply: ReplyIoctl,
    ) {
        let answer = self.rewrite_chosen(&Setter::of(req), (ino, handle), input);
        let is_mapped = || self.object(ino.0).is_some_and(|object| self.writers.has(object));
        let stale = match rewriting::cloned(input, &answer) {
            // The kernel may have pages of what was there before.
            Some(range) => Some(range),
            // Changes through a mapping are written before the kernel drops their pages.
            None => (rewriting::is_offer(input) && is_mapped()).then_some((0, 0)),
        };
        match stale {
            Some(range) => self.after_dropping_pages(ino, range, move || reply.ioctl(0, &answer)),
            None => reply.ioctl(0, &answer),
        }
    }

    /// Answers a request; `None` if it is none of these.
    fn ioctl(&self, req: &Request, object: u64, command: u32, input: &[u8]) -> Result<Option<Vec<u8>>> {
        match command {
            SETFLAGS => {
                self.set_flags(object, word(input, 0)?, |(fs, _, _)| fs, None)?;
                Ok(Some(Vec::new()))
            }
            FSSETXATTR => {
                let project = u64::from(word(input, PROJECT_AT)?);
                let changed = self.files.attrs().get(object)?.projid != project;
                self.set_flags(object, word(input, 0)?, |(_, xfs, _)| xfs, changed.then_some(project))?;
                Ok(Some(Vec::new()))
            }
            dos_flags::SET => self.set_dos_flags(req, object, input).map(|()| Some(Vec::new())),
            REWRITE => self.rewrite(object, input).map(|()| Some(Vec::new())),
            _ => Ok(file_flags::answer(&self.files.attrs().get(object)?, command)),
        }
    }

    fn rewrite(&self, object: u64, input: &[u8]) -> Result<()> {
        let [offset, len, flags, zero] = [0, 8, 16, 24].map(|at| long(input, at));
        let (offset, len, flags) = (offset?, len?, flags?);
        if flags & !PHYSICAL != 0 || zero? != 0 {
            return Err(Error::new(Kind::Invalid, "unknown flags of a rewrite"));
        }
        let how = if flags == PHYSICAL { Rewriting::Physical } else { Rewriting::Logical };
        self.files.rewrites().rewrite(object, offset, len, how).map(drop)
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
        self.files.attrs().set(object, &Settings { flags: Some((set, mask)), projid, ..Settings::default() })
    }
}
