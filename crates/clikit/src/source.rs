//! Arguments shared by all verbs on a pool that is not imported: the pool, its devices, its txg and its keys.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use daemon::Unavailable;
use engine::Kind;
use engine::env::Env;
use engine::spa::{OpenOptions, Pool, Reach};
use zutil::PoolCandidate;
use zutil::import;

use crate::ctx::Ctx;
use crate::keys::{self, LoadKey, parse_load_key};
use crate::repeat::has_interval;
use crate::session::Home;
use crate::verb::{Exit, Failure, Outcome};

/// Default cache size in bytes.
const ARC_MAX: u64 = 128 << 20;

const HEADING: &str = "Pool source";

/// Where to find a pool and how to open it.
#[derive(Debug, Clone, Default, Args)]
pub struct PoolSource {
    /// Search this directory for the pool's devices, or use this device or file; may be repeated.
    #[arg(help_heading = HEADING, short = 'd', long = "device", value_name = "DIR|DEVICE")]
    pub device: Vec<String>,

    /// Open the pool as of this transaction group.
    #[arg(help_heading = HEADING, short = 'T', long = "txg", value_name = "TXG")]
    pub txg: Option<String>,

    /// Read a dataset's encryption key from a file, or from standard input with `-`; may be repeated.
    #[arg(help_heading = HEADING, long = "load-key", value_name = "DATASET=FILE|-", value_parser = parse_load_key)]
    pub load_key: Vec<LoadKey>,

    /// Open the pool as of its checkpoint.
    #[arg(help_heading = HEADING, long)]
    pub rewind_to_checkpoint: bool,

    /// If the newest state cannot be opened, try older ones, and report the loss.
    #[arg(help_heading = HEADING, long)]
    pub fallback: bool,
}

impl PoolSource {
    /// `zfs list` and `zfs get` have a `-d DEPTH` of their own: among the `-d` values, a number is the depth,
    /// anything else a directory or device (a directory with such a name can be given as `./7`).
    ///
    /// # Errors
    /// A word that is neither a number nor the name of a file, or a negative number.
    #[doc(alias = "parse_depth")]
    pub fn take_depth(&mut self) -> Result<Option<u32>, Failure> {
        let depth = self.last_depth();
        let is_place = |word: &&String| word.contains('/') || Path::new(word).exists();
        if let Some(word) = self.device.iter().find(|word| depth_of(word).is_none() && !is_place(word)) {
            return Err(Failure::usage(format!("{word} is not an integer")));
        }
        self.device.retain(|word| depth_of(word).is_none());
        let negative = |_| Failure::usage("Depth can not be negative.");
        depth.map(|depth| u32::try_from(depth).map_err(negative)).transpose()
    }

    /// The last of the `-d` values that is a number.
    fn last_depth(&self) -> Option<i32> {
        self.device.iter().rev().find_map(|word| depth_of(word))
    }

    /// `zpool list` and `zpool status` have a `-T d|u` of their own: takes that meaning of `-T`.
    pub fn take_timestamp(&mut self) -> Option<Timestamp> {
        let stamp = match self.txg.as_deref() {
            Some("d") => Timestamp::Date,
            Some("u") => Timestamp::Unix,
            _ => return None,
        };
        self.txg = None;
        Some(stamp)
    }

    /// Whether the arguments select a pool that is not imported.
    pub fn is_offline(&self) -> bool {
        let Self { device, txg, load_key, rewind_to_checkpoint, fallback } = self;
        !device.is_empty() || txg.is_some() || !load_key.is_empty() || *rewind_to_checkpoint || *fallback
    }

    /// The process in which a verb with this source runs.
    pub fn home(&self) -> Home {
        if self.is_offline() { Home::Here } else { Home::Pools }
    }

    /// Like [`PoolSource::home`], for verbs where numbers after `-d` and letters after `-T` have another meaning.
    pub fn home_with(&self, depth: bool, timestamp: bool) -> Home {
        let mut source = self.clone();
        if depth {
            source.device.retain(|word| depth_of(word).is_none());
        }
        if timestamp {
            source.take_timestamp();
        }
        source.home()
    }

    /// Like [`PoolSource::home_with`], for reports on pools that repeat if an interval ends `words`.
    pub fn home_of_report(&self, words: &[String]) -> Home {
        match self.home_with(false, true) {
            Home::Pools if has_interval(words) => Home::Daemon,
            home => home,
        }
    }

    /// Whether imported pools are meant: verbs that always run in their own process search the default directories
    /// instead.
    fn is_live(&self, ctx: &Ctx) -> bool {
        !self.is_offline() && ctx.home != Home::Here
    }

    /// The pools on the given devices; without any, the imported pools.
    pub fn candidates(&self, ctx: &mut Ctx) -> Vec<PoolCandidate> {
        if self.is_live(ctx) {
            return ctx.pools().iter().map(|pool| pool.candidate()).collect();
        }
        let paths: Vec<PathBuf> = self.device.iter().map(PathBuf::from).collect();
        import::candidates(&paths)
    }

    /// Finds and opens the pool with this name or guid, and loads the given keys. Notices about the open go to
    /// standard error.
    pub fn open(&self, wanted: &str, ctx: &mut Ctx) -> Result<Arc<Pool>, Failure> {
        if self.is_live(ctx) {
            let pool = ctx.quiet_pool(wanted).ok_or_else(|| ctx.no_pool(wanted))?;
            return Ok(pool.view()?);
        }
        let candidate = import::select(self.candidates(ctx), wanted).map_err(|e| match e.kind() {
            Kind::NotFound => Failure::no_pool(wanted),
            _ => Failure::failed(e.what()),
        })?;
        self.open_candidate(&candidate, ctx)
    }

    /// Opens one of [`PoolSource::candidates`].
    pub fn open_candidate(&self, candidate: &PoolCandidate, ctx: &mut Ctx) -> Result<Arc<Pool>, Failure> {
        if self.is_live(ctx) {
            return self.open(&candidate.guid.to_string(), ctx);
        }
        let options = OpenOptions {
            txg: self.wanted_txg()?,
            reach: if self.fallback { Reach::Extreme } else { Reach::Newest },
            checkpoint: self.rewind_to_checkpoint,
            ..OpenOptions::default()
        };
        let env = Env::system(ARC_MAX)?;
        let pool = engine::spa::open(&env, import::source(candidate), options)
            .map_err(|e| Failure::cannot("open", &candidate.name, e))?;
        if let Some(rewind) = &pool.rewind {
            for (txg, why) in &rewind.failed {
                ctx.warn(format!("{}: txg {txg} cannot be opened: {why}", pool.name));
            }
            let (opened, newest) = (rewind.opened, rewind.newest);
            ctx.warn(format!(
                "{}: opened as of txg {opened}: changes of txgs {} to {newest} are not visible",
                pool.name,
                opened + 1
            ));
        }
        for note in &pool.notes {
            ctx.warn(format!("{}: {note}", pool.name));
        }
        keys::load_given(&pool, &self.load_key)?;
        Ok(pool)
    }

    /// Opens each named pool (all pools found, without names) and calls a function on it. A pool that cannot be
    /// opened is reported on standard error, and the others are processed.
    pub fn each(
        &self,
        names: &[String],
        ctx: &mut Ctx,
        visit: impl FnMut(&Arc<Pool>, &PoolCandidate, &mut Ctx) -> Outcome,
    ) -> Outcome {
        let none = |ctx: &mut Ctx| {
            ctx.warn("no pools available");
            Ok(())
        };
        self.each_or(names, ctx, none, visit)
    }

    /// As [`Self::each`]; `none` is called when there is no pool at all and none was named.
    pub fn each_or(
        &self,
        names: &[String],
        ctx: &mut Ctx,
        none: impl FnOnce(&mut Ctx) -> Result<(), Failure>,
        mut visit: impl FnMut(&Arc<Pool>, &PoolCandidate, &mut Ctx) -> Outcome,
    ) -> Outcome {
        self.each_known(names, ctx, none, |seen, ctx| match seen {
            Seen::Pool(pool, candidate) => visit(pool, candidate, ctx),
            Seen::Unavailable(name, pool) => {
                if !names.is_empty() {
                    ctx.warn(format!("cannot open '{name}': no such pool"));
                }
                ctx.warn(not_imported(name, pool));
                Ok(Exit::FAILED)
            }
        })
    }

    /// As [`Self::each_or`], also with the pools of the daemon's cache file that could not be imported: they come last.
    pub fn each_known(
        &self,
        names: &[String],
        ctx: &mut Ctx,
        none: impl FnOnce(&mut Ctx) -> Result<(), Failure>,
        mut visit: impl FnMut(Seen<'_>, &mut Ctx) -> Outcome,
    ) -> Outcome {
        let failed = match self.is_live(ctx) {
            true => ctx.registry().map(|registry| registry.failed()).unwrap_or_default(),
            false => BTreeMap::new(),
        };
        let is_named = |name: &String| names.is_empty() || names.contains(name);
        let failed: Vec<_> = failed.into_iter().filter(|(name, _)| is_named(name)).collect();
        let mut found = self.candidates(ctx);
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let mut exit = Exit::OK;
        let chosen: Vec<PoolCandidate> = if names.is_empty() {
            found
        } else {
            let mut chosen: Vec<PoolCandidate> = Vec::new();
            for name in names {
                match import::select(found.clone(), name) {
                    Ok(candidate) if chosen.iter().any(|c| c.guid == candidate.guid) => {}
                    Ok(candidate) => chosen.push(candidate),
                    Err(e) if e.kind() == Kind::NotFound => {
                        if !failed.iter().any(|(other, _)| other == name) {
                            ctx.warn(ctx.no_pool(name).message().unwrap_or_default());
                            exit = Exit::FAILED;
                        }
                    }
                    Err(e) => return Err(Failure::failed(e.what())),
                }
            }
            // Named or not, pools come in the order of their names.
            chosen.sort_by(|a, b| a.name.cmp(&b.name));
            chosen
        };
        if names.is_empty() && self.lacks_some(ctx) {
            exit = Exit::FAILED;
        } else if chosen.is_empty() && names.is_empty() && failed.is_empty() {
            none(ctx)?;
        }
        if names.is_empty() && self.is_live(ctx) {
            let damage = ctx.registry().ok().and_then(|registry| registry.damage());
            if let Some(why) = &damage {
                ctx.warn(format!("{why}; import the pools that it names with 'zpool import'"));
                exit = Exit::FAILED;
            }
        }
        for candidate in &chosen {
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            let opened = self.open_candidate(candidate, ctx);
            let done = opened.and_then(|pool| visit(Seen::Pool(&pool, candidate), ctx));
            match done {
                Ok(done) => exit = exit.worse(done),
                Err(Failure::Failed(message)) => {
                    ctx.warn(message);
                    exit = Exit::FAILED;
                }
                Err(e) => return Err(e),
            }
        }
        for (name, pool) in &failed {
            exit = exit.worse(visit(Seen::Unavailable(name, pool), ctx)?);
        }
        Ok(exit)
    }

    /// Tells the user which of the imported pools, if these are meant, are not there yet; whether there are any.
    pub fn lacks_some(&self, ctx: &mut Ctx) -> bool {
        self.is_live(ctx) && ctx.tell_coming()
    }

    /// Reports why the daemon could not import a pool when it started.
    pub fn explain(&self, name: &str, ctx: &mut Ctx) {
        let failed = ctx.registry().map(|registry| registry.failed()).unwrap_or_default();
        if let Some(pool) = failed.get(name).filter(|_| self.is_live(ctx)) {
            ctx.warn(not_imported(name, pool));
        }
    }

    /// The requested txg.
    pub fn wanted_txg(&self) -> Result<Option<u64>, Failure> {
        let bad = |t: &str| Failure::usage(format!("invalid txg value '{t}'"));
        self.txg.as_deref().map(|t| t.parse::<u64>().map_err(|_| bad(t))).transpose()
    }
}

/// One of the pools of [`PoolSource::each_known`].
#[derive(Debug, Clone, Copy)]
pub enum Seen<'a> {
    /// An imported pool, or one on the given devices.
    Pool(&'a Arc<Pool>, &'a PoolCandidate),
    /// A pool of the cache file that is not imported, by name.
    Unavailable(&'a str, &'a Unavailable),
}

/// The number that OpenZFS reads for a depth: in any base that C's literals have, and cut to 32 bits.
fn depth_of(word: &str) -> Option<i32> {
    let digits = word.strip_prefix('-').unwrap_or(word);
    let (digits, base) = match digits.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    let number = digits.starts_with(|c: char| c.is_ascii_hexdigit()).then_some(digits);
    let number = i64::from_str_radix(number?, base).ok()?;
    let [a, b, c, d, ..] = if word.starts_with('-') { -number } else { number }.to_le_bytes();
    Some(i32::from_le_bytes([a, b, c, d]))
}

fn not_imported(name: &str, pool: &Unavailable) -> String {
    format!("pool '{name}' could not be imported when the daemon started: {}", pool.why)
}

/// How `-T` prints the time before each report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timestamp {
    /// In the format of `date`.
    Date,
    /// Seconds since 1970.
    Unix,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_and_timestamp_are_told_from_folder_and_txg() {
        let mut s = PoolSource { device: vec!["1".into(), "/x".into(), "./1".into()], ..Default::default() };
        assert_eq!(s.take_depth().unwrap(), Some(1));
        assert_eq!(s.device, ["/x", "./1"]);
        let depth = |word: &str| PoolSource { device: vec![word.into()], ..Default::default() }.take_depth();
        assert_eq!(depth("0x10").unwrap(), Some(16));
        assert_eq!(depth("99999999999").unwrap(), Some(1_215_752_191));
        assert_eq!(depth("x").unwrap_err().message().unwrap(), "x is not an integer");
        assert_eq!(depth("-1").unwrap_err().message().unwrap(), "Depth can not be negative.");
        s.txg = Some("u".into());
        assert_eq!(s.take_timestamp(), Some(Timestamp::Unix));
        assert_eq!(s.wanted_txg().unwrap(), None);
        s.txg = Some("17".into());
        assert_eq!((s.take_timestamp(), s.wanted_txg().unwrap()), (None, Some(17)));
        s.txg = Some("x".into());
        assert!(s.wanted_txg().is_err());
    }
}
