//! Commands in the daemon: each runs its verb with a [`Session`].

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clikit::clean::cleaned;
use clikit::ctx::Ctx;
use clikit::interrupt::Interrupt;
use clikit::session::{HeldPools, NAMES, Session};
use clikit::verb::{Exit, Outcome, Verb};
use daemon::{Call, Commands, Imported, Registry};
use zfs::delegated::are_kept_out;

use crate::daemon::Daemon;
use crate::excess::is_excessive;
use crate::kept_output::KeptOutput;
use crate::multicall;
use crate::patient::Patient;

/// The command dispatcher of the daemon.
#[derive(Debug)]
pub struct Verbs;

impl Commands for Verbs {
    fn run(&self, call: Call) -> u8 {
        if call.argv == [NAMES] {
            return names(call);
        }
        if zed::source::is_request(&call.argv) {
            return zed::source::serve(call);
        }
        clikit::output::time::use_zone(call.env.get("TZ").and_then(|word| word.to_str()));
        let word = |name: &str| call.env.get(name).and_then(|word| word.to_str()).map(str::to_owned);
        zpool::vdev_names::use_environment(word);
        zutil::environment::use_clients(call.env.clone());
        let (held, is_delegated) = (Arc::new(AtomicBool::new(false)), call.delegated.is_some());
        let session = Session {
            registry: call.registry,
            caller: call.caller,
            delegated: call.delegated,
            cwd: call.cwd,
            env: call.env,
            stdin: call.stdin,
            bar: call.stderr.is_terminal().then(|| call.stderr.try_clone().ok()).flatten(),
            line: line(&call.argv),
            holds: HeldPools::new(&held),
        };
        let patient = |stream| Patient::new(stream, &held, &call.interrupt);
        let terminals = (call.stdout.is_terminal(), call.stderr.is_terminal());
        let raw_out = call.stdout.try_clone().ok();
        let (out, err): (Box<dyn Write>, Box<dyn Write>) = match is_delegated {
            true => (Box::new(patient(call.stdout)), Box::new(patient(call.stderr))),
            false => (Box::new(Page::new(call.stdout)), Box::new(call.stderr)),
        };
        let mut ctx = Ctx::with_streams(cleaned(out, terminals.0), cleaned(err, terminals.1));
        if is_delegated && is_excessive(&call.argv) {
            ctx.warn("argument list too long");
            // The reader may have disconnected.
            let _ = ctx.err.flush();
            return Exit::FAILED.0;
        }
        ctx.interrupt = Interrupt::of(call.interrupt);
        let registry = Arc::clone(&session.registry);
        (ctx.session, ctx.raw_out) = (Some(session), raw_out);
        let code = multicall::run(call.argv, &mut ctx).0;
        registry.cache_notes().into_iter().for_each(|note| ctx.warn(note));
        code
    }

    fn only_listens(&self, argv: &[OsString]) -> bool {
        zed::source::is_request(argv)
    }

    fn start(&self, registry: &Registry) {
        registry.set_mounter(Arc::new(zfs::fuse::Fuse));
    }

    fn imported(&self, pool: &Arc<Imported>, registry: &Registry) {
        zfs::mount::mount_imported(pool, registry).iter().for_each(|why| eprintln!("{why}"));
    }
}

/// Prints the names of the pools, a line each, for a client that queries more than one daemon.
fn names(mut call: Call) -> u8 {
    if call.delegated.is_some() && are_kept_out(&call.registry) {
        return Exit::FAILED.0;
    }
    let text: String = call.registry.names().iter().map(|name| format!("{name}\n")).collect();
    let written = match call.delegated.is_some() {
        true => {
            let mut out = Patient::new(call.stdout, &Arc::default(), &call.interrupt);
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        }
        false => call.stdout.write_all(text.as_bytes()),
    };
    if written.is_ok() { Exit::OK.0 } else { Exit::FAILED.0 }
}

/// Maximum bytes of a page in memory.
const PAGE: usize = 8 << 20;

/// Buffers output until it is flushed: a slow reader must not delay the command while it holds a pool.
struct Page {
    kept: KeptOutput,
    out: File,
}

impl Page {
    fn new(out: File) -> Self {
        Self { kept: KeptOutput::default(), out }
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.kept.push(bytes);
        // Where no folder accepts a file, the owner's output stays in memory.
        let _ = self.kept.spill_above(PAGE);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        std::mem::take(&mut self.kept).write_to(&mut |text| self.out.write_all(text))
    }
}

/// The command line for the history: `zfs create tank/a`, whatever name the program was called by.
fn line(argv: &[OsString]) -> String {
    let mut words: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(first) = words.first_mut() {
        *first = first.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if words.first().is_some_and(|first| !matches!(first.as_str(), "zpool" | "zfs")) {
        words.remove(0);
    }
    words.join(" ")
}

impl Verb for Daemon {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        self.serve(Arc::new(Verbs), ctx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_does_not_know_how_the_program_was_called() {
        for argv in [&["/sbin/zfs", "create", "t/a"][..], &["./aquifer", "zfs", "create", "t/a"]] {
            assert_eq!(line(&argv.iter().map(OsString::from).collect::<Vec<_>>()), "zfs create t/a");
        }
    }
}
