//! Completions of bash, zsh and fish: the shell queries the program itself, so names of pools and datasets are
//! current.
//!
//! An installed script sets `AQUIFER_COMPLETE` and calls the program with the words typed so far; [`answer`] prints
//! the candidates for the next word.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::builder::ValueHint;
use clap_complete::CompletionCandidate;
use clap_complete::engine::{ArgValueCompleter, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};
use clikit::names::called_as;
use zcommon::features::FEATURES;
use zcommon::props::{PropInfo, ZfsProp, ZpoolProp};

use crate::command::command;

/// The environment variable of a shell's query.
const ASKED: &str = "AQUIFER_COMPLETE";

/// Shells, and the file name of a command's completion.
pub const SHELLS: [(&str, &str); 3] = [("bash", "*"), ("zsh", "_*"), ("fish", "*.fish")];

/// Answers a shell's query; `false` if this is not a query but an ordinary command.
pub fn answer() -> bool {
    if std::env::var_os(ASKED).is_none() {
        return false;
    }
    let name = std::env::args_os().next().map(|argv0| called_as(&argv0)).unwrap_or_default();
    let asked = CompleteEnv::with_factory(|| with_names(command(&name), &name)).var(ASKED);
    let here = std::env::current_dir().ok();
    // On a failed query a shell completes nothing; an error message would disturb its user.
    asked.try_complete(std::env::args_os(), here.as_deref()).unwrap_or(true)
}

/// The script that a shell sources for the command `name` of the program at `program`.
pub(super) fn script(name_of_shell: &str, name: &str, program: &Path) -> io::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let shell = shells.completer(name_of_shell);
    let shell = shell.ok_or_else(|| io::Error::other(format!("no such shell: {name_of_shell}")))?;
    let program = program.to_string_lossy();
    let mut script = Vec::new();
    shell.write_registration(ASKED, name, name, &program, &mut script)?;
    if name_of_shell == "bash" {
        let text = String::from_utf8_lossy(&script).replace(BROKEN, WHOLE).replace(ANSWERED, CUT);
        return Ok(text.into_bytes());
    }
    Ok(script)
}

/// Bash's word splitting, which also breaks words at `=`, `:` and `@`.
const BROKEN: &str = r#"    local words=("${COMP_WORDS[@]}")
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        words[COMP_CWORD]="$2"
    fi
"#;
/// The words as typed: `lead` is the part before the text that bash replaces.
const WHOLE: &str = r#"    local line=${COMP_LINE:0:COMP_POINT} words lead
    IFS=$' \t\n' read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1))
    lead=${words[_CLAP_COMPLETE_INDEX]}
    lead=${lead%"$2"}
"#;
const ANSWERED: &str = "    if [[ $? != 0 ]]; then\n        unset COMPREPLY\n    el";
const CUT: &str = "    local status=$?\n    COMPREPLY=(\"${COMPREPLY[@]#\"$lead\"}\")\n    \
    if [[ $status != 0 ]]; then\n        unset COMPREPLY\n    el";

/// The command tree with completers for names.
fn with_names(tree: clap::Command, name: &str) -> clap::Command {
    let name = name.to_owned();
    let verb = tree.get_name().to_owned();
    tree.mut_args(|arg| {
        if !arg.get_action().takes_values() {
            return arg;
        }
        match Kind::of(&arg, &name, &verb) {
            Some(kind) => arg.add(ArgValueCompleter::new(move |typed: &OsStr| kind.candidates(typed))),
            None if is_path(&arg) => arg.value_hint(ValueHint::AnyPath),
            None => arg,
        }
    })
    .mut_subcommands(|sub| {
        let below =
            if matches!(sub.get_name(), "zpool" | "zfs") { sub.get_name().to_owned() } else { name.clone() };
        with_names(sub, &below)
    })
}

fn value_name(arg: &clap::Arg) -> String {
    arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default()
}

fn is_path(arg: &clap::Arg) -> bool {
    let value = value_name(arg);
    ["FILE", "DIR", "DEVICE"].iter().any(|word| value.contains(word))
}

/// The kind of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pool,
    /// An importable pool.
    Importable,
    Dataset,
    /// A dataset, or a path.
    DatasetOrPath,
    /// A word for a kind of vdev, or a device.
    Vdev,
    /// A property of a pool if `true`, else of a dataset.
    Property(bool),
    /// `PROPERTY=VALUE`, likewise.
    Setting(bool),
    /// `zfs set` takes datasets after its settings.
    SettingOrDataset,
}

/// Words that begin a vdev.
const VDEV_WORDS: [&str; 13] = [
    "mirror", "raidz", "raidz1", "raidz2", "raidz3", "draid", "draid1", "draid2", "draid3", "spare", "log",
    "cache", "special",
];

impl Kind {
    fn of(arg: &clap::Arg, command: &str, verb: &str) -> Option<Self> {
        let value = value_name(arg);
        let is = |word: &str| value.contains(word);
        let of_pool = command == "zpool" && arg.get_short() != Some('O');
        Some(match () {
            () if is("PROPERTY=VALUE… DATASET") => Self::SettingOrDataset,
            () if is("PROPERTY=VALUE") => Self::Setting(of_pool),
            () if is("PROPERTY") => Self::Property(of_pool),
            () if is("DATASET") && is("DIR") => Self::DatasetOrPath,
            () if is("SNAPSHOT") || is("DATASET") || is("FILESYSTEM") || is("BOOKMARK") => Self::Dataset,
            () if value == "VDEV" => Self::Vdev,
            () if value.starts_with("POOL") && verb == "import" => Self::Importable,
            () if value.starts_with("POOL") => Self::Pool,
            () => return None,
        })
    }

    fn candidates(self, typed: &OsStr) -> Vec<CompletionCandidate> {
        if self == Self::Vdev {
            let words = VDEV_WORDS
                .iter()
                .chain(&["dedup"])
                .filter(|word| word.starts_with(&*typed.to_string_lossy()));
            let words = words.map(CompletionCandidate::new);
            return words.chain(PathCompleter::any().complete(typed)).collect();
        }
        if self == Self::DatasetOrPath {
            let datasets = Self::Dataset.candidates(typed);
            return datasets.into_iter().chain(PathCompleter::any().complete(typed)).collect();
        }
        let typed = &*typed.to_string_lossy();
        // Lists separate their words by commas; the last one is being typed.
        let is_list = matches!(self, Self::Property(_));
        let (lead, last) = typed.rsplit_once(',').filter(|_| is_list).unwrap_or(("", typed));
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
            Self::Vdev | Self::DatasetOrPath => Vec::new(),
            Self::Property(true) => ZpoolProp::ALL.iter().map(|prop| prop.name().to_owned()).collect(),
            Self::Property(false) => ZfsProp::ALL.iter().map(|prop| prop.name().to_owned()).collect(),
            Self::Setting(of_pool) => settings(of_pool, typed),
            Self::SettingOrDataset if typed.contains('=') => settings(false, typed),
            Self::SettingOrDataset => [settings(false, typed), Self::Dataset.all(typed)].concat(),
            Self::Pool => ask(&["zpool", "list", "-H", "-o", "name"]),
            Self::Importable => {
                let options = search_options(std::env::args().skip_while(|word| word != "--").skip(1));
                let words: Vec<&str> =
                    ["zpool", "import"].into_iter().chain(options.iter().map(String::as_str)).collect();
                importable(&run(&words))
            }
            // Snapshots can be many: they are queried once their dataset is known.
            Self::Dataset => match typed.split_once('@') {
                Some((dataset, _)) => ask(&["zfs", "list", "-H", "-o", "name", "-t", "snapshot", dataset]),
                None => ask(&["zfs", "list", "-H", "-o", "name", "-t", "filesystem,volume"]),
            },
        }
    }
}

/// `NAME=` of all settable properties, or `NAME=VALUE` of one.
fn settings(of_pool: bool, typed: &str) -> Vec<String> {
    let infos: Vec<&PropInfo> = match of_pool {
        true => ZpoolProp::ALL.iter().map(|prop| prop.info()).collect(),
        false => ZfsProp::ALL.iter().map(|prop| prop.info()).collect(),
    };
    let features =
        FEATURES.iter().filter(|_| of_pool).map(|feature| format!("feature@{}", feature.info().name));
    let Some((name, _)) = typed.split_once('=') else {
        let names = infos.iter().filter(|info| !info.read_only() && info.values.is_some());
        let names = names.map(|info| info.name.to_owned()).chain(features);
        return names.map(|name| name + "=").collect();
    };
    if of_pool && name.starts_with("feature@") {
        return ["enabled", "disabled"].iter().map(|word| format!("{name}={word}")).collect();
    }
    let info = infos.iter().find(|info| info.name == name);
    info.map(|info| values(info)).unwrap_or_default().iter().map(|word| format!("{name}={word}")).collect()
}

/// The values of a property: the words of its index, or those of its usage except placeholders.
fn values(info: &PropInfo) -> Vec<String> {
    if !info.index.is_empty() {
        return info.index.iter().map(|(word, _)| (*word).to_owned()).collect();
    }
    let words = info.values.unwrap_or_default().split(" | ");
    words.filter(|word| word.chars().all(|c| c.is_ascii_lowercase())).map(str::to_owned).collect()
}

/// The options of a typed `zpool import` that choose the pools that it lists: places to search, and destroyed pools.
fn search_options(mut words: impl Iterator<Item = String>) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.starts_with('-')) else {
            continue;
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                'd' | 'c' | 'o' | 'R' | 'T' => {
                    let value = letters.get(at + 1..).filter(|rest| !rest.is_empty()).map(str::to_owned);
                    let value = value.or_else(|| words.next()).unwrap_or_default();
                    if matches!(letter, 'd' | 'c') {
                        found.extend([format!("-{letter}"), value]);
                    }
                    break;
                }
                'D' | 's' => found.push(format!("-{letter}")),
                _ => {}
            }
        }
    }
    found
}

/// The names of the importable pools in an import listing; the numbers of pools of the same name.
fn importable(lines: &[String]) -> Vec<String> {
    let (mut found, mut name, mut id) = (Vec::new(), None, None);
    for line in lines {
        let word = |lead: &str| line.trim_start().strip_prefix(lead).map(str::to_owned);
        name = word("pool: ").or(name);
        id = word("id: ").or(id);
        if line.starts_with("action: ") && !line.contains("cannot be imported") {
            found.extend(name.take().map(|name| (name, id.take())));
        }
    }
    let is_one = |name: &String| found.iter().filter(|(other, _)| other == name).count() == 1;
    found.iter().filter_map(|(name, id)| if is_one(name) { Some(name.clone()) } else { id.clone() }).collect()
}

/// The output lines of a command; none without a daemon.
fn ask(words: &[&str]) -> Vec<String> {
    let of_system = || {
        daemon::paths::RunPaths::as_delegated()
            .is_some_and(|door| daemon::client::is_served(&door).unwrap_or(false))
    };
    let own = daemon::client::is_wanted(&daemon::paths::RunPaths::of_process()).unwrap_or(false);
    if own || of_system() { run(words) } else { Vec::new() }
}

/// The output lines of a command.
fn run(words: &[&str]) -> Vec<String> {
    let Ok(program) = std::env::current_exe() else { return Vec::new() };
    let output = Command::new(program).args(words).env_remove(ASKED).stderr(Stdio::null()).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clikit::names::NAMES;

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
        assert_eq!(words(Kind::Property(false), "used,compressr"), ["used,compressratio"]);
    }

    fn words(kind: Kind, typed: &str) -> Vec<String> {
        let found = kind.candidates(OsStr::new(typed));
        found.iter().map(|c| c.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn settings_and_vdevs_have_their_words() {
        assert_eq!(words(Kind::Setting(false), "compressi"), ["compression="]);
        assert_eq!(words(Kind::Setting(false), "used"), [""; 0]);
        assert_eq!(words(Kind::Setting(false), "sync=a"), ["sync=always"]);
        assert_eq!(words(Kind::Setting(false), "quota="), ["quota=none"]);
        assert_eq!(words(Kind::Setting(true), "feature@draid=e"), ["feature@draid=enabled"]);
        assert_eq!(words(Kind::Setting(true), "failmode=c"), ["failmode=continue"]);
        assert_eq!(words(Kind::SettingOrDataset, "atime=o"), ["atime=off", "atime=on"]);
        assert_eq!(words(Kind::Vdev, "raidz"), ["raidz", "raidz1", "raidz2", "raidz3"]);
    }

    #[test]
    fn only_pools_that_can_be_imported_are_offered() {
        let list = "  pool: a\n state: ONLINE\naction: The pool can be imported using its name.\n\n  pool: b\n\
            state: UNAVAIL\naction: The pool cannot be imported. Attach the missing\n\tdevices and try again.\n\n  pool: c\n\
            action: The pool can be imported despite missing or damaged devices.\n";
        let offered = |list: &str| importable(&list.lines().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(offered(list), ["a", "c"]);
        let two = list
            .replace(" pool: c", " pool: a\n     id: 7")
            .replace(" pool: a\n state", " pool: a\n     id: 5\n state");
        assert_eq!(offered(&two), ["5", "7"]);
    }

    #[test]
    fn importable_pools_are_sought_where_the_command_says() {
        let options = |line: &str| search_options(line.split(' ').map(str::to_owned));
        assert_eq!(
            options("zpool import -d /a -fDd/b -o ro=on -c c -R /x -"),
            ["-d", "/a", "-D", "-d", "/b", "-c", "c"]
        );
        assert_eq!(options("zpool import "), [""; 0]);
    }

    #[test]
    fn bash_is_told_of_whole_words() {
        let text = String::from_utf8(script("bash", "zfs", Path::new("/x/zfs")).unwrap()).unwrap();
        assert!(text.contains(WHOLE) && text.contains(CUT), "{text}");
    }
}
