//! The zedlets of a directory: which files are run, and for which events.
//!
//! Zedlets run with the rights of the daemon, so no other user may be able to change them: neither the files, nor the
//! directory, nor any directory on the way. Source: zed_conf_scan_dir (zed_conf.c), zed_exec_process (zed_exec.c), OpenZFS 2.4.
//!
//! Differs from OpenZFS: directories and the targets of links are checked, too, and files of the same user are accepted.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clikit::verb::strerror;

use crate::log::Log;

/// Files that zedlets read as commands.
const SOURCED: [&str; 2] = ["zed.rc", "zed-functions.sh"];
/// Maximum number of zedlets.
const MAX: usize = 1000;
/// Follows the event's name in the name of a zedlet that runs alone.
const ALONE: &str = "-sync-";

/// The right to change a file or directory of another user than root and the daemon's.
const WRITABLE_BY: [(u32, &str); 2] = [(0o020, "group"), (0o002, "other")];
const STICKY: u32 = 0o1000;
const EXECUTABLE: u32 = 0o100;

/// The zedlets of a directory, in the order of their names.
#[derive(Debug, Default)]
pub struct Zedlets {
    names: BTreeSet<String>,
}

/// A zedlet to be run for an event.
#[derive(Debug, PartialEq, Eq)]
pub struct Match<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether no other zedlet may run at the same time.
    pub alone: bool,
}

impl Zedlets {
    /// Reads a directory; `force` omits the checks of owners and modes.
    ///
    /// # Errors
    /// Why the directory is not used.
    pub fn of_dir(dir: &Path, force: bool, log: &Log) -> Result<Self, String> {
        let real = fs::canonicalize(dir)
            .map_err(|e| format!("cannot open directory '{}': {}", dir.display(), strerror(&e)))?;
        let mut checks = Checks { force, checked: BTreeSet::new() };
        checks.directory(&real)?;
        let cannot = |e: io::Error| format!("cannot read directory '{}': {}", dir.display(), strerror(&e));
        let mut zedlets = Self::default();
        for entry in fs::read_dir(&real).map_err(cannot)? {
            let Ok(name) = entry.map_err(cannot)?.file_name().into_string() else { continue };
            if name.starts_with('.') {
                continue;
            }
            if SOURCED.contains(&name.as_str()) {
                checks
                    .file(&real.join(&name))
                    .map_err(|why| format!("'{name}' in '{}': {why}", dir.display()))?;
            }
            match checks.zedlet(&real.join(&name)) {
                Ok(()) if zedlets.names.len() < MAX => {
                    log.info(&format!("registered zedlet '{name}'"));
                    zedlets.names.insert(name);
                }
                Ok(()) => log.warn(&format!("ignoring '{name}': more than {MAX} zedlets")),
                Err(Unfit::Unsafe(why)) => log.notice(&format!("ignoring '{name}': {why}")),
                Err(Unfit::Other(why)) => log.info(&format!("ignoring '{name}': {why}")),
            }
        }
        Ok(zedlets)
    }

    /// The zedlets for an event.
    pub fn for_event(&self, class: &str, subclass: Option<&str>) -> Vec<Match<'_>> {
        let words = [Some(class), subclass, Some("all")];
        let matched = |name: &String| {
            let rest = words.iter().flatten().find_map(|word| rest(name, word))?;
            Some(rest.len() > ALONE.len() && rest.starts_with(ALONE))
        };
        self.names.iter().filter_map(|name| Some(Match { name, alone: matched(name)? })).collect()
    }

    /// Number of zedlets.
    pub fn len(&self) -> usize {
        self.names.len()
    }
}

/// The part of a zedlet's name after a word; `None` if the name does not begin with the word, or a letter follows it.
fn rest<'a>(name: &'a str, word: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(word)?;
    (!word.is_empty() && !rest.starts_with(|c: char| c.is_ascii_alphabetic())).then_some(rest)
}

/// Whether a zedlet may be run now: it may have changed since the directory was read.
pub fn is_still_fit(path: &Path, force: bool) -> Result<(), String> {
    let mut checks = Checks { force, checked: BTreeSet::new() };
    checks.zedlet(path).map_err(|unfit| match unfit {
        Unfit::Unsafe(why) | Unfit::Other(why) => why,
    })
}

/// Why a file is not a zedlet.
enum Unfit {
    /// It could be one, but another user could have written it.
    Unsafe(String),
    Other(String),
}

struct Checks {
    force: bool,
    /// Directories that are known to be safe.
    checked: BTreeSet<PathBuf>,
}

impl Checks {
    /// Checks a directory without links in its path, and those above it. Another user may write to one above if it is
    /// sticky, because only their owners can rename the entries of such a directory.
    fn directory(&mut self, dir: &Path) -> Result<(), String> {
        if self.force || self.checked.contains(dir) {
            return Ok(());
        }
        for (depth, part) in dir.ancestors().enumerate() {
            let shown = part.display();
            let meta = fs::symlink_metadata(part).map_err(|e| format!("'{shown}': {}", strerror(&e)))?;
            let is_shared = depth > 0 && meta.mode() & STICKY != 0;
            let why = match is_shared && is_trusted(&meta) {
                true => None,
                false => flaw(&meta),
            };
            if let Some(why) = why {
                return Err(format!("directory '{shown}' is {why}: its zedlets are not run"));
            }
        }
        self.checked.insert(dir.to_owned());
        Ok(())
    }

    /// Checks a file and the place of the file that it links to.
    fn file(&mut self, path: &Path) -> Result<Metadata, String> {
        let told = |e: io::Error| strerror(&e);
        let real = fs::canonicalize(path).map_err(told)?;
        let meta = fs::metadata(&real).map_err(told)?;
        if self.force {
            return Ok(meta);
        }
        if let Some(why) = flaw(&meta) {
            return Err(why);
        }
        self.directory(real.parent().unwrap_or(Path::new("/")))?;
        Ok(meta)
    }

    fn zedlet(&mut self, path: &Path) -> Result<(), Unfit> {
        let meta = fs::metadata(path).map_err(|e| Unfit::Other(strerror(&e)))?;
        if !meta.is_file() {
            return Err(Unfit::Other("not a regular file".to_owned()));
        }
        if meta.mode() & EXECUTABLE == 0 {
            return Err(Unfit::Other("not executable by user".to_owned()));
        }
        self.file(path).map(drop).map_err(Unfit::Unsafe)
    }
}

/// Whether the owner is root or the user of this process.
fn is_trusted(meta: &Metadata) -> bool {
    meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw()
}

/// Why another user can change a file or directory.
fn flaw(meta: &Metadata) -> Option<String> {
    if !is_trusted(meta) {
        return Some("not owned by root".to_owned());
    }
    let (_, class) = WRITABLE_BY.iter().find(|(bit, _)| meta.mode() & bit != 0)?;
    Some(format!("writable by {class}"))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn file(dir: &Path, name: &str, mode: u32) {
        fs::write(dir.join(name), "#!/bin/sh\n").unwrap();
        fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
    }

    fn names(dir: &Path, force: bool) -> Result<Vec<String>, String> {
        let log = Log::new(false, false);
        log.leave_terminal();
        Zedlets::of_dir(dir, force, &log).map(|zedlets| zedlets.names.into_iter().collect())
    }

    #[test]
    fn only_files_that_no_other_user_can_change_are_zedlets() {
        let dir = tempfile::tempdir().unwrap();
        let (at, elsewhere) = (dir.path().join("zed.d"), dir.path().join("else"));
        for dir in [&at, &elsewhere, &at.join("all-dir")] {
            fs::create_dir(dir).unwrap();
            fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        }
        for (name, mode) in
            [("b", 0o755), ("a", 0o700), ("group", 0o770), ("other", 0o757), ("zed.rc", 0o644)]
        {
            file(&at, name, mode);
        }
        file(&at, ".hidden", 0o755);
        file(&elsewhere, "target", 0o755);
        symlink(elsewhere.join("target"), at.join("link")).unwrap();
        symlink("nowhere", at.join("dangling")).unwrap();
        assert_eq!(names(&at, false).unwrap(), ["a", "b", "link"]);
        assert_eq!(names(&at, true).unwrap(), ["a", "b", "group", "link", "other"]);
        // A link to a place that others can change is not followed.
        fs::set_permissions(&elsewhere, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(names(&at, false).unwrap(), ["a", "b"]);
        // Zedlets read this file.
        file(&at, "zed.rc", 0o666);
        assert!(names(&at, false).unwrap_err().contains("zed.rc"));
        fs::remove_file(at.join("zed.rc")).unwrap();
        for (dir, mode) in [(at.as_path(), 0o775), (at.as_path(), 0o1777), (dir.path(), 0o777)] {
            let old = fs::metadata(dir).unwrap().permissions();
            fs::set_permissions(dir, Permissions::from_mode(mode)).unwrap();
            let why = names(&at, false).unwrap_err();
            assert!(why.contains("is writable by"), "{why}");
            assert!(names(&at, true).is_ok());
            fs::set_permissions(dir, old).unwrap();
        }
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(names(&at, false).unwrap(), ["a", "b"]);
        assert!(names(&at.join("none"), false).unwrap_err().contains("No such file"));
    }

    #[test]
    fn names_select_the_events() {
        let all = [
            "all-log.sh",
            "all",
            "allow.sh",
            "statechange-notify.sh",
            "statechange-sync-led.sh",
            "statechange",
        ];
        let more =
            ["statechanges.sh", "resource.fs.zfs.statechange-x", "scrub_finish-x", "all-sync-", "state-x"];
        let names = all.iter().chain(&more).map(|name| (*name).to_owned()).collect();
        let zedlets = Zedlets { names };
        let found = zedlets.for_event("resource.fs.zfs.statechange", Some("statechange"));
        let found: Vec<_> = found.iter().map(|found| (found.name, found.alone)).collect();
        let want = [
            ("all", false),
            ("all-log.sh", false),
            ("all-sync-", false),
            ("resource.fs.zfs.statechange-x", false),
            ("statechange", false),
            ("statechange-notify.sh", false),
            ("statechange-sync-led.sh", true),
        ];
        assert_eq!(found, want);
        assert_eq!(zedlets.for_event("", None).len(), 3);
    }
}
