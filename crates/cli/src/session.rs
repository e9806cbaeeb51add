//! Commands on imported pools: sent to the daemon, and run there.
//!
//! The client parses a command line only to select the process that runs it ([`Home`], [`crate::route`]); the
//! daemon parses it again and runs the same verb with a [`Session`] in its [`Ctx`]. Reading verbs accept `-d` and
//! related options to read a pool that is not imported, in their own process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use daemon::access::Guest;
use daemon::{Call, Caller, Commands, Imported, Registry};
use engine::dsl::write::Limited;
use engine::spa::Quiet;
use engine::spa::suspension::Suspension;
use engine::{Error, Kind};

use crate::clean::Clean;
use crate::ctx::Ctx;
use crate::delegated;
use crate::excess::is_excessive;
use crate::interrupt::Interrupt;
use crate::multicall;
use crate::patient::Patient;
use crate::verb::{Exit, Failure};
use crate::zfs::target::Target;

/// The request for the names of the pools.
pub(crate) const NAMES: &str = "names-of-pools";

/// The process in which a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// In this process.
    Here,
    /// In the daemon, which is started if necessary.
    Daemon,
    /// In the daemon if one is running; without it there is nothing to show.
    Pools,
}

/// The additional state of a command in the daemon.
#[derive(Debug)]
pub struct Session {
    /// The imported pools.
    pub registry: Arc<Registry>,
    /// The caller.
    pub caller: Caller,
    /// Set when the caller is not the owner.
    pub guest: Option<Guest>,
    /// The client's working directory.
    pub cwd: PathBuf,
    /// The environment variables that the client passes on.
    pub env: BTreeMap<String, OsString>,
    /// The client's standard input.
    pub stdin: File,
    /// The client's standard error, if it is a terminal: for a bar.
    pub bar: Option<File>,
    /// The command line as recorded in the history.
    pub line: String,
    /// Set while `leases` is not empty.
    held: Arc<AtomicBool>,
    /// Pools that this command holds; they cannot be exported meanwhile.
    leases: Vec<Arc<Imported>>,
    /// Pools whose datasets must not change while they are read, by guid.
    quiet: Vec<(u64, Option<Quiet>)>,
    /// Pools whose history already records the command.
    logged: Vec<String>,
}

impl Session {
    /// Resolves a path relative to the client's working directory.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.cwd.join(path)
    }
}

/// The command dispatcher of the daemon.
#[derive(Debug)]
pub struct Verbs;

impl Commands for Verbs {
    fn run(&self, call: Call) -> u8 {
        if call.argv == [NAMES] {
            return names(call);
        }
        crate::output::time::use_zone(call.env.get("TZ").and_then(|word| word.to_str()));
        let word = |name: &str| call.env.get(name).and_then(|word| word.to_str()).map(str::to_owned);
        crate::zpool::vdev_names::use_environment(word);
        zutil::environment::use_clients(call.env.clone());
        let (held, is_guest) = (Arc::new(AtomicBool::new(false)), call.guest.is_some());
        let session = Session {
            held: Arc::clone(&held),
            registry: call.registry,
            caller: call.caller,
            guest: call.guest,
            cwd: call.cwd,
            env: call.env,
            stdin: call.stdin,
            bar: call.stderr.is_terminal().then(|| call.stderr.try_clone().ok()).flatten(),
            line: line(&call.argv),
            leases: Vec::new(),
            quiet: Vec::new(),
            logged: Vec::new(),
        };
        let patient = |stream| Patient::new(stream, &held, &call.interrupt);
        let terminals = (call.stdout.is_terminal(), call.stderr.is_terminal());
        let raw_out = call.stdout.try_clone().ok();
        let (out, err): (Box<dyn Write>, Box<dyn Write>) = match is_guest {
            true => (Box::new(patient(call.stdout)), Box::new(patient(call.stderr))),
            false => (Box::new(Page::new(call.stdout)), Box::new(call.stderr)),
        };
        let mut ctx = Ctx::with_streams(cleaned(out, terminals.0), cleaned(err, terminals.1));
        if is_guest && is_excessive(&call.argv) {
            ctx.warn("argument list too long");
            // The reader may have disconnected.
            let _ = ctx.err.flush();
            return Exit::FAILED.0;
        }
        ctx.interrupt = Interrupt::of(call.interrupt);
        let registry = Arc::clone(&session.registry);
        (ctx.session, ctx.raw_out) = (Some(session), raw_out);
        let code = multicall::run(call.argv, &mut ctx).0;
        registry.cache_notes().into_iter().for_each(|note| ctx.warn(note));
        code
    }

    fn start(&self, registry: &Registry) {
        registry.set_mounter(Arc::new(crate::fuse::Fuse));
    }

    fn imported(&self, pool: &Arc<Imported>, registry: &Registry) {
        let Some(mounter) = registry.mounter() else { return };
        let mounted = pool
            .view()
            .map_err(Failure::from)
            .and_then(|view| crate::zfs::mount::mount_below(&Target::root(pool, view), &*mounter));
        match mounted {
            Ok(failures) => failures.iter().for_each(|why| eprintln!("{why}")),
            Err(why) => eprintln!("{}: {}", pool.name(), why.message().unwrap_or_default()),
        }
    }
}

/// Removes control characters from terminal output.
pub(crate) fn cleaned(out: Box<dyn Write>, is_terminal: bool) -> Box<dyn Write> {
    if is_terminal { Box::new(Clean::new(out)) } else { out }
}

/// Prints the names of the pools, a line each, for a client that queries more than one daemon.
fn names(mut call: Call) -> u8 {
    if call.guest.is_some() && delegated::are_kept_out(&call.registry) {
        return Exit::FAILED.0;
    }
    let text: String = call.registry.names().iter().map(|name| format!("{name}\n")).collect();
    let written = match call.guest.is_some() {
        true => {
            let mut out = Patient::new(call.stdout, &Arc::default(), &call.interrupt);
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        }
        false => call.stdout.write_all(text.as_bytes()),
    };
    if written.is_ok() { Exit::OK.0 } else { Exit::FAILED.0 }
}

/// Buffers output until it is flushed: a slow reader must not delay the command while it holds a pool.
struct Page {
    text: Vec<u8>,
    out: File,
}

impl Page {
    fn new(out: File) -> Self {
        Self { text: Vec::new(), out }
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let text = std::mem::take(&mut self.text);
        self.out.write_all(&text)
    }
}

/// The command line for the history: `zfs create tank/a`, whatever name the program was called by.
fn line(argv: &[OsString]) -> String {
    let mut words: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(first) = words.first_mut() {
        *first = first.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if words.first().is_some_and(|first| !matches!(first.as_str(), "zpool" | "zfs")) {
        words.remove(0);
    }
    words.join(" ")
}

impl Ctx {
    /// The session of a command that only the daemon can run.
    pub fn session(&self) -> Result<&Session, Failure> {
        self.session.as_ref().ok_or_else(|| Failure::failed("this command runs in the daemon only"))
    }

    /// The registry of imported pools.
    pub fn registry(&self) -> Result<Arc<Registry>, Failure> {
        Ok(Arc::clone(&self.session()?.registry))
    }

    /// Returns the imported pool of that name or guid and holds it until the command ends.
    pub fn pool(&mut self, wanted: &str) -> Option<Arc<Imported>> {
        let session = self.session.as_mut()?;
        let pool = session.registry.get(wanted)?;
        session.held.store(true, Ordering::Relaxed);
        session.leases.push(Arc::clone(&pool));
        Some(pool)
    }

    /// Returns the imported pool that contains a dataset.
    pub fn pool_of(&mut self, dataset: &str) -> Option<Arc<Imported>> {
        let name = dataset.split(['/', '@', '#']).next().unwrap_or_default();
        self.pool(name).filter(|pool| pool.name() == name)
    }

    /// Returns all imported pools and holds them.
    pub fn pools(&mut self) -> Vec<Arc<Imported>> {
        let Some(session) = self.session.as_mut() else { return Vec::new() };
        let pools = session.registry.all();
        session.held.fetch_or(!pools.is_empty(), Ordering::Relaxed);
        session.leases.extend(pools.iter().cloned());
        pools
    }

    /// Like [`Ctx::pool`], and its datasets do not change until [`Ctx::let_sync`]: for reports that must not see a
    /// partial change.
    pub fn quiet_pool(&mut self, wanted: &str) -> Option<Arc<Imported>> {
        let pool = self.pool(wanted)?;
        let (guid, session) = (pool.guid(), self.session.as_mut()?);
        if !session.quiet.iter().any(|(known, _)| *known == guid) {
            session.quiet.push((guid, pool.quiet()));
        }
        Some(pool)
    }

    /// Allows changes to reach the disk again.
    pub fn let_sync(&mut self) {
        if let Some(session) = self.session.as_mut() {
            session.quiet.clear();
        }
    }

    /// Lets changes reach the disk between two parts of a long report, if the caller is not the owner and could
    /// keep others from writing. Earlier lookups must be repeated then.
    pub fn breathe(&mut self) -> bool {
        let Some(session) = self.session.as_mut().filter(|session| session.guest.is_some()) else {
            return false;
        };
        let guids: Vec<u64> = session.quiet.drain(..).map(|(guid, _)| guid).collect();
        for guid in guids {
            let pool = session.leases.iter().find(|pool| pool.guid() == guid);
            session.quiet.push((guid, pool.and_then(|pool| pool.quiet())));
        }
        true
    }

    /// Releases the pools: a waiting command must not hold them.
    pub fn release(&mut self) {
        self.let_sync();
        if let Some(session) = self.session.as_mut() {
            session.leases.clear();
            session.held.store(false, Ordering::Relaxed);
        }
    }

    /// Records the command in the pool's history, once.
    pub fn log(&mut self, pool: &Imported) -> Result<(), Failure> {
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        let name = pool.name();
        if session.logged.contains(&name) {
            return Ok(());
        }
        session.logged.push(name);
        let (line, caller) = (session.line.clone(), session.caller);
        Ok(pool.task(move |tasks, spa| daemon::ops::log_command(spa, tasks, &line, caller))?)
    }

    /// The user that limits on numbers of datasets hold: the caller, unless it is the pools' owner.
    pub fn limited(&self) -> Option<Arc<dyn Limited>> {
        let guest = self.session.as_ref()?.guest.clone()?;
        Some(Arc::new(guest))
    }

    /// Runs a task on a pool's datasets and records the command in its history, both in one txg.
    pub fn change<T: Send + 'static>(
        &mut self,
        pool: &Imported,
        work: impl FnOnce(&engine::dsl::write::Tasks<'_>, &engine::spa::Spa) -> engine::Result<T> + Send + 'static,
    ) -> engine::Result<T> {
        let (name, user) = (pool.name(), self.limited());
        let session = self.session.as_mut().filter(|session| !session.logged.contains(&name));
        let note = session.as_ref().map(|session| (session.line.clone(), session.caller));
        let done = pool.task(move |tasks, spa| {
            let done = work(&tasks.limiting(user.as_deref()), spa)?;
            if let Some((line, caller)) = note {
                daemon::ops::log_command(spa, tasks, &line, caller)?;
            }
            Ok(done)
        })?;
        if let Some(session) = session {
            session.logged.push(name);
        }
        Ok(done)
    }
}

/// OpenZFS's message for a suspended pool, with the cause if it is an error of this program.
pub fn suspended(e: &Error) -> String {
    let text = "pool I/O is currently suspended";
    match Suspension::of(e) {
        Suspension { cause, is_ours: true } => format!("{text}: {cause}"),
        _ => text.to_owned(),
    }
}

/// OpenZFS's message for a failed change of a dataset.
#[doc(alias = "zfs_standard_error")]
pub fn why(e: &Error) -> String {
    let text = match e.kind() {
        Kind::NotFound => "dataset does not exist",
        Kind::Exists => "dataset already exists",
        Kind::Busy | Kind::Again => "dataset is busy",
        Kind::NoSpace => "out of space",
        Kind::ReadOnly => "dataset is read-only",
        Kind::Denied => "permission denied",
        Kind::Suspended => return suspended(e),
        _ => return e.what().to_owned(),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_does_not_know_how_the_program_was_called() {
        for argv in [&["/sbin/zfs", "create", "t/a"][..], &["./aquifer", "zfs", "create", "t/a"]] {
            assert_eq!(line(&argv.iter().map(OsString::from).collect::<Vec<_>>()), "zfs create t/a");
        }
    }
}
