//! A process that works in a directory of a mount, and records its progress in a file.
//!
//! It runs this program: the starter calls [`serve`] first.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::script::{Op, Script};

/// The environment variable that makes a process a worker, with its parameters.
const WORD: &str = "AQUIFER_KILL_WORKER";
/// Writes a file's bytes, given as standard input, through a mapping, and syncs it.
const MAP: &str = "import mmap,os,sys
f=os.open(sys.argv[1],os.O_RDWR); a=int(sys.argv[2]); b=sys.stdin.buffer.read()
m=mmap.mmap(f,0); m[a:a+len(b)]=b; m.flush()";

/// The parameters of a worker.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Determines all operations.
    pub seed: u64,
    /// Its directory, which it creates.
    pub dir: PathBuf,
    /// The file of its records.
    pub ledger: PathBuf,
    /// A file that exists before the daemon is killed.
    pub over: PathBuf,
    /// The file system.
    pub dataset: String,
    /// The built program, for snapshots.
    pub binary: PathBuf,
}

impl Worker {
    /// Its parameters in one string.
    fn word(&self) -> String {
        let paths =
            [&self.dir, &self.ledger, &self.over, &self.binary].map(|path| path.display().to_string());
        format!("{}\n{}\n{}", self.seed, self.dataset, paths.join("\n"))
    }

    fn of_word(word: &str) -> Option<Self> {
        let mut words = word.lines();
        let (seed, dataset) = (words.next()?.parse().ok()?, words.next()?.into());
        let mut path = || words.next().map(PathBuf::from);
        Some(Self { seed, dataset, dir: path()?, ledger: path()?, over: path()?, binary: path()? })
    }

    /// Starts it: `program` calls [`serve`] when run. `run` is the daemon's directory.
    pub fn start(&self, mut program: Command, run: &Path) -> io::Result<Child> {
        program
            .env(WORD, self.word())
            .env("AQUIFER_RUN", run)
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
    }

    /// The name of a snapshot that it takes.
    pub fn snapshot(&self, number: u64) -> String {
        let dir = self.dir.file_name().unwrap_or_default().to_string_lossy();
        format!("{dir}-{number}")
    }

    fn work(&self) -> io::Result<()> {
        let mut ledger = OpenOptions::new().create(true).append(true).open(&self.ledger)?;
        let mut note = |line: &str| ledger.write_all(line.as_bytes());
        let opened = std::fs::create_dir(&self.dir).and_then(|()| File::open(&self.dir));
        let dir = match opened.and_then(|dir| dir.sync_all().map(|()| dir)) {
            Ok(dir) => dir,
            Err(e) => return note(&format!("failed {e}\n")),
        };
        note("ready\n")?;
        // Names below this refer to the present mount, even after it is replaced.
        let at = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), dir.as_raw_fd()));
        let mut script = Script::new(self.seed);
        for number in 1u64.. {
            let op = script.next_op();
            note(&format!("begun {number}\n"))?;
            match self.act(&op, &at, &dir) {
                Ok(()) => note(&format!("done {number}\n"))?,
                Err(e) => return note(&format!("failed {op:?}: {e}\n")),
            }
        }
        Ok(())
    }

    fn act(&self, op: &Op, at: &Path, dir: &File) -> io::Result<()> {
        let path = |name: &str| at.join(name);
        let open = |name: &str| OpenOptions::new().write(true).open(path(name));
        match op {
            Op::Create(name) => OpenOptions::new().write(true).create_new(true).open(path(name)).map(|_| ()),
            Op::Write { name, at, bytes } => open(name)?.write_all_at(&bytes.make(), *at),
            Op::Truncate(name, len) => open(name)?.set_len(*len),
            Op::Rename(from, to) => std::fs::rename(path(from), path(to)),
            Op::Unlink(name) => std::fs::remove_file(path(name)),
            Op::Sync(name) => open(name)?.sync_all(),
            Op::SyncDir => dir.sync_all(),
            Op::Snapshot(number) => {
                let name = format!("{}@{}", self.dataset, self.snapshot(*number));
                worked(Command::new(&self.binary).args(["zfs", "snapshot", &name]).stderr(Stdio::null()))?;
                // A new daemon, which knows nothing of the loss, may have answered the command.
                match self.over.exists() {
                    true => Err(io::Error::other("a program ended with another daemon")),
                    false => Ok(()),
                }
            }
            Op::Map { name, at, bytes } => {
                let mut python = Command::new("python3");
                python.arg("-c").arg(MAP).arg(path(name)).arg(at.to_string());
                match python.stdin(Stdio::piped()).stderr(Stdio::null()).spawn() {
                    Ok(mut child) => {
                        let sent =
                            child.stdin.take().map_or(Ok(()), |mut input| input.write_all(&bytes.make()));
                        // The reason of its end is more specific than the broken pipe.
                        ended(child.wait()?).and(sent)
                    }
                    // Without it, the bytes are written normally.
                    Err(_) => {
                        let file = open(name)?;
                        file.write_all_at(&bytes.make(), *at)?;
                        file.sync_all()
                    }
                }
            }
        }
    }
}

fn ended(status: std::process::ExitStatus) -> io::Result<()> {
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("a program ended with {status}"))) }
}

fn worked(command: &mut Command) -> io::Result<()> {
    ended(command.status()?)
}

/// Does a worker's work if this process is one; returns true then.
pub fn serve() -> bool {
    let Some(worker) = std::env::var(WORD).ok().and_then(|word| Worker::of_word(&word)) else { return false };
    if let Err(e) = worker.work() {
        eprintln!("worker: {e}");
    }
    true
}
