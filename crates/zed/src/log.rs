//! Messages: on standard error in the foreground, else in the system's log.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use clikit::output::time::log_clock;

/// The socket of the system's log.
const DEVLOG: &str = "/dev/log";
/// The facility of daemons.
const LOG_DAEMON: u8 = 3 << 3;

/// The severity of a message, as the system's log numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something failed.
    Error = 3,
    /// Something is not as it should be.
    Warning = 4,
    /// Regular, but worth knowing.
    Notice = 5,
    /// Details.
    Info = 6,
}

/// The destinations of messages.
#[derive(Debug)]
pub struct Log {
    /// The least severe level that is written to standard error; `None`: nothing is.
    shown: Mutex<Option<Level>>,
    socket: Option<UnixDatagram>,
}

impl Log {
    /// Writes to standard error, details only if `verbose`; with `system` also to the system's log.
    pub fn new(verbose: bool, system: bool) -> Self {
        let socket = || UnixDatagram::unbound().and_then(|s| s.set_nonblocking(true).map(|()| s)).ok();
        let shown = if verbose { Level::Info } else { Level::Notice };
        Self { shown: Mutex::new(Some(shown)), socket: system.then(socket).flatten() }
    }

    /// Writes nothing to standard error from here on.
    pub fn leave_terminal(&self) {
        if let Ok(mut shown) = self.shown.lock() {
            *shown = None;
        }
    }

    /// Writes a message. A destination that does not accept it is ignored.
    pub fn say(&self, level: Level, text: &str) {
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let shown = self.shown.lock().ok().and_then(|shown| *shown);
        if shown.is_some_and(|shown| level <= shown) {
            let _ = writeln!(io::stderr(), "{text}");
        }
        if let Some(socket) = &self.socket {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let clock = log_clock(i64::try_from(now).unwrap_or(0));
            let line = format!("<{}>{clock} zed[{}]: {text}", LOG_DAEMON | level as u8, std::process::id());
            let _ = socket.send_to(line.as_bytes(), DEVLOG);
        }
    }

    /// Reports a failure.
    pub fn error(&self, text: &str) {
        self.say(Level::Error, text);
    }

    /// Reports something that is not as it should be.
    pub fn warn(&self, text: &str) {
        self.say(Level::Warning, text);
    }

    /// Reports something regular.
    pub fn notice(&self, text: &str) {
        self.say(Level::Notice, text);
    }

    /// Reports a detail.
    pub fn info(&self, text: &str) {
        self.say(Level::Info, text);
    }
}
