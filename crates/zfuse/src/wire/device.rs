//! A connection to the kernel, and unsolicited notifications over it.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::INodeNo;
use super::encode::Out;

/// Length of the header of a message to the kernel.
const HEADER: usize = 16;
/// Notifications have no request; the number of the notification replaces the error.
const UNASKED: u64 = 0;
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;

/// A connection.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Wraps `/dev/fuse`, opened and mounted.
    pub fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Makes a read without a request return at once.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_setfl(&self.0, OFlags::NONBLOCK)?)
    }

    /// Whether the kernel has ended the connection, as `umount` does before it returns.
    pub fn is_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec::default();
        poll(&mut polled, Some(&now)).is_ok()
            && polled.iter().any(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::HUP))
    }

    /// Whether a request can be read.
    pub fn has_request(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec::default();
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Reads one request.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }

    /// Sends an answer: all of it at once, or nothing.
    pub fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>().saturating_add(HEADER);
        let len = u32::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let header = Out::default().u32(len).i32(error).u64(unique);
        let all: Vec<IoSlice<'_>> =
            std::iter::once(header.bytes()).chain(parts.iter().copied()).map(IoSlice::new).collect();
        rustix::io::writev(&self.0, &all)?;
        Ok(())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Notifies the kernel of changes it has not seen. If it has not cached the object, there is nothing to do.
#[derive(Debug, Clone)]
pub struct Notifier(Arc<Device>);

impl Notifier {
    /// Uses a connection.
    pub fn new(device: Arc<Device>) -> Self {
        Self(device)
    }

    /// Attributes of a file have changed, and its bytes in a range; `offset` below 0: attributes only, `len` 0: to
    /// the end.
    pub fn inval_inode(&self, ino: INodeNo, offset: i64, len: i64) -> io::Result<()> {
        let what = Out::default().u64(ino.0).i64(offset).i64(len);
        self.tell(INVAL_INODE, &[what.bytes()])
    }

    /// A name now refers to another file.
    pub fn inval_entry(&self, parent: INodeNo, name: &OsStr) -> io::Result<()> {
        let len = u32::try_from(name.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let what = Out::default().u64(parent.0).u32(len).u32(0);
        self.tell(INVAL_ENTRY, &[what.bytes(), name.as_bytes(), &[0]])
    }

    fn tell(&self, what: i32, parts: &[&[u8]]) -> io::Result<()> {
        match self.0.send(UNASKED, what, parts) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            told => told,
        }
    }
}
