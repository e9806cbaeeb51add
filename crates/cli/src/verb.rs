//! What running a verb gives: an exit code, or a failure that says what and how to exit.

use std::fmt::Display;
use std::io;

use crate::ctx::Ctx;

/// A verb: its arguments, parsed by clap, ready to run.
pub trait Verb {
    /// Does the work; output goes to `ctx.out`, notices to `ctx.err`.
    fn run(self, ctx: &mut Ctx) -> Outcome;
}

/// An exit code of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(pub u8);

impl Exit {
    /// All was done.
    pub const OK: Exit = Exit(0);
    /// Something failed.
    pub const FAILED: Exit = Exit(1);
    /// Something failed, and OpenZFS's command gives -1 there.
    pub const MINUS_ONE: Exit = Exit(255);
    /// The command line can't be meant.
    pub const USAGE: Exit = Exit(2);
    /// The reader of our output went away (128 + SIGPIPE).
    pub const PIPE: Exit = Exit(141);
    /// The user stopped it (128 + SIGINT).
    pub const INTERRUPTED: Exit = Exit(130);

    /// The one of two that tells of more trouble.
    #[must_use]
    pub fn worse(self, other: Exit) -> Exit {
        Exit(self.0.max(other.0))
    }
}

/// Why a verb stopped.
#[derive(Debug)]
pub enum Failure {
    /// Wrong usage: printed, exit code 2.
    Usage(String),
    /// It failed: the sentence is printed, exit code 1.
    Failed(String),
    /// It failed, where OpenZFS's command gives -1: the sentence is printed, exit code 255.
    MinusOne(String),
    /// The user asked to stop.
    Interrupted,
    /// Output could not be written; a closed pipe is not worth a message.
    Output(io::Error),
}

/// What a verb gives.
pub type Outcome = Result<Exit, Failure>;

impl Failure {
    /// A failure with this sentence.
    pub fn failed(what: impl Into<String>) -> Self {
        Self::Failed(what.into())
    }

    /// A usage error with this sentence.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::Usage(what.into())
    }

    /// OpenZFS's form: `cannot open 'tank/x': dataset does not exist`.
    pub fn cannot(action: &str, name: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("cannot {action} '{name}': {why}"))
    }

    /// The exit code that tells of this.
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

    /// The sentence for the user, if there is one worth saying.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::Usage(what) | Failure::Failed(what) | Failure::MinusOne(what) => Some(what.clone()),
            Failure::Interrupted => Some("interrupted".to_owned()),
            Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => None,
            Failure::Output(e) => Some(format!("cannot write output: {e}")),
        }
    }
}

/// The system's words for an error, without its number.
pub fn strerror(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

impl From<io::Error> for Failure {
    /// Only for errors of `ctx.out` and `ctx.err`; what else fails has a better sentence.
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

/// Does something with each of what a command names. What can't be done is said, and the rest is done.
///
/// # Errors
/// What ends the whole command: wrong usage, an interrupt.
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
