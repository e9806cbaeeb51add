//! The environment of a verb: its streams and its connection to the outside world.

use std::fmt::{self, Debug};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;

use crate::interrupt::Interrupt;
use crate::names::is_ours;
use crate::session::{Home, Session};
use crate::verb::without_numbers;

/// Output streams, and the user's request to stop.
pub struct Ctx {
    /// Standard output, buffered; flushed when the verb ends.
    pub out: Box<dyn Write>,
    /// The descriptor behind standard output, for streams of any length; `None`: they go to `out`.
    pub raw_out: Option<File>,
    /// Standard error.
    pub err: Box<dyn Write>,
    /// Set when the user pressed Ctrl-C; long work polls it.
    pub interrupt: Interrupt,
    /// Whether standard output is a terminal.
    pub out_is_terminal: bool,
    /// Whether standard error is a terminal: a bar may be drawn on it.
    pub err_is_terminal: bool,
    /// The command as it was typed, for JSON's `output_version`-like places: `zpool list`.
    pub command: String,
    /// The process in which the verb runs.
    pub home: Home,
    /// Whether the command may be sent to the daemon.
    pub may_forward: bool,
    /// In the daemon: the pools, and the caller's identity.
    pub session: Option<Session>,
}

impl Ctx {
    /// The process's own streams and signals.
    pub fn from_process() -> Self {
        Self {
            out: Box::new(BufWriter::with_capacity(64 << 10, io::stdout())),
            raw_out: io::stdout().as_fd().try_clone_to_owned().ok().map(File::from),
            err: Box::new(io::stderr()),
            interrupt: Interrupt::on_signals(),
            out_is_terminal: io::stdout().is_terminal(),
            err_is_terminal: io::stderr().is_terminal(),
            command: String::new(),
            home: Home::Here,
            may_forward: true,
            session: None,
        }
    }

    /// Whether the caller is not the pools' owner.
    pub fn is_delegated(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.delegated.is_some())
    }

    /// Whether the command is OpenZFS's `zpool` or `zfs`.
    pub fn is_openzfs(&self) -> bool {
        is_ours(self.command.split(' ').next().unwrap_or_default())
    }

    /// Streams of the caller's choice, no terminal, no signals: for tests and for embedding.
    pub fn with_streams(out: Box<dyn Write>, err: Box<dyn Write>) -> Self {
        Self {
            out,
            raw_out: None,
            err,
            interrupt: Interrupt::default(),
            out_is_terminal: false,
            err_is_terminal: false,
            command: String::new(),
            home: Home::Here,
            may_forward: false,
            session: None,
        }
    }

    /// Prints a line on standard error; a closed standard error is ignored.
    pub fn warn(&mut self, line: impl fmt::Display) {
        self.let_sync();
        let _ = self.out.flush();
        let _ = writeln!(self.err, "{}", without_numbers(&line.to_string()));
    }
}

impl Ctx {
    /// Prints a line on standard error at once, also while the command keeps datasets from changing.
    pub fn err_line(&mut self, line: &str) {
        let _ = writeln!(self.err, "{line}");
    }
}

impl Debug for Ctx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx").field("command", &self.command).finish_non_exhaustive()
    }
}
