//! `zfs send`: a snapshot, or a tree of them, as a stream.
//!
//! ```text
//! scene     the pool that is sent from, imported or in images, and what keeps its snapshots there
//! one       one snapshot, file system or volume; a receive that goes on; what a receive left
//! tree      the list of datasets, snapshots and properties at the head of a package
//! package   several snapshots (-I, -R)
//! sizes     how long a stream will be
//! running   a stream under way, and what is printed each second
//! ```
//!
//! Differs from OpenZFS: `-V` is taken and changes no process title. The holds of `-I` and `-R` are in memory, as those of other
//! streams are, so nothing of them is left on disk when the daemon ends. `-d` is the bookmark of a redacted stream, or a
//! folder or device with images when it has a `/` and no `#`.
//!
//! Source: `zfs_do_send`, zfs_main.c; libzfs_sendrecv.c, OpenZFS 2.4, for the options and messages.

mod one;
mod package;
pub(super) mod running;
mod scene;
mod sizes;
mod tree;

use std::io::{IsTerminal, Write};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::Home;
use clikit::source::PoolSource;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::send::SendFlags;
use zcommon::names::check_entity;

/// Write a stream of a snapshot to standard output.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Send {
    /// The options.
    #[command(flatten)]
    pub options: Options,
    /// A snapshot; without -I and -R also a file system or volume.
    #[arg(value_name = "SNAPSHOT")]
    pub names: Vec<String>,
    /// The location of images, from `-d`.
    #[arg(skip)]
    source: PoolSource,
}

/// Options of a stream.
#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// Send the changes since this snapshot or bookmark.
    #[arg(short = 'i', value_name = "SNAPSHOT|BOOKMARK")]
    pub from: Vec<String>,
    /// Send all snapshots since this one.
    #[arg(short = 'I', value_name = "SNAPSHOT")]
    pub all_from: Vec<String>,
    /// Send all descendants, with properties, snapshots and clones.
    #[arg(short = 'R', long = "replicate")]
    pub replicate: bool,
    /// With -R: skip datasets without the snapshot.
    #[arg(short = 's', long = "skip-missing")]
    pub skip_missing: bool,
    /// With -R: exclude these datasets, comma separated, and their descendants.
    #[arg(short = 'X', long = "exclude", value_name = "DATASET[,DATASET]...")]
    pub exclude: Vec<String>,
    /// Omit the blocks that a redaction bookmark lists; or the directory or device in which to find the pool.
    #[arg(short = 'd', long = "redact", value_name = "BOOKMARK|DIR|DEVICE")]
    pub redact: Vec<String>,
    /// Include properties.
    #[arg(short = 'p', long = "props")]
    pub props: bool,
    /// Send received properties only.
    #[arg(short = 'b', long = "backup")]
    pub backup: bool,
    /// Include holds.
    #[arg(short = 'h', long = "holds")]
    pub holds: bool,
    /// Send blocks larger than 128 KiB unsplit.
    #[arg(short = 'L', long = "large-block")]
    pub large_block: bool,
    /// Send embedded blocks as embedded.
    #[arg(short = 'e', long = "embed")]
    pub embed: bool,
    /// Send compressed blocks as compressed.
    #[arg(short = 'c', long = "compressed")]
    pub compressed: bool,
    /// Send blocks as they are on disk; encrypted blocks stay encrypted.
    #[arg(short = 'w', long = "raw")]
    pub raw: bool,
    /// Accepted and without effect: streams are not deduplicated any more.
    #[arg(short = 'D', long = "dedup", hide = true)]
    pub dedup: bool,
    /// Estimate the size of the stream, and send nothing.
    #[arg(short = 'n', long = "dryrun")]
    pub dry: bool,
    /// Print parsable output.
    #[arg(short = 'P', long = "parsable")]
    pub parsable: bool,
    /// Print the estimated size, and the progress each second.
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Accepted and without effect.
    #[arg(short = 'V', long = "proctitle")]
    pub title: bool,
    /// Resume an interrupted receive by its token.
    #[arg(short = 't', long = "resume", value_name = "RESUME_TOKEN")]
    pub token: Option<String>,
    /// Send the state of an interrupted receive.
    #[arg(short = 'S', long = "saved")]
    pub saved: bool,
    /// Read a dataset's encryption key from a file; may be repeated (only with images).
    #[arg(long = "load-key", value_name = "DATASET=FILE|-", value_parser = clikit::keys::parse_load_key, hide = true)]
    pub load_key: Vec<clikit::keys::LoadKey>,
}

impl Options {
    /// The level of output: 0 nothing, 1 sizes, 2 blocks too.
    fn verbosity(&self) -> u8 {
        if (self.parsable || self.title) && self.verbose == 0 { 1 } else { self.verbose }
    }

    fn flags(&self) -> SendFlags {
        SendFlags {
            embed: self.embed || self.raw,
            large_blocks: self.large_block || self.raw,
            compressed: self.compressed || self.raw,
            raw: self.raw,
        }
    }

    /// Whether `word` is a place of images rather than a bookmark.
    fn is_place(word: &str) -> bool {
        word.contains('/') && !word.contains('#')
    }

    fn book(&self) -> Option<&str> {
        self.redact.iter().rev().find(|word| !Self::is_place(word)).map(String::as_str)
    }

    fn source(&self) -> PoolSource {
        let places = self.redact.iter().filter(|word| Self::is_place(word));
        let load_key = self.load_key.clone();
        PoolSource { device: places.cloned().collect(), load_key, ..PoolSource::default() }
    }

    fn from(&self) -> Option<&str> {
        self.from.first().or(self.all_from.first()).map(String::as_str)
    }

    fn is_package(&self) -> bool {
        self.replicate || !self.all_from.is_empty()
    }
}

impl Send {
    /// Where it runs.
    pub fn home(&self) -> Home {
        if self.options.source().is_offline() { Home::Here } else { Home::Daemon }
    }

    /// The dataset that it reads: for permissions, and to find the daemon that has its pool.
    pub fn names(&self) -> Vec<String> {
        match self.options.token.as_deref().and_then(|token| engine::dsl::props::resume::decode(token).ok()) {
            Some(state) => state.string("toname").map(|name| name.to_string()).into_iter().collect(),
            None => self.names.clone(),
        }
    }

    /// Refuses invalid combinations of options.
    fn check(&self) -> Result<(), Failure> {
        let o = &self.options;
        let usage = |what: &str| Err(Failure::usage(what));
        let failed = |what: &str| Err(Failure::failed(what));
        for name in o.exclude.iter().flat_map(|all| all.split(',')) {
            if check_entity(name).is_err() || !name.contains('/') || name.contains(['@', '#']) {
                return usage(&format!("-X {name}: not a valid non-root dataset name."));
            }
        }
        if o.from.len() + o.all_from.len() > 1 {
            return usage("");
        }
        if !o.exclude.is_empty() && !o.replicate {
            return failed("Cannot specify dataset exclusion (-X) on a non-recursive send.");
        }
        let (from, book) = (o.from().is_some(), o.book().is_some());
        if o.token.is_some() {
            if from || o.replicate || o.props || o.backup || o.holds || o.saved || book {
                return usage("invalid flags combined with -t");
            }
        } else if self.names.is_empty() {
            return usage("missing snapshot argument");
        }
        if self.names.len() > usize::from(o.token.is_none()) {
            return usage("too many arguments");
        }
        if o.saved {
            let forms = o.large_block || o.embed || o.compressed || o.raw;
            if from || o.replicate || o.props || o.backup || o.holds || forms || book {
                return usage("incompatible flags combined with saved send flag");
            }
            if self.names.iter().any(|name| name.contains('@')) {
                return usage("saved send must specify the dataset with partially-received state");
            }
        }
        if o.raw && book {
            return failed("Error: raw sends may not be redacted.");
        }
        Ok(())
    }
}

impl Verb for Send {
    fn run(mut self, ctx: &mut Ctx) -> Outcome {
        if self.options.dedup {
            ctx.warn(
                "WARNING: deduplicated send is no longer supported.  A regular,\n\
                 non-deduplicated stream will be generated.\n",
            );
        }
        self.check()?;
        let o = &self.options;
        let is_terminal = ctx.out_is_terminal || ctx.raw_out.as_ref().is_some_and(IsTerminal::is_terminal);
        if !o.dry && is_terminal {
            return Err(Failure::failed(
                "Error: Stream can not be written to a terminal.\nYou must redirect standard output.",
            ));
        }
        self.source = o.source();
        let done = self.sent(ctx);
        ctx.out.flush()?;
        done
    }
}

impl Send {
    /// Refuses a stream that would be lost because the process was started without standard output.
    ///
    /// # Errors
    /// OpenZFS's message for a stream that cannot be written.
    pub fn check_output(&self) -> Result<(), Failure> {
        if self.options.dry || !stdx::os::is_output_closed() {
            return Ok(());
        }
        let names = self.names();
        let name = names.first().map_or("stream", String::as_str);
        Err(Failure::failed(format!("warning: cannot send '{name}': Bad file descriptor")))
    }

    fn sent(&self, ctx: &mut Ctx) -> Outcome {
        let o = &self.options;
        if let Some(token) = &o.token {
            return one::resumed(&self.source, o, token, ctx);
        }
        let name = self.names.first().map(String::as_str).unwrap_or_default();
        if o.saved {
            return one::saved(&self.source, o, name, ctx);
        }
        if o.skip_missing && !o.replicate {
            return Err(Failure::usage("skip-missing flag can only be used in conjunction with replicate"));
        }
        if !o.is_package() {
            return one::send(&self.source, o, name, ctx);
        }
        if o.from().is_some_and(|from| from.contains('#')) {
            return Err(Failure::failed("Error: multiple snapshots cannot be sent from a bookmark."));
        }
        if o.book().is_some() {
            return Err(Failure::failed("Error: multiple snapshots cannot be sent redacted."));
        }
        let Some((dataset, snap)) = name.split_once('@') else {
            return Err(Failure::failed("Error: Unsupported flag with filesystem or bookmark."));
        };
        package::send(&self.source, o, (dataset, snap), ctx)
    }
}

/// The end of a command that printed what failed.
fn exit(ok: bool) -> Outcome {
    Ok(if ok { Exit::OK } else { Exit::FAILED })
}
