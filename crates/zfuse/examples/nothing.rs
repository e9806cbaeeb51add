//! `nothing DIR`: mounts a file system that does nothing, until it is unmounted. `bench/mounts.sh` measures it as the
//! limit of the transport.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(at) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: nothing DIR");
        return ExitCode::from(2);
    };
    match zfuse::serve_nothing(&at) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nothing: {}: {e}", at.display());
            ExitCode::FAILURE
        }
    }
}
