//! The connection of a command to the imported pools.
//!
//! The client parses a command line only to select the process that runs it ([`Home`]); the daemon parses it again and
//! runs the same verb with a [`Session`] in its [`Ctx`]. Reading verbs accept `-d` and related options to read a pool
//! that is not imported, in their own process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use daemon::access::DelegatedUser;
use daemon::registry::BEING_IMPORTED;
use daemon::{Caller, Imported, Registry};
use engine::dsl::write::Limited;
use engine::spa::Quiet;
use engine::spa::suspension::Suspension;
use engine::{Error, Kind};

use crate::ctx::Ctx;
use crate::verb::Failure;

/// The request for the names of the pools.
pub const NAMES: &str = "names-of-pools";

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
    pub delegated: Option<DelegatedUser>,
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
    /// The pools that the command holds.
    pub holds: HeldPools,
}

/// The pools that a command holds.
#[derive(Debug)]
pub struct HeldPools {
    /// Set while `leases` is not empty.
    held: Arc<AtomicBool>,
    /// Pools that this command holds; they cannot be exported meanwhile.
    leases: Vec<Arc<Imported>>,
    /// Pools whose datasets must not change while they are read, by guid.
    quiet: Vec<(u64, Option<Quiet>)>,
    /// Pools whose history already records the command.
    logged: Vec<String>,
    /// Pools that the user was told are being imported.
    awaited: Vec<String>,
}

impl HeldPools {
    /// No pools; `held` is set while there is one.
    pub fn new(held: &Arc<AtomicBool>) -> Self {
        Self {
            held: Arc::clone(held),
            leases: Vec::new(),
            quiet: Vec::new(),
            logged: Vec::new(),
            awaited: Vec::new(),
        }
    }
}

impl Session {
    /// Resolves a path relative to the client's working directory.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.cwd.join(path)
    }
}

impl Ctx {
    /// The caller's terminal, for a bar: standard error, if it is one.
    pub fn terminal(&self) -> Option<File> {
        let session = self.session.as_ref()?;
        session.bar.as_ref().and_then(|bar| bar.try_clone().ok())
    }

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
        session.holds.held.store(true, Ordering::Relaxed);
        session.holds.leases.push(Arc::clone(&pool));
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
        session.holds.held.fetch_or(!pools.is_empty(), Ordering::Relaxed);
        session.holds.leases.extend(pools.iter().cloned());
        pools
    }

    /// As [`Ctx::pools`], for commands that show or change all pools: those that are being imported are missing, which the
    /// user is told.
    pub fn all_pools(&mut self) -> Vec<Arc<Imported>> {
        self.tell_coming();
        self.pools()
    }

    /// Tells the user which pools are being imported, each once; whether there are any.
    pub fn tell_coming(&mut self) -> bool {
        let Some(session) = self.session.as_mut() else { return false };
        let coming = session.registry.coming();
        let is_new = |name: &&String| !session.holds.awaited.contains(name);
        let new: Vec<String> = coming.iter().filter(is_new).cloned().collect();
        session.holds.awaited.extend(new.iter().cloned());
        new.iter().for_each(|name| self.warn(format_args!("pool '{name}' is being imported")));
        !coming.is_empty()
    }

    /// Whether the pool of that name is being imported.
    pub fn is_coming(&self, pool: &str) -> bool {
        self.session.as_ref().is_some_and(|session| session.registry.is_coming(pool))
    }

    /// The failure of a command that names a pool that is not there.
    pub fn no_pool(&self, name: &str) -> Failure {
        match self.is_coming(name) {
            true => Failure::cannot("open", name, BEING_IMPORTED),
            false => Failure::no_pool(name),
        }
    }

    /// Why a command cannot have the pool of a dataset: it is being imported, or else `absent`.
    pub fn why_no_pool_of(&self, dataset: &str, absent: impl Into<String>) -> String {
        let pool = dataset.split(['/', '@', '#']).next().unwrap_or_default();
        if self.is_coming(pool) { BEING_IMPORTED.to_owned() } else { absent.into() }
    }

    /// Like [`Ctx::pool`], and its datasets do not change until [`Ctx::let_sync`]: for reports that must not see a
    /// partial change.
    pub fn quiet_pool(&mut self, wanted: &str) -> Option<Arc<Imported>> {
        let pool = self.pool(wanted)?;
        let (guid, session) = (pool.guid(), self.session.as_mut()?);
        if !session.holds.quiet.iter().any(|(known, _)| *known == guid) {
            session.holds.quiet.push((guid, pool.quiet()));
        }
        Some(pool)
    }

    /// Allows changes to reach the disk again.
    pub fn let_sync(&mut self) {
        if let Some(session) = self.session.as_mut() {
            session.holds.quiet.clear();
        }
    }

    /// Lets changes reach the disk between two parts of a long report, if the caller is not the owner and could
    /// keep others from writing. Earlier lookups must be repeated then.
    pub fn breathe(&mut self) -> bool {
        let Some(session) = self.session.as_mut().filter(|session| session.delegated.is_some()) else {
            return false;
        };
        let guids: Vec<u64> = session.holds.quiet.drain(..).map(|(guid, _)| guid).collect();
        for guid in guids {
            let pool = session.holds.leases.iter().find(|pool| pool.guid() == guid);
            session.holds.quiet.push((guid, pool.and_then(|pool| pool.quiet())));
        }
        true
    }

    /// Releases the pools: a waiting command must not hold them.
    pub fn release(&mut self) {
        self.let_sync();
        if let Some(session) = self.session.as_mut() {
            session.holds.leases.clear();
            session.holds.held.store(false, Ordering::Relaxed);
        }
    }

    /// Records the command in the pool's history, once.
    pub fn log(&mut self, pool: &Imported) -> Result<(), Failure> {
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        let name = pool.name();
        if session.holds.logged.contains(&name) {
            return Ok(());
        }
        session.holds.logged.push(name);
        let (line, caller) = (session.line.clone(), session.caller);
        Ok(pool.task(move |tasks, spa| daemon::ops::log_command(spa, tasks, &line, caller))?)
    }

    /// The user that limits on numbers of datasets hold: the caller, unless it is the pools' owner.
    pub fn limited(&self) -> Option<Arc<dyn Limited>> {
        let delegated = self.session.as_ref()?.delegated.clone()?;
        Some(Arc::new(delegated))
    }

    /// Runs a task on a pool's datasets and records the command in its history, both in one txg.
    pub fn change<T: Send + 'static>(
        &mut self,
        pool: &Imported,
        work: impl FnOnce(&engine::dsl::write::Tasks<'_>, &engine::spa::Spa) -> engine::Result<T> + Send + 'static,
    ) -> engine::Result<T> {
        let (name, user) = (pool.name(), self.limited());
        let session = self.session.as_mut().filter(|session| !session.holds.logged.contains(&name));
        let note = session.as_ref().map(|session| (session.line.clone(), session.caller));
        let done = pool.task(move |tasks, spa| {
            let done = work(&tasks.limiting(user.as_deref()), spa)?;
            if let Some((line, caller)) = note {
                daemon::ops::log_command(spa, tasks, &line, caller)?;
            }
            Ok(done)
        })?;
        if let Some(session) = session {
            session.holds.logged.push(name);
        }
        Ok(done)
    }
}

/// OpenZFS's message for a suspended pool, with the cause if no device failed.
pub fn suspended(e: &Error) -> String {
    let text = "pool I/O is currently suspended";
    match Suspension::of(e) {
        Suspension { cause, is_ours: true, .. } | Suspension { cause, is_damage: true, .. } => {
            format!("{text}: {cause}")
        }
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
