//! Runs `zfs` on a side.

use std::fmt;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use stdx::wake::Naps;

use crate::Around;
use crate::place::{Place, Reach};

/// Interval of checks of a running command.
const TICK: Duration = Duration::from_millis(20);
/// Most bytes of a command's error output that are kept.
const MAX_ERR: u64 = 64 << 10;

/// A command that failed, or that could not be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Its message.
    pub text: String,
    /// Whether the user stopped it.
    pub is_stopped: bool,
}

impl Failed {
    /// A failure with this message.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_stopped: false }
    }

    pub(crate) fn stopped() -> Self {
        Self { text: "interrupted".to_owned(), is_stopped: true }
    }

    /// Whether it reports a missing dataset.
    pub(crate) fn is_missing(&self) -> bool {
        self.text.contains("dataset does not exist")
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A side that runs commands.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    reach: Reach,
    around: Around,
}

impl Host {
    pub fn of(place: &Place, around: &Around) -> Self {
        Self { reach: place.reach.clone(), around: around.clone() }
    }

    /// Whether it is reached through a shell, so that it may be another machine.
    pub fn is_far(&self) -> bool {
        !matches!(self.reach, Reach::Here)
    }

    /// `zfs` with these words.
    pub fn zfs(&self, words: &[&str]) -> Command {
        let line: Vec<String> = std::iter::once("zfs").chain(words.iter().copied()).map(quoted).collect();
        self.shell(line.join(" ")).unwrap_or_else(|| {
            let mut command = Command::new(&self.around.program);
            command.arg("zfs").args(words).process_group(0);
            command
        })
    }

    /// `zfs send` with these words on another machine, where its stream becomes items if an Aquifer there can do that. `None`
    /// when the side is here.
    pub fn items(&self, words: &[&str]) -> Option<Command> {
        let send: Vec<String> = ["zfs", "send"].iter().chain(words).map(|word| quoted(word)).collect();
        let send = send.join(" ");
        let make = "aquifer replicate items";
        let script = format!("if {make} --help >/dev/null 2>&1; then {send} | {make}; else {send}; fi");
        self.shell(format!("sh -c {}", quoted(&script)))
    }

    /// A line for the shell of another machine; `None` when the side is here.
    fn shell(&self, line: String) -> Option<Command> {
        let mut command = match &self.reach {
            Reach::Here => return None,
            Reach::Ssh { host, port } => {
                let mut command = Command::new("ssh");
                if let Some(port) = port {
                    command.arg("-p").arg(port.to_string());
                }
                command.arg("--").arg(host).arg(line);
                command
            }
            Reach::Via(via) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(format!("{via} \"$1\"")).arg("sh").arg(line);
                command
            }
        };
        if !matches!(self.reach, Reach::Ssh { .. }) {
            // A Ctrl-C is for the replication, which ends its commands in order. ssh may ask for a password.
            command.process_group(0);
        }
        Some(command)
    }

    /// Runs `zfs` to its end; returns its output.
    ///
    /// # Errors
    /// Its standard error when it failed.
    pub fn run(&self, words: &[&str]) -> Result<String, Failed> {
        let mut command = self.zfs(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Failed::new(format!("zfs cannot be run: {e}")))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let out = thread::spawn(move || {
            let mut bytes = Vec::new();
            out.map(|mut out| out.read_to_end(&mut bytes));
            bytes
        });
        let err = text_of(err);
        let status = self.wait(&mut child);
        let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
        match status? {
            true => String::from_utf8(out).map_err(|_| Failed::new("the output of zfs is not valid UTF-8")),
            false => Err(Failed::new(said(&err, words))),
        }
    }

    /// Waits until a command ends, and ends it when the run is stopped. Returns whether it succeeded.
    pub fn wait(&self, child: &mut Child) -> Result<bool, Failed> {
        let mut naps = Naps::up_to(TICK);
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status.success()),
                Ok(None) if self.around.stop.load(Ordering::Relaxed) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(Failed::stopped());
                }
                Ok(None) => thread::sleep(naps.pause()),
                Err(e) => return Err(Failed::new(e.to_string())),
            }
        }
    }
}

/// Collects the standard error of a command.
pub(crate) fn text_of(err: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut err) = err {
            let _ = (&mut err).take(MAX_ERR).read_to_end(&mut bytes);
            // The rest is read, so that the command does not wait.
            let _ = std::io::copy(&mut err, &mut std::io::sink());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The message of a failed command, in one line.
pub(crate) fn said(err: &str, words: &[&str]) -> String {
    let lines: Vec<&str> = err.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.is_empty() {
        true => format!("zfs {} failed", words.first().unwrap_or(&"")),
        false => lines.join("; "),
    }
}

/// Whether the message of a sender reports that a partial receive can never go on: the snapshot or its base is gone. After any
/// other failure, such as a lost connection, the next run continues it.
pub(crate) fn is_lost(message: &str) -> bool {
    const REASONS: [&str; 6] = [
        "no longer exists",
        "is no longer the same snapshot",
        "resume token is corrupt",
        "not an earlier snapshot from the same fs",
        "incremental source",
        "redaction bookmark",
    ];
    let is_of_send = message.contains("cannot resume send") || message.contains("cannot send '");
    is_of_send && REASONS.iter().any(|reason| message.contains(reason))
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@#=,%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_receive_is_dropped_only_when_its_source_is_gone() {
        for gone in [
            "cannot resume send: 't/a@1' used in the initial send no longer exists",
            "welcome; cannot resume send: 't/a@1' is no longer the same snapshot used in the initial send",
            "cannot resume send: incremental source 0x12 no longer exists",
            "warning: cannot send 't/a@2': incremental source could not be found",
        ] {
            assert!(is_lost(gone), "{gone}");
        }
        for passing in [
            "Connection closed by remote host",
            "zfs send failed",
            "warning: cannot send 't/a@1': source key must be loaded",
            "warning: cannot send 't/a@1': I/O error",
        ] {
            assert!(!is_lost(passing), "{passing}");
        }
    }

    #[test]
    fn words_reach_a_shell_as_they_are() {
        for word in ["tank/a", "a b", "it's", "", "$(x)", "a;b", "a\"b", "*"] {
            let out =
                Command::new("sh").arg("-c").arg(format!("printf %s {}", quoted(word))).output().unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), word);
        }
    }

    #[test]
    fn a_command_reaches_a_side_and_its_failure_is_told() {
        let around = Around { program: "/bin/echo".into(), stop: Default::default() };
        let here = Host::of(&Place::parse("a", None).unwrap(), &around);
        assert_eq!(here.run(&["list", "x y"]).unwrap(), "zfs list x y\n");
        let via = |command| Host::of(&Place::parse("a", Some(command)).unwrap(), &around);
        assert_eq!(via("echo far").run(&["get", "x y"]).unwrap(), "far zfs get 'x y'\n");
        let failed = via("echo oops >&2; false #").run(&["get"]).unwrap_err();
        assert_eq!(failed.text, "oops");
    }
}
