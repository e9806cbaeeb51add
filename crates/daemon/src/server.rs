//! The daemon's side: a thread for each command.
//!
//! The lock of the run directory is held as long as the process lives, so there is one daemon per directory; an
//! existing socket without a lock belongs to a dead daemon and is replaced. The daemon exits when no pool is
//! imported and no request has arrived for a moment. A client that connects at that very moment gets no answer and
//! retries.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::access::DelegatedUser;
use crate::connections;
use crate::imported::Imported;
use crate::parallel::STACK;
use crate::paths::{RunPaths, SOCKET};
use crate::registry::Registry;
use crate::wire;

/// Interval of checking for the end.
const TICK: Duration = Duration::from_millis(100);
/// Maximum concurrent commands before delegated users are refused, and the timeout for their requests.
const DELEGATED_TALKS: usize = 32;
/// Maximum concurrent commands of one such user, so that none can exclude the others.
const OF_ONE_DELEGATED: usize = 8;
const PATIENCE: Duration = Duration::from_secs(10);
/// Time that a daemon without pools waits for the next command.
const IDLE: Duration = Duration::from_secs(2);

/// The caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Caller {
    /// This process.
    pub fn of_process() -> Self {
        Self { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() }
    }
}

/// A command to be run in the daemon.
#[derive(Debug)]
pub struct Call {
    /// The command line, beginning with the program's name.
    pub argv: Vec<OsString>,
    /// The client's working directory.
    pub cwd: PathBuf,
    /// The passed part of its environment.
    pub env: BTreeMap<String, OsString>,
    /// Columns of its terminal; 0 without a terminal.
    pub width: u64,
    /// The caller.
    pub caller: Caller,
    /// Set if the caller is not the owner: only permitted operations may be done.
    pub delegated: Option<DelegatedUser>,
    /// The client's standard input.
    pub stdin: File,
    /// The client's standard output.
    pub stdout: File,
    /// The client's standard error.
    pub stderr: File,
    /// Set when the client requests an end or disconnects.
    pub interrupt: Arc<AtomicBool>,
    /// The pools.
    pub registry: Arc<Registry>,
}

/// The implementation of the commands.
pub trait Commands: Send + Sync {
    /// Runs a command and returns its exit code.
    fn run(&self, call: Call) -> u8;

    /// Whether a command only waits for news: such a command does not keep the daemon running.
    fn only_listens(&self, argv: &[OsString]) -> bool;

    /// Called once, before any pool is imported.
    fn start(&self, registry: &Registry);

    /// Called when a pool of the cache file is imported.
    fn imported(&self, pool: &Arc<Imported>, registry: &Registry);
}

struct Server {
    registry: Arc<Registry>,
    commands: Arc<dyn Commands>,
    /// Number of running commands, without those that only listen.
    running: AtomicUsize,
    /// Number of commands that only listen.
    listeners: AtomicUsize,
    /// Number of running commands of each user other than the owner.
    delegated: Mutex<BTreeMap<u32, usize>>,
    /// Set when all commands must stop.
    stop: Arc<AtomicBool>,
    /// Do not exit when no pool is imported.
    stay: bool,
}

/// Serves until `stop` is set or nothing is left to serve; with `stay`, until `stop` is set. Imported pools are
/// exported then, and stay in the cache file if `stop` was set: the next daemon imports them again.
///
/// # Errors
/// If the socket cannot be created. Another running daemon is not an error.
pub fn serve(
    place: &RunPaths,
    commands: Arc<dyn Commands>,
    stop: Arc<AtomicBool>,
    stay: bool,
) -> io::Result<()> {
    place.prepare()?;
    let lock = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(place.lock())?;
    let mut locked = take(&lock)?;
    if !locked && std::fs::read_to_string(place.lock())?.trim().parse().is_ok_and(connections::is_dying) {
        locked = connections::abort(&place.connections(), || take(&lock))?;
    }
    if !locked {
        return Ok(());
    }
    // The process id, for humans and tests; the lock itself is decisive.
    lock.set_len(0)?;
    writeln!(&lock, "{}", std::process::id())?;
    connections::begin(place.connections())?;
    // Fails only for a process group leader, which was started by hand and may stay in its session.
    let _ = rustix::process::setsid();
    let registry = Registry::new(place)?;
    crate::memory::watch(&registry.memory);
    commands.start(&registry);
    registry.import_cached(&commands);
    match std::fs::remove_file(place.socket()) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(place.socket())?;
    let own = OwnSocket::at(place.socket())?;
    listener.set_nonblocking(true)?;
    // The owner's pools are more important than viewing by other users.
    let delegated = place.delegated.as_deref().and_then(|dir| {
        listen_to_delegated(dir).inspect_err(|e| eprintln!("other users cannot be served: {e}")).ok()
    });
    announce()?;
    let server = Arc::new(Server {
        registry,
        commands,
        running: AtomicUsize::new(0),
        listeners: AtomicUsize::new(0),
        delegated: Mutex::default(),
        stop,
        stay,
    });
    server.accept_all(&listener, delegated.as_ref().map(|(listener, _)| listener))?;
    // From here on no client connects; clients in the queue retry.
    own.remove()?;
    drop(listener);
    if let Some((listener, own)) = delegated {
        own.remove()?;
        drop(listener);
    }
    server.finish();
    Ok(())
}

/// Takes the lock of the directory, if it is free.
fn take(lock: &File) -> io::Result<bool> {
    match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

/// Notifies the starter that the socket exists, and closes its pipe.
fn announce() -> io::Result<()> {
    let mut out = io::stdout();
    // If the daemon was started by hand, the pipe may have no reader.
    let _ = out.write_all(wire::READY).and_then(|()| out.flush());
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    tell_systemd("READY=1");
    Ok(())
}

/// A socket that all users can reach, in a directory of its own, separate from the owner's.
fn listen_to_delegated(dir: &Path) -> io::Result<(UnixListener, OwnSocket)> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    let meta = std::fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        let what = format!("{} must be a directory that only its owner can write to", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    // It gets its name once all users may connect.
    let new = dir.join("socket.new");
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o666))?;
    std::fs::rename(&new, dir.join(SOCKET))?;
    listener.set_nonblocking(true)?;
    Ok((listener, OwnSocket::at(dir.join(SOCKET))?))
}

/// A socket that this process bound, by its inode: when the folder was removed and made again, the same path may name the
/// socket of a later daemon, which must stay.
struct OwnSocket {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl OwnSocket {
    /// Remembers the socket at `path`.
    fn at(path: PathBuf) -> io::Result<Self> {
        let id = Self::id_of(&path)?;
        Ok(Self { path, id })
    }

    fn id_of(path: &Path) -> io::Result<(u64, u64)> {
        std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
    }

    /// Removes the socket if the path still names it.
    fn remove(&self) -> io::Result<()> {
        let removed = match Self::id_of(&self.path) {
            Ok(id) if id == self.id => std::fs::remove_file(&self.path),
            other => other.map(drop),
        };
        match removed {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Notifies the service manager, if one started us and listens.
#[doc(alias = "sd_notify")]
fn tell_systemd(state: &str) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
    if let Err(e) = sent {
        eprintln!("the service manager cannot be notified: {e}");
    }
}

impl Server {
    fn accept_all(
        self: &Arc<Self>,
        listener: &UnixListener,
        delegated: Option<&UnixListener>,
    ) -> io::Result<()> {
        let mut quiet = Instant::now();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if self.stay || self.running.load(Ordering::Acquire) > 0 || !self.registry.is_empty() {
                quiet = Instant::now();
            } else if quiet.elapsed() >= IDLE {
                return Ok(());
            }
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos().try_into().unwrap_or(0) };
            let listeners = || std::iter::once(listener).chain(delegated);
            let mut asked: Vec<_> = listeners().map(|l| PollFd::new(l, PollFlags::IN)).collect();
            match poll(&mut asked, Some(&tick)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(e.into()),
            }
            listeners().enumerate().for_each(|(at, listener)| self.accept(listener, at > 0));
        }
    }

    fn accept(self: &Arc<Self>, listener: &UnixListener, as_delegated: bool) {
        match listener.accept() {
            Ok((stream, _)) => self.spawn(stream, as_delegated),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {}
            // Out of descriptors: running commands will release some.
            Err(e) => {
                eprintln!("a connection cannot be accepted: {e}");
                thread::sleep(TICK);
            }
        }
    }

    fn spawn(self: &Arc<Self>, stream: UnixStream, as_delegated: bool) {
        if as_delegated && self.running.load(Ordering::Acquire) >= DELEGATED_TALKS {
            // Clients that keep the daemon busy must not exclude its owner; the client sees a closed connection.
            return;
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        let server = Arc::clone(self);
        let work = move || {
            match server.talk(stream, as_delegated) {
                // Only the owner can fill the log.
                Err(e) if !as_delegated => eprintln!("a connection failed: {e}"),
                _ => {}
            }
            server.running.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(e) = thread::Builder::new().name("command".into()).stack_size(STACK).spawn(work) {
            self.running.fetch_sub(1, Ordering::AcqRel);
            eprintln!("no thread for a command: {e}");
        }
    }

    fn talk(&self, mut stream: UnixStream, as_delegated: bool) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
        let (uid, me) = (peer.uid.as_raw(), rustix::process::geteuid());
        let is_owner = uid == me.as_raw() || uid == 0;
        let delegated = match (is_owner, as_delegated) {
            (true, _) => None,
            (false, false) => return Err(io::Error::from(io::ErrorKind::PermissionDenied)),
            (false, true) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                Some(DelegatedUser::of_machine(uid, peer.gid.as_raw()))
            }
        };
        let _place = match delegated.is_some().then(|| Turn::of(&self.delegated, uid)) {
            // The client retries.
            Some(None) => return Ok(()),
            place => place,
        };
        let Some((request, streams)) = wire::receive(&mut stream, delegated.is_some())? else {
            return Ok(());
        };
        if delegated.is_some() && !streams.iter().all(wire::is_harmless) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "streams of a kind that is not written to",
            ));
        }
        let _listener =
            (delegated.is_none() && self.commands.only_listens(&request.argv)).then(|| Listener::of(self));
        stream.set_read_timeout(None)?;
        stream.write_all(&[wire::ACCEPTED])?;
        let interrupt = Arc::new(AtomicBool::new(false));
        let watched = watch(stream.try_clone()?, Arc::clone(&interrupt));
        let [stdin, stdout, stderr] = streams.map(|fd: OwnedFd| File::from(fd));
        let call = Call {
            argv: request.argv,
            cwd: request.cwd,
            env: request.env,
            width: request.width,
            caller: Caller { uid, gid: peer.gid.as_raw() },
            delegated,
            stdin,
            stdout,
            stderr,
            interrupt,
            registry: Arc::clone(&self.registry),
        };
        // A command that panics has failed; the pools and the other commands continue.
        let code = catch_unwind(AssertUnwindSafe(|| self.commands.run(call))).unwrap_or(1);
        let answered = stream.write_all(&[wire::EXIT, code]);
        stream.shutdown(std::net::Shutdown::Both)?;
        if let Some(watched) = watched {
            // It can only have ended.
            let _ = watched.join();
        }
        answered
    }

    /// Ends running commands and exports everything.
    fn finish(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.running.load(Ordering::Acquire) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        self.registry.close_all();
        if self.listeners.load(Ordering::Acquire) > 0 {
            // They get the events of the exports.
            thread::sleep(TICK);
        }
    }
}

/// A command that only listens: it is not counted as running.
struct Listener<'a>(&'a Server);

impl<'a> Listener<'a> {
    fn of(server: &'a Server) -> Self {
        server.listeners.fetch_add(1, Ordering::AcqRel);
        server.running.fetch_sub(1, Ordering::AcqRel);
        Self(server)
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_add(1, Ordering::AcqRel);
        self.0.listeners.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One of the concurrent commands of a user.
struct Turn<'a> {
    all: &'a Mutex<BTreeMap<u32, usize>>,
    uid: u32,
}

impl<'a> Turn<'a> {
    fn of(all: &'a Mutex<BTreeMap<u32, usize>>, uid: u32) -> Option<Self> {
        let mut counts = all.lock();
        let count = counts.entry(uid).or_default();
        if *count >= OF_ONE_DELEGATED {
            return None;
        }
        *count += 1;
        Some(Self { all, uid })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut counts = self.all.lock();
        let left = counts.get_mut(&self.uid).map(|count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == Some(0) {
            counts.remove(&self.uid);
        }
    }
}

/// Sets the flag when the client requests it or disconnects.
fn watch(mut stream: UnixStream, interrupt: Arc<AtomicBool>) -> Option<thread::JoinHandle<()>> {
    let work = move || {
        let mut byte = [0];
        // Any byte, and the end of the stream, have the same meaning.
        let _ = stream.read(&mut byte);
        interrupt.store(true, Ordering::Relaxed);
    };
    thread::Builder::new().name("watch".into()).spawn(work).ok()
}
