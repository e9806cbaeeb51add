//! `make kill SEED=… COUNT=…`: the built daemon, killed COUNT times.

use std::process::{Command, ExitCode};
use std::time::Instant;

use sim::kill::{KillPlan, Layout, run, serve};

/// Kills of one pool.
const BATCH: u64 = 20;

fn main() -> ExitCode {
    if serve() {
        return ExitCode::SUCCESS;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let [binary, seed, count] = words.as_slice() else { return usage() };
    let (Ok(binary), Ok(seed), Ok(count)) = (std::fs::canonicalize(binary), seed.parse(), count.parse())
    else {
        return usage();
    };
    let program = || Command::new(std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into()));
    let (begun, mut seed, mut left): (Instant, u64, u64) = (Instant::now(), seed, count);
    while left > 0 {
        let kills = left.min(BATCH);
        let at = usize::try_from(seed).unwrap_or(0) % Layout::ALL.len();
        let layout = Layout::ALL.get(at).copied().unwrap_or(Layout::Mirror);
        let plan = KillPlan { binary: binary.clone(), seed, layout, kills, judged_every: 5, longest: 1500 };
        match run(&plan, &program) {
            Ok(course) => println!("seed {seed}, {layout:?}, {} s: {course:?}", begun.elapsed().as_secs()),
            Err(why) => {
                println!("seed {seed}, {layout:?}: {why}");
                return ExitCode::FAILURE;
            }
        }
        (seed, left) = (seed + 1, left - kills);
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: kill AQUIFER SEED COUNT    kills the daemon of that binary COUNT times");
    ExitCode::from(2)
}
