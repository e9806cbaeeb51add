//! Output to a user other than the pools' owner.
//!
//! Such a user may stop reading. Therefore nothing is written while the command holds a pool; afterwards a write
//! waits for the reader only while the reader is connected, and only up to a limit.

use std::fs::File;
use std::io::{self, Error, ErrorKind, IoSlice, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags};

use super::kept_output::KeptOutput;

/// Maximum bytes kept for a reader in memory.
const IN_MEMORY: usize = 1 << 20;
/// Maximum bytes kept for a reader.
const MOST: u64 = 512 << 20;
/// Bytes that a pipe accepts at once when it accepts any.
#[doc(alias = "PIPE_BUF")]
const PIECE: usize = 4096;
/// Maximum wait of the writer for the next piece.
const PATIENCE: Duration = Duration::from_secs(300);
const TICK: Duration = Duration::from_millis(250);

/// Printed output that may not be written yet.
#[derive(Debug)]
pub struct Patient {
    kept: KeptOutput,
    out: File,
    /// Set while the command holds pools.
    pub held: Arc<AtomicBool>,
    /// Set when the client has disconnected.
    pub gone: Arc<AtomicBool>,
    patience: Duration,
}

impl Patient {
    /// An empty buffer.
    pub fn new(out: File, held: &Arc<AtomicBool>, gone: &Arc<AtomicBool>) -> Self {
        let (held, gone) = (Arc::clone(held), Arc::clone(gone));
        Self { kept: KeptOutput::default(), out, held, gone, patience: PATIENCE }
    }

    fn push(&self, mut text: &[u8]) -> io::Result<()> {
        let mut since = Instant::now();
        while !text.is_empty() {
            let piece = text.get(..PIECE).unwrap_or(text);
            match self.piece(piece)? {
                0 if self.gone.load(Ordering::Relaxed) => return Err(ErrorKind::BrokenPipe.into()),
                0 if since.elapsed() > self.patience => return Err(ErrorKind::TimedOut.into()),
                0 => {}
                some => {
                    text = text.get(some..).unwrap_or_default();
                    since = Instant::now();
                }
            }
        }
        Ok(())
    }

    /// Writes part of a piece; returns 0 when the reader has read nothing for a moment.
    fn piece(&self, piece: &[u8]) -> io::Result<usize> {
        let out = self.out.as_fd();
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos().try_into().unwrap_or(0) };
        match poll(&mut [PollFd::new(&out, PollFlags::OUT)], Some(&tick)) {
            Ok(0) | Err(Errno::INTR) => return Ok(0),
            other => other?,
        };
        // The pipe may have been filled in between.
        match rustix::io::pwritev2(out, &[IoSlice::new(piece)], u64::MAX, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN) => Ok(0),
            // Terminals do not support this call.
            Err(Errno::OPNOTSUPP | Errno::SPIPE | Errno::INVAL) => Ok(rustix::io::write(out, piece)?),
            other => Ok(other?),
        }
    }
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.kept.len() + bytes.len() as u64 > MOST {
            return Err(Error::new(ErrorKind::OutOfMemory, "the output exceeds the buffer for its reader"));
        }
        self.kept.push(bytes);
        self.kept.spill_above(IN_MEMORY)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.held.load(Ordering::Relaxed) {
            return Ok(());
        }
        std::mem::take(&mut self.kept).write_to(&mut |text| self.push(text))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn nothing_is_written_while_pools_are_kept_and_no_reader_is_waited_for_for_ever() {
        let (mut reader, writer) = io::pipe().unwrap();
        let flag = |set| Arc::new(AtomicBool::new(set));
        let (held, gone) = (flag(true), flag(false));
        let mut out = Patient::new(File::from(OwnedFd::from(writer)), &held, &gone);
        out.patience = Duration::from_millis(10);
        out.write_all(b"one").unwrap();
        out.flush().unwrap();
        assert_eq!(out.kept.len(), 3);
        held.store(false, Ordering::Relaxed);
        out.flush().unwrap();
        let mut got = [0; 3];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"one");
        out.write_all(&vec![0; 1 << 20]).unwrap();
        assert_eq!(out.flush().unwrap_err().kind(), ErrorKind::TimedOut);
        gone.store(true, Ordering::Relaxed);
        out.write_all(b"two").unwrap();
        assert_eq!(out.flush().unwrap_err().kind(), ErrorKind::BrokenPipe);
        held.store(true, Ordering::Relaxed);
        let most = vec![0; 1 << 20];
        let written = (0..600).find_map(|_| out.write_all(&most).err()).expect("there is a limit");
        assert_eq!(written.kind(), ErrorKind::OutOfMemory);
    }
}
