//! Command lines of unimplemented verbs: errors in them are reported as OpenZFS reports them, before anything else.
//!
//! Source: the verbs' functions in zpool_main.c and zfs_main.c, OpenZFS 2.3.2, for the options and messages.

use std::ffi::OsString;

use crate::verb::Failure;

/// The grammar of a verb's command line.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// `zpool` or `zfs`.
    pub command: &'static str,
    /// The verb.
    pub verb: &'static str,
    /// Letters of options; a colon follows one that takes a value.
    pub options: &'static str,
    /// Long option names and their letters.
    pub long: &'static [(&'static str, char)],
    /// The messages for a missing first argument, second argument, and so on: one for each required argument.
    pub missing: &'static [&'static str],
    /// Maximum number of arguments.
    pub most: usize,
    /// The synopsis after its name.
    pub usage: &'static str,
}

/// No limit of arguments.
const ANY: usize = usize::MAX;
const NO_POOL: &str = "missing pool name argument";

/// The defaults of most verbs.
const PLAIN: Form =
    Form { command: "zpool", verb: "", options: "", long: &[], missing: &[NO_POOL], most: ANY, usage: "" };

/// The unimplemented verbs.
const FORMS: [Form; 1] = [Form {
    command: "zfs",
    verb: "program",
    options: "nt:m:j",
    long: &[("json", 'j')],
    missing: &["invalid number of arguments", "invalid number of arguments"],
    usage: "[-jn] [-t <instruction limit>] [-m <memory limit (b)>]\n\t    <pool> <program file> [lua args...]",
    ..PLAIN
}];

/// The grammar of an unimplemented verb.
pub fn find(command: &str, verb: &str) -> Option<&'static Form> {
    FORMS.iter().find(|form| form.command == command && form.verb == verb)
}

/// The synopses of verbs whose lines are not parsed here.
const USED: [(&str, &str, &str); 4] = [
    ("zfs", "zone", "<nsfile> <filesystem>"),
    ("zfs", "unzone", "<nsfile> <filesystem>"),
    ("zfs", "jail", "<jailid|jailname> <filesystem>"),
    ("zfs", "unjail", "<jailid|jailname> <filesystem>"),
];

/// The grammar of an unimplemented verb, for its help. Lines are parsed with the result of [`find`].
pub fn described(command: &str, verb: &str) -> Option<Form> {
    let used = |(command, verb, usage)| Form { command, verb, usage, ..PLAIN };
    let named = USED.iter().find(|used| (used.0, used.1) == (command, verb));
    find(command, verb).copied().or_else(|| named.copied().map(used))
}

/// All grammars.
pub fn all() -> impl Iterator<Item = Form> {
    FORMS.into_iter().chain(USED.iter().filter_map(|used| described(used.0, used.1)))
}

/// A parsed line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Letters of its options.
    pub options: Vec<char>,
    /// The words that are not options.
    pub arguments: Vec<String>,
}

impl Form {
    /// Parses the words after the verb.
    ///
    /// # Errors
    /// A usage error.
    pub fn read(&self, words: &[OsString]) -> Result<Line, Failure> {
        let mut line = Line::default();
        let mut words = words.iter().map(|word| word.to_string_lossy().into_owned());
        let mut only_arguments = false;
        while let Some(word) = words.next() {
            match word.strip_prefix('-') {
                Some("-") if !only_arguments => only_arguments = true,
                Some(option) if !only_arguments && !option.is_empty() => {
                    self.option(option, &mut line, &mut || words.next())?;
                }
                _ => line.arguments.push(word),
            }
        }
        if let Some(missing) = self.missing.get(line.arguments.len()) {
            return Err(Failure::usage(*missing));
        }
        if line.arguments.len() > self.most {
            return Err(Failure::usage("too many arguments"));
        }
        Ok(line)
    }

    /// Parses `abc`, `ovalue` or `-long=value`, the characters after the first `-` of a word.
    #[doc(alias("getopt", "getopt_long"))]
    fn option(
        &self,
        word: &str,
        line: &mut Line,
        next: &mut dyn FnMut() -> Option<String>,
    ) -> Result<(), Failure> {
        let value_of = |letter| self.options.contains(&format!("{letter}:"));
        let lacks = |letter| Failure::usage(format!("missing argument for '{letter}' option"));
        let known = |letter: char| letter.is_ascii_alphabetic() && self.options.contains(letter);
        if let Some(long) = word.strip_prefix('-') {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let found = self.long.iter().find(|(known, _)| *known == name);
            let (_, letter) = found.ok_or_else(|| Failure::usage(format!("invalid option '--{name}'")))?;
            if value_of(*letter) && value.is_none() && next().is_none() {
                return Err(lacks(*letter));
            }
            line.options.push(*letter);
            return Ok(());
        }
        for (at, letter) in word.char_indices() {
            if !known(letter) {
                return Err(Failure::usage(format!("invalid option '{letter}'")));
            }
            line.options.push(letter);
            if value_of(letter) {
                let here = word.get(at + letter.len_utf8()..).filter(|rest| !rest.is_empty());
                let value = here.map(str::to_owned).or_else(&mut *next).ok_or_else(|| lacks(letter))?;
                return check_number(&value);
            }
        }
        Ok(())
    }

    /// The synopsis of the verb.
    pub fn synopsis(&self) -> String {
        format!("\t{} {}\n", self.verb, self.usage)
    }
}

/// Checks the value of an option: all of them are numbers, decimal, octal or hexadecimal as in C.
#[doc(alias = "strtoull")]
fn check_number(value: &str) -> Result<(), Failure> {
    let (digits, base) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if value.starts_with('0') => (value, 8),
        None => (value, 10),
    };
    match u64::from_str_radix(digits, base) {
        Ok(_) => Ok(()),
        Err(_) => Err(Failure::usage(format!("invalid argument '{value}': expected integer"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(String, String), String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let verb = line.split(' ').next().unwrap();
        let form = find("zpool", verb).or_else(|| find("zfs", verb)).unwrap();
        let read = form.read(&words[1..]).map_err(|e| e.message().unwrap())?;
        Ok((read.options.iter().collect(), read.arguments.join(" ")))
    }

    #[test]
    fn lines_are_read_as_getopt_does() {
        let fine = |options: &str, arguments: &str| Ok((options.to_owned(), arguments.to_owned()));
        assert_eq!(read("program -nt 5 p -j x y"), fine("ntj", "p x y"));
        assert_eq!(read("program -t5 p x y"), fine("t", "p x y"));
        assert_eq!(read("program --json p -t 5 file"), fine("jt", "p file"));
        assert_eq!(read("program -n -- p -r"), fine("n", "p -r"));
        for (line, why) in [
            ("program -q p", "invalid option 'q'"),
            ("program -n: p", "invalid option ':'"),
            ("program --what p", "invalid option '--what'"),
            ("program p -t", "missing argument for 't' option"),
            ("program p", "invalid number of arguments"),
            ("program -t x p file", "invalid argument 'x': expected integer"),
            ("program -m1K p file", "invalid argument '1K': expected integer"),
        ] {
            assert_eq!(read(line), Err(why.to_owned()), "{line}");
        }
    }
}
