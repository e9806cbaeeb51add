//! `zed`: OpenZFS's event daemon. It follows the events of the daemon that owns the pools and runs scripts for them.
//!
//! ```text
//! daemon ── source::serve ── pipe ──▶ source::follow ── News ──▶ service ── zedlets (matching) ── jobs (processes)
//!                                                                  │             variables (environment)
//!                                                                  └── files (last event)
//! ```
//!
//! The daemon keeps a bounded number of events. Here at most a few wait: while all places for zedlets are taken nothing is read.
//! It runs scripts only; disks are faulted and spares are taken by the daemon that owns the pools.
//!
//! Differs from OpenZFS: a zedlet has a time limit, no descriptor of the list of events, and `-I` is always set.

mod files;
mod jobs;
mod log;
mod options;
mod service;
pub mod source;
mod variables;
mod zedlets;

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::names::{BUILD, RELEASE};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::client::READY;
use daemon::paths::RunPaths;
use rustix::fs::Mode;
use rustix::mm::MlockAllFlags;

pub use options::Zed;

use crate::files::{PidFile, StateFile};
use crate::log::Log;
use crate::options::Options;
use crate::service::{Requests, Service};
use crate::zedlets::Zedlets;

const LICENSE: &str = "This event daemon is a part of Aquifer and is distributed under the terms of the MIT license or the Apache \
License, version 2.0, at your choice.";

impl Verb for Zed {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.license {
            writeln!(ctx.out, "{LICENSE}")?;
            return Ok(Exit::OK);
        }
        if self.show_version {
            writeln!(ctx.out, "zfs-{RELEASE}-{BUILD}")?;
            return Ok(Exit::OK);
        }
        if ctx.session.is_some() {
            return Err(Failure::failed("the event daemon is a process of its own"));
        }
        if self.foreground || self.detached {
            return self.serve(ctx);
        }
        let code =
            detach().map_err(|e| Failure::failed(format!("the process cannot leave the terminal: {e}")))?;
        Ok(Exit(code))
    }
}

impl Zed {
    fn serve(self, ctx: &mut Ctx) -> Outcome {
        let place = RunPaths::of_process();
        let options = Options::of(&self, &place);
        let log = Log::new(options.verbose, self.detached);
        let failed = |why: String| {
            log.error(&why);
            Ok(Exit::FAILED)
        };
        if let Err(why) = self.prepare() {
            return failed(why);
        }
        let zedlets = match Zedlets::of_dir(&options.zedlet_dir, options.force, &log) {
            Ok(zedlets) => zedlets,
            Err(why) => return failed(why),
        };
        if options.is_beside(&place)
            && let Err(e) = place.prepare()
        {
            return failed(e.to_string());
        }
        let reread = Arc::default();
        if let Err(e) = signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&reread)) {
            return failed(format!("SIGHUP cannot be handled: {e}"));
        }
        let pid = match PidFile::create(&options.pid_file) {
            Ok(pid) => Some(pid),
            Err(why) if options.force => {
                log.warn(&why);
                None
            }
            Err(why) => return failed(why),
        };
        let (state, position) = match StateFile::open(&options.state_file, options.zero)
            .and_then(|state| state.read().map(|position| (state, position)))
        {
            Ok(state) => state,
            Err(why) => return failed(why),
        };
        if self.detached
            && let Err(e) = leave_terminal(ctx, &log)
        {
            return failed(format!("the process cannot leave the terminal: {e}"));
        }
        log.notice(&format!("event daemon zfs-{RELEASE}-{BUILD} (PID {})", std::process::id()));
        let news = match source::follow(place, position) {
            Ok(news) => news,
            Err(e) => return failed(format!("no thread to read events: {e}")),
        };
        let requests = Requests { stop: ctx.interrupt.flag(), reread };
        Service::new(&options, &log, requests, zedlets, state).run(&news);
        log.notice("Exiting");
        drop(pid);
        Ok(Exit::OK)
    }

    /// Makes the process fit to run zedlets.
    fn prepare(&self) -> Result<(), String> {
        stdx::os::close_on_exec(3);
        rustix::process::umask(Mode::from_bits_truncate(0o022));
        std::env::set_current_dir("/").map_err(|e| format!("cannot change to the root directory: {e}"))?;
        // The process is named after `/proc/self/exe`, but tools search for it by its own name. Failure is harmless.
        let _ = rustix::thread::set_name(c"zed");
        if self.detached {
            // Fails only for the leader of a process group, which has no terminal to leave.
            let _ = rustix::process::setsid();
        }
        if self.lock_memory {
            rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
                .map_err(|e| format!("cannot lock memory: {}", io::Error::from(e)))?;
        }
        Ok(())
    }
}

/// Starts this command line again in the background, and waits until it is ready; returns the exit code.
fn detach() -> io::Result<u8> {
    let mut argv = std::env::args_os();
    let mut child = Command::new("/proc/self/exe")
        .arg0(argv.next().unwrap_or_default())
        .args(argv)
        .arg("--detached")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(0);
    }
    let status = child.wait()?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(1))
}

/// Tells the starter that the daemon is ready, and lets go of its streams.
fn leave_terminal(ctx: &mut Ctx, log: &Log) -> io::Result<()> {
    ctx.raw_out = None;
    let mut out = io::stdout();
    // The starter may have been ended.
    let _ = out.write_all(READY).and_then(|()| out.flush());
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    log.leave_terminal();
    Ok(())
}
