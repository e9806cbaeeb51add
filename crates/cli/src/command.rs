//! The commands, as clap declares them: for parsing, running, man pages and completions.

use std::path::PathBuf;

use browse::Browse;
use browse::verify::Verify;
use clap::{Arg, ArgAction, Args, CommandFactory, Parser, Subcommand};
use clikit::ctx::Ctx;
use clikit::session::Home;
use clikit::verb::{Outcome, Verb};
use clikit::version::Version;
use monitor::arc_summary::ArcSummary;
use monitor::arcstat::Arcstat;
use monitor::kstat::Kstat;
use monitor::tunables;
use monitor::zilstat::Zilstat;
use poolbench::Bench;
use sharing::advise::Advise;
use sharing::clone::CloneFiles;
use sharing::dedup::Dedup;
use zdb::Zdb;
use zed::Zed;
use zfs::Zfs;
use zfs::mount_helper::MountHelper;
use zpool::Zpool;
use zpool::scripts::Scripts;
use zstream::Zstream;

use crate::daemon::Daemon;
use crate::mount::Mount;
use crate::replicate::Replicate;
use crate::zinject::Zinject;

/// OpenZFS in user space: open pools, inspect them, recover every file.
///
/// Called as zpool, zfs, zdb, zinject, zstream, zed, arcstat or arc_summary (through a link with that name), it runs that
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
    /// Configure and inspect pools
    Zpool(Zpool),
    /// Configure and inspect datasets
    Zfs(Zfs),
    /// On-disk structures, as OpenZFS's debugger prints them
    Zdb(Zdb),
    /// Inject faults into imported pools
    Zinject(Zinject),
    /// Inspect and convert send streams
    Zstream(Zstream),
    /// The verbs that take a path inside a dataset.
    #[command(flatten)]
    Browse(Browse),
    /// Read and check every block of a pool
    Verify(Verify),
    /// Keep a copy of datasets, here or on another machine
    Replicate(Replicate),
    /// Estimate the savings and costs of dedup, compression or a record size
    Advise(Advise),
    /// Measure pools on devices, files or a directory, or an existing pool
    Bench(Bench),
    /// Copy files by sharing their blocks, also between file systems of a pool
    Clone(CloneFiles),
    /// Share equal blocks of datasets that are in use
    Dedup(Dedup),
    /// Mount a pool's file systems over FUSE
    Mount(Mount),
    /// Mount at the directory given by `mount -t zfs`
    #[command(name = "mount.zfs", alias = "mount.fuse.zfs", hide = true)]
    MountHelper(MountHelper),
    /// Run the daemon that owns imported pools
    Daemon(Daemon),
    /// Print cache statistics at intervals
    #[command(visible_alias = "zarcstat")]
    Arcstat(Arcstat),
    /// Print statistics of intent logs
    Zilstat(Zilstat),
    /// Print a report on the contents and efficiency of the cache
    #[command(name = "arc_summary", visible_alias = "zarcsummary")]
    ArcSummary(ArcSummary),
    /// Run scripts for events of pools
    Zed(Zed),
    /// Print counters in the format of the kernel's OpenZFS
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
            Command::Zed(v) => v.run(ctx),
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
    pub fn home(&self) -> Home {
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
    pub fn names_or_paths(&self) -> &[String] {
        match self {
            Command::Zfs(v) => v.verb.names_or_paths(),
            _ => &[],
        }
    }

    /// Words that may be mount points, with or without links.
    pub fn names_or_places(&self) -> &[String] {
        match self {
            Command::Zfs(v) => v.verb.names_or_places(),
            _ => &[],
        }
    }

    /// The scripts whose output the command prints in columns.
    pub fn scripts(&self) -> Option<Scripts> {
        match self {
            Command::Zpool(v) => v.verb.scripts(),
            _ => None,
        }
    }
}

/// Write man pages and completions.
#[derive(Debug, Args)]
pub struct Pages {
    /// Where the program and its links will be installed; completions call them there.
    #[arg(long = "bindir", value_name = "DIR")]
    pub bindir: Option<PathBuf>,
    /// The output directory.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

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
        "zed" => as_own_command::<Zed>("zed"),
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
