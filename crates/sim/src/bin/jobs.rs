//! `make jobs SEED=… COUNT=…`: jobs of COUNT pools, with odd changes in their midst, by the built program.

use std::process::ExitCode;
use std::time::Instant;

use sim::jobs::live;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let [binary, seed, count] = words.as_slice() else { return usage() };
    let (Ok(binary), Ok(seed), Ok(count)) =
        (std::fs::canonicalize(binary), seed.parse::<u64>(), count.parse::<u64>())
    else {
        return usage();
    };
    let begun = Instant::now();
    for seed in seed..seed.saturating_add(count) {
        match live(&binary, seed) {
            Ok(course) => println!("seed {seed}, {} s: {course}", begun.elapsed().as_secs()),
            Err(why) => {
                println!("seed {seed}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: jobs AQUIFER SEED COUNT    jobs of COUNT pools, with odd changes in their midst");
    ExitCode::from(2)
}
