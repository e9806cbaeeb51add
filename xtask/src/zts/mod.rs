//! OpenZFS's own functional tests (the `zfs-test` package) against our commands.
//!
//! ```text
//! cargo run -p xtask -- zts [OPTIONS] [GROUP | GROUP/TEST]...
//!   --full             tests of common.run and linux.run, not only of sanity.run
//!   --all              all groups with --full; those with results of the same binary and suite are left out
//!   --tree FOLDER      the file system tree with zfs-test (default: 2.4's of tests/oracle.sh, otherwise /, the machine's own)
//!   --jobs N           groups that run side by side (default 1)
//!   --binary PATH      the binary to test (default target/debug/aquifer)
//!   --disks N          loop devices given to the tests (default 3)
//!   --timeout SECONDS  for one test (default: the run file's)
//!   --out FOLDER       results and logs (default target/zts)
//!   --list             what would run
//!   --table            write docs/zts.md from the results so far
//! ```
//!
//! Each group runs as root in a file system of its own: an overlay of the machine's, whose changes are dropped at the
//! end, with its own mounts, processes, users, loop devices and daemon ([`room`]). Requests of a test to a machine with
//! the kernel module and what is put in its place is said in [`room`]; results go to plain lines ([`results`]).

mod inside;
mod loops;
mod results;
mod room;
mod runfile;
mod table;
mod xxh128sum;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use results::Results;
use runfile::Group;

pub use inside::main as inside;
pub use xxh128sum::main as xxh128sum;

/// Where the package puts its files.
const PACKAGE: &str = "/usr/share/zfs";
/// The run file that every release has.
const COMMON: &str = "common.run";

/// The options of the command line.
#[derive(Debug)]
struct Options {
    full: bool,
    all: bool,
    tree: PathBuf,
    jobs: usize,
    binary: PathBuf,
    disks: u32,
    timeout: Option<u64>,
    out: PathBuf,
    list: bool,
    table: bool,
    words: Vec<String>,
}

impl Options {
    fn parse(args: &[String], root: &Path) -> Result<Self, String> {
        let mut options = Self {
            full: false,
            all: false,
            tree: newest_tree(),
            jobs: 1,
            binary: root.join("target/debug/aquifer"),
            disks: 3,
            timeout: None,
            out: root.join("target/zts"),
            list: false,
            table: false,
            words: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            let number = |word: &String| word.parse().map_err(|_| format!("{arg} needs a number"));
            match arg.as_str() {
                "--full" => options.full = true,
                "--all" => (options.all, options.full) = (true, true),
                "--tree" => options.tree = PathBuf::from(value()?),
                "--jobs" => options.jobs = usize::try_from(number(value()?)?).unwrap_or(1).max(1),
                "--list" => options.list = true,
                "--table" => options.table = true,
                "--binary" => options.binary = PathBuf::from(value()?),
                "--out" => options.out = PathBuf::from(value()?),
                "--disks" => options.disks = u32::try_from(number(value()?)?).unwrap_or(3),
                "--timeout" => options.timeout = Some(number(value()?)?),
                word if word.starts_with('-') => return Err(format!("unknown option {word}")),
                word => options.words.push(word.to_owned()),
            }
        }
        Ok(options)
    }
}

/// The tree of tests/oracle.sh with OpenZFS 2.4 where it has the suite, otherwise the machine's own.
fn newest_tree() -> PathBuf {
    let tree = std::env::var_os("ORACLE_TREE").map_or_else(|| PathBuf::from("/opt/trixie"), PathBuf::from);
    if runfile::path(&tree, COMMON).is_file() { tree } else { PathBuf::from("/") }
}

/// Runs the command.
pub fn main(args: &[String], root: &Path) -> ExitCode {
    match run(args, root) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("zts: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String], root: &Path) -> Result<bool, String> {
    let options = Options::parse(args, root)?;
    let kept = options.out.join("results");
    if options.table {
        return table::write(&Results::open(&kept)?, &root.join("docs/zts.md")).map(|()| true);
    }
    if options.all || !options.list {
        let suite = runfile::path(&options.tree, COMMON);
        results::begin(&options.out, &suite, options.all.then_some(options.binary.as_path()))?;
    }
    let mut results = Results::open(&kept)?;
    let mut groups = wanted(&options)?;
    if options.all {
        groups.retain(|group| !group.real_tests().all(|test| results.has(&format!("{}/{test}", group.name))));
    }
    if options.list {
        for group in &groups {
            println!("{}: {}", group.name, group.tests.join(" "));
        }
        return Ok(true);
    }
    run_all(&groups, &options, &mut results)
}

/// Runs groups, `jobs` of them at a time. A group whose sandbox fails does not stop the others.
fn run_all(groups: &[Group], options: &Options, results: &mut Results) -> Result<bool, String> {
    let (next, state) = (AtomicUsize::new(0), Mutex::new((results, true, Vec::new())));
    let work = || {
        while let Some(group) = groups.get(next.fetch_add(1, Relaxed)) {
            let ended = room::run(group, options);
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let (results, good, broken) = &mut *state;
            match ended.and_then(|lines| {
                println!("{}: {}", group.name, results::tally(&lines));
                *good &= lines.iter().all(|line| line.outcome != results::Outcome::Fail);
                results.merge(lines)
            }) {
                Ok(()) => {}
                Err(why) => broken.push(why),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(work);
        }
    });
    let (_, good, broken) = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if broken.is_empty() { Ok(good) } else { Err(broken.join("; ")) }
}

/// The groups the words name: all of the run file where there are none.
fn wanted(options: &Options) -> Result<Vec<Group>, String> {
    let short = runfile::read(&options.tree, &["sanity.run"])?;
    let full = || runfile::read(&options.tree, &["common.run", "linux.run"]);
    if options.words.is_empty() {
        return if options.full { full() } else { Ok(short) };
    }
    let full = full()?;
    let mut found = Vec::new();
    for word in &options.words {
        let first = if options.full { &full } else { &short };
        let groups = runfile::select(first, word);
        let groups = if groups.is_empty() { runfile::select(&full, word) } else { groups };
        if groups.is_empty() {
            return Err(format!("no group or test {word}"));
        }
        found.extend(groups);
    }
    Ok(found)
}
