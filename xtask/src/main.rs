//! Repository tasks that take more than a line of make.

mod layering;
mod structure;
mod suite;
mod zts;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args();
    // Under that name it is the command.
    let is_sum = args.next().is_some_and(|name| name.rsplit('/').next() == Some("xxh128sum"));
    let args: Vec<String> = args.collect();
    if is_sum {
        return zts::xxh128sum(&args);
    }
    let (word, rest) = args.split_first().map_or((None, &[][..]), |(word, rest)| (Some(word.as_str()), rest));
    match word {
        Some("layering") if rest.first().is_some_and(|word| word == "--record") => {
            report(structure::record(&layering::root()))
        }
        Some("layering") => {
            let root = layering::root();
            report([layering::check(&root), structure::check(&root)].concat())
        }
        Some("figures") => {
            structure::figures(&rest.first().map_or_else(layering::root, Into::into));
            ExitCode::SUCCESS
        }
        Some("test") => suite::main(rest, &layering::root()),
        Some("zts") => zts::main(rest, &layering::root()),
        Some("zts-inside") => zts::inside(rest),
        _ => {
            eprintln!(
                "usage: cargo run -p xtask -- layering [--record] | figures [TREE] | test [OPTIONS] | zts [OPTIONS] [GROUP | GROUP/TEST]..."
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
