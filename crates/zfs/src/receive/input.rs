//! Reads the stream from the client's standard input.
//!
//! A sender may stall for hours. A read then waits in short steps, holds nothing of a pool, and ends when the user presses
//! Ctrl-C or the client disconnects. Senders of users other than the owner have five minutes for the next bytes: the number
//! of commands that such users run at once is limited, and a stalled one would keep its slot.
//!
//! No read blocks in the kernel: another process may empty the pipe between `poll` and `read`.

use std::fs::File;
use std::io::{self, BufReader, IoSliceMut, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clikit::ctx::Ctx;
use clikit::interrupt::Interrupt;
use clikit::verb::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags};

/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;
/// Interval in nanoseconds after which a waiting read checks whether to continue.
const TICK: i64 = 200_000_000;
/// Longest pause of the sender of a user other than the owner.
const PATIENCE: Duration = Duration::from_secs(300);

/// Standard input that can be interrupted.
#[derive(Debug)]
pub struct Stdin {
    file: File,
    interrupt: Interrupt,
    /// Longest pause of the sender; `None`: no limit.
    patience: Option<Duration>,
}

impl Stdin {
    /// The client's standard input, buffered.
    pub fn of(ctx: &Ctx) -> Result<BufReader<Self>, Failure> {
        let session = ctx.session()?;
        let (file, patience) = (session.stdin.try_clone()?, session.delegated.is_some().then_some(PATIENCE));
        Ok(BufReader::with_capacity(BUFFER, Self { file, interrupt: ctx.interrupt.clone(), patience }))
    }
}

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let since = Instant::now();
        loop {
            if self.patience.is_some_and(|most| since.elapsed() > most) {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the sender has sent nothing for five minutes",
                ));
            }
            if self.interrupt.is_set() {
                // Not `Interrupted`, which readers take for a reason to try again.
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "interrupted"));
            }
            let fd = self.file.as_fd();
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK };
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&tick)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => match self.available(buffer) {
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    done => return Ok(done?),
                },
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Stdin {
    /// Reads the bytes that are there without waiting for more; `AGAIN` if there are none.
    fn available(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut to = [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.file, &mut to, u64::MAX, ReadWriteFlags::NOWAIT) {
            // Files, and kernels that do not know the flag for pipes.
            Err(Errno::OPNOTSUPP | Errno::SPIPE | Errno::INVAL) => rustix::io::read(&self.file, buffer),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn a_pipe_that_another_process_has_emptied_does_not_block() {
        let (end, mut pipe) = io::pipe().unwrap();
        let file = File::from(OwnedFd::from(end));
        let mut stdin = Stdin { file, interrupt: Interrupt::default(), patience: Some(Duration::ZERO) };
        let mut buffer = [0; 8];
        assert_eq!(stdin.available(&mut buffer), Err(Errno::AGAIN));
        assert_eq!(stdin.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::TimedOut);
        stdin.patience = None;
        io::Write::write_all(&mut pipe, b"abc").unwrap();
        assert_eq!(stdin.read(&mut buffer).unwrap(), 3);
        drop(pipe);
        assert_eq!(stdin.read(&mut buffer).unwrap(), 0);
    }
}
