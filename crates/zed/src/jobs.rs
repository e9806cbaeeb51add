//! The running zedlets: at most a given number at once, each with a time limit.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::log::Log;
use crate::variables::Variables;

/// Interval of checks while a zedlet must wait for others.
const POLL: Duration = Duration::from_millis(10);
/// Time between the request to end and the end by force.
const GRACE: Duration = Duration::from_secs(5);

/// A running zedlet. It leads a process group of its own, so that its children end with it.
#[derive(Debug)]
struct Job {
    child: Child,
    name: String,
    eid: u64,
    began: Instant,
    /// When it is asked to end.
    limit: Option<Instant>,
    /// When it is ended by force.
    force: Option<Instant>,
}

/// The running zedlets.
#[derive(Debug)]
pub struct Jobs {
    running: Vec<Job>,
    most: usize,
    limit: Option<Duration>,
    /// Set when nothing is to be waited for.
    stop: Arc<AtomicBool>,
}

impl Jobs {
    /// At most `most` at once, each for at most `limit`.
    pub fn new(most: usize, limit: Option<Duration>, stop: Arc<AtomicBool>) -> Self {
        Self { running: Vec::new(), most: most.max(1), limit, stop }
    }

    /// Whether none is running.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Starts a zedlet when there is a place for it; `false` if `stop` was set before.
    pub fn start(&mut self, path: &Path, name: &str, eid: u64, variables: &Variables, log: &Log) -> bool {
        if !self.wait(self.most - 1, log) {
            return false;
        }
        match spawn(path, variables) {
            Ok(child) => {
                log.info(&format!("Invoking \"{name}\" eid={eid} pid={}", child.id()));
                let began = Instant::now();
                let limit = self.limit.and_then(|limit| began.checked_add(limit));
                self.running.push(Job { child, name: name.to_owned(), eid, began, limit, force: None });
            }
            Err(e) => log.warn(&format!("Failed to run \"{name}\" for eid={eid}: {e}")),
        }
        true
    }

    /// Waits until none is running, or `stop` is set.
    pub fn finish(&mut self, log: &Log) {
        self.wait(0, log);
    }

    /// Waits until at most `count` are running; `false` if `stop` is set.
    fn wait(&mut self, count: usize, log: &Log) -> bool {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            self.tend(log);
            if self.running.len() <= count {
                return true;
            }
            thread::sleep(POLL);
        }
    }

    /// Collects those that have ended, and ends those whose time is over.
    pub fn tend(&mut self, log: &Log) {
        self.running.retain_mut(|job| match job.child.try_wait() {
            Ok(None) => {
                job.check_time(log);
                true
            }
            Ok(Some(status)) => {
                job.report(status, log);
                false
            }
            Err(e) => {
                log.warn(&format!("Failed to wait for \"{}\" eid={}: {e}", job.name, job.eid));
                false
            }
        });
    }
}

impl Job {
    fn check_time(&mut self, log: &Log) {
        let now = Instant::now();
        if self.force.is_some_and(|force| now >= force) {
            self.signal(Signal::KILL);
        } else if self.force.is_none() && self.limit.is_some_and(|limit| now >= limit) {
            let (name, eid, pid) = (&self.name, self.eid, self.child.id());
            log.warn(&format!("Ending \"{name}\" eid={eid} pid={pid}: its time limit is over"));
            self.signal(Signal::TERM);
            self.force = now.checked_add(GRACE);
        }
    }

    /// Signals the group. The child has not been waited for, so its number is still its own.
    fn signal(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The group may have ended meanwhile.
            let _ = kill_process_group(group, signal);
        }
    }

    fn report(&self, status: ExitStatus, log: &Log) {
        let end = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit={code}"),
            (None, Some(signal)) => format!("sig={signal}"),
            (None, None) => format!("status={status}"),
        };
        let (name, eid, pid) = (&self.name, self.eid, self.child.id());
        let time = self.began.elapsed().as_secs_f64();
        log.info(&format!("Finished \"{name}\" eid={eid} pid={pid} time={time:.6}s {end}"));
    }
}

fn spawn(path: &Path, variables: &Variables) -> io::Result<Child> {
    let mut command = Command::new(path);
    command.env_clear().envs(variables).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn quiet() -> Log {
        let log = Log::new(false, false);
        log.leave_terminal();
        log
    }

    fn variables(dir: &Path) -> Variables {
        let path = std::env::var_os("PATH").unwrap();
        [("OUT".to_owned(), dir.as_os_str().to_owned()), ("PATH".to_owned(), path)].into()
    }

    #[test]
    fn a_hanging_zedlet_is_ended_with_its_children_and_others_run_on() {
        let dir = tempfile::tempdir().unwrap();
        let hang = script(
            dir.path(),
            "hang",
            "trap '' TERM; sleep 1000 & echo $! > $OUT/child; while :; do sleep 1; done",
        );
        let quick = script(dir.path(), "quick", "echo >> $OUT/done");
        let log = quiet();
        let mut jobs = Jobs::new(2, Some(Duration::from_millis(300)), Arc::default());
        jobs.start(&hang, "hang", 1, &variables(dir.path()), &log);
        for eid in 0..3 {
            jobs.start(&quick, "quick", eid, &variables(dir.path()), &log);
        }
        assert!(!jobs.is_idle());
        jobs.finish(&log);
        assert_eq!(fs::read(dir.path().join("done")).unwrap().len(), 3);
        let child = fs::read_to_string(dir.path().join("child")).unwrap();
        let state = || fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        // The child's new parent may not have waited for it yet.
        for _ in 0..100 {
            let state = state();
            if state.is_empty() || state.contains(") Z ") {
                return;
            }
            thread::sleep(POLL);
        }
        panic!("the child lives: {}", state());
    }

    #[test]
    fn a_zedlet_has_its_variables_and_no_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let look = script(
            dir.path(),
            "look",
            "env > $OUT/env; readlink /proc/self/fd/0 /proc/self/fd/1 > $OUT/fds; ls /proc/self/fd > $OUT/list",
        );
        // The test itself may have inherited some.
        stdx::os::close_on_exec(3);
        let _open = fs::File::open(&look).unwrap();
        let mut jobs = Jobs::new(1, None, Arc::default());
        jobs.start(&look, "look", 1, &variables(dir.path()), &quiet());
        jobs.start(&dir.path().join("none"), "none", 1, &variables(dir.path()), &quiet());
        jobs.finish(&quiet());
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let names: Vec<String> =
            read("env").lines().map(|l| l.split('=').next().unwrap().to_owned()).collect();
        // The shell sets these itself.
        let own = |name: &&String| !matches!(name.as_str(), "PWD" | "_" | "SHLVL" | "OLDPWD");
        assert_eq!(names.iter().filter(own).collect::<std::collections::BTreeSet<_>>().len(), 2, "{names:?}");
        assert_eq!(read("fds").lines().next(), Some("/dev/null"));
        // Three streams, and the directory that ls reads.
        assert_eq!(read("list").lines().count(), 4, "{}", read("list"));
    }
}
