//! The first request of a connection: negotiates capabilities with the kernel.

use std::collections::BTreeSet;
use std::io;

use fuse_transport::{
    Device, Header, MAX_BACKGROUND, MAX_WRITE, Opcode, PAYLOAD, Reserved, Words, uses_io_uring,
    why_not_offered,
};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::encode::Out;
use super::filesystem::Filesystem;
use super::{InitFlags, Request};

/// The protocol version used here.
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
/// The oldest supported minor version: answers have had their present formats since then (Linux 3.15).
const OLDEST: u32 = 23;
/// Bytes of a page, the kernel's unit of request sizes.
const PAGE: u32 = 4096;
/// Buffer for the first request: not less than the kernel's minimum.
const ROOM: usize = 64 << 10;

/// The parameters of a connection.
#[derive(Debug)]
pub struct KernelConfig {
    offered: InitFlags,
    wanted: InitFlags,
    max_readahead: u32,
    max_write: u32,
    max_background: u16,
}

impl KernelConfig {
    fn new(offered: InitFlags, max_readahead: u32) -> Self {
        let usual = InitFlags::FUSE_ASYNC_READ | InitFlags::FUSE_BIG_WRITES | InitFlags::FUSE_MAX_PAGES;
        let wanted = (usual | InitFlags::FUSE_INIT_EXT) & offered;
        Self { offered, wanted, max_readahead, max_write: 128 << 10, max_background: 16 }
    }

    /// Requests more capabilities.
    ///
    /// # Errors
    /// The capabilities that the kernel lacks.
    pub fn add_capabilities(&mut self, flags: InitFlags) -> Result<(), InitFlags> {
        let missing = flags - self.offered;
        if missing.is_empty() {
            self.wanted |= flags;
            Ok(())
        } else {
            Err(missing)
        }
    }

    /// Sets the kernel's read-ahead, at most its offer.
    pub fn set_max_readahead(&mut self, bytes: u32) {
        self.max_readahead = self.max_readahead.min(bytes);
    }

    /// Sets the maximum write request.
    pub fn set_max_write(&mut self, bytes: u32) {
        self.max_write = bytes.min(u32::try_from(MAX_WRITE).unwrap_or(u32::MAX));
    }

    /// Sets the maximum number of background requests.
    pub fn set_max_background(&mut self, requests: u16) {
        self.max_background = requests;
    }

    /// Requests come over io_uring if the kernel offers that, and `reserve` does not fail.
    fn join_rings(&mut self, reserve: impl FnOnce() -> io::Result<Option<Reserved>>) -> Option<Reserved> {
        if !self.offered.contains(InitFlags::FUSE_OVER_IO_URING) {
            if uses_io_uring() {
                tell_once(why_not_offered());
            }
            return None;
        }
        let reserved = reserve().unwrap_or_else(|e| {
            tell_once(e.to_string());
            None
        })?;
        self.wanted |= InitFlags::FUSE_OVER_IO_URING;
        // Requests and answers fit into the buffers of an entry.
        self.max_write = self.max_write.min(u32::try_from(PAYLOAD).unwrap_or(u32::MAX));
        self.max_background = self.max_background.min(MAX_BACKGROUND);
        Some(reserved)
    }

    fn answer(&self) -> Out {
        let bits = self.wanted.bits();
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
        let pages = u16::try_from(self.max_write.div_ceil(PAGE)).unwrap_or(u16::MAX);
        let congested = self.max_background / 4 * 3;
        let out = Out::default().u32(MAJOR).u32(MINOR).u32(self.max_readahead).u32(half(bits));
        let out = out.u16(self.max_background).u16(congested.max(1)).u32(self.max_write);
        // Times have nanoseconds.
        out.u32(1).u16(pages).u16(0).u32(half(bits >> 32)).raw(&[0; 28])
    }
}

/// Logs why mounts do without io_uring: each reason once, for there may be thousands of mounts.
fn tell_once(why: String) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock();
    if !told.contains(&why) {
        eprintln!("mounts use /dev/fuse, not io_uring: {why}");
        told.insert(why);
    }
}

/// Answers the first request, which is available once the file system is mounted. Returns what the connection uses
/// if its further requests come over io_uring.
pub fn greet(device: &Device, files: &mut dyn Filesystem) -> io::Result<Option<Reserved>> {
    let mut room = vec![0; ROOM];
    loop {
        let len = match device.read(&mut room) {
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV | Errno::CONNABORTED) => return Err(io::ErrorKind::NotConnected.into()),
            len => len?,
        };
        let senseless =
            || io::Error::new(io::ErrorKind::InvalidData, "FUSE: the kernel's first request is malformed");
        let (header, mut words) = Header::split(room.get(..len).unwrap_or_default()).ok_or_else(senseless)?;
        if header.opcode != Opcode::Init {
            device.send(header.unique, -libc::EIO, &[])?;
            return Err(senseless());
        }
        let offer = Offer::read(&mut words).ok_or_else(senseless)?;
        if offer.major > MAJOR {
            // The kernel asks again with our version.
            device.send(header.unique, 0, &[Out::default().u32(MAJOR).u32(MINOR).raw(&[0; 56]).bytes()])?;
            continue;
        }
        if offer.major < MAJOR || offer.minor < OLDEST {
            device.send(header.unique, -libc::EPROTO, &[])?;
            let what = format!("FUSE {}.{} is too old: Linux 3.15 or newer", offer.major, offer.minor);
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let mut config = KernelConfig::new(offer.flags, offer.max_readahead);
        if let Err(e) = files.init(&Request::of(&header), &mut config) {
            device.send(header.unique, -e.raw_os_error().unwrap_or(libc::EIO), &[])?;
            return Err(e);
        }
        let reserved = config.join_rings(fuse_transport::reserve);
        device.send(header.unique, 0, &[config.answer().bytes()])?;
        return Ok(reserved);
    }
}

struct Offer {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: InitFlags,
}

impl Offer {
    fn read(words: &mut Words<'_>) -> Option<Self> {
        let (major, minor) = (words.u32()?, words.u32()?);
        let (max_readahead, low) = (words.u32().unwrap_or(0), words.u32().unwrap_or(0));
        let low = InitFlags::from_bits_retain(low.into());
        let more = if low.contains(InitFlags::FUSE_INIT_EXT) { words.u32().unwrap_or(0) } else { 0 };
        let flags = low | InitFlags::from_bits_retain(u64::from(more) << 32);
        Some(Self { major, minor, max_readahead, flags })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_offered_is_wanted_and_the_answer_is_64_bytes() {
        let mut config = KernelConfig::new(InitFlags::FUSE_BIG_WRITES, 1 << 17);
        assert_eq!(config.add_capabilities(InitFlags::FUSE_POSIX_ACL), Err(InitFlags::FUSE_POSIX_ACL));
        assert_eq!(config.wanted, InitFlags::FUSE_BIG_WRITES);
        config.set_max_readahead(1 << 30);
        assert_eq!(config.max_readahead, 1 << 17);
        assert_eq!(config.answer().bytes().len(), 64);
    }
}
