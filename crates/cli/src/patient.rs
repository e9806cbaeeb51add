//! Output to a user other than the pools' owner.
//!
//! Such a user may stop reading. Therefore nothing is written while the command holds a pool; afterwards a write
//! waits for the reader only while the reader is connected, and only up to a limit.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Error, ErrorKind, IoSlice, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags};

/// Maximum bytes kept for a reader in memory; the others are in a file without a name.
const IN_MEMORY: usize = 1 << 20;
/// Maximum bytes kept for a reader.
const MOST: u64 = 512 << 20;
/// The first folder for that file: `/tmp` may be in memory. If nothing can be written there, that of temporary files is next.
const FOLDER: &str = "/var/tmp";
/// Bytes that a pipe accepts at once when it accepts any.
#[doc(alias = "PIPE_BUF")]
const PIECE: usize = 4096;
/// Maximum wait of the writer for the next piece.
const PATIENCE: Duration = Duration::from_secs(300);
const TICK: Duration = Duration::from_millis(250);

/// Printed output that may not be written yet.
#[derive(Debug)]
pub struct Patient {
    text: Vec<u8>,
    /// The output before `text`, and its length: one part for each folder that was needed.
    earlier: Vec<(File, u64)>,
    /// Folders that were not needed yet.
    folders: VecDeque<PathBuf>,
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
        let folders = [PathBuf::from(FOLDER), std::env::temp_dir()].into();
        Self { text: Vec::new(), earlier: Vec::new(), folders, out, held, gone, patience: PATIENCE }
    }

    /// Bytes in files.
    fn length(&self) -> u64 {
        self.earlier.iter().map(|(_, length)| length).sum()
    }

    /// Moves the text in memory to a file.
    fn spill(&mut self) -> io::Result<()> {
        // A folder may be full, or read-only.
        let mut why = None;
        loop {
            if let Some((file, length)) = self.earlier.last_mut() {
                match file.write_all(&self.text) {
                    Ok(()) => {
                        *length += self.text.len() as u64;
                        self.text.clear();
                        return Ok(());
                    }
                    Err(e) => why = Some(e),
                }
            }
            match self.folders.pop_front().map(tempfile::tempfile_in) {
                Some(Ok(file)) => self.earlier.push((file, 0)),
                Some(Err(e)) => why = why.or(Some(e)),
                None => {
                    let why = why.unwrap_or_else(|| ErrorKind::NotFound.into());
                    let what = format!("the output cannot be kept for its reader: {why}");
                    return Err(Error::new(why.kind(), what));
                }
            }
        }
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
        if self.length() + (self.text.len() + bytes.len()) as u64 > MOST {
            return Err(Error::new(ErrorKind::OutOfMemory, "the output exceeds the buffer for its reader"));
        }
        self.text.extend_from_slice(bytes);
        if self.text.len() > IN_MEMORY {
            self.spill()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.held.load(Ordering::Relaxed) {
            return Ok(());
        }
        let text = std::mem::take(&mut self.text);
        for (mut file, length) in std::mem::take(&mut self.earlier) {
            file.rewind()?;
            // The last write may have failed in its middle.
            let mut file = file.take(length);
            let mut part = vec![0; IN_MEMORY];
            loop {
                match file.read(&mut part)? {
                    0 => break,
                    length => self.push(part.get(..length).unwrap_or_default())?,
                }
            }
        }
        self.push(&text)
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(out.text, b"one");
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
        out.earlier = vec![(tempfile::tempfile().unwrap(), MOST)];
        assert!(out.write_all(b"more").is_err());
    }

    #[test]
    fn long_output_waits_in_a_file() {
        let (mut reader, writer) = io::pipe().unwrap();
        let flag = |set| Arc::new(AtomicBool::new(set));
        let held = flag(true);
        let mut out = Patient::new(File::from(OwnedFd::from(writer)), &held, &flag(false));
        // The first file cannot be written, and the first folder does not exist.
        let kept = tempfile::tempdir().unwrap();
        let full = File::open(tempfile::NamedTempFile::new_in(kept.path()).unwrap().path()).unwrap();
        out.folders = [kept.path().join("none"), kept.path().to_owned()].into();
        out.earlier = vec![(full, 0)];
        let lines: Vec<u8> = (0..400_000_u32).flat_map(|n| format!("{n}\n").into_bytes()).collect();
        for piece in lines.chunks(100_001) {
            out.write_all(piece).unwrap();
            out.flush().unwrap();
            assert!(out.text.capacity() <= 4 * IN_MEMORY);
        }
        assert!(out.length() > 0);
        held.store(false, Ordering::Relaxed);
        let reading = std::thread::spawn(move || {
            let mut got = Vec::new();
            reader.read_to_end(&mut got).unwrap();
            got
        });
        out.flush().unwrap();
        drop(out);
        assert!(reading.join().unwrap() == lines);
    }
}
