//! `nothing DIR`: mounts a file system that does nothing, until it is unmounted. `bench/mounts.sh` measures it as the
//! limit of the transport, which is io_uring where the kernel has it, as for the daemon (`AQUIFER_IO_URING=0`: `/dev/fuse`).

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(at) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: nothing DIR");
        return ExitCode::from(2);
    };
    if std::env::var_os("AQUIFER_IO_URING").is_none_or(|choice| choice != "0") {
        zfuse::use_io_uring(true);
        if let Err(e) = zfuse::enable_in_kernel(false) {
            eprintln!("nothing: FUSE over io_uring stays off: {e}");
        }
    }
    match zfuse::serve_nothing(&at) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nothing: {}: {e}", at.display());
            ExitCode::FAILURE
        }
    }
}
