//! Repository chores that are more than a line of make.

mod layering;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("layering") => report(layering::check(&layering::root())),
        _ => {
            eprintln!("usage: cargo run -p xtask -- layering");
            ExitCode::from(2)
        }
    }
}

fn report(faults: Vec<String>) -> ExitCode {
    for fault in &faults {
        eprintln!("{fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
