//! The result of a verb: an exit code, or a failure with a message and an exit code.

use std::fmt::Display;
use std::io;

use crate::ctx::Ctx;
use crate::words::{why_no_dataset, why_no_pool};

/// A verb: its arguments, parsed by clap, ready to run.
pub trait Verb {
    /// Does the work; output goes to `ctx.out`, notices to `ctx.err`.
    fn run(self, ctx: &mut Ctx) -> Outcome;
}

/// An exit code of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(pub u8);

impl Exit {
    /// Success.
    pub const OK: Exit = Exit(0);
    /// Something failed.
    pub const FAILED: Exit = Exit(1);
    /// Failure where OpenZFS's command returns -1.
    pub const MINUS_ONE: Exit = Exit(255);
    /// Failure where OpenZFS's command returns `EINVAL`.
    pub const EINVAL: Exit = Exit(22);
    /// Invalid command line.
    pub const USAGE: Exit = Exit(2);
    /// The reader of the output disconnected (128 + SIGPIPE).
    pub const PIPE: Exit = Exit(141);
    /// The user stopped it (128 + SIGINT).
    pub const INTERRUPTED: Exit = Exit(130);

    /// The more severe of two codes.
    #[must_use]
    pub fn worse(self, other: Exit) -> Exit {
        Exit(self.0.max(other.0))
    }
}

/// Why a verb stopped.
#[derive(Debug)]
pub enum Failure {
    /// Wrong usage: the message is printed, exit code 2.
    Usage(String),
    /// Failure: the message is printed, exit code 1.
    Failed(String),
    /// Failure where OpenZFS's command returns -1: the message is printed, exit code 255.
    MinusOne(String),
    /// The user asked to stop.
    Interrupted,
    /// Output could not be written; a closed pipe prints no message.
    Output(io::Error),
}

/// The result of a verb.
pub type Outcome = Result<Exit, Failure>;

impl Failure {
    /// A failure with this message.
    pub fn failed(what: impl Into<String>) -> Self {
        Self::Failed(what.into())
    }

    /// A usage error with this message.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::Usage(what.into())
    }

    /// The failure of a command whose pool is not imported.
    #[doc(alias("zpool_open", "zpool_name_valid"))]
    pub fn no_pool(name: &str) -> Self {
        Self::cannot("open", name, why_no_pool(name))
    }

    /// Whether it is [`Failure::no_pool`] of that name.
    pub fn is_no_pool(&self, name: &str) -> bool {
        self.message() == Self::no_pool(name).message()
    }

    /// The failure of a command whose dataset does not exist.
    pub fn no_dataset(name: &str) -> Self {
        Self::cannot("open", name, why_no_dataset(name))
    }

    /// Whether it is [`Failure::no_dataset`] of that name.
    pub fn is_no_dataset(&self, name: &str) -> bool {
        self.message() == Self::no_dataset(name).message()
    }

    /// OpenZFS's format: `cannot open 'tank/x': dataset does not exist`.
    pub fn cannot(action: &str, name: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("cannot {action} '{name}': {why}"))
    }

    /// This failure with a second line, `action: why`, about the command as a whole.
    #[must_use]
    pub fn followed_by(self, action: &str, why: &str) -> Self {
        match self {
            Self::Failed(first) => Self::Failed(format!("{first}\n{action}: {why}")),
            other => other,
        }
    }

    /// A failure, in a command that returns -1 in OpenZFS.
    pub fn as_minus_one(self) -> Self {
        match self {
            Self::Failed(what) => Self::MinusOne(what),
            other => other,
        }
    }

    /// The exit code of this failure.
    pub fn exit(&self) -> Exit {
        match self {
            Failure::Usage(_) => Exit::USAGE,
            Failure::Failed(_) => Exit::FAILED,
            Failure::MinusOne(_) => Exit::MINUS_ONE,
            Failure::Interrupted => Exit::INTERRUPTED,
            Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => Exit::PIPE,
            Failure::Output(_) => Exit::FAILED,
        }
    }

    /// The message for the user, unless it is empty.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::Usage(what) | Failure::Failed(what) | Failure::MinusOne(what) => {
                Some(without_numbers(what))
            }
            Failure::Interrupted => Some("interrupted".to_owned()),
            Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => None,
            Failure::Output(e) => Some(format!("cannot write output: {}", strerror(e))),
        }
    }
}

/// The system's message for an error, without its number.
pub fn strerror(e: &io::Error) -> String {
    without_numbers(&e.to_string())
}

/// A message without the numbers that Rust puts behind the system's messages: ` (os error 13)`.
pub fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => short += rest,
            _ => short += &format!(" (os error {part}"),
        }
    }
    short
}

impl From<io::Error> for Failure {
    /// Only for errors of `ctx.out` and `ctx.err`; other failures have a more specific message.
    fn from(e: io::Error) -> Self {
        Self::Output(e)
    }
}

impl From<engine::Error> for Failure {
    fn from(e: engine::Error) -> Self {
        match e.kind() {
            engine::Kind::Interrupted => Self::Interrupted,
            _ => Self::Failed(e.to_string()),
        }
    }
}

/// Calls a function on each item that a command names. A failed item is reported, and the others are processed.
///
/// # Errors
/// A failure that ends the whole command: wrong usage, an interrupt.
pub fn each<T>(
    all: &[T],
    ctx: &mut Ctx,
    mut work: impl FnMut(&T, &mut Ctx) -> Result<(), Failure>,
) -> Outcome {
    let mut exit = Exit::OK;
    for one in all {
        match work(one, ctx) {
            Ok(()) => {}
            Err(Failure::Failed(why)) => {
                ctx.warn(why);
                exit = Exit::FAILED;
            }
            Err(other) => return Err(other),
        }
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_words_of_the_system_only() {
        let denied = io::Error::from_raw_os_error(13);
        assert_eq!(strerror(&denied), "Permission denied");
        let failure = Failure::cannot("open", "x", format!("{denied}: try again"));
        assert_eq!(failure.message().unwrap(), "cannot open 'x': Permission denied: try again");
        assert_eq!(without_numbers("a (os error x) (os error 1"), "a (os error x) (os error 1");
    }
}
