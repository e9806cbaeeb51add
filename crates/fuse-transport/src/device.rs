//! A connection to the kernel over `/dev/fuse`.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Length of the header of a message to the kernel.
#[doc(alias = "fuse_out_header")]
pub const OUT_HEADER: usize = 16;
/// The notification that asks for pages of a file.
const NOTIFY_RETRIEVE: i32 = 5;
/// Parts of an answer that are sent without an allocation.
const PARTS: usize = 4;

/// The header of a message to the kernel.
pub fn out_header(unique: u64, error: i32, len: usize) -> io::Result<[u8; OUT_HEADER]> {
    let all = u32::try_from(len.saturating_add(OUT_HEADER));
    let all = all.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut header = [0; OUT_HEADER];
    let fields = all.to_ne_bytes().into_iter().chain(error.to_ne_bytes()).chain(unique.to_ne_bytes());
    header.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    Ok(header)
}

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
        let len = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        let header = out_header(unique, error, len)?;
        let mut few = [IoSlice::new(&[]); PARTS];
        let all = std::iter::once(&header[..]).chain(parts.iter().copied()).map(IoSlice::new);
        match few.get_mut(..=parts.len()) {
            Some(few) => {
                few.iter_mut().zip(all).for_each(|(to, from)| *to = from);
                rustix::io::writev(&self.0, few)?;
            }
            None => {
                rustix::io::writev(&self.0, &all.collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }

    /// Has the kernel send a request without content ([`Opcode::NotifyReply`]) to the queue of the calling thread's
    /// core. `file`: a regular file that the kernel knows.
    ///
    /// [`Opcode::NotifyReply`]: crate::Opcode::NotifyReply
    #[doc(alias = "FUSE_NOTIFY_RETRIEVE")]
    pub fn ask_for_request(&self, unique: u64, file: u64) -> io::Result<()> {
        // No bytes of the file: number of the reply, inode, offset, length.
        let retrieve = [unique, file, 0, 0].map(u64::to_ne_bytes).concat();
        self.send(0, NOTIFY_RETRIEVE, &[&retrieve])
    }

    /// Its descriptor's number, for commands of a ring.
    pub fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
