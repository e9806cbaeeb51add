//! A daemon of its own, a pool on files, and its file systems.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::live::Live;
use testkit::zdb;

/// The pool's name.
pub const POOL: &str = "tank";
/// MiB of a disk.
const DISK: u64 = 192;
/// Timeout for clients of a killed daemon, and for accesses to its files.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// File systems, and their specific properties.
pub const DATASETS: [(&str, &str); 3] = [
    ("tank/plain", "-o atime=off"),
    ("tank/small", "-o recordsize=8k -o logbias=throughput"),
    ("tank/locked", ""),
];

/// The layout of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A mirror of two disks.
    Mirror,
    /// Three disks with one parity.
    Raidz,
    /// A mirror of two disks, and a log mirror of two.
    MirrorAndLogs,
    /// One disk.
    Single,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::MirrorAndLogs, Self::Raidz, Self::Single, Self::Mirror];

    fn words(self) -> (&'static str, u64, &'static str) {
        match self {
            Self::Mirror => ("mirror", 2, ""),
            Self::Raidz => ("raidz", 3, ""),
            Self::MirrorAndLogs => ("mirror", 2, "log mirror"),
            Self::Single => ("", 1, ""),
        }
    }
}

/// Daemon, pool and file systems.
#[derive(Debug)]
pub struct Bench {
    /// The daemon.
    pub live: Live,
}

impl Bench {
    /// On return only the daemon runs, with a pool whose file systems are mounted.
    pub fn new(binary: &Path, layout: Layout) -> Result<Self, String> {
        let bench = Self { live: Live::new(binary) };
        let (kind, count, log) = layout.words();
        let mut disks: Vec<String> =
            (1..=count).map(|n| bench.live.disk(&format!("disk{n}"), DISK)).collect();
        if !log.is_empty() {
            disks.push(log.into());
            disks.extend((1..=2).map(|n| bench.live.disk(&format!("log{n}"), DISK)));
        }
        let at = bench.mounts();
        fs::create_dir(&at).map_err(|e| e.to_string())?;
        fs::write(bench.key(), [7; 32]).map_err(|e| e.to_string())?;
        bench.ok(&format!(
            "zpool create -O mountpoint={} {POOL} {kind} {}",
            at.display(),
            disks.join(" ")
        ))?;
        for (name, options) in DATASETS {
            let lock = match name.ends_with("locked") {
                true => format!(
                    "-o encryption=on -o keyformat=raw -o keylocation=file://{}",
                    bench.key().display()
                ),
                false => String::new(),
            };
            bench.ok(&format!("zfs create {options} {lock} {name}"))?;
        }
        Ok(bench)
    }

    fn key(&self) -> PathBuf {
        self.live.dir.path().join("key")
    }

    /// The pool's mountpoint.
    pub fn mounts(&self) -> PathBuf {
        self.live.dir.path().join("mnt")
    }

    /// A file system's mountpoint.
    pub fn mount_of(&self, dataset: &str) -> PathBuf {
        self.live.dir.path().join("mnt").join(dataset.trim_start_matches("tank").trim_start_matches('/'))
    }

    /// Runs a command that must succeed.
    pub fn ok(&self, line: &str) -> Result<String, String> {
        let said = |why: String| format!("{line}: {why}\nlog: {}", self.live.log());
        self.live.run(line).worked().map_err(said)
    }

    /// Checks that the mounts of a killed daemon return an answer or an error.
    pub fn mounts_answer(&self) -> Result<(), String> {
        for (name, _) in DATASETS {
            let mut child = Command::new("stat")
                .arg(self.mount_of(name).join("x"))
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .map_err(|e| e.to_string())?;
            wait(&mut child, &format!("stat in the mount of {name}"))?;
        }
        Ok(())
    }

    /// Imports and mounts everything again, with keys loaded.
    pub fn come_back(&self) -> Result<(), String> {
        self.ok("zfs list")?;
        self.ok("zfs load-key -a")?;
        self.ok("zfs mount -a")?;
        let mounted = self.ok("zfs mount")?;
        let is_mounted =
            |name: &str| mounted.lines().any(|line| line.split_whitespace().next() == Some(name));
        match DATASETS.iter().find(|(name, _)| !is_mounted(name)) {
            Some((name, _)) => Err(format!("{name} is not mounted: {mounted}")),
            None => Ok(()),
        }
    }

    /// Exports the pool, checks it with the real zdb, and imports it again.
    pub fn judge(&self) -> Result<(), String> {
        self.ok(&format!("zpool export {POOL}"))?;
        let disks = self.live.disks();
        if zdb::installed() {
            zdb::verify(&disks, POOL)?;
        }
        self.ok(&format!("zpool import -d {} {POOL}", disks.display())).map(|_| ())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.live.signal("-KILL");
        // Remaining mounts would prevent the removal of the directory.
        let at = self.mounts();
        let mounted = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let ours = mounted.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
        let mut ours: Vec<&Path> = ours.filter(|path| path.starts_with(&at)).collect();
        ours.reverse();
        for path in ours {
            // It may have disappeared with another one.
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
    }
}

/// Waits until a process has ended, with a timeout.
pub fn wait(child: &mut std::process::Child, what: &str) -> Result<std::process::ExitStatus, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => return Ok(status),
            None if Instant::now() > until => {
                let _ = child.kill();
                return Err(format!("{what} hangs"));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
