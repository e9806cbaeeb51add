//! zdb's options: each declared once, counted by repetition, in any order with the operands.
//!
//! The syntax is getopt's, not clap's: `-ddbb`, `-ut 5`, `-t5` and options after operands have the same meaning as
//! in OpenZFS's zdb.
//!
//! Differs from OpenZFS: `--device`, `--load-key` and `--fallback` are ours, as in other verbs, and specifying
//! devices (`-p` or `--device`) implies `-e`.

use std::path::PathBuf;

use clikit::keys::{LoadKey, parse_load_key};

/// One option.
pub struct Flag {
    /// Its letter; 0 for our own options, which have none.
    pub letter: u8,
    /// Its long name.
    pub long: &'static str,
    /// The name of its argument, if it takes one.
    pub argument: Option<&'static str>,
    /// Its description.
    pub help: &'static str,
}

const fn plain(letter: u8, long: &'static str, help: &'static str) -> Flag {
    Flag { letter, long, argument: None, help }
}

const fn with(letter: u8, long: &'static str, argument: &'static str, help: &'static str) -> Flag {
    Flag { letter, long, argument: Some(argument), help }
}

/// Every option.
pub const FLAGS: &[Flag] = &[
    plain(b'b', "block-stats", "number and sizes of blocks"),
    plain(
        b'B',
        "backup",
        "a send stream of POOL/OBJSET-ID, flags e L c w as the next word, from which snapshot as the one after",
    ),
    plain(b'c', "checksum", "check metadata (-c) or all blocks (-cc) while counting them"),
    plain(b'C', "config", "the pool's configuration; without a pool the cache file"),
    plain(b'd', "datasets", "datasets and objects"),
    plain(b'D', "dedup-stats", "dedup tables"),
    plain(b'E', "embedded-block-pointer", "decode an embedded block pointer given as 16 words"),
    plain(b'h', "history", "the pool's history with internal events"),
    plain(b'i', "intent-logs", "intent logs"),
    plain(b'l', "label", "labels of a device; with -u its uberblocks"),
    plain(b'm', "metaslabs", "metaslabs and their space maps"),
    plain(b'M', "metaslab-groups", "metaslab groups and classes"),
    plain(b'N', "numeric", "as -d, with the part after POOL/ taken as an object set's number"),
    plain(b'O', "object-lookups", "DATASET PATH: the object at that path"),
    plain(
        b'r',
        "copy-object",
        "DATASET PATH DESTINATION: copy a file out; with -O an object number for PATH",
    ),
    plain(b'R', "read-block", "POOL VDEV:OFFSET:[LSIZE/]PSIZE[:FLAGS]: read and print a block"),
    plain(b's', "io-stats", "the reads of zdb itself"),
    plain(b'S', "simulate-dedup", "the savings of dedup"),
    plain(b'T', "brt-stats", "cloned blocks"),
    plain(b'u', "uberblock", "the uberblock"),
    plain(b'y', "livelist", "check livelists that are being deleted"),
    plain(b'Z', "zstd-headers", "headers of zstd blocks"),
    plain(b'A', "ignore-assertions", "go on after failed assertions of OpenZFS; -AA, -AAA go on after more"),
    plain(b'e', "exported", "the pool is exported: search for its devices"),
    plain(b'F', "automatic-rewind", "if the newest state cannot be opened, try older ones"),
    plain(b'G', "dump-debug-msg", "print the notices of the run before the end"),
    plain(b'k', "checkpointed-state", "the pool as at its checkpoint"),
    plain(b'L', "disable-leak-tracking", "no leak detection, no space maps"),
    plain(b'P', "parseable", "exact numbers"),
    plain(b'q', "skip-label", "with -l: don't print labels"),
    plain(b'v', "verbose", "more of everything"),
    plain(b'V', "verbatim", "import as the cache file says"),
    plain(b'X', "extreme-rewind", "as -F, further back"),
    plain(b'Y', "all-reconstruction", "try all combinations when reconstructing split blocks"),
    with(b'I', "inflight", "N", "checksum reads in flight"),
    with(b'K', "key", "KEY", "key of an encrypted dataset"),
    with(b'o', "option", "VAR=VALUE", "set a tunable"),
    with(b'p', "path", "PATH", "search here for devices; may be repeated"),
    with(b't', "txg", "TXG", "newest transaction group to open"),
    with(b'U', "cachefile", "FILE", "another cache file"),
    with(b'x', "dump-blocks", "DIR", "copy all blocks read into sparse files there"),
    with(0, "device", "DIR|DEVICE", "as -p"),
    with(0, "load-key", "DATASET=FILE|-", "read a dataset's key from a file; may be repeated"),
    plain(0, "fallback", "as -F"),
    plain(0, "help", "this text"),
];

/// Letters that select sections: if any is given, only the selected ones are shown.
const CHOOSERS: &[u8] = b"bBcCdDEGhilmMNOrRsSTuyZ";
/// Letters that "show everything" does not include.
const NOT_IN_ALL: &[u8] = b"ABeEFkKlLNOPrRSXyIotpUxvVYq";

/// A parsed command line.
#[derive(Debug, Clone)]
pub struct Options {
    counts: [u32; 128],
    /// The number of `-v` options.
    pub verbose: u32,
    /// `-p` and `--device`: locations of devices.
    pub paths: Vec<PathBuf>,
    /// `-t`.
    pub txg: Option<u64>,
    /// `-I`: checksum reads in flight.
    pub inflight: Option<u64>,
    /// `-K`: the key in its key format: a passphrase or hex digits.
    pub key: Option<String>,
    /// `--load-key`.
    pub load_key: Vec<LoadKey>,
    /// `-o VAR=VALUE`.
    pub tunables: Vec<(String, u32)>,
    /// `-U`.
    pub cache_file: Option<PathBuf>,
    /// `-x`.
    pub dump_dir: Option<PathBuf>,
    /// The words that are not options: pool or device first, then objects, ranges, blocks.
    pub operands: Vec<String>,
    /// No section was selected, so all are shown.
    pub all: bool,
    /// `--help`.
    pub help: bool,
}

impl Options {
    /// Parses a command line; an error has getopt's message.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut parser = Parser { options: Self::empty(), words: words.iter() };
        while let Some(word) = parser.words.next() {
            if word == "--" {
                parser.options.operands.extend(parser.words.by_ref().cloned());
            } else if let Some(long) = word.strip_prefix("--") {
                parser.long(long)?;
            } else if let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty()) {
                parser.letters(letters)?;
            } else {
                parser.options.operands.push(word.clone());
            }
        }
        let mut options = parser.options;
        options.settle();
        Ok(options)
    }

    fn empty() -> Self {
        Self {
            counts: [0; 128],
            verbose: 0,
            paths: Vec::new(),
            txg: None,
            inflight: None,
            key: None,
            load_key: Vec::new(),
            tunables: Vec::new(),
            cache_file: None,
            dump_dir: None,
            operands: Vec::new(),
            all: false,
            help: false,
        }
    }

    /// The number of times a letter was given, plus `-v` if the letter was given at all.
    pub fn level(&self, letter: char) -> u32 {
        usize::try_from(u32::from(letter)).ok().and_then(|i| self.counts.get(i)).copied().unwrap_or(0)
    }

    /// Whether a letter was given.
    pub fn has(&self, letter: char) -> bool {
        self.level(letter) > 0
    }

    /// Sets the count of a letter: `-O` and `-r` raise their own verbosity.
    pub fn set_level(&mut self, letter: char, level: u32) {
        let slot = usize::try_from(u32::from(letter)).ok().and_then(|i| self.counts.get_mut(i));
        if let Some(slot) = slot {
            *slot = level;
        }
    }

    /// Whether numbers are printed exactly (`-P`).
    pub fn parsable(&self) -> bool {
        self.has('P')
    }

    fn count(&mut self, letter: u8) {
        if let Some(slot) = self.counts.get_mut(usize::from(letter)) {
            *slot = slot.saturating_add(1);
        }
    }

    /// Without a selection everything is shown; `-v` raises all selected letters.
    fn settle(&mut self) {
        self.verbose = self.level('v');
        let all = !CHOOSERS.iter().any(|&letter| self.has(char::from(letter)));
        self.all = all;
        if all {
            self.verbose = self.verbose.max(1);
        }
        for flag in FLAGS.iter().filter(|f| f.letter != 0 && f.letter != b'v') {
            let Some(slot) = self.counts.get_mut(usize::from(flag.letter)) else { continue };
            if all && !NOT_IN_ALL.contains(&flag.letter) {
                *slot = 1;
            }
            if *slot > 0 {
                *slot = slot.saturating_add(self.verbose);
            }
        }
        if !self.paths.is_empty() && !self.has('e') {
            self.set_level('e', 1);
        }
    }

    fn set(&mut self, flag: &Flag, value: &str) -> Result<(), String> {
        match (flag.letter, flag.long) {
            (b'p', _) | (_, "device") => self.paths.push(PathBuf::from(value)),
            (b't', _) => self.txg = Some(parse_txg(value)?),
            (b'I', _) => self.inflight = Some(parse_inflight(value)?),
            (b'K', _) => self.key = Some(value.to_owned()),
            (b'o', _) => self.tunables.push(parse_tunable(value)?),
            (b'U', _) => self.cache_file = Some(parse_cache_file(value)?),
            (b'x', _) => self.dump_dir = Some(PathBuf::from(value)),
            (_, "load-key") => self.load_key.push(parse_load_key(value)?),
            _ => {}
        }
        if flag.letter != 0 {
            self.count(flag.letter);
        }
        Ok(())
    }

    fn raise(&mut self, flag: &Flag) {
        match flag.long {
            "fallback" => self.count(b'F'),
            "help" => self.help = true,
            _ => self.count(flag.letter),
        }
    }
}

struct Parser<'a> {
    options: Options,
    words: std::slice::Iter<'a, String>,
}

impl Parser<'_> {
    fn letters(&mut self, letters: &str) -> Result<(), String> {
        let mut rest = letters.chars();
        while let Some(letter) = rest.next() {
            let flag = FLAGS.iter().find(|f| f.letter != 0 && char::from(f.letter) == letter);
            let flag = flag.ok_or_else(|| format!("zdb: invalid option -- '{letter}'"))?;
            if flag.argument.is_none() {
                self.options.raise(flag);
                continue;
            }
            let attached = rest.as_str();
            let value =
                if attached.is_empty() { self.words.next().map(String::as_str) } else { Some(attached) };
            let missing = || format!("zdb: option requires an argument -- '{letter}'");
            return self.options.set(flag, value.ok_or_else(missing)?);
        }
        Ok(())
    }

    fn long(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        let flag = find_long(name)?;
        match (flag.argument, value) {
            (None, None) => self.options.raise(flag),
            (None, Some(_)) => {
                return Err(format!("zdb: option '--{}' doesn't allow an argument", flag.long));
            }
            (Some(_), value) => {
                let value = value.or_else(|| self.words.next().map(String::as_str));
                let missing = || format!("zdb: option '--{}' requires an argument", flag.long);
                self.options.set(flag, value.ok_or_else(missing)?)?;
            }
        }
        Ok(())
    }
}

/// The flag of this long name, which may be abbreviated if it is unambiguous.
fn find_long(name: &str) -> Result<&'static Flag, String> {
    if let Some(flag) = FLAGS.iter().find(|f| f.long == name) {
        return Ok(flag);
    }
    let mut starting = FLAGS.iter().filter(|f| f.long.starts_with(name));
    match (starting.next(), starting.next()) {
        (Some(flag), None) => Ok(flag),
        (Some(_), Some(_)) => Err(format!("zdb: option '--{name}' is ambiguous")),
        _ => Err(format!("zdb: unrecognized option '--{name}'")),
    }
}

fn parse_txg(text: &str) -> Result<u64, String> {
    let txg = parse_number(text).filter(|&txg| txg >= 4);
    txg.ok_or_else(|| format!("incorrect txg specified: {text}"))
}

fn parse_inflight(text: &str) -> Result<u64, String> {
    let n = parse_number(text).filter(|&n| n > 0);
    n.ok_or_else(|| "maximum number of inflight bytes must be greater than 0".to_owned())
}

fn parse_tunable(text: &str) -> Result<(String, u32), String> {
    let bad = || format!("Could not set variable: {text}");
    let (name, value) = text.split_once('=').ok_or_else(bad)?;
    let value = parse_number(value).and_then(|v| u32::try_from(v).ok()).ok_or_else(bad)?;
    Ok((name.to_owned(), value))
}

fn parse_cache_file(text: &str) -> Result<PathBuf, String> {
    if !text.starts_with('/') {
        return Err("cachefile must be an absolute path (i.e. start with a slash)".to_owned());
    }
    Ok(PathBuf::from(text))
}

/// A number as parsed by strtoull with base 0: decimal, `0x` hexadecimal, `0` octal.
pub fn parse_number(text: &str) -> Option<u64> {
    match (text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")), text.strip_prefix('0')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    }
}

/// zdb's synopsis.
pub const USAGE: &str = "\
Usage:\tzdb [-AbcdDFGhikLMPsvXy] [-e [-V] [-p <path> ...]] [-I <inflight I/Os>]
\t\t[-o <var>=<value>]... [-t <txg>] [-U <cache>] [-x <dumpdir>]
\t\t[-K <key>]
\t\t[<poolname>[/<dataset | objset id>] [<object | range> ...]]
\tzdb [-AdiPv] [-e [-V] [-p <path> ...]] [-U <cache>] [-K <key>]
\t\t[<poolname>[/<dataset | objset id>] [<object | range> ...]]
\tzdb -B [-e [-V] [-p <path> ...]] [-I <inflight I/Os>]
\t\t[-o <var>=<value>]... [-t <txg>] [-U <cache>] [-x <dumpdir>]
\t\t[-K <key>] <poolname>/<objset id> [<backupflags>]
\tzdb [-v] <bookmark>
\tzdb -C [-A] [-U <cache>] [<poolname>]
\tzdb -l [-Aqu] <device>
\tzdb -m [-AFLPX] [-e [-V] [-p <path> ...]] [-t <txg>] [-U <cache>]
\t\t<poolname> [<vdev> [<metaslab> ...]]
\tzdb -O [-K <key>] <dataset> <path>
\tzdb -r [-K <key>] <dataset> <path> <destination>
\tzdb -r [-K <key>] -O <dataset> <object-id> <destination>
\tzdb -R [-A] [-e [-V] [-p <path> ...]] [-U <cache>]
\t\t<poolname> <vdev>:<offset>:<size>[:<flags>]
\tzdb -E [-A] word0:word1:...:word15
\tzdb -S [-AP] [-e [-V] [-p <path> ...]] [-U <cache>] <poolname>
";

/// Usage and all options.
pub fn help() -> String {
    let mut text = format!("{USAGE}\nOptions:\n");
    for flag in FLAGS {
        let letter =
            if flag.letter == 0 { "   ".to_owned() } else { format!("-{},", char::from(flag.letter)) };
        let long = match flag.argument {
            Some(argument) => format!("--{}={argument}", flag.long),
            None => format!("--{}", flag.long),
        };
        text.push_str(&format!("  {letter} {long:<28} {}\n", flag.help));
    }
    text.push_str("\nRepeat an option for more detail. Without options everything is shown.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn letters_count_and_mix_with_operands() {
        let o = parse("-ddb tank/a 5 -d -t7 -p /x --path=/y 6").unwrap();
        assert_eq!((o.level('d'), o.level('b'), o.level('c')), (3, 1, 0));
        assert_eq!(o.operands, ["tank/a", "5", "6"]);
        assert_eq!((o.txg, o.paths.len(), o.has('e')), (Some(7), 2, true));
    }

    #[test]
    fn verbose_raises_what_was_chosen() {
        let o = parse("-vvC tank").unwrap();
        assert_eq!((o.level('C'), o.level('u')), (3, 0));
        let o = parse("tank").unwrap();
        assert_eq!((o.level('C'), o.level('u'), o.level('S'), o.level('l')), (2, 2, 0, 0));
        let o = parse("-e tank").unwrap();
        assert_eq!((o.level('b'), o.level('e')), (2, 2));
    }

    #[test]
    fn wrong_lines_are_told_as_getopt_does() {
        assert_eq!(parse("-z").unwrap_err(), "zdb: invalid option -- 'z'");
        assert_eq!(parse("-t").unwrap_err(), "zdb: option requires an argument -- 't'");
        assert_eq!(parse("--nonsense").unwrap_err(), "zdb: unrecognized option '--nonsense'");
        assert!(parse("-t 1").is_err() && parse("-t x").is_err() && parse("-o x").is_err());
        assert!(parse("--block-stat tank").unwrap().has('b'));
    }

    #[test]
    fn numbers_as_c_takes_them() {
        assert_eq!(parse_number("0x10"), Some(16));
        assert_eq!(parse_number("010"), Some(8));
        assert_eq!((parse_number("0"), parse_number("10")), (Some(0), Some(10)));
        assert_eq!(parse_number("1x"), None);
    }
}
