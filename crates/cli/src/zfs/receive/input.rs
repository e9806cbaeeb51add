//! The stream that the client's standard input brings. A sender may stall for hours: a read then waits in short steps, with
//! nothing of a pool held, and ends when the user presses Ctrl-C or the client is gone.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::ctx::Ctx;
use crate::interrupt::Interrupt;
use crate::verb::Failure;

/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;
/// How long a read waits before it asks whether to go on, in nanoseconds.
const TICK: i64 = 200_000_000;

/// Standard input that can be interrupted.
#[derive(Debug)]
pub struct Stdin {
    file: File,
    interrupt: Interrupt,
}

impl Stdin {
    /// The client's standard input, buffered.
    pub fn of(ctx: &Ctx) -> Result<BufReader<Self>, Failure> {
        let file = ctx.session()?.stdin.try_clone()?;
        Ok(BufReader::with_capacity(BUFFER, Self { file, interrupt: ctx.interrupt.clone() }))
    }
}

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.interrupt.is_set() {
                // Not `Interrupted`, which readers take for a reason to try again.
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "interrupted"));
            }
            let fd = self.file.as_fd();
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK };
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&tick)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return self.file.read(buffer),
                Err(e) => return Err(e.into()),
            }
        }
    }
}
