//! Output and verbosity of a dump.

use std::fmt::Display;
use std::io::Write;

use clikit::ctx::Ctx;
use clikit::output::time;
use clikit::verb::{Exit, Failure};
use engine::dmu::Object;
use ondisk::Blkptr;
use ondisk::space_map::SpaceMapDecoder;
use zcommon::units::nicenum;

use crate::metaslabs;
use crate::target::{Session, Target};

/// The result of printing: only an output error, or an interrupt, stops it.
pub type Done = Result<(), Failure>;

/// One run of printing.
pub struct Dump<'a> {
    /// The command line and the open pool.
    pub session: &'a Session,
    ctx: &'a mut Ctx,
    /// The number of `-d` options, which sets the verbosity.
    pub d: u32,
    /// The number of `-i` options.
    pub i: u32,
    /// The program's exit code.
    pub exit: Exit,
    verbosity: u32,
}

/// Prints to a [`Dump`]'s output.
macro_rules! out {
    ($dump:expr, $($arg:tt)*) => { write!($dump.out(), $($arg)*)? };
}
pub(super) use out;

impl<'a> Dump<'a> {
    /// Takes the verbosity from the command line.
    pub fn new(session: &'a Session, ctx: &'a mut Ctx) -> Self {
        let (d, i) = (session.level('d'), session.level('i'));
        Self { session, ctx, d, i, exit: Exit::OK, verbosity: d }
    }

    /// Standard output.
    pub fn out(&mut self) -> &mut dyn Write {
        &mut self.ctx.out
    }

    /// The verbosity of intent logs.
    pub fn log_verbosity(&self) -> u32 {
        self.d.max(self.i)
    }

    /// The verbosity of an object set.
    pub fn verbosity(&self) -> u32 {
        self.verbosity
    }

    /// Sets the verbosity of objects, overriding `-d`.
    pub fn set_verbosity(&mut self, verbosity: u32) {
        self.verbosity = verbosity;
    }

    /// Reports that something could not be read, and sets the exit code.
    pub fn problem(&mut self, what: impl Display) {
        self.ctx.warn(format_args!("zdb: {what}"));
        self.exit = Exit(self.exit.0.max(Exit::FAILED.0));
    }

    /// Returns the value, or reports a problem.
    pub fn read<T>(&mut self, result: engine::Result<T>) -> Option<T> {
        result.map_err(|e| self.problem(e)).ok()
    }

    /// A pointer in short form: with `-dddddd` including all copies, with `-bbbbbb` in the long form.
    pub fn short(&self, bp: &Blkptr) -> String {
        let whole = !self.session.options.all && self.session.level('b') > 5;
        if whole { bp.to_string() } else { bp.compact(self.d > 5) }
    }

    /// Stops after an interrupt.
    pub fn poll(&self) -> Done {
        if self.ctx.interrupt.is_set() { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Prints a space map.
    pub fn space_map(&mut self, object: &Object, decoder: SpaceMapDecoder) -> Done {
        metaslabs::map(self.session, object, decoder, self.ctx)
    }

    /// Reports the key given with `-K`.
    pub fn unlocked(&mut self) -> Done {
        let Target::Dataset(dataset) = &self.session.target else { return Ok(()) };
        if self.session.options.key.is_none() {
            return Ok(());
        }
        let root = dataset.dir().and_then(|dir| dataset.dsl.keys.root_of(&dir));
        if let Some(Some(root)) = self.read(root) {
            writeln!(self.out(), "Unlocked encryption root: {}", root.name)?;
        }
        Ok(())
    }

    /// A human-readable size, or an exact one (`-P`).
    pub fn nice(&self, n: u64) -> String {
        if self.session.options.parsable() { n.to_string() } else { nicenum(n).to_string() }
    }
}

/// A time (seconds since 1970, signed) as C's `ctime` prints it, without the newline; a time beyond the calendar's
/// range prints as a number.
pub fn ctime(seconds: u64) -> String {
    time::ctime(seconds.cast_signed())
}
