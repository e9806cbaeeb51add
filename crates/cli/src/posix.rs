//! `POSIXLY_CORRECT`: as in getopt, every word after the first name is a name, whatever its form.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

/// The environment variable that requests this.
pub const WORD: &str = "POSIXLY_CORRECT";

/// Ends the options of a command line, `zfs get …`, before its first name.
pub fn end_options(mut argv: Vec<OsString>, tree: &Command) -> Vec<OsString> {
    let verb = argv.get(1).and_then(|word| tree.find_subcommand(word));
    let Some(verb) = verb else { return argv };
    let mut at = 2;
    while let Some(word) = argv.get(at).map(|word| word.as_bytes()) {
        match word {
            b"--" => return argv,
            [b'-', _, ..] => at += 1 + usize::from(takes_next(word, verb)),
            _ => break,
        }
    }
    if at < argv.len() {
        argv.insert(at, "--".into());
    }
    argv
}

/// Whether the value of an option is the next word.
fn takes_next(word: &[u8], verb: &Command) -> bool {
    let word = String::from_utf8_lossy(word);
    let takes = |arg: &Arg| arg.get_action().takes_values();
    if let Some(long) = word.strip_prefix("--") {
        return verb.get_arguments().any(|arg| arg.get_long() == Some(long) && takes(arg));
    }
    let letters: Vec<char> = word.chars().skip(1).collect();
    let valued =
        |letter: &char| verb.get_arguments().any(|arg| arg.get_short() == Some(*letter) && takes(arg));
    // Characters after the letter in the same word are its value.
    letters.iter().position(valued).is_some_and(|at| at + 1 == letters.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(line: &str) -> String {
        let argv = line.split(' ').map(OsString::from).collect();
        let argv = end_options(argv, &crate::command::command("zfs"));
        argv.join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn options_end_where_names_begin() {
        assert_eq!(ended("zfs get all -r tank"), "zfs get -- all -r tank");
        assert_eq!(ended("zfs get -rHo name -d 1 all -p"), "zfs get -rHo name -d 1 -- all -p");
        assert_eq!(ended("zfs get -oname all -p"), "zfs get -oname -- all -p");
        assert_eq!(ended("zfs get -r -- all -p"), "zfs get -r -- all -p");
        assert_eq!(ended("zfs list -H"), "zfs list -H");
        assert_eq!(ended("zfs nonsense a -r"), "zfs nonsense a -r");
    }
}
