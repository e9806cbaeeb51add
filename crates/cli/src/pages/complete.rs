//! Completions of bash, zsh and fish: the shell asks the program itself what fits, so names of pools and datasets are those
//! that there are.
//!
//! An installed script sets `AQUIFER_COMPLETE` and calls the program with the words typed so far; [`answer`] prints what
//! could come next.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::builder::ValueHint;
use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCompleter;
use clap_complete::env::{CompleteEnv, Shells};
use zcommon::props::{ZfsProp, ZpoolProp};

use crate::multicall::{called_as, command};

/// Environment word by which a shell asks.
const ASKED: &str = "AQUIFER_COMPLETE";

/// Shells, and how they name the file for a command.
pub const SHELLS: [(&str, &str); 3] = [("bash", "*"), ("zsh", "_*"), ("fish", "*.fish")];

/// Answers a shell's question; `false`: nobody asks, and this is a command like any other.
pub fn answer() -> bool {
    if std::env::var_os(ASKED).is_none() {
        return false;
    }
    let name = std::env::args_os().next().map(|argv0| called_as(&argv0)).unwrap_or_default();
    let asked = CompleteEnv::with_factory(|| with_names(command(&name), &name)).var(ASKED);
    let here = std::env::current_dir().ok();
    // A shell that asks in vain completes nothing; its user does not want to read why.
    asked.try_complete(std::env::args_os(), here.as_deref()).unwrap_or(true)
}

/// What a shell has to run once for the command `name`, which is the program at `program`.
pub(super) fn script(shell: &str, name: &str, program: &Path) -> io::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let shell = shells.completer(shell).ok_or_else(|| io::Error::other(format!("no such shell: {shell}")))?;
    let program = program.to_string_lossy();
    let mut script = Vec::new();
    shell.write_registration(ASKED, name, name, &program, &mut script)?;
    Ok(script)
}

/// The command tree with what may stand in the place of names.
fn with_names(tree: clap::Command, name: &str) -> clap::Command {
    let name = name.to_owned();
    tree.mut_args(|arg| {
        if !arg.get_action().takes_values() {
            return arg;
        }
        let value = arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
        let is = |word: &str| value.contains(word);
        let kind = match () {
            () if is("PROPERTY") => Kind::Property(name == "zpool"),
            () if is("SNAPSHOT") || is("DATASET") || is("FILESYSTEM") || is("BOOKMARK") => Kind::Dataset,
            () if value.starts_with("POOL") => Kind::Pool,
            () if is("FILE") || is("DIR") || is("DEVICE") || is("VDEV") => {
                return arg.value_hint(ValueHint::AnyPath);
            }
            () => return arg,
        };
        arg.add(ArgValueCompleter::new(move |typed: &OsStr| kind.candidates(&typed.to_string_lossy())))
    })
    .mut_subcommands(|sub| {
        let below =
            if matches!(sub.get_name(), "zpool" | "zfs") { sub.get_name().to_owned() } else { name.clone() };
        with_names(sub, &below)
    })
}

/// What stands in a place.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Pool,
    Dataset,
    /// Of a pool, or else of a dataset.
    Property(bool),
}

impl Kind {
    fn candidates(self, typed: &str) -> Vec<CompletionCandidate> {
        // Lists have their words behind commas; the last one is being typed.
        let (lead, last) = typed.rsplit_once(',').map_or(("", typed), |(lead, last)| (lead, last));
        let lead = if lead.is_empty() { String::new() } else { format!("{lead},") };
        let fits = |name: &String| name.starts_with(last);
        self.all(last)
            .into_iter()
            .filter(fits)
            .map(|name| CompletionCandidate::new(lead.clone() + &name))
            .collect()
    }

    fn all(self, typed: &str) -> Vec<String> {
        match self {
            Self::Property(true) => ZpoolProp::ALL.iter().map(|prop| prop.name().to_owned()).collect(),
            Self::Property(false) => ZfsProp::ALL.iter().map(|prop| prop.name().to_owned()).collect(),
            Self::Pool => ask(&["zpool", "list", "-H", "-o", "name"]),
            // Snapshots can be many: they are asked for once their dataset is known.
            Self::Dataset => match typed.split_once('@') {
                Some((dataset, _)) => ask(&["zfs", "list", "-H", "-o", "name", "-t", "snapshot", dataset]),
                None => ask(&["zfs", "list", "-H", "-o", "name", "-t", "filesystem,volume"]),
            },
        }
    }
}

/// The lines that a command prints; none when there is no daemon to ask.
fn ask(words: &[&str]) -> Vec<String> {
    let of_system = || {
        daemon::place::Place::as_guest().is_some_and(|door| daemon::client::is_served(&door).unwrap_or(false))
    };
    if !daemon::client::is_wanted(&daemon::place::Place::of_process()).unwrap_or(false) && !of_system() {
        return Vec::new();
    }
    let Ok(program) = std::env::current_exe() else { return Vec::new() };
    let output = Command::new(program).args(words).env_remove(ASKED).stderr(Stdio::null()).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicall::NAMES;

    #[test]
    fn every_tree_can_be_completed_and_every_shell_has_a_script() {
        for name in NAMES.iter().chain(&["aquifer"]) {
            with_names(command(name), name).debug_assert();
            for (shell, _) in SHELLS {
                let program = format!("/opt/x/bin/{name}");
                let text = String::from_utf8(script(shell, name, Path::new(&program)).unwrap()).unwrap();
                assert!(text.contains(&program) && text.contains(ASKED), "{shell} {name}: {text}");
            }
        }
    }

    #[test]
    fn properties_are_completed_behind_commas() {
        let found = Kind::Property(false).candidates("used,compressr");
        let words: Vec<_> = found.iter().map(|c| c.get_value().to_string_lossy().into_owned()).collect();
        assert_eq!(words, ["used,compressratio"]);
    }
}
