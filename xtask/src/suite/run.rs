//! Runs one test binary, counts its tests, and keeps its output.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::build::Binary;
use super::clock;
use super::room::{Room, gib};

/// Time within which a killed binary ends unless its kernel holds it.
const AFTER_KILL: Duration = Duration::from_secs(10);

/// How a test binary ended.
pub struct BinaryRun {
    /// The binary's name.
    pub name: String,
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that were not selected.
    pub ignored: usize,
    /// Names of failed tests; the reason when the binary itself failed.
    pub failures: Vec<String>,
    /// Whether the binary succeeded and counted its tests.
    pub sound: bool,
    took: Duration,
    /// Processor time of the binary and of all processes that it waited for.
    cpu: Duration,
    log: String,
}

/// The results of a run.
#[derive(Default)]
struct Ended {
    success: bool,
    cpu: Duration,
    log: String,
}

impl BinaryRun {
    /// Prints a line, preceded by the binary's output if it failed, and its notices of skipped tests.
    pub fn tell(&self) {
        let Self { name, passed, failed, .. } = self;
        let log = if self.sound { "" } else { self.log.as_str() };
        let notices: String = match self.sound {
            true => self.log.lines().filter(|l| l.starts_with("SKIPPED")).map(|l| format!("{l}\n")).collect(),
            false => String::new(),
        };
        let word = if self.sound { "ok" } else { "FAILED" };
        // One call, so that lines of binaries that end at the same time stay whole.
        let (took, cpu) = (clock(self.took), self.cpu.as_secs());
        println!("{log}{notices}{took:>6} {cpu:>4} CPU s {word:6} {name}: {passed} passed, {failed} failed");
    }

    /// The processor time that it took.
    pub fn cpu(&self) -> Duration {
        self.cpu
    }

    /// Reads the counts of a log.
    fn count(&mut self) {
        let mut counted = false;
        for line in self.log.lines() {
            if let Some(test) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
                self.failures.push(test.to_owned());
            }
            let Some(counts) = line.strip_prefix("test result: ") else { continue };
            counted = true;
            let number = |word: &str| -> usize {
                let before = counts.split([';', '.']).find_map(|part| part.trim().strip_suffix(word));
                before.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
            };
            self.passed += number("passed");
            self.failed += number("failed");
            self.ignored += number("ignored");
        }
        self.sound &= counted && self.failed == 0;
        if !self.sound && self.failures.is_empty() {
            self.failures.push("the binary ended early".into());
        }
    }
}

/// The bounds of each binary of a run.
pub struct Bounds {
    /// The longest time of a binary; one that takes longer is killed and fails. `None`: any time.
    pub limit: Option<Duration>,
    /// Free space for temporary files.
    pub room: Room,
}

/// Runs a binary in its crate's directory as `cargo test` does.
pub fn run(binary: &Binary, arguments: &[String], root: &Path, bounds: &Bounds) -> BinaryRun {
    let begun = Instant::now();
    let ended = logged(binary, arguments, root, bounds).unwrap_or_else(|why| Ended {
        log: format!("{}: {why}\n", binary.program.display()),
        ..Ended::default()
    });
    let mut outcome = BinaryRun {
        name: binary.name.clone(),
        passed: 0,
        failed: 0,
        ignored: 0,
        failures: Vec::new(),
        sound: ended.success,
        took: begun.elapsed(),
        cpu: ended.cpu,
        log: ended.log,
    };
    outcome.count();
    outcome
}

/// Runs a binary with its output in a file.
fn logged(binary: &Binary, arguments: &[String], root: &Path, bounds: &Bounds) -> std::io::Result<Ended> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let folder = target.join("test-logs");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{}.log", binary.name.replace('/', "-")));
    let file = File::create(&path)?;
    let mut child = Command::new(&binary.program)
        .args(arguments)
        .current_dir(&binary.folder)
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    let mut end = wait(&mut child, bounds)?;
    let mut log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
    if let Some(why) = end.killed.take() {
        log += &format!("\n{}: {why}\n", binary.name);
    }
    Ok(Ended { success: end.status.is_some_and(|status| status.success()), cpu: end.cpu, log })
}

/// The end of a process.
struct ProcessEnd {
    /// `None`: it was killed and did not end, as in a request that its kernel does not let go of.
    status: Option<ExitStatus>,
    /// Its processor time, which the kernel shows until the process is waited for.
    cpu: Duration,
    /// The reason for which it was killed.
    killed: Option<String>,
}

/// Waits for a process within its bounds.
fn wait(child: &mut Child, bounds: &Bounds) -> std::io::Result<ProcessEnd> {
    let stat = format!("/proc/{}/stat", child.id());
    let (begun, mut killed, mut rounds) = (Instant::now(), None, 0_u32);
    loop {
        let cpu = std::fs::read_to_string(&stat).ok().and_then(|stat| ended(&stat));
        if cpu.is_some() || !Path::new(&stat).exists() {
            return Ok(ProcessEnd { status: Some(child.wait()?), cpu: cpu.unwrap_or_default(), killed });
        }
        std::thread::sleep(Duration::from_millis(20));
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(50) {
            bounds.room.look();
        }
        let Some(limit) = bounds.limit.filter(|limit| begun.elapsed() > *limit) else { continue };
        if killed.is_none() {
            let (limit, room) = (clock(limit), gib(bounds.room.look()));
            killed = Some(format!("killed after {limit}; {room} are free for temporary files"));
            child.kill()?;
        } else if begun.elapsed() > limit + AFTER_KILL {
            return Ok(ProcessEnd { status: None, cpu: Duration::ZERO, killed });
        }
    }
}

/// Processor time (user and system, with waited-for children) in the line of a process that has ended; `None` for one
/// that runs.
fn ended(stat: &str) -> Option<Duration> {
    // The name in parentheses may hold spaces.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|n| n.parse::<u64>().ok()).sum::<Option<u64>>()?;
    // Linux counts in hundredths of a second here, on every architecture that Rust supports well.
    (fields.first() == Some(&"Z")).then(|| Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(log: &str, sound: bool) -> BinaryRun {
        let (name, failures) = (String::new(), Vec::new());
        let mut outcome = BinaryRun {
            name,
            passed: 0,
            failed: 0,
            ignored: 0,
            failures,
            sound,
            took: Duration::ZERO,
            cpu: Duration::ZERO,
            log: log.into(),
        };
        outcome.count();
        outcome
    }

    #[test]
    fn counts_are_read_and_a_missing_count_is_a_failure() {
        let good =
            outcome("test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out", true);
        assert!(good.sound && (good.passed, good.failed, good.ignored) == (12, 0, 3));
        let log = "test a::b ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured";
        let bad = outcome(log, false);
        assert!(!bad.sound && bad.failures == ["a::b"]);
        assert!(!outcome("running 3 tests\ntest a ...", true).sound);
        assert!(!outcome(log, true).sound);
    }

    #[test]
    fn the_time_of_a_process_is_known_when_it_has_ended() {
        let line = |state| format!("7 (a ) b) {state} 1 7 7 0 -1 4 9 0 0 0 150 30 20 4 20 0 1");
        assert_eq!(ended(&line("Z")), Some(Duration::from_millis(2040)));
        assert_eq!(ended(&line("R")), None);
        let count = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; exit 3";
        let mut child =
            Command::new("sh").args(["-c", &format!("sh -c '{count}'; exit $?")]).spawn().unwrap();
        let end = wait(&mut child, &bounds(None)).unwrap();
        assert!(end.status.unwrap().code() == Some(3) && end.killed.is_none());
        assert!(end.cpu > Duration::ZERO, "{:?}", end.cpu);
    }

    fn bounds(limit: Option<Duration>) -> Bounds {
        Bounds { limit, room: Room::of_temporary().unwrap() }
    }

    #[test]
    fn a_binary_that_does_not_end_is_killed() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let end = wait(&mut child, &bounds(Some(Duration::from_millis(100)))).unwrap();
        assert!(end.status.is_some_and(|status| !status.success()));
        assert!(end.killed.is_some_and(|why| why.starts_with("killed after 0:00")));
    }
}
