//! Send streams on their way out: bytes go to the descriptor as they are made.
//!
//! A reader that takes nothing must not hold a thread of the daemon for ever, so nothing here waits in a system call:
//! pipes and sockets are written without waiting, and between two attempts a closed connection, or an
//! interrupt, is noticed. Readers of users who are not the owner have five minutes for the next piece.

use std::fs::File;
use std::io::{self, Error, ErrorKind, IoSlice, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags};

/// Bytes that are collected before they are written.
const PAGE: usize = 256 << 10;
/// From that many bytes on they are written from where they are, behind those that were collected.
const LONG: usize = 32 << 10;
/// Bytes that a pipe takes at once when it takes any.
const PIECE: usize = 4096;
const TICK: Duration = Duration::from_millis(250);

/// Where a stream goes.
#[derive(Debug)]
pub struct StreamOut {
    out: File,
    page: Vec<u8>,
    /// Set when the client went away, or wants to stop.
    gone: Arc<AtomicBool>,
    /// Maximum time without progress of a reader; `None`: no limit while it is connected.
    patience: Option<Duration>,
}

impl StreamOut {
    /// Nothing is written yet.
    pub fn new(out: File, gone: Arc<AtomicBool>, patience: Option<Duration>) -> Self {
        // More in a pipe at once means fewer changes between its two ends; the kernel may refuse.
        let _ = rustix::pipe::fcntl_setpipe_size(&out, 1 << 20);
        Self { out, page: Vec::with_capacity(PAGE), gone, patience }
    }

    /// Writes two pieces, one behind the other.
    fn push(&self, mut first: &[u8], mut second: &[u8]) -> io::Result<()> {
        let mut since = Instant::now();
        while !first.is_empty() || !second.is_empty() {
            match self.some(first, second)? {
                0 if self.gone.load(Ordering::Relaxed) => return Err(ErrorKind::BrokenPipe.into()),
                0 if self.patience.is_some_and(|most| since.elapsed() > most) => {
                    return Err(Error::new(ErrorKind::TimedOut, "its reader takes nothing"));
                }
                0 => {}
                some => {
                    let rest = some.saturating_sub(first.len());
                    first = first.get(some..).unwrap_or_default();
                    second = second.get(rest..).unwrap_or_default();
                    since = Instant::now();
                }
            }
        }
        Ok(())
    }

    /// Writes some bytes; 0: the reader took nothing for a moment.
    fn some(&self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let out = self.out.as_fd();
        match rustix::io::pwritev2(
            out,
            &[IoSlice::new(first), IoSlice::new(second)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        ) {
            Err(Errno::AGAIN) => {}
            // Files, and targets that do not support that.
            Err(Errno::OPNOTSUPP | Errno::SPIPE | Errno::INVAL) => return self.plain(first, second),
            other => return Ok(other?),
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos().try_into().unwrap_or(0) };
        let mut polled = [PollFd::new(&out, PollFlags::OUT)];
        match poll(&mut polled, Some(&tick)) {
            Ok(0) | Err(Errno::INTR) => Ok(0),
            // A file that can't be written without waiting.
            Ok(_) if self.is_file() => self.plain(first, second),
            Ok(_) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    fn is_file(&self) -> bool {
        self.out.metadata().is_ok_and(|found| found.is_file())
    }

    fn plain(&self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let bytes = if first.is_empty() { second } else { first };
        let piece = if self.is_file() { bytes } else { bytes.get(..PIECE).unwrap_or(bytes) };
        Ok(rustix::io::write(&self.out, piece)?)
    }
}

impl Write for StreamOut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() < LONG && self.page.len() + bytes.len() <= PAGE {
            self.page.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        let done = self.push(&self.page, bytes);
        self.page.clear();
        done.map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.push(&self.page, &[]);
        self.page.clear();
        done
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::thread;

    use super::*;

    #[test]
    fn written_bytes_arrive_and_no_reader_is_waited_for_for_ever() {
        let (mut reader, writer) = io::pipe().unwrap();
        let gone = Arc::new(AtomicBool::new(false));
        let mut out = StreamOut::new(File::from(OwnedFd::from(writer)), Arc::clone(&gone), None);
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let reading = thread::spawn(move || {
            let mut got = vec![0; 3_000_000];
            reader.read_exact(&mut got).unwrap();
            (reader, got)
        });
        for chunk in bytes.chunks(100_000) {
            let (short, long) = chunk.split_at(300);
            out.write_all(short).unwrap();
            out.write_all(long).unwrap();
        }
        out.flush().unwrap();
        let (reader, got) = reading.join().unwrap();
        assert_eq!(got, bytes);
        out.patience = Some(Duration::from_millis(10));
        assert_eq!(out.write_all(&bytes).unwrap_err().kind(), ErrorKind::TimedOut);
        gone.store(true, Ordering::Relaxed);
        assert_eq!(out.write_all(&bytes).unwrap_err().kind(), ErrorKind::BrokenPipe);
        drop(reader);
        gone.store(false, Ordering::Relaxed);
        assert_eq!(out.write_all(&bytes).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
