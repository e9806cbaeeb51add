//! Reports an invalid command line of `zpool` or `zfs`: OpenZFS's error message, then the verb's synopsis, all on
//! standard error, with exit code 2.
//!
//! The synopses are generated from the clap declarations, in OpenZFS's layout: flags in one bracket, then options
//! with values, then names.

mod table;

use std::ffi::OsString;
use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use clikit::ctx::Ctx;
use clikit::names::{NAMES, called_as, is_ours};
use clikit::unsupported_usage;
use clikit::verb::Exit;

use crate::command::command as tree_of;
use crate::pages;

/// Columns of a line of a synopsis, including the eight of its tab.
const WIDTH: usize = 80;

/// OpenZFS's name of a missing argument, where it differs from `missing WORD argument`.
const MISSING: [(&str, &str, &str); 37] = [
    ("zpool create", "pool", "missing pool name argument"),
    ("zpool create", "vdev", "missing vdev specification"),
    ("zpool add", "pool", "missing pool name argument"),
    ("zpool add", "vdev", "missing vdev specification"),
    ("zpool attach", "pool", "missing pool name argument"),
    ("zpool attach", "device", "missing <device> specification"),
    ("zpool attach", "new-device", "missing <new_device> specification"),
    ("zpool replace", "pool", "missing pool name argument"),
    ("zpool replace", "device", "missing <device> specification"),
    ("zpool detach", "pool", "missing pool name argument"),
    ("zpool detach", "device", "missing <device> specification"),
    ("zpool split", "pool", "Missing pool name"),
    ("zpool split", "newpool", "Missing new pool name"),
    ("zpool resilver", "pool", "missing pool name argument"),
    ("zpool online", "pool", "missing pool name"),
    ("zpool online", "device", "missing device name"),
    ("zpool offline", "pool", "missing pool name"),
    ("zpool offline", "device", "missing device name"),
    ("zpool clear", "pool", "missing pool name"),
    ("zpool labelclear", "device", "missing vdev name"),
    ("zfs rewrite", "directory", "missing file or directory target(s)"),
    ("zfs set", "property=value", "missing arguments"),
    ("zfs rollback", "snapshot", "missing dataset argument"),
    ("zfs receive", "filesystem", "missing snapshot argument"),
    // Prints only the usage.
    ("zfs hold", "tag", ""),
    ("zfs release", "tag", ""),
    ("zfs hold", "snapshot", ""),
    ("zfs release", "snapshot", ""),
    ("zfs diff", "snapshot", "must provide at least one snapshot name"),
    ("zfs clone", "snapshot", "missing source dataset argument"),
    ("zfs clone", "filesystem", "missing target dataset argument"),
    ("zfs rename", "old", "missing source dataset argument"),
    ("zfs rename", "new", "missing target dataset argument"),
    ("zfs promote", "dataset", "missing clone filesystem argument"),
    ("zfs redact", "snapshot", "too few arguments"),
    ("zfs redact", "bookmark", "too few arguments"),
    ("zfs redact", "redaction_snapshot", "too few arguments"),
];

/// Rewrites `aquifer zpool …` to `zpool …`.
pub fn in_own_name(mut argv: Vec<OsString>) -> Vec<OsString> {
    let name = argv.first().map(|word| called_as(word)).unwrap_or_default();
    let next = argv.get(1).and_then(|word| word.to_str());
    if !NAMES.contains(&name.as_str()) && next.is_some_and(is_ours) {
        argv.remove(0);
    }
    argv
}

/// `zpool -?`, `zpool --help`, `zpool help`, `zpool help VERB` and `zpool help TOPIC`: regular output, on standard
/// output.
#[doc(alias("usage", "zpool_do_help", "zfs_do_help"))]
pub fn help(name: &str, argv: &[OsString], ctx: &mut Ctx) -> Option<Exit> {
    let mut words = argv.iter().skip(1).map(|word| word.to_str().unwrap_or_default());
    if !is_ours(name) || !matches!(words.next()?, "-?" | "--help" | "help") {
        return None;
    }
    let text = match words.next() {
        None | Some("--help") => everything(&tree_of(name)),
        Some(topic) => match pages::help(name, topic, ctx.out_is_terminal) {
            Some(text) => text,
            None => {
                ctx.command = name.to_owned();
                refuse(&format!("unrecognized command '{topic}'"), ctx);
                return Some(Exit::USAGE);
            }
        },
    };
    // A disconnected reader is noticed when output is flushed.
    let _ = ctx.out.write_all(text.as_bytes());
    Some(Exit::OK)
}

/// Prints an error and the synopsis of the command that `ctx` runs.
pub fn refuse(why: &str, ctx: &mut Ctx) {
    if !why.is_empty() {
        ctx.warn(why);
    }
    if let Some(mut usage) = usage(&ctx.command) {
        usage += &table::after(&ctx.command);
        // A closed standard error is ignored.
        let _ = ctx.err.write_all(usage.as_bytes());
    }
}

/// Translates clap's error to OpenZFS's words; `None` for a command without OpenZFS's usage messages.
pub fn why(e: &clap::Error, command: &str) -> Option<String> {
    let (name, verb) = command.split_once(' ').map_or((command, None), |(name, verb)| (name, Some(verb)));
    if !is_ours(name) {
        return None;
    }
    let tree = tree_of(name);
    let tree = verb.and_then(|verb| tree.find_subcommand(verb));
    let word = |kind| match e.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(all)) => all.first().cloned().unwrap_or_default(),
        _ => String::new(),
    };
    let (arg, value) = (word(ContextKind::InvalidArg), word(ContextKind::InvalidValue));
    let option = || letter(&arg, tree);
    Some(match e.kind() {
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "missing command".to_owned()
        }
        ErrorKind::UnknownArgument if verb.is_none() => format!("unrecognized command '{arg}'"),
        ErrorKind::UnknownArgument if arg.starts_with('-') => format!("invalid option '{}'", option()),
        ErrorKind::UnknownArgument | ErrorKind::TooManyValues => "too many arguments".to_owned(),
        ErrorKind::MissingRequiredArgument => missing(&arg, command, tree),
        // OpenZFS makes no distinction here.
        ErrorKind::InvalidValue if value.is_empty() && command == "zfs list" => {
            format!("invalid option '{}'", option())
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("missing argument for '{}' option", option()),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            format!("invalid value '{value}' for '{}' option", option())
        }
        ErrorKind::ArgumentConflict => {
            let other = letter(&word(ContextKind::PriorArg), tree);
            format!("invalid option combination: '{}' and '{other}' are mutually exclusive", option())
        }
        _ => e.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    })
}

/// OpenZFS's name of an option: `o` for `-o <PROPERTY=VALUE>`, its letter even where it has a long name.
fn letter(arg: &str, verb: Option<&Command>) -> String {
    let word = arg.split([' ', '=']).next().unwrap_or_default();
    let Some(long) = word.strip_prefix("--") else { return word.trim_start_matches('-').to_owned() };
    let of = |verb: &Command| verb.get_arguments().find(|arg| arg.get_long() == Some(long))?.get_short();
    verb.and_then(of).map_or_else(|| word.to_owned(), String::from)
}

/// The message when clap misses `<POOL>` or `<VDEV>...`, or an option that another one requires.
fn missing(arg: &str, command: &str, verb: Option<&Command>) -> String {
    if arg.starts_with('-') {
        return format!("missing option '{}'", letter(arg, verb));
    }
    let arg = arg.trim_start_matches('<').to_lowercase();
    let word = arg.split(['|', ',', '>', ' ', '…']).next().unwrap_or_default();
    let word = if word == "name" { "dataset" } else { word };
    let known = MISSING.iter().find(|(at, name, _)| *at == command && *name == word);
    known.map_or_else(|| format!("missing {word} argument"), |(.., text)| (*text).to_owned())
}

/// The usage of `zpool` or `zpool list`.
fn usage(command: &str) -> Option<String> {
    let mut words = command.split(' ');
    let name = words.next().filter(|name| is_ours(name))?;
    let tree = tree_of(name);
    let word = words.next().unwrap_or_default();
    let known = tree.find_subcommand(word).map(|verb| synopsis(name, verb));
    let lines = known.or_else(|| Some(unsupported_usage::find(name, word)?.synopsis()));
    Some(lines.map_or_else(|| everything(&tree), |lines| format!("usage:\n{lines}")))
}

fn everything(tree: &Command) -> String {
    let name = tree.get_name();
    let shown = tree.get_subcommands().filter(|verb| !verb.is_hide_set());
    let verbs: String = shown.map(|verb| synopsis(name, verb)).collect();
    format!(
        "usage: {name} command args ...\nThe commands:\n\n{verbs}\nMore about one of them: {name} help command\n"
    )
}

/// Synopses that the arguments do not give, above all those of `zfs` that programs search for words: zrepl decides by them
/// whether transfers can be resumed and whether snapshots can be destroyed together.
const SEARCHED: &[(&str, &[&str])] = &[
    ("zpool ddtprune", &["ddtprune -d|-p <amount> <pool>"]),
    ("zpool prefetch", &["prefetch [-t <type>] <pool>"]),
    (
        "zfs destroy",
        &[
            "destroy [-fnpRrv] <filesystem|volume>",
            "destroy [-dnpRrv] <filesystem|volume>@<snap>[%<snap>][,...]",
            "destroy <filesystem|volume>#<bookmark>",
        ],
    ),
    ("zfs share", &["share [-l] <-a [nfs|smb] | filesystem>"]),
    ("zfs unshare", &["unshare <-a [nfs|smb] | filesystem|mountpoint>"]),
    (
        "zfs send",
        &[
            "send [-DLPbcehnpsVvw] [-i|-I snapshot]",
            "     [-R [-X dataset[,dataset]...]]     <snapshot>",
            "send [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>",
            "send [-DnPpVvLec] [-i bookmark|snapshot] --redact <bookmark> <snapshot>",
            "send [-nVvPe] -t <receive_resume_token>",
            "send [-PnVv] --saved filesystem",
        ],
    ),
    (
        "zfs receive",
        &[
            "receive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...",
            "    <filesystem|volume|snapshot>",
            "receive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...",
            "    [-d | -e] <filesystem>",
            "receive -A <filesystem|volume>",
            "receive -c [-vn] <filesystem|snapshot>",
        ],
    ),
];

/// The lines of one verb of `name`.
fn synopsis(name: &str, verb: &Command) -> String {
    if let Some(lines) = searched(name, verb) {
        return lines.iter().map(|line| format!("\t{line}\n")).collect();
    }
    let mut text = format!("\t{}", verb.get_name());
    let mut column = 8 + verb.get_name().len();
    for part in parts(verb) {
        if column + 1 + part.len() > WIDTH {
            text.push_str("\n\t   ");
            column = 11;
        }
        text.push(' ');
        text.push_str(&part);
        column += 1 + part.len();
    }
    text.push('\n');
    text
}

/// The fixed lines of a verb.
fn searched(name: &str, verb: &Command) -> Option<&'static [&'static str]> {
    let of = |known: &str| known.split_once(' ') == Some((name, verb.get_name()));
    SEARCHED.iter().find(|(known, _)| of(known)).map(|(_, lines)| *lines)
}

fn parts(verb: &Command) -> Vec<String> {
    let shown = || verb.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help");
    let is_flag = |arg: &&Arg| !arg.is_positional() && !arg.get_action().takes_values();
    let mut letters: Vec<char> = shown().filter(is_flag).filter_map(Arg::get_short).collect();
    letters.sort_by_key(|letter| (letter.to_ascii_lowercase(), letter.is_ascii_lowercase()));
    let mut parts = Vec::new();
    let valued = |arg: &&Arg| !arg.is_positional() && arg.get_action().takes_values();
    // The options common to all verbs on pools that are not imported follow the verb's own.
    let is_common = |arg: &&Arg| arg.get_help_heading().is_some();
    if !letters.is_empty() {
        parts.push(format!("[-{}]", letters.into_iter().collect::<String>()));
    }
    for common in [false, true] {
        let of_part = || shown().filter(|arg| is_common(arg) == common);
        let long_flags = of_part().filter(is_flag).filter(|arg| arg.get_short().is_none());
        parts.extend(long_flags.filter_map(|arg| Some(format!("[--{}]", arg.get_long()?))));
        parts.extend(of_part().filter(valued).map(option));
    }
    parts.extend(verb.get_positionals().filter(|arg| !arg.is_hide_set()).map(name_of));
    parts
}

fn option(arg: &Arg) -> String {
    let letter = arg.get_short().map(|letter| format!("-{letter}"));
    let word = letter.or_else(|| Some(format!("--{}", arg.get_long()?))).unwrap_or_default();
    let optional = arg.get_num_args().is_some_and(|count| count.min_values() == 0);
    let value = if optional { format!("[{}]", value(arg)) } else { value(arg) };
    let inner = format!("{word} {value}");
    let inner = if arg.is_required_set() { inner } else { format!("[{inner}]") };
    // `-t a -t b` is `-t a,b`: the value name already expresses that.
    if is_many(arg) && !value.contains("[,...]") { format!("{inner} ...") } else { inner }
}

fn name_of(arg: &Arg) -> String {
    let value = value(arg);
    let framed = match (value.contains(' '), arg.is_required_set()) {
        (true, true) => return value,
        (false, true) => format!("<{value}>"),
        (_, false) => format!("[{value}]"),
    };
    if is_many(arg) && !value.contains("...") { format!("{framed} ...") } else { framed }
}

/// Converts `PROPERTY,…` to `property[,...]` and `POOL…` to `pool ...`.
fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let words = names.join(" ").to_lowercase();
    if words == "name" {
        return "dataset".to_owned();
    }
    words.replace(",…", "[,...]").replace('…', " ...")
}

fn is_many(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

#[cfg(test)]
mod tests {
    use crate::testing::captured;
    use clikit::verb::Exit;

    /// The error message, without the usage.
    fn said(line: &str) -> (Exit, String) {
        let run = captured(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(run.out, "", "{line}");
        let (why, usage) = run.err.split_once("usage:").unwrap();
        let verb = line.split(' ').nth(1).filter(|_| !why.contains("command"));
        let lead = verb.map_or_else(|| " z".to_owned(), |verb| format!("\n\t{verb} "));
        assert!(usage.starts_with(&lead), "{line}: {usage}");
        (run.exit, why.trim_end().to_owned())
    }

    #[test]
    fn wrong_usage_is_told_in_openzfs_words() {
        for (line, why) in [
            ("zpool", "missing command"),
            ("zfs nonsense", "unrecognized command 'nonsense'"),
            ("zpool -x", "unrecognized command '-x'"),
            ("zpool -h", "unrecognized command '-h'"),
            ("zfs list -Q", "invalid option 'Q'"),
            ("zfs list -HQ", "invalid option 'Q'"),
            ("zfs list --what=1", "invalid option '--what'"),
            ("zpool list -?", "invalid option '?'"),
            ("zfs list -o", "invalid option 'o'"),
            ("zfs set", "missing arguments"),
            ("zfs rollback", "missing dataset argument"),
            ("zfs get -d", "missing argument for 'd' option"),
            ("zpool destroy", "missing pool argument"),
            ("zpool destroy a b", "too many arguments"),
            ("zpool create", "missing pool name argument"),
            ("zpool create a", "missing vdev specification"),
            ("zpool online a", "missing device name"),
            ("zfs destroy", "missing dataset argument"),
            ("zfs promote", "missing clone filesystem argument"),
            ("zfs rename a", "missing target dataset argument"),
            ("zfs clone a@b", "missing target dataset argument"),
            ("zfs snapshot", "missing snapshot argument"),
            ("zfs get", "missing property argument"),
            ("zfs get all,name tank", "bad property list: invalid property 'all'"),
            ("zpool labelclear", "missing vdev name"),
            ("zfs rewrite", "missing file or directory target(s)"),
            ("zpool ddtprune -d 09 tank", "invalid days value"),
            ("zpool ddtprune -p 0x65 tank", "invalid percentage value"),
            ("zpool split", "Missing pool name"),
            ("zpool scrub -q tank", "invalid option 'q'"),
            ("zfs send", "missing snapshot argument"),
            ("zpool list --json-int", "missing option 'j'"),
        ] {
            assert_eq!(said(line), (Exit::USAGE, why.to_owned()), "{line}");
        }
        assert_eq!(captured(&["aquifer", "zfs", "list", "-Q"]).err, captured(&["zfs", "list", "-Q"]).err);
    }

    #[test]
    fn synopses_have_openzfs_layout() {
        let run = captured(&["zpool", "destroy"]);
        assert_eq!(run.err, "missing pool argument\nusage:\n\tdestroy [-f] <pool>\n");
        let run = captured(&["zfs", "snapshot"]);
        let usage = "usage:\n\tsnapshot [-r] [-o property=value] ... <snapshot> ...\n";
        assert_eq!(run.err, format!("missing snapshot argument\n{usage}"));
        assert!(captured(&["zfs", "hold"]).err.starts_with("usage:\n\thold [-r] "));
        let run = captured(&["zpool", "ddtprune"]);
        let why = "missing amount option (-d|-p <value>)";
        assert_eq!(run.err, format!("{why}\nusage:\n\tddtprune -d|-p <amount> <pool>\n"));
    }

    #[test]
    fn help_is_an_answer() {
        for words in
            [&["zpool", "-?"][..], &["zpool", "--help"], &["zpool", "help"], &["aquifer", "zpool", "-?"]]
        {
            let run = captured(words);
            assert_eq!((run.exit, run.err.as_str()), (Exit::OK, ""), "{words:?}");
            assert!(run.out.contains("\n\tdestroy [-f] <pool>\n"), "{}", run.out);
            let at = |verb: &str| run.out.find(&format!("\n\t{verb} [-")).unwrap();
            assert!(at("list") < at("status") && at("status") < at("iostat"), "{}", run.out);
            let is_short = |line: &str| line.len() + 7 <= super::WIDTH || !line.starts_with('\t');
            assert!(run.out.lines().all(is_short), "{}", run.out);
        }
        assert!(captured(&["zfs", "help", "rollback"]).out.contains("Usage: zfs rollback"));
        assert_eq!(captured(&["zfs", "help", "nonsense"]).exit, Exit::USAGE);
        assert!(captured(&["zfs", "help", "snap"]).out.contains("Usage: zfs snapshot"));
        assert!(captured(&["zpool", "help", "scrub"]).out.contains("Usage: zpool scrub"));
        assert!(captured(&["zpool", "help", "split"]).out.contains("Usage: zpool split"));
        assert!(captured(&["zpool", "help", "concepts"]).out.starts_with("zpoolconcepts - "));
        assert!(captured(&["aquifer", "zfs", "help", "props"]).out.starts_with("zfsprops - "));
    }
}
