//! Rounds of work, kill and check.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stdx::rng::Rng;

use super::bench::{Bench, DATASETS, Layout, POOL, wait};
use super::ledger::{Found, Ledger, read_dir};
use super::worker::Worker;

/// Number of rounds that a directory is kept.
const KEPT: usize = 3;
/// Number of workers on each file system.
const WORKERS: u64 = 2;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct KillPlan {
    /// The built program.
    pub binary: PathBuf,
    /// Determines load and moments.
    pub seed: u64,
    /// The layout of the pool.
    pub layout: Layout,
    /// Number of kills.
    pub kills: u64,
    /// The pool is exported and checked with zdb after so many kills, and at the end.
    pub judged_every: u64,
    /// Maximum time from the start of the load to the kill, in milliseconds.
    pub longest: u64,
}

/// The results.
#[derive(Debug, Default, Clone, Copy)]
pub struct KillCourse {
    /// Kills.
    pub kills: u64,
    /// Number of kills while it was starting.
    pub while_starting: u64,
    /// Completed operations of workers.
    pub operations: u64,
    /// Number of them that made something durable.
    pub syncs: u64,
    /// Compared snapshots.
    pub snapshots: u64,
    /// Datasets created by acknowledged commands.
    pub answered: u64,
    /// Number of checks with the real zdb, if it is installed.
    pub judged: u64,
}

struct Run<'a> {
    plan: &'a KillPlan,
    program: &'a dyn Fn() -> Command,
    bench: Bench,
    random: Rng,
    course: KillCourse,
    /// Content of the directories of earlier rounds.
    settled: BTreeMap<PathBuf, Found>,
    /// Datasets that must exist, and those that may.
    made: BTreeSet<String>,
    perhaps: BTreeSet<String>,
}

/// Kills the daemon as often as planned. `program` starts this program again, as a worker.
///
/// # Errors
/// The violated expectation.
pub fn run(plan: &KillPlan, program: &dyn Fn() -> Command) -> Result<KillCourse, String> {
    let bench = Bench::new(&plan.binary, plan.layout)?;
    let (made, perhaps, settled) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    let (random, course) = (Rng::new(plan.seed), KillCourse::default());
    let mut run = Run { plan, program, bench, random, course, settled, made, perhaps };
    for round in 1..=plan.kills {
        run.round(round)
            .map_err(|why| format!("seed {}, kill {round}: {why}\n{}", plan.seed, run.bench.live.log()))?;
        if round.is_multiple_of(plan.judged_every) || round == plan.kills {
            run.bench
                .judge()
                .and_then(|()| run.bench.come_back())
                .map_err(|why| format!("seed {}, exported after kill {round}: {why}", plan.seed))?;
            run.course.judged += 1;
            run.look_at_settled().map_err(|why| format!("imported again: {why}"))?;
        }
    }
    run.bench.ok(&format!("zpool destroy {POOL}"))?;
    Ok(run.course)
}

impl Run<'_> {
    fn round(&mut self, round: u64) -> Result<(), String> {
        let workers = self.workers(round);
        let mut children = Vec::new();
        for worker in &workers {
            let child = worker.start((self.program)(), &self.bench.live.dir.path().join("run"));
            children.push(child.map_err(|e| format!("a worker can't be started: {e}"))?);
        }
        self.commands_and_kill(round, &mut children)?;
        self.bench.mounts_answer()?;
        for child in &mut children {
            wait(child, "a process that works on a mount of a killed daemon")?;
        }
        self.start_again()?;
        self.bench.come_back()?;
        for worker in &workers {
            self.look(worker).map_err(|why| format!("{}: {why}", worker.dir.display()))?;
        }
        self.look_at_settled()?;
        self.look_at_names()?;
        self.tidy(round)
    }

    fn over(&self, round: u64) -> PathBuf {
        self.bench.live.dir.path().join(format!("over{round}"))
    }

    fn workers(&mut self, round: u64) -> Vec<Worker> {
        let mut workers = Vec::new();
        for (dataset, _) in DATASETS {
            for number in 0..WORKERS {
                let name = format!("r{round}w{number}");
                let ledger = format!("{}-{name}", dataset.replace('/', "-"));
                workers.push(Worker {
                    seed: self.random.next_u64(),
                    dir: self.bench.mount_of(dataset).join(&name),
                    over: self.over(round),
                    ledger: self.bench.live.dir.path().join(ledger),
                    dataset: dataset.into(),
                    binary: self.plan.binary.clone(),
                });
            }
        }
        workers
    }

    /// Runs commands that create and destroy datasets until the daemon is killed.
    fn commands_and_kill(&mut self, round: u64, children: &mut [Child]) -> Result<(), String> {
        let after = Duration::from_millis(self.random.below(self.plan.longest));
        let (over, file, bench) = (AtomicBool::new(false), self.over(round), &self.bench);
        let (made, perhaps) = std::thread::scope(|scope| {
            let client = scope.spawn(|| commands(bench, round, &over));
            std::thread::sleep(after);
            let early = children.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)));
            over.store(true, Ordering::SeqCst);
            let said = std::fs::write(&file, "").map_err(|e| e.to_string());
            bench.live.signal("-KILL");
            said?;
            match client.join() {
                Ok(Ok(_)) if early => Err("a worker ended before the daemon was killed".into()),
                Ok(done) => done,
                Err(_) => Err("a client panicked".into()),
            }
        })?;
        self.course.kills += 1;
        self.course.answered += made.len() as u64;
        self.made.extend(made);
        self.perhaps.extend(perhaps);
        Ok(())
    }

    /// The next command starts the daemon; occasionally that one is killed while starting.
    fn start_again(&mut self) -> Result<(), String> {
        while self.random.below(4) == 0 {
            let mut child = self.bench.live.command("zfs list").stdout(std::process::Stdio::null()).spawn();
            std::thread::sleep(Duration::from_millis(self.random.below(400)));
            self.bench.live.signal("-KILL");
            if let Ok(child) = &mut child {
                wait(child, "a command whose daemon was killed while it was starting")?;
            }
            // A waiting client may have restarted it.
            self.course.while_starting += 1;
        }
        Ok(())
    }

    /// Checks that a worker's durable changes exist.
    fn look(&mut self, worker: &Worker) -> Result<(), String> {
        let ledger = Ledger::read(worker)?;
        // ENOTCONN, ECONNABORTED, and over io_uring ECANCELED.
        let ended = ["os error 107", "os error 103", "os error 125", "a program ended with"];
        let fatal = |why: &str| !ended.iter().any(|w| why.contains(w));
        match &ledger.failed {
            Some(why) if fatal(why) => return Err(format!("an operation failed: {why}")),
            _ => {}
        }
        if !ledger.ready {
            return Ok(());
        }
        let found = read_dir(&worker.dir)?;
        ledger.allows(&found)?;
        self.settled.insert(worker.dir.clone(), found);
        self.course.operations += ledger.count();
        self.course.syncs += ledger.syncs();
        let snapshots = self.bench.mount_of(&worker.dataset).join(".zfs/snapshot");
        for (number, wanted) in ledger.snapshots() {
            let name = worker.snapshot(number);
            let full = format!("{}@{name}", worker.dataset);
            self.bench.ok(&format!("zfs list -H -o name {full}"))?;
            let at = snapshots.join(&name).join(worker.dir.file_name().unwrap_or_default());
            if read_dir(&at)? != wanted {
                return Err(format!("{full} holds something else"));
            }
            self.course.snapshots += 1;
            if self.random.below(2) == 0 {
                self.bench.ok(&format!("zfs destroy {full}"))?;
            }
        }
        Ok(())
    }

    /// Checks that directories of earlier rounds are unchanged.
    fn look_at_settled(&self) -> Result<(), String> {
        for (dir, wanted) in &self.settled {
            if read_dir(dir)? != *wanted {
                return Err(format!("{} has changed since it was looked at", dir.display()));
            }
        }
        Ok(())
    }

    /// Checks the results of acknowledged commands.
    fn look_at_names(&mut self) -> Result<(), String> {
        let names = self.bench.ok("zfs list -H -o name")?;
        let names: BTreeSet<String> = names.lines().map(str::to_owned).collect();
        if let Some(lost) = self.made.iter().find(|name| !names.contains(*name)) {
            return Err(format!("{lost} was made and is lost"));
        }
        let known = |name: &String| {
            name == POOL || DATASETS.iter().any(|(known, _)| known == name) || self.perhaps.contains(name)
        };
        match names.iter().find(|name| !known(name) && !self.made.contains(*name)) {
            Some(name) => Err(format!("{name} was destroyed and is there")),
            None => {
                self.perhaps.retain(|name| names.contains(name));
                Ok(())
            }
        }
    }

    /// Removes directories and snapshots of older rounds.
    fn tidy(&mut self, round: u64) -> Result<(), String> {
        let kept = |dir: &Path| {
            let rounds = (0..KEPT as u64).map(|back| format!("r{}w", round.saturating_sub(back)));
            let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
            rounds.into_iter().any(|start| name.starts_with(&start))
        };
        for dir in self.settled.keys().filter(|dir| !kept(dir)) {
            std::fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        }
        self.settled.retain(|dir, _| kept(dir));
        if round.is_multiple_of(2) {
            for name in std::mem::take(&mut self.made).into_iter().chain(std::mem::take(&mut self.perhaps)) {
                self.bench.ok(&format!("zfs destroy -r {name}"))?;
            }
        }
        Ok(())
    }
}

/// Names that must exist, and names that may.
type Names = (BTreeSet<String>, BTreeSet<String>);

fn commands(bench: &Bench, round: u64, over: &AtomicBool) -> Result<Names, String> {
    let (mut made, mut perhaps) = Names::default();
    for number in 0u64.. {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("{POOL}/n{round}-{number}");
        perhaps.insert(name.clone());
        let volume = if number % 2 == 0 { "-V 1M" } else { "" };
        let mut line = format!("zfs create {volume} {name}");
        if number % 3 == 2 {
            line = format!("zfs destroy {POOL}/n{round}-{}", number - 1);
            perhaps.remove(&name);
        }
        let mut child = bench.live.command(&line);
        let child = child.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null()).spawn();
        let mut child = child.map_err(|e| e.to_string())?;
        let before = format!("{POOL}/n{round}-{}", number.saturating_sub(1));
        if number % 3 == 2 && made.remove(&before) {
            perhaps.insert(before.clone());
        }
        let worked = wait(&mut child, "a command whose daemon was killed")?.success();
        if !worked && !over.load(Ordering::SeqCst) {
            return Err(format!("{line} failed before the daemon was killed"));
        }
        match (worked, number % 3) {
            (true, 2) => drop(perhaps.remove(&before)),
            (true, _) => {
                perhaps.remove(&name);
                made.insert(name);
            }
            (false, _) => {}
        }
    }
    Ok((made, perhaps))
}
