//! The program: the way of a command line to its verb.
//!
//! One binary, many names ([`multicall`]); [`command`] declares the whole tree. A verb is declared once, as a clap struct
//! in its own file, and runs against a [`clikit::ctx::Ctx`], which holds its output streams and the interrupt flag. The
//! verbs are in crates below this one: [`zpool`], [`zfs`], `zdb`, `browse`, `monitor`, `zstream`, `poolbench`, `sharing`.
//!
//! Exit codes are OpenZFS's: 0 success, 1 failure, 2 wrong usage.

mod admit;
mod asked;
mod classify;
pub mod command;
pub mod daemon;
mod dispatch;
mod excess;
mod kept_output;
pub mod mount;
pub mod multicall;
pub mod pages;
mod patient;
mod posix;
mod refusal;
mod replicate;
mod route;
#[cfg(test)]
mod testing;
mod usage;
pub mod zinject;

use std::ffi::OsString;
use std::process::ExitCode;

use clikit::ctx::Ctx;
use clikit::fetch;
use clikit::verb::Exit;

/// Runs the program on this process's arguments and standard streams.
pub fn main() -> ExitCode {
    if pages::complete::answer() {
        return ExitCode::SUCCESS;
    }
    // Every part of the program may read a key.
    stdx::os::hide_memory();
    let argv: Vec<OsString> = std::env::args_os().collect();
    if let [program, verb, words @ ..] = argv.as_slice()
        && program == zfuse::mount_helper::PROGRAM
    {
        match (verb, words) {
            (verb, words) if verb == zfuse::mount_helper::VERB => {
                return ExitCode::from(zfuse::mount_helper::act(words));
            }
            (verb, [location]) if verb == fetch::VERB => return ExitCode::from(fetch::act(location)),
            _ => {}
        }
    }
    let mut ctx = Ctx::from_process();
    let exit = multicall::run(argv, &mut ctx);
    if exit != Exit::OK && ctx.is_openzfs() {
        // OpenZFS's commands handle no signal, so service managers and programs expect this end.
        ctx.interrupt.end_process();
    }
    ExitCode::from(exit.0)
}
