//! `zpool status -c SCRIPT,…` and `zpool iostat -c SCRIPT,…`: output of scripts for each device, as columns.
//!
//! Scripts run as the user of the command, in its process, never in the daemon, which may have more rights.
//! The report contains marks at the places of the columns ([`mark`]); the command reads it report by report,
//! runs the scripts of the devices in it, and puts their columns there ([`fill`]).
//!
//! Source: zpool-iostat(8), and zpool_main.c, zpool_iter.c, OpenZFS 2.3. Differs from OpenZFS: a script's
//! output reaches the terminal without control characters.

mod fill;
pub mod mark;
mod run;

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};

use fill::Filler;

/// The system's scripts.
#[doc(alias = "ZPOOL_SCRIPTS_DIR")]
const SYSTEM: &str = "/etc/zfs/zpool.d";

/// The scripts of `-c`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scripts {
    /// The verb, for the list of scripts.
    pub verb: &'static str,
    /// Names of scripts.
    pub names: Vec<String>,
    /// The option was given again.
    pub twice: bool,
    /// The report is JSON.
    pub json: bool,
}

impl Scripts {
    /// The scripts of an option's values: names with commas between them; `None` without the option.
    pub fn new(verb: &'static str, values: &[String], json: bool) -> Option<Self> {
        let names = values.first()?.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Some(Self { verb, names, twice: values.len() > 1, json })
    }

    /// Makes the report with `forward` in the daemon, or with `here` in this process, and fills in the columns.
    pub fn report(
        &self,
        ctx: &mut Ctx,
        forward: impl FnOnce(BorrowedFd<'_>) -> Option<Outcome> + Send,
        here: impl FnOnce(&mut Ctx) -> Outcome,
    ) -> Outcome {
        if self.twice {
            return Err(Failure::failed("Can't set -c flag twice"));
        }
        if self.names.is_empty() {
            // The list runs nothing.
            self.list(&search_path(), ctx)?;
            return Ok(Exit::OK);
        }
        may_run(&|name| std::env::var_os(name), rustix::process::geteuid().is_root())?;
        let found = self.find(&search_path())?;
        let (pipe, end) = io::pipe()?;
        let forwarded = ctx.may_forward.then(|| self.forwarded(forward, (pipe, end), &found, ctx));
        if let Some(outcome) = forwarded.transpose()?.flatten() {
            return outcome;
        }
        self.made_here(found, ctx, here)
    }

    /// Has the daemon write the report into a pipe; `None`: there is none.
    fn forwarded(
        &self,
        forward: impl FnOnce(BorrowedFd<'_>) -> Option<Outcome> + Send,
        (pipe, end): (PipeReader, io::PipeWriter),
        found: &[PathBuf],
        ctx: &mut Ctx,
    ) -> Result<Option<Outcome>, Failure> {
        let (outcome, filled) = thread::scope(|scope| {
            // The pipe ends when the daemon has closed its end, and this thread ours.
            let asking = scope.spawn(move || forward(end.as_fd()));
            let filled = fill_all(pipe, Filler::new(found.to_vec(), self.json), &mut *ctx.out);
            (asking.join(), filled)
        });
        filled?;
        outcome.map_err(|_| Failure::failed("the daemon can't be asked"))
    }

    fn made_here(
        &self,
        found: Vec<PathBuf>,
        ctx: &mut Ctx,
        here: impl FnOnce(&mut Ctx) -> Outcome,
    ) -> Outcome {
        let out = std::mem::replace(&mut ctx.out, Box::new(io::sink()));
        ctx.out = Box::new(Filling { filler: Filler::new(found, self.json), out });
        here(ctx)
    }

    /// The first script of each name in the folders; a name without one has no columns.
    fn find(&self, folders: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
        if let Some(name) = self.names.iter().find(|name| name.contains('/')) {
            return Err(Failure::failed(format!("invalid script name '{name}': it can't have a slash")));
        }
        let first = |name: &String| folders.iter().map(|dir| dir.join(name)).find(|path| is_program(path));
        Ok(self.names.iter().filter_map(first).collect())
    }

    /// `-c` without a name.
    #[doc(alias = "print_zpool_script_list")]
    fn list(&self, folders: &[PathBuf], ctx: &mut Ctx) -> io::Result<()> {
        writeln!(ctx.out, "Available 'zpool {} -c' commands:", self.verb)?;
        for folder in folders {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            paths.sort();
            for path in paths.iter().filter(|path| is_program(path)) {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                for line in run::help(path) {
                    writeln!(ctx.out, "  {name:<14}  {line}")?;
                }
            }
        }
        Ok(())
    }
}

/// Whether the slot of a device has power: `on`, `off`, or a dash for one without such a slot.
#[doc(alias = "zpool_power_current_state")]
pub fn power(path: Option<&[u8]>) -> &'static str {
    let slot = path.and_then(|path| run::enclosure(Path::new(OsStr::from_bytes(path))));
    match slot.and_then(|slot| std::fs::read_to_string(slot.join("power_status")).ok()) {
        Some(word) if word.trim() == "on" => "on",
        Some(word) if word.trim() == "off" => "off",
        _ => "-",
    }
}

/// Output that goes through a filler.
struct Filling {
    filler: Filler,
    out: Box<dyn Write>,
}

impl Write for Filling {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.filler.add(bytes, &mut *self.out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        // The rest is text of a report that failed; its reader may be gone.
        let _ = self.filler.finish(&mut *self.out).and_then(|()| self.out.flush());
    }
}

fn fill_all(mut pipe: PipeReader, mut filler: Filler, out: &mut dyn Write) -> io::Result<()> {
    let mut piece = [0; 64 << 10];
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => break,
            Ok(len) => filler.add(piece.get(..len).unwrap_or_default(), out)?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        out.flush()?;
    }
    filler.finish(out)
}

/// Whether scripts may be run at all.
fn may_run(env: &dyn Fn(&str) -> Option<OsString>, is_root: bool) -> Result<(), Failure> {
    if env("ZPOOL_SCRIPTS_ENABLED").is_some_and(|word| !is_on(&word)) {
        return Err(Failure::failed("Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED."));
    }
    if is_root && !env("ZPOOL_SCRIPTS_AS_ROOT").is_some_and(|word| is_on(&word)) {
        let what = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.";
        return Err(Failure::failed(what));
    }
    Ok(())
}

/// A number that is not 0, or a word that means yes.
#[doc(alias = "libzfs_envvar_is_set")]
fn is_on(word: &OsStr) -> bool {
    let word = word.to_string_lossy().to_ascii_lowercase();
    let digits: String = word.chars().take_while(char::is_ascii_digit).collect();
    digits.bytes().any(|digit| digit != b'0') || word.starts_with("yes") || word.starts_with("on")
}

/// Where scripts are looked for.
#[doc(alias = "zpool_get_cmd_search_path")]
fn search_path() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("ZPOOL_SCRIPTS_PATH") {
        return std::env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect();
    }
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".zpool.d"));
    home.into_iter().chain([PathBuf::from(SYSTEM)]).collect()
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_runs_scripts_only_when_told_to() {
        let check = |set: &'static [(&str, &str)], root| {
            let env = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
            may_run(&env, root).is_ok()
        };
        assert!(check(&[], false) && !check(&[], true));
        for (word, may) in
            [("1", true), ("0", false), ("YES", true), ("on", true), ("no", false), ("", false)]
        {
            let set: &'static [(&str, &str)] = vec![("ZPOOL_SCRIPTS_AS_ROOT", word)].leak();
            assert_eq!(check(set, true), may, "{word}");
        }
        assert!(!check(&[("ZPOOL_SCRIPTS_ENABLED", "0")], false));
        assert!(check(&[("ZPOOL_SCRIPTS_ENABLED", "1")], false));
    }

    #[test]
    fn a_script_is_found_in_the_first_folder_that_has_it_and_nowhere_else() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let folders = ["a", "b"].map(|name| dir.path().join(name));
        for (folder, name, mode) in
            [(0, "one", 0o755), (1, "one", 0o755), (0, "two", 0o644), (1, "two", 0o755)]
        {
            std::fs::create_dir_all(&folders[folder]).unwrap();
            let path = folders[folder].join(name);
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let find = |value: &str| Scripts::new("status", &[value.to_owned()], false).unwrap().find(&folders);
        assert_eq!(find("two,none,one").unwrap(), [folders[1].join("two"), folders[0].join("one")]);
        assert!(find("../a/one").is_err());
    }
}
