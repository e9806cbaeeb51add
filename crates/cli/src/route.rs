//! Selects the daemon for a command: that of this process's user, or the system's, which serves every user.
//!
//! Root has one daemon. An ordinary user may have one, too, with pools of their own beside the system's. A name
//! selects the daemon, and a report without names covers both.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;

use crate::asked::{Asked, Deed};

/// A command to be routed.
struct Trip<'a> {
    asked: &'a Asked,
    argv: &'a [OsString],
    width: u64,
    place: RunPaths,
}

/// Sends the command to the right daemon, if it runs in one.
pub fn forward(home: Home, asked: &Asked, argv: &[OsString]) -> Option<Outcome> {
    forward_to(home, asked, argv, io::stdout().as_fd())
}

/// Like [`forward`], with its output in `out`.
pub fn forward_to(home: Home, asked: &Asked, argv: &[OsString], out: BorrowedFd<'_>) -> Option<Outcome> {
    let place = RunPaths::of_process();
    let width = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_col);
    let trip = Trip { asked, argv, width: width.into(), place };
    if home == Home::Here {
        return None;
    }
    if rustix::process::geteuid().is_root() {
        return match home == Home::Daemon || ready!(client::is_wanted(&trip.place)) {
            true => Some(trip.own(argv, out)),
            false => None,
        };
    }
    trip.of_user(home, out)
}

fn failed(e: io::Error) -> Failure {
    Failure::failed(e.to_string())
}

/// Unwraps the value, or returns the failure as the command's outcome.
macro_rules! ready {
    ($done:expr) => {
        match $done {
            Ok(value) => value,
            Err(e) => return Some(Err(failed(e))),
        }
    };
}
use clikit::session::{Home, NAMES};
use clikit::verb::{Exit, Failure, Outcome};
use daemon::client;
use daemon::paths::RunPaths;
use ready;
use serde_json::Value;

impl Trip<'_> {
    fn own(&self, argv: &[OsString], out: BorrowedFd<'_>) -> Outcome {
        client::run(&self.place, argv.to_vec(), self.width, out).map(Exit).map_err(failed)
    }

    fn system(&self, door: &Path, argv: &[OsString], out: BorrowedFd<'_>) -> Outcome {
        client::run_as_delegated(door, argv.to_vec(), self.width, self.asked.reads, out)
            .map(Exit)
            .map_err(failed)
    }

    /// A command of a user who is not root.
    fn of_user(&self, home: Home, out: BorrowedFd<'_>) -> Option<Outcome> {
        let own = client::is_wanted(&self.place);
        let door =
            RunPaths::as_delegated().map_or(Ok(None), |door| Ok(client::is_served(&door)?.then_some(door)));
        if self.asked.deed == Deed::Look {
            return self.look(own, door, out);
        }
        let own = ready!(own);
        if let Deed::Bring(name) = &self.asked.deed {
            // A pool of that name would hide the other one.
            let taken = name.as_ref().zip(door.ok().flatten());
            if let Some((name, _)) = taken.filter(|(name, door)| self.names_of(door).contains(*name)) {
                let what = "a pool of that name is imported by the system's daemon";
                return Some(Err(Failure::cannot("create", name, what)));
            }
            return (home == Home::Daemon || own).then(|| self.own(self.argv, out));
        }
        let is_own = own && {
            let known = self.own_names();
            self.asked.names.is_empty() || self.named(&known).next().is_some()
        };
        if is_own {
            return Some(self.own(self.argv, out));
        }
        match ready!(door) {
            Some(door) => Some(self.system(&door, self.argv, out)),
            None => (home == Home::Daemon || own).then(|| self.own(self.argv, out)),
        }
    }

    /// Prints a report on the named pools, wherever they are, or on all. Reports a daemon that cannot be reached
    /// and fails then, but prints the rest.
    fn look(
        &self,
        own: io::Result<bool>,
        door: io::Result<Option<PathBuf>>,
        out: BorrowedFd<'_>,
    ) -> Option<Outcome> {
        let mut exit = Exit::OK;
        let mut said = |e: io::Error| {
            // If this fails there is no one left to notify.
            let _ = writeln!(io::stderr(), "{e}");
            exit = Exit::FAILED;
        };
        let own = own.unwrap_or_else(|e| {
            said(e);
            false
        });
        let door = door.unwrap_or_else(|e| {
            said(e);
            None
        });
        let worse = |done: Outcome| done.map(|code| code.worse(exit));
        let (mine, theirs) = match (own, door) {
            (false, None) if exit == Exit::OK => return None,
            (false, None) => return Some(Ok(exit)),
            (true, None) => return Some(worse(self.own(self.argv, out))),
            (false, Some(door)) => return Some(worse(self.system(&door, self.argv, out))),
            (true, Some(door)) => (self.own_names(), (self.names_of(&door), door)),
        };
        let (theirs, door) = theirs;
        let without = |other: &[String]| self.without(other);
        let named: Vec<bool> =
            [&mine, &theirs].iter().map(|known| self.named(known).next().is_some()).collect();
        Some(worse(match named.as_slice() {
            [true, true] => self.both(&door, &without(&mine), &without(&theirs), out),
            [true, false] => self.own(self.argv, out),
            [false, true] => self.system(&door, self.argv, out),
            _ if !self.asked.names.is_empty() => self.system(&door, self.argv, out),
            _ if theirs.is_empty() => self.own(self.argv, out),
            _ if mine.is_empty() => self.system(&door, self.argv, out),
            _ => self.both(&door, self.argv, self.argv, out),
        }))
    }

    /// The names of the command that belong to these pools.
    fn named(&self, pools: &[String]) -> impl Iterator<Item = &String> {
        let of = |name: &&String| {
            let pool = name.split(['/', '@', '#']).next().unwrap_or_default();
            pools.iter().any(|known| known == pool)
        };
        self.asked.names.iter().filter(of)
    }

    /// The command line without the names that belong to these pools.
    fn without(&self, pools: &[String]) -> Vec<OsString> {
        let gone: Vec<&String> = self.named(pools).collect();
        let stays = |word: &&OsString| !gone.iter().any(|name| *word == name.as_str());
        self.argv.iter().filter(stays).cloned().collect()
    }

    /// The pools of this user's daemon.
    fn own_names(&self) -> Vec<String> {
        caught(|out| self.own(&[NAMES.into()], out)).map(|(_, text)| lines(&text)).unwrap_or_default()
    }

    /// The pools of the system's daemon; none if viewing is not permitted.
    fn names_of(&self, door: &Path) -> Vec<String> {
        let said = caught(|out| self.system(door, &[NAMES.into()], out));
        said.ok().filter(|(code, _)| *code == Exit::OK).map(|(_, text)| lines(&text)).unwrap_or_default()
    }

    /// Runs the command in both daemons, the system's first.
    fn both(&self, door: &Path, theirs: &[OsString], mine: &[OsString], out: BorrowedFd<'_>) -> Outcome {
        if self.asked.repeats {
            return thread::scope(|scope| {
                let asking = scope.spawn(|| self.system(door, theirs, out));
                let own = self.own(mine, out)?;
                let system =
                    asking.join().map_err(|_| Failure::failed("the system's daemon cannot be queried"))?;
                Ok(own.worse(system?))
            });
        }
        let (first, system) = caught(|out| self.system(door, theirs, out))?;
        let (second, own) = caught(|out| self.own(mine, out))?;
        let mut out = std::fs::File::from(out.try_clone_to_owned()?);
        out.write_all(&joined(&system, &own))?;
        Ok(first.worse(second))
    }
}

/// Runs `work` with a pipe as its output; returns the bytes written.
fn caught(work: impl FnOnce(BorrowedFd<'_>) -> Outcome + Send) -> Result<(Exit, Vec<u8>), Failure> {
    let (mut pipe, end) = io::pipe()?;
    thread::scope(|scope| {
        let asking = scope.spawn(move || work(end.as_fd()));
        let mut text = Vec::new();
        pipe.read_to_end(&mut text)?;
        let done = asking.join().map_err(|_| Failure::failed("the daemon cannot be queried"))?;
        Ok((done?, text))
    })
}

fn lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text).lines().map(str::to_owned).collect()
}

/// Merges two reports: JSON documents are merged, one of two equal headings is dropped, and paragraphs of pools are
/// separated by an empty line.
fn joined(first: &[u8], second: &[u8]) -> Vec<u8> {
    let json = |text: &[u8]| serde_json::from_slice::<Value>(text).ok().filter(Value::is_object);
    if let (Some(mut one), Some(two)) = (json(first), json(second)) {
        merge(&mut one, two);
        let mut text = serde_json::to_vec(&one).unwrap_or_default();
        text.push(b'\n');
        return text;
    }
    let head = |text: &[u8]| text.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default().to_vec();
    let (one, two) = (head(first), head(second));
    let is_table = one == two && one.starts_with(b"NAME");
    let rest = if is_table { second.get(two.len()..).unwrap_or_default() } else { second };
    let apart = !first.is_empty() && second.trim_ascii_start().starts_with(b"pool:");
    [first, if apart { b"\n" } else { b"" }, rest].concat()
}

/// Adds the members of `two` to `one`, recursively for objects that both contain.
fn merge(one: &mut Value, two: Value) {
    match (one, two) {
        (Value::Object(one), Value::Object(two)) => {
            for (name, value) in two {
                match one.get_mut(&name) {
                    Some(known) => merge(known, value),
                    None => drop(one.insert(name, value)),
                }
            }
        }
        (Value::Array(one), Value::Array(mut two)) => one.append(&mut two),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reports_become_one() {
        let text = |one: &str, two: &str| String::from_utf8(joined(one.as_bytes(), two.as_bytes())).unwrap();
        assert_eq!(text("NAME  SIZE\na  1\n", "NAME  SIZE\nb  2\n"), "NAME  SIZE\na  1\nb  2\n");
        assert_eq!(
            text("NAME  SIZE\na  1\n", "NAME    SIZE\nbbb  2\n"),
            "NAME  SIZE\na  1\nNAME    SIZE\nbbb  2\n"
        );
        assert_eq!(text("a\t1\n", "a\t1\n"), "a\t1\na\t1\n");
        assert_eq!(text("  pool: a\n", "  pool: b\n"), "  pool: a\n\n  pool: b\n");
        let (one, two) = (r#"{"v":{"x":1},"pools":{"a":{}}}"#, r#"{"v":{"x":1},"pools":{"b":[1]}}"#);
        assert_eq!(text(one, two), "{\"v\":{\"x\":1},\"pools\":{\"a\":{},\"b\":[1]}}\n");
    }
}
