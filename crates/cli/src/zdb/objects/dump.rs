//! Where output goes and how much of it is wanted.

use std::fmt::Display;
use std::io::Write;

use engine::dmu::Object;
use ondisk::Blkptr;
use ondisk::space_map::SpaceMapDecoder;
use zcommon::units::nicenum;

use crate::ctx::Ctx;
use crate::output::time;
use crate::verb::{Exit, Failure};
use crate::zdb::metaslabs;
use crate::zdb::target::{Session, Target};

/// What printing gives: only a broken output, or the user, stops it.
pub type Done = Result<(), Failure>;

/// One run of printing.
pub struct Dump<'a> {
    /// The command line and the open pool.
    pub session: &'a Session,
    ctx: &'a mut Ctx,
    /// How often `-d` was given: each one tells more.
    pub d: u32,
    /// The same for `-i`.
    pub i: u32,
    /// How the program will exit.
    pub exit: Exit,
    verbosity: u32,
}

/// Prints to a [`Dump`]'s output.
macro_rules! out {
    ($dump:expr, $($arg:tt)*) => { write!($dump.out(), $($arg)*)? };
}
pub(super) use out;

impl<'a> Dump<'a> {
    /// As much as the command line says.
    pub fn new(session: &'a Session, ctx: &'a mut Ctx) -> Self {
        let (d, i) = (session.level('d'), session.level('i'));
        Self { session, ctx, d, i, exit: Exit::OK, verbosity: d }
    }

    /// Standard output.
    pub fn out(&mut self) -> &mut dyn Write {
        &mut self.ctx.out
    }

    /// How much is told of intent logs.
    pub fn log_verbosity(&self) -> u32 {
        self.d.max(self.i)
    }

    /// How much is told of an object set.
    pub fn verbosity(&self) -> u32 {
        self.verbosity
    }

    /// Says how much is told of objects, whatever `-d` says.
    pub fn set_verbosity(&mut self, verbosity: u32) {
        self.verbosity = verbosity;
    }

    /// Says that something could not be read; the exit code will tell.
    pub fn problem(&mut self, what: impl Display) {
        self.ctx.warn(format_args!("zdb: {what}"));
        self.exit = Exit(self.exit.0.max(Exit::FAILED.0));
    }

    /// The value, or a problem.
    pub fn read<T>(&mut self, result: engine::Result<T>) -> Option<T> {
        result.map_err(|e| self.problem(e)).ok()
    }

    /// A pointer in short: at six d's with all copies.
    pub fn short(&self, bp: &Blkptr) -> String {
        bp.compact(self.d > 5)
    }

    /// Stops when the user asked to.
    pub fn poll(&self) -> Done {
        if self.ctx.interrupt.is_set() { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Prints a space map.
    pub fn space_map(&mut self, object: &Object, decoder: SpaceMapDecoder) -> Done {
        metaslabs::map(self.session, object, decoder, self.ctx)
    }

    /// Says which key `-K` was.
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

    /// A size for people, or exactly (`-P`).
    pub fn nice(&self, n: u64) -> String {
        if self.session.options.parsable() { n.to_string() } else { nicenum(n).to_string() }
    }
}

/// A moment (seconds since 1970, signed) as C's `ctime` prints it, without the end of line; one beyond all
/// calendars as its number.
pub fn ctime(seconds: u64) -> String {
    time::ctime(seconds.cast_signed())
}
