//! `xtask test`: builds every test of the workspace, then runs the test binaries side by side.
//!
//! `cargo test` runs one binary after another; many of ours wait for devices, mounts and daemons, so a core idles.
//! The longest binaries of `slow.txt` start first. Each binary writes to a log of its own; a failure prints its log.
//! A binary that does not end is killed after 20 minutes, unless slow tests are selected, and free space is watched.
//! The last line counts all tests. The processor seconds of each binary, beside its time, do not depend on what else
//! the machine does.

mod build;
mod room;
mod run;

use std::collections::VecDeque;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use self::build::Binary;
use self::room::Room;
use self::run::{BinaryRun, Bounds};

/// Binaries with their seconds in the run that docs/testing.md shows.
const SLOW: &str = include_str!("slow.txt");

/// The longest time of a binary unless tests are selected that take longer: four times the slowest on an idle machine.
/// A test that hangs costs this much and names itself, instead of all of the time that CI grants.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// The parsed command line.
struct Options {
    /// Binaries that run at the same time.
    jobs: usize,
    /// Substrings of the binaries' names; empty selects all.
    only: Vec<String>,
    /// Arguments for the binaries (`--include-ignored`).
    pass: Vec<String>,
    /// Arguments for `cargo test --no-run` (`--profile`, `--config`).
    cargo: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        // One more than cores: many tests wait for devices and mounts.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self { jobs: cores + 1, only: Vec::new(), pass: Vec::new(), cargo: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "-j" => options.jobs = args.next().and_then(|n| n.parse().ok()).ok_or("-j takes a number")?,
                "--cargo" => options.cargo.push(args.next().ok_or("--cargo takes an argument")?.clone()),
                "--" => options.pass = args.by_ref().cloned().collect(),
                word if word.starts_with('-') => return Err(format!("unknown option {word}")),
                word => options.only.push(word.to_owned()),
            }
        }
        if options.jobs == 0 {
            return Err("-j takes a number above 0".into());
        }
        Ok(options)
    }
}

/// Runs the suite in the workspace at `root`; fails if a build, a test or a binary fails, or if no test runs.
pub fn main(args: &[String], root: &Path) -> ExitCode {
    match suite(args, root) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("xtask test: {why}");
            eprintln!(
                "usage: cargo run -p xtask -- test [-j JOBS] [--cargo ARGUMENT]... [NAME]... [-- ARGUMENT...]"
            );
            ExitCode::from(2)
        }
    }
}

fn suite(args: &[String], root: &Path) -> Result<bool, String> {
    let options = Options::parse(args)?;
    let begun = Instant::now();
    let mut binaries = build::build(root, &options.cargo)?;
    binaries.retain(|b| {
        options.only.is_empty() || options.only.iter().any(|word| b.name.contains(word.as_str()))
    });
    binaries.sort_by_key(|b| std::cmp::Reverse(seconds(&b.name)));
    println!("built {} test binaries in {}", binaries.len(), clock(begun.elapsed()));
    let room = Room::of_temporary()?;
    let bounds = Bounds { limit: options.pass.is_empty().then_some(LIMIT), room };
    let outcomes = side_by_side(binaries, &options, root, &bounds);
    let (passed, failed, ignored) = outcomes.iter().fold((0, 0, 0), |(p, f, i), outcome| {
        // A binary that ends without a count has failed, too.
        let lost = usize::from(!outcome.sound && outcome.failed == 0);
        (p + outcome.passed, f + outcome.failed + lost, i + outcome.ignored)
    });
    println!("{}", bounds.room.tell());
    let cpu = outcomes.iter().map(BinaryRun::cpu).sum();
    println!("the suite took {}; the tests' processor time is {}", clock(begun.elapsed()), clock(cpu));
    for outcome in outcomes.iter().filter(|o| !o.sound) {
        println!("FAILED: {}: {}", outcome.name, outcome.failures.join(", "));
    }
    println!("{passed} passed, {failed} failed, {ignored} skipped");
    Ok(failed == 0 && passed > 0)
}

/// Seconds of a binary in the recorded run; 0 for unlisted ones.
fn seconds(name: &str) -> u64 {
    let line = SLOW.lines().find_map(|line| line.strip_suffix(name)?.trim_end().parse().ok());
    line.unwrap_or(0)
}

fn side_by_side(binaries: Vec<Binary>, options: &Options, root: &Path, bounds: &Bounds) -> Vec<BinaryRun> {
    let (waiting, outcomes) = (Mutex::new(VecDeque::from(binaries)), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let Some(binary) = waiting.lock().ok().and_then(|mut w| w.pop_front()) else { return };
                    let outcome = run::run(&binary, &options.pass, root, bounds);
                    outcome.tell();
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome);
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_default()
}

fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_times_belong_to_whole_names() {
        for line in SLOW.lines() {
            let (count, name) = line.trim().split_once(' ').unwrap();
            assert_eq!(seconds(name.trim()), count.parse::<u64>().unwrap(), "{line}");
        }
        assert_eq!(seconds("no such binary"), 0);
    }

    #[test]
    fn options_are_told_apart() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options =
            Options::parse(&words("-j 3 sim --cargo --release crash -- --include-ignored x")).unwrap();
        assert_eq!((options.jobs, options.only.len(), options.pass.len(), options.cargo.len()), (3, 2, 2, 1));
        assert!(Options::parse(&words("--fast")).is_err() && Options::parse(&words("-j 0")).is_err());
    }
}
