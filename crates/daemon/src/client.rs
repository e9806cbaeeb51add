//! The command's side: connects to the daemon, or starts it, and passes it the command's streams.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::paths::{RunPaths, connect_as_delegated};
pub use crate::wire::READY;
use crate::wire::{self, Request, is_harmless};

/// Memory settings for the C library: with an arena for each thread it would keep a pool's memory long after the
/// export (measured: 60 MiB more with each import and export; none with this).
pub const MALLOC: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "2"), ("MALLOC_MMAP_THRESHOLD_", "4194304"), ("MALLOC_TRIM_THRESHOLD_", "1048576")];

/// The environment variables that a command sees.
const WORDS: [&str; 14] = [
    "TZ",
    "LC_ALL",
    "LANG",
    "ZPOOL_IMPORT_PATH",
    "ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE",
    "ZFS_COLOR",
    "ZPOOL_VDEV_NAME_GUID",
    "ZPOOL_VDEV_NAME_FOLLOW_LINKS",
    "ZPOOL_VDEV_NAME_PATH",
    "HOME",
    "SSL_CA_CERT_FILE",
    "SSL_CA_CERT_PATH",
    "SSL_CLIENT_CERT_FILE",
    "SSL_CLIENT_KEY_FILE",
];
/// Maximum wait for a daemon that is stopping or starting.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether a daemon is running, or is needed because pools were imported when it ended.
///
/// # Errors
/// If that cannot be determined, because the daemon's directories have the wrong owner or mode, or because the cache file is
/// damaged.
pub fn is_wanted(place: &RunPaths) -> io::Result<bool> {
    match place.connect() {
        Ok(_) => return Ok(true),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(e),
        Err(_) => {}
    }
    Ok(!crate::cache::Cache::at(place.cache()).is_empty()?)
}

/// Makes the daemon run a command line for this process, with `out` as its output; returns the exit code.
pub fn run(place: &RunPaths, argv: Vec<OsString>, width: u64, out: BorrowedFd<'_>) -> io::Result<u8> {
    let (stdin, stderr) = (io::stdin(), io::stderr());
    run_over(&|| connect(place), argv, width, [stdin.as_fd(), out, stderr.as_fd()])
}

/// Like [`run`], in the system's daemon, which serves all users at `socket`.
///
/// It gets pipes and terminals only; for other streams this process copies to or from a pipe, with its own rights.
/// It gets the standard input only if `reads` is set.
pub fn run_as_delegated(
    socket: &Path,
    argv: Vec<OsString>,
    width: u64,
    reads: bool,
    out: BorrowedFd<'_>,
) -> io::Result<u8> {
    let stdin = if reads { lent_input(io::stdin().as_fd())? } else { OwnedFd::from(io::pipe()?.0) };
    let streams = [Lent::of(out)?, Lent::of(io::stderr().as_fd())?];
    let [out, err] = &streams;
    let done = run_over(&|| connect_as_delegated(socket), argv, width, [stdin.as_fd(), out.end(), err.end()]);
    let copied = streams.map(Lent::finish);
    let code = done?;
    copied.into_iter().collect::<io::Result<()>>()?;
    Ok(code)
}

/// An input that the daemon may have: the stream itself, or a pipe that a thread fills from it.
fn lent_input(stream: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let stream = stream.try_clone_to_owned()?;
    if is_harmless(&stream) {
        return Ok(stream);
    }
    let (end, mut pipe) = io::pipe()?;
    let mut from = File::from(stream);
    // The thread ends with its input or with the process; when the daemon has closed its end, nothing more is needed.
    thread::spawn(move || io::copy(&mut from, &mut pipe).map(drop));
    Ok(end.into())
}

/// A stream that the daemon may have, or a pipe to it with the copying thread.
enum Lent {
    Itself(OwnedFd),
    Copied(io::PipeWriter, thread::JoinHandle<io::Result<()>>),
}

impl Lent {
    fn of(stream: BorrowedFd<'_>) -> io::Result<Self> {
        let stream = stream.try_clone_to_owned()?;
        if is_harmless(&stream) {
            return Ok(Self::Itself(stream));
        }
        let (mut pipe, end) = io::pipe()?;
        let mut to = File::from(stream);
        Ok(Self::Copied(end, thread::spawn(move || io::copy(&mut pipe, &mut to).map(drop))))
    }

    fn end(&self) -> BorrowedFd<'_> {
        match self {
            Self::Itself(stream) => stream.as_fd(),
            Self::Copied(end, _) => end.as_fd(),
        }
    }

    /// Waits until everything is copied: the daemon has closed its end.
    fn finish(self) -> io::Result<()> {
        let Self::Copied(end, copying) = self else { return Ok(()) };
        drop(end);
        copying.join().map_err(|_| io::Error::other("the output cannot be copied"))?
    }
}

/// Whether the system's daemon serves all users at `socket`.
///
/// # Errors
/// If a socket exists but does not answer, or is not trusted.
pub fn is_served(socket: &Path) -> io::Result<bool> {
    match connect_as_delegated(socket) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            let what = "the system's daemon has ended unexpectedly: its pools are not visible until root runs a command";
            Err(io::Error::new(e.kind(), what))
        }
        Err(e) => Err(e),
    }
}

/// Sends a command line to a running daemon, and starts none; its output goes to `out`, without input. The command ends when the
/// returned connection is dropped.
///
/// # Errors
/// If no daemon is running, or it is not trusted.
pub fn follow(place: &RunPaths, argv: Vec<OsString>, out: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let mut stream = place.connect()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let request = Request { argv, cwd: "/".into(), ..Request::default() };
    submit(&mut stream, &request, [null.as_fd(), out, null.as_fd()])?;
    Ok(stream)
}

fn run_over(
    connect: &dyn Fn() -> io::Result<UnixStream>,
    argv: Vec<OsString>,
    width: u64,
    streams: [BorrowedFd<'_>; 3],
) -> io::Result<u8> {
    let env = WORDS.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var_os(name)?)));
    let request = Request {
        argv,
        cwd: std::env::current_dir().unwrap_or_else(|_| "/".into()),
        env: env.collect::<BTreeMap<_, _>>(),
        width,
    };
    let until = Instant::now() + PATIENCE;
    loop {
        let mut stream = connect()?;
        match submit(&mut stream, &request, streams) {
            Ok(()) => return await_exit(stream),
            // The daemon ended between our connection and its turn.
            Err(e) if Instant::now() > until => return Err(e),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn submit(stream: &mut UnixStream, request: &Request, streams: [BorrowedFd<'_>; 3]) -> io::Result<()> {
    wire::send(stream, request, streams)?;
    let mut answer = [0];
    stream.read_exact(&mut answer)
}

/// Waits for the end; signals are passed on once, a second one ends the wait.
fn await_exit(mut stream: UnixStream) -> io::Result<u8> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let mut asking = stream.try_clone()?;
    let watcher = thread::spawn(move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 || asking.write_all(&[wire::STOP]).is_err() {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        }
    });
    let mut answer = [0; 2];
    let got = stream.read_exact(&mut answer);
    handle.close();
    // A thread that only waits for signals cannot fail.
    let _ = watcher.join();
    got.map_err(|_| {
        io::Error::new(io::ErrorKind::ConnectionAborted, "the daemon ended before the command did")
    })?;
    match answer {
        [wire::EXIT, code] => Ok(code),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the daemon returned an invalid answer")),
    }
}

fn connect(place: &RunPaths) -> io::Result<UnixStream> {
    connect_by(|| place.connect(), || start(place), PATIENCE)
}

/// Connects by `connect`, after `start` where that fails. A daemon may take longer than `patience` to start: it is connected to even then.
fn connect_by<T>(
    connect: impl Fn() -> io::Result<T>,
    start: impl Fn() -> io::Result<()>,
    patience: Duration,
) -> io::Result<T> {
    let until = Instant::now() + patience;
    loop {
        let overdue = Instant::now() > until;
        match connect() {
            Ok(stream) => return Ok(stream),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(e),
            Err(_) if overdue => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the daemon cannot be reached"));
            }
            Err(_) => start()?,
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts the daemon and waits until it accepts connections. If another one is starting, the new one exits at once,
/// which is fine.
fn start(place: &RunPaths) -> io::Result<()> {
    place.prepare()?;
    let log = OpenOptions::new().create(true).append(true).open(place.log())?;
    let from = log.metadata()?.len();
    let mut child = Command::new("/proc/self/exe")
        .arg0("aquifer")
        .arg("daemon")
        .current_dir("/")
        // The search path of one command is not that of others, nor of the daemon.
        .env_remove("ZPOOL_IMPORT_PATH")
        .envs(MALLOC.iter().filter(|(name, _)| std::env::var_os(name).is_none()).copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .spawn()?;
    let mut said = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(());
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let text = tail(place, from);
    let what = if text.is_empty() { format!("it ended with {status}") } else { text };
    Err(io::Error::other(format!("the daemon cannot be started: {what}")))
}

/// The log from offset `from` on.
fn tail(place: &RunPaths, from: u64) -> String {
    use std::io::{Seek, SeekFrom};
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(place.log())?;
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.take(4096).read_to_end(&mut text)?;
        Ok(text)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_daemon_that_starts_slowly_is_connected_to() {
        let (runs, tries) = (Cell::new(false), Cell::new(0));
        let connect = || {
            tries.set(tries.get() + 1);
            if runs.get() { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
        };
        let start = || {
            thread::sleep(Duration::from_millis(5));
            runs.set(true);
            Ok(())
        };
        connect_by(connect, start, Duration::from_millis(1)).expect("it runs, though late");
        assert_eq!(tries.get(), 2);
        let failed = connect_by(|| Err::<(), _>(io::ErrorKind::NotFound.into()), || Ok(()), Duration::ZERO);
        assert_eq!(failed.expect_err("there is none").kind(), io::ErrorKind::TimedOut);
    }
}
