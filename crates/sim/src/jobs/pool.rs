//! Daemon, pool and disks; and the judges.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stdx::rng::Rng;
use testkit::live::{Live, Run};
use testkit::zdb::Judge;

use super::files::KnownFiles;
use super::job::Begun;
use super::{CHANGES, JobCourse};

pub(super) const POOL: &str = "tank";
/// MiB of a disk.
pub(super) const DISK: u64 = 192;
/// Layouts: vdevs, and their disks.
const LAYOUTS: [(&str, &[&str]); 8] = [
    ("mirror", &["mirror 2"]),
    ("mirror of three", &["mirror 3"]),
    ("two mirrors", &["mirror 2", "mirror 2"]),
    ("raidz", &["raidz1 3"]),
    ("raidz2", &["raidz2 5"]),
    ("raidz3", &["raidz3 5"]),
    ("draid", &["draid1:2d:5c:1s 5"]),
    ("stripe", &[" 1", " 1"]),
];
const DATASETS: [(&str, &str); 3] =
    [("plain", ""), ("small", "-o recordsize=8k"), ("packed", "-o compression=zstd")];
/// KnownFiles at the beginning.
const FILES: u64 = 50;
/// Seconds that a command, or the end of a job, may take.
const PATIENCE: &str = "180";

pub(super) struct Pool {
    live: Live,
    pub(super) random: Rng,
    pub(super) course: JobCourse,
    /// Commands and their answers.
    pub(super) said: Vec<String>,
    files: KnownFiles,
    disks: u64,
}

impl Pool {
    /// A pool with files.
    pub(super) fn new(binary: &Path, seed: u64) -> Result<Self, String> {
        let mut random = Rng::new(seed);
        let nth = usize::try_from(random.below(8)).unwrap_or(0);
        let (layout, vdevs) = LAYOUTS.get(nth).copied().unwrap_or(("mirror", &["mirror 2"]));
        let course = JobCourse { layout, ..JobCourse::default() };
        let (said, files) = (Vec::new(), KnownFiles::default());
        let mut pool = Self { live: Live::new(binary), random, course, said, files, disks: 0 };
        fs::create_dir(pool.mounts()).map_err(|e| e.to_string())?;
        let mut line = format!("zpool create -O atime=off -O mountpoint={} {POOL}", pool.mounts().display());
        for vdev in vdevs {
            let (kind, count) = vdev.rsplit_once(' ').unwrap_or((vdev, "1"));
            line.push_str(&format!(" {kind}"));
            for _ in 0..count.parse::<u64>().unwrap_or(1) {
                line.push_str(&format!(" {}", pool.disk(DISK)));
            }
        }
        pool.must(&line)?;
        for (name, options) in DATASETS {
            pool.must(&format!("zfs create {options} {POOL}/{name}"))?;
        }
        (0..FILES).for_each(|_| pool.write());
        match pool.files.len() {
            0 => Err("no file could be written".into()),
            _ => Ok(pool),
        }
    }

    fn mounts(&self) -> PathBuf {
        self.live.dir.path().join("mnt")
    }

    /// A new disk.
    pub(super) fn disk(&mut self, mib: u64) -> String {
        self.disks += 1;
        self.live.disk(&format!("disk{}", self.disks), mib)
    }

    pub(super) fn pick(&mut self, all: &[String]) -> Option<String> {
        let count = u64::try_from(all.len()).unwrap_or(0);
        let nth = self.random.below(count.max(1));
        usize::try_from(nth).ok().and_then(|nth| all.get(nth)).cloned()
    }

    fn answer(&mut self, line: &str) -> Run {
        // A command that hangs is a finding, too.
        let mut command = Command::new("timeout");
        let program = self.live.command(line);
        command.arg(PATIENCE).arg(program.get_program()).args(program.get_args());
        command
            .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .current_dir(self.live.disks());
        let run = match command.output() {
            Ok(output) => Run::from(output),
            Err(e) => Run { code: -1, out: String::new(), err: e.to_string() },
        };
        let told = run.err.lines().next().unwrap_or_default();
        self.said.push(format!("{line} -> {} {told}", run.code));
        run
    }

    /// Runs a command; whether it succeeded.
    pub(super) fn run(&mut self, line: &str) -> bool {
        self.answer(line).code == 0
    }

    /// Runs a command that must succeed.
    pub(super) fn must(&mut self, line: &str) -> Result<String, String> {
        let run = self.answer(line);
        let log = self.live.log();
        run.worked().map_err(|why| format!("{line}: {why}\nlog: {log}"))
    }

    /// The first words of the lines of an answer.
    pub(super) fn listed(&mut self, line: &str) -> Vec<String> {
        let run = self.answer(line);
        run.out.lines().filter_map(|row| row.split_whitespace().next()).map(str::to_owned).collect()
    }

    /// Paths of the disks in use.
    pub(super) fn leaves(&mut self) -> Vec<String> {
        let rows = self.listed(&format!("zpool list -vHP {POOL}"));
        rows.into_iter().filter(|row| row.starts_with('/')).collect()
    }

    /// The kind of the first vdev of parity.
    pub(super) fn parity(&self) -> &'static str {
        match self.course.layout {
            "raidz2" => "raidz2",
            "raidz3" => "raidz3",
            _ => "raidz1",
        }
    }

    /// Writes a file; a full pool takes none.
    pub(super) fn write(&mut self) {
        let at = self.mounts();
        let nth = usize::try_from(self.random.below(3)).unwrap_or(0);
        let dataset = DATASETS.get(nth).map_or("plain", |(name, _)| name);
        if let Err(why) = self.files.write(&at, dataset, &mut self.random) {
            self.said.push(format!("a write fails: {why}"));
        }
    }

    pub(super) fn remove(&mut self) {
        let at = self.mounts();
        if let Err(why) = self.files.remove(&at, &mut self.random) {
            self.said.push(format!("a removal fails: {why}"));
        }
    }

    fn import(&mut self, how: &str) -> Result<(), String> {
        let disks = self.live.disks();
        self.must(&format!("zpool import {how} -d {} {POOL}", disks.display())).map(drop)
    }

    pub(super) fn export(&mut self) -> Result<(), String> {
        self.must(&format!("zpool export {POOL}"))?;
        self.import("")
    }

    /// Kills the daemon; the next one imports its pools.
    pub(super) fn kill(&mut self) -> Result<(), String> {
        self.said.push("kill -KILL".into());
        self.live.signal("-KILL");
        self.must("zpool list")?;
        if !self.run(&format!("zpool list {POOL}")) {
            self.import("-f")?;
        }
        self.must("zfs mount -a").map(drop)
    }

    /// A job with odd changes in its midst, carried to its end, and judged.
    pub(super) fn job(&mut self) -> Result<(), String> {
        let Some(begun) = self.begin() else {
            self.course.count("refused jobs");
            return Ok(());
        };
        self.course.count(begun.name);
        for _ in 0..=self.random.below(CHANGES) {
            std::thread::sleep(Duration::from_millis(self.random.below(300)));
            self.odd(&begun)?;
        }
        self.carry_on(&begun)?;
        self.judge().map_err(|why| format!("after {}: {why}", begun.name))
    }

    /// Lets everything go on, and waits for its end.
    fn carry_on(&mut self, begun: &Begun) -> Result<(), String> {
        self.hold(begun, false);
        for leaf in self.leaves() {
            self.run(&format!("zpool online {POOL} {leaf}"));
        }
        for line in ["initialize", "trim"] {
            if begun.name.starts_with(line) {
                // A paused one goes on.
                self.run(&format!("zpool {line} {POOL}"));
            }
        }
        self.run(&format!("zpool checkpoint -d {POOL}"));
        let works = "discard,initialize,replace,remove,resilver,trim,raidz_expand";
        self.must(&format!("zpool wait -t {works} {POOL}"))?;
        // Ends a paused scrub.
        self.run(&format!("zpool scrub -s {POOL}"));
        self.must(&format!("zpool wait -t {works},scrub {POOL}")).map(drop)
    }

    fn judge(&mut self) -> Result<(), String> {
        self.files.compare(&self.mounts())?;
        self.must(&format!("zpool scrub -w {POOL}"))?;
        let status = self.must(&format!("zpool status -v {POOL}"))?;
        let is_clean = status.contains("scrub repaired 0B")
            && status.contains("with 0 errors")
            && status.contains("No known data errors");
        if !is_clean {
            return Err(format!("a scrub found something: {status}"));
        }
        self.must(&format!("zpool export {POOL}"))?;
        let disks = self.live.disks();
        for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
            judge.verify(&disks, POOL).map_err(|why| format!("{judge:?}: {why}"))?;
            self.course.count("judgements");
        }
        self.import("")?;
        self.files.compare(&self.mounts())
    }

    /// Keeps the images; where they are.
    pub(super) fn keep(&self) -> String {
        let to = std::env::temp_dir().join(format!("jobs-{}", std::process::id()));
        let done =
            Command::new("cp").args(["-a", "--sparse=always"]).arg(self.live.disks()).arg(&to).status();
        match done {
            Ok(status) if status.success() => to.display().to_string(),
            _ => "nothing".into(),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.live.signal("-KILL");
        // Remaining mounts would prevent the removal of the directory.
        let at = self.mounts();
        let mounted = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut ours: Vec<&Path> =
            mounted.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new).collect();
        ours.retain(|path| path.starts_with(&at));
        ours.reverse();
        for path in ours {
            // It may have disappeared with another one.
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
    }
}
