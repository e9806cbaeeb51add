//! One binary, many names: acts as `zpool`, `zfs`, `zdb`, `zinject`, `zstream`, `mount.zfs`, `arcstat`, `arc_summary` or
//! `zilstat` if called by that name, otherwise as `aquifer COMMAND …`.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::json;

use crate::advise::Advise;
use crate::asked::Asked;
use crate::bench::Bench;
use crate::browse::Browse;
use crate::clone::CloneFiles;
use crate::ctx::Ctx;
use crate::daemon::Daemon;
use crate::dedup::Dedup;
use crate::delegated;
use crate::monitor::arc_summary::ArcSummary;
use crate::monitor::arcstat::Arcstat;
use crate::monitor::kstat::Kstat;
use crate::monitor::zilstat::Zilstat;
use crate::mount::Mount;
use crate::output::json::{document, print};
use crate::pages::Pages;
use crate::posix;
use crate::replicate::Replicate;
use crate::route::forward;
use crate::session::{Home, cleaned};
use crate::tunables;
use crate::usage;
use crate::verb::{Exit, Failure, Outcome, Verb};
use crate::verify::Verify;
use crate::zdb::Zdb;
use crate::zfs::Zfs;
use crate::zfs::by_path::with_mount_points;
use crate::zfs::mount_helper::MountHelper;
use crate::zinject::Zinject;
use crate::zpool::Zpool;
use crate::zpool::scripts::Scripts;
use crate::zstream::Zstream;

/// OpenZFS in user space: open pools, inspect them, recover every file.
///
/// Called as zpool, zfs, zdb, zinject, zstream, arcstat or arc_summary (through a link with that name), it acts as that
/// command.
#[derive(Debug, Parser)]
#[command(
    name = "aquifer",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    args_override_self = true
)]
pub struct Aquifer {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The first word after `aquifer`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Pools: find, open, describe
    Zpool(Zpool),
    /// Datasets: list, properties, differences
    Zfs(Zfs),
    /// On-disk structures, as OpenZFS's debugger prints them
    Zdb(Zdb),
    /// Inject faults into imported pools
    Zinject(Zinject),
    /// Send streams: print their records
    Zstream(Zstream),
    /// The verbs that take a path inside a dataset.
    #[command(flatten)]
    Browse(Browse),
    /// Read and check every block of a pool
    Verify(Verify),
    /// Keep a copy of datasets, here or on another machine
    Replicate(Replicate),
    /// Say what dedup, compression or a record size would save and cost
    Advise(Advise),
    /// Measure pools on devices, files or a directory, or an existing pool
    Bench(Bench),
    /// Copy files by sharing their blocks, also between file systems of a pool
    Clone(CloneFiles),
    /// Share equal blocks of datasets that are in use
    Dedup(Dedup),
    /// Mount a pool's file systems over FUSE
    Mount(Mount),
    /// Mount at the place given by `mount -t zfs`
    #[command(name = "mount.zfs", alias = "mount.fuse.zfs", hide = true)]
    MountHelper(MountHelper),
    /// Own imported pools
    Daemon(Daemon),
    /// Print cache statistics at intervals
    #[command(visible_alias = "zarcstat")]
    Arcstat(Arcstat),
    /// Print statistics of intent logs
    Zilstat(Zilstat),
    /// Print a report on the contents and efficiency of the cache
    #[command(name = "arc_summary", visible_alias = "zarcsummary")]
    ArcSummary(ArcSummary),
    /// Print counters as the kernel's OpenZFS does
    Kstat(Kstat),
    /// Show settings of the daemon
    Get(tunables::Get),
    /// Change settings of the daemon
    Set(tunables::Set),
    /// Write man pages and completions
    #[command(hide = true)]
    Pages(Pages),
    /// Print the version
    Version(Version),
}

impl Verb for Command {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self {
            Command::Zpool(v) => v.run(ctx),
            Command::Zfs(v) => v.run(ctx),
            Command::Zdb(v) => v.run(ctx),
            Command::Zinject(v) => v.run(ctx),
            Command::Zstream(v) => v.run(ctx),
            Command::Browse(v) => v.run(ctx),
            Command::Verify(v) => v.run(ctx),
            Command::Replicate(v) => v.run(ctx),
            Command::Advise(v) => v.run(ctx),
            Command::Bench(v) => v.run(ctx),
            Command::Clone(v) => v.run(ctx),
            Command::Dedup(v) => v.run(ctx),
            Command::Mount(v) => v.run(ctx),
            Command::MountHelper(v) => v.run(ctx),
            Command::Daemon(v) => v.run(ctx),
            Command::Arcstat(v) => v.run(ctx),
            Command::Zilstat(v) => v.run(ctx),
            Command::ArcSummary(v) => v.run(ctx),
            Command::Kstat(v) => v.run(ctx),
            Command::Get(v) => v.run(ctx),
            Command::Set(v) => v.run(ctx),
            Command::Pages(v) => v.run(ctx),
            Command::Version(v) => v.run(ctx),
        }
    }
}

impl Command {
    /// The process in which the command runs.
    fn home(&self) -> Home {
        match self {
            Command::Zpool(v) => v.verb.home(),
            Command::Zfs(v) => v.verb.home(),
            Command::Zdb(v) => v.home(),
            Command::Zinject(v) => v.home(),
            Command::Arcstat(v) => v.home(),
            Command::Zilstat(v) => v.home(),
            Command::ArcSummary(v) => v.home(),
            Command::Kstat(v) => v.home(),
            Command::Advise(v) => v.home(),
            Command::Get(v) => v.home(),
            Command::Set(v) => v.home(),
            Command::MountHelper(_) | Command::Dedup(_) => Home::Daemon,
            _ => Home::Here,
        }
    }

    /// Words that may be paths in mounted file systems.
    fn names_or_paths(&self) -> &[String] {
        match self {
            Command::Zfs(v) => v.verb.names_or_paths(),
            _ => &[],
        }
    }

    /// The scripts whose output the command prints in columns.
    fn scripts(&self) -> Option<Scripts> {
        match self {
            Command::Zpool(v) => v.verb.scripts(),
            _ => None,
        }
    }

    fn run_at_home(mut self, argv: &[OsString], ctx: &mut Ctx) -> Outcome {
        ctx.home = self.home();
        if let Some(guest) = ctx.session.as_ref().and_then(|session| session.guest.clone()) {
            delegated::admit(&mut self, &guest, ctx)?;
            return self.run(ctx);
        }
        let scripts = self.scripts().filter(|_| ctx.session.is_none());
        if let Some(scripts) = scripts {
            let asked = Asked::by(&self);
            return scripts.report((ctx.home, &asked), argv, ctx, |ctx| self.run(ctx));
        }
        if ctx.out_is_terminal && matches!(self, Command::Zpool(_) | Command::Zfs(_) | Command::Zdb(_)) {
            let out = std::mem::replace(&mut ctx.out, Box::new(std::io::sink()));
            ctx.out = cleaned(out, true);
        }
        let by_path = match &self {
            Command::Zinject(v) if ctx.may_forward => v.located(argv),
            _ => with_mount_points(argv, self.names_or_paths()),
        };
        let forwarded = if ctx.may_forward { forward(ctx.home, &Asked::by(&self), &by_path) } else { None };
        forwarded.unwrap_or_else(|| self.run(ctx))
    }
}

/// Print the version.
#[derive(Debug, Args)]
pub struct Version {
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
}

/// The OpenZFS release whose words, properties and features `zpool` and `zfs` follow, then this program's own
/// version, in the format of a distribution's build: programs parse a version out of `zfs-2.3.2-0aquifer0.1.0`.
#[doc(alias = "ZFS_META_ALIAS")]
const LEVEL: &str = concat!("2.3.2-0aquifer", env!("CARGO_PKG_VERSION"));

impl Verb for Version {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let is_own = !usage::is_ours(ctx.command.split(' ').next().unwrap_or_default());
        let own = concat!("aquifer-", env!("CARGO_PKG_VERSION"));
        let [userland, kernel] = [format!("zfs-{LEVEL}"), format!("zfs-kmod-{LEVEL}")];
        if self.json {
            let mut doc = document(&ctx.command);
            doc.insert("zfs_version".into(), json!({ "userland": userland, "kernel": kernel }));
            if is_own {
                doc.insert("aquifer_version".into(), json!(own));
            }
            print(&mut *ctx.out, &doc.into())?;
        } else if is_own {
            writeln!(ctx.out, "{own}")?;
        } else {
            // The daemon, which is this program, takes the place of the kernel module.
            writeln!(ctx.out, "{userland}\n{kernel}")?;
        }
        Ok(Exit::OK)
    }
}

/// The names of links to the program, beside its own.
pub const NAMES: [&str; 12] = [
    "zpool",
    "zfs",
    "zdb",
    "zinject",
    "zstream",
    "arcstat",
    "zarcstat",
    "arc_summary",
    "zarcsummary",
    "zilstat",
    "mount.zfs",
    // mount(8) asks for this one when it changes the options of a mount: the kernel's type of ours is fuse.zfs.
    "mount.fuse.zfs",
];

/// The command tree of one name, as clap sees it: for parsing, man pages and completions.
pub fn command(name: &str) -> clap::Command {
    match name {
        "zpool" => as_own_command::<Zpool>("zpool"),
        "zfs" => as_own_command::<Zfs>("zfs"),
        "zdb" => as_own_command::<Zdb>("zdb"),
        "zinject" => as_own_command::<Zinject>("zinject"),
        "zstream" => as_own_command::<Zstream>("zstream"),
        "arcstat" | "zarcstat" => as_own_command::<Arcstat>("arcstat"),
        "arc_summary" | "zarcsummary" => as_own_command::<ArcSummary>("arc_summary"),
        "zilstat" => as_own_command::<Zilstat>("zilstat"),
        "mount.zfs" => as_own_command::<MountHelper>("mount.zfs"),
        "mount.fuse.zfs" => as_own_command::<MountHelper>("mount.fuse.zfs"),
        _ => Aquifer::command().mut_subcommand("zpool", with_flag_d),
    }
}

/// The `-d` of `zpool status` is OpenZFS's and takes no value; the `-d` of all other verbs names a place to search
/// for devices.
fn with_flag_d(zpool: clap::Command) -> clap::Command {
    let is_status = |verb: &clap::Command| verb.get_name() == "status";
    let fitted = |verb: clap::Command| verb.mut_arg("device", |arg| arg.short(None));
    zpool.mut_subcommands(|verb| if is_status(&verb) { fitted(verb) } else { verb })
}

fn as_own_command<A: clap::Args>(name: &'static str) -> clap::Command {
    // A repeated option is not an error: the last one counts.
    let whole = clap::Command::new(name).version(env!("CARGO_PKG_VERSION")).args_override_self(true);
    let whole = A::augment_args(whole);
    let whole = if name == "zpool" { with_flag_d(whole) } else { whole };
    let whole = if name == "zpool" || name == "zfs" { whole.disable_help_flag(true) } else { whole };
    // After a verb `-h` would be an option that OpenZFS does not have.
    let help = || Arg::new("help").long("help").action(ArgAction::Help).help("Print help");
    whole.mut_subcommands(|verb| {
        let has_own = verb.get_arguments().any(|arg| arg.get_id() == "help");
        if has_own { verb } else { verb.disable_help_flag(true).arg(help()) }
    })
}

/// Runs a whole command line, beginning with the program's name, and returns the exit code.
pub fn run(argv: Vec<OsString>, ctx: &mut Ctx) -> Exit {
    let argv = usage::in_own_name(argv);
    let name = argv.first().map(|a| called_as(a)).unwrap_or_default();
    ctx.command = describe(&name, &argv);
    let exit = usage::help(&name, &argv, ctx).unwrap_or_else(|| run_as(&name, argv, ctx));
    ctx.release();
    let exit = match ctx.out.flush() {
        Ok(()) => exit,
        Err(e) => finish(Err(e.into()), ctx),
    };
    // A closed standard error is ignored.
    let _ = ctx.err.flush();
    exit
}

fn run_as(name: &str, argv: Vec<OsString>, ctx: &mut Ctx) -> Exit {
    // The daemon receives words that are already reordered; its own environment is not the user's.
    let in_order = ctx.session.is_none() && std::env::var_os(posix::WORD).is_some();
    let argv = if in_order { posix::end_options(argv, &command(name)) } else { argv };
    let argv = with_version_as_verb(name, with_question_mark_as_help(argv));
    let words = argv.clone();
    let parsed = match name {
        "zpool" => parse::<Zpool>(name, argv).map(Command::Zpool),
        "zfs" => parse::<Zfs>(name, argv).map(Command::Zfs),
        "zdb" => parse::<Zdb>(name, argv).map(Command::Zdb),
        "zinject" => parse::<Zinject>(name, argv).map(Command::Zinject),
        "zstream" => parse::<Zstream>(name, argv).map(Command::Zstream),
        "arcstat" | "zarcstat" => parse::<Arcstat>(name, argv).map(Command::Arcstat),
        "arc_summary" | "zarcsummary" => parse::<ArcSummary>(name, argv).map(Command::ArcSummary),
        "zilstat" => parse::<Zilstat>(name, argv).map(Command::Zilstat),
        "mount.zfs" | "mount.fuse.zfs" => parse::<MountHelper>(name, argv).map(Command::MountHelper),
        _ => parse::<Aquifer>(name, argv).map(|a| a.command),
    };
    match parsed {
        Ok(verb) => finish(verb.run_at_home(&words, ctx), ctx),
        Err(e) => clap_exit(&e, ctx),
    }
}

fn parse<A: FromArgMatches>(name: &str, argv: Vec<OsString>) -> Result<A, clap::Error> {
    let matches = command(name).try_get_matches_from(argv)?;
    A::from_arg_matches(&matches)
}

fn finish(outcome: Outcome, ctx: &mut Ctx) -> Exit {
    match outcome {
        Ok(exit) => exit,
        Err(failure) => {
            match (&failure, failure.message()) {
                (Failure::Usage(_), Some(message)) => usage::refuse(&message, ctx),
                // The failure is a consequence of the stop.
                _ if ctx.interrupt.is_set() && ctx.is_openzfs() => {}
                (_, Some(message)) => ctx.warn(message),
                (_, None) => {}
            }
            failure.exit()
        }
    }
}

/// Help and version are regular output; everything else is a usage error.
fn clap_exit(e: &clap::Error, ctx: &mut Ctx) -> Exit {
    let to_err = e.use_stderr();
    let why = if to_err { usage::why(e, &ctx.command) } else { None };
    if let Some(why) = why {
        usage::refuse(&why, ctx);
        return Exit::USAGE;
    }
    let styled = e.render();
    let terminal = if to_err { ctx.err_is_terminal } else { ctx.out_is_terminal };
    let text = if terminal { styled.ansi().to_string() } else { styled.to_string() };
    let stream = if to_err { &mut ctx.err } else { &mut ctx.out };
    let _ = stream.write_all(text.as_bytes());
    if to_err { Exit::USAGE } else { Exit::OK }
}

/// The name by which the program was called, without directories; it selects the command.
pub(crate) fn called_as(argv0: &OsStr) -> String {
    Path::new(argv0).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// `zpool list` for both `zpool list -v` and `aquifer zpool list -v`.
fn describe(name: &str, argv: &[OsString]) -> String {
    let words = argv.iter().skip(1).map(|a| a.to_string_lossy().into_owned());
    let own = NAMES.contains(&name);
    let lead = own.then(|| name.to_owned());
    let verb = lead.into_iter().chain(words).take(2).take_while(|word| !word.starts_with('-'));
    verb.collect::<Vec<_>>().join(" ")
}

/// `zpool -?` means help; after a verb it is an unknown option.
fn with_question_mark_as_help(argv: Vec<OsString>) -> Vec<OsString> {
    let before_verb = |word: &OsString| word.to_str().is_some_and(|word| NAMES.contains(&word));
    let first = 1 + usize::from(argv.get(1).is_some_and(before_verb));
    let help =
        |(at, word): (usize, OsString)| if at == first && word == "-?" { "--help".into() } else { word };
    argv.into_iter().enumerate().map(help).collect()
}

/// `zpool -V` and `zpool --version` are `zpool version`.
fn with_version_as_verb(name: &str, mut argv: Vec<OsString>) -> Vec<OsString> {
    if let Some(word) =
        argv.get_mut(1).filter(|word| usage::is_ours(name) && (*word == "-V" || *word == "--version"))
    {
        *word = "version".into();
    }
    argv
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctx::testing::captured;

    #[test]
    fn every_command_tree_is_sound() {
        for name in NAMES.iter().chain(&["aquifer"]) {
            command(name).debug_assert();
        }
    }

    #[test]
    fn unknown_words_are_usage_errors() {
        assert_eq!(captured(&["aquifer", "nonsense"]).exit, Exit::USAGE);
        assert_eq!(captured(&["zpool"]).exit, Exit::USAGE);
        assert_eq!(captured(&["zpool", "nonsense"]).exit, Exit::USAGE);
        assert_eq!(captured(&["/usr/sbin/zfs", "nonsense"]).exit, Exit::USAGE);
    }

    #[test]
    fn verbs_of_openzfs_that_are_missing_say_so() {
        let run = captured(&["zfs", "jail", "tank@x"]);
        assert_eq!(run.exit, Exit::FAILED);
        assert!(run.err.contains("not supported yet"), "{}", run.err);
        let run = captured(&["aquifer", "zpool", "attach", "-f", "tank", "/dev/x"]);
        assert_eq!(run.exit, Exit::USAGE);
    }

    #[test]
    fn versions_have_openzfs_form() {
        let [zfs, kmod] = ["zfs", "zfs-kmod"].map(|lead| format!("{lead}-{LEVEL}"));
        for line in [["zfs", "version"], ["zpool", "version"], ["zfs", "-V"], ["zpool", "--version"]] {
            assert_eq!(captured(&line).out, format!("{zfs}\n{kmod}\n"), "{line:?}");
        }
        // Scripts split the version like this.
        assert_eq!(zfs.split('-').nth(1), Some("2.3.2"));
        let json: serde_json::Value = serde_json::from_str(&captured(&["zfs", "version", "-j"]).out).unwrap();
        assert_eq!(json["output_version"]["command"], "zfs version");
        assert_eq!([&json["zfs_version"]["userland"], &json["zfs_version"]["kernel"]], [&zfs, &kmod]);
        assert!(captured(&["aquifer", "version"]).out.starts_with("aquifer-"));
    }

    #[test]
    fn help_and_version_are_answers() {
        for line in [["zpool", "-?"], ["zfs", "--help"], ["aquifer", "--version"], ["zpool", "version"]] {
            let run = captured(&line);
            assert_eq!((run.exit, run.err.as_str()), (Exit::OK, ""), "{line:?}");
            assert!(!run.out.is_empty());
        }
    }
}
