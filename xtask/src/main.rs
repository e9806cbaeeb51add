//! Repository tasks that take more than a line of make.

mod layering;
mod suite;
mod zts;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (word, rest) = args.split_first().map_or((None, &[][..]), |(word, rest)| (Some(word.as_str()), rest));
    match word {
        Some("layering") => report(layering::check(&layering::root())),
        Some("test") => suite::main(rest, &layering::root()),
        Some("zts") => zts::main(rest, &layering::root()),
        Some("zts-inside") => zts::inside(rest),
        _ => {
            eprintln!(
                "usage: cargo run -p xtask -- layering | test [OPTIONS] | zts [OPTIONS] [GROUP | GROUP/TEST]..."
            );
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
