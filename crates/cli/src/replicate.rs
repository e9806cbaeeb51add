//! `aquifer replicate`: the command line of the crate `replicate`.
//!
//! It runs in its own process and calls `zfs` on both sides, so it needs no rights that its user lacks.

use std::collections::BTreeMap;
use std::io::{BufReader, BufWriter, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use clikit::ctx::Ctx;
use clikit::output::json::{document, print};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use serde_json::{Value, json};

use ::replicate::config;
use ::replicate::place::Place;
use ::replicate::report::Report;
use ::replicate::retention::Rule;
use ::replicate::{Around, Done, Failed, Job, Raw, State, run, status};

/// Keep a copy of a dataset, or of a tree of datasets, here or on another machine.
///
/// SOURCE and TARGET are datasets, or ssh://[USER@]HOST[:PORT]/POOL/DATASET. The other side needs only a `zfs` command:
/// Aquifer's, or that of another OpenZFS. All snapshots that the target lacks are sent, each dataset from the newest
/// snapshot that both sides have, or from a bookmark of it. An interrupted stream is continued.
///
/// Exit codes: 0 everything is at the target, 1 something failed, 2 wrong usage, 130 interrupted.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Replicate {
    #[command(subcommand)]
    verb: Option<ReplicateVerb>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
    /// Print the plan, and send nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print problems only.
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON.
    #[arg(short = 'j', long)]
    json: bool,
}

/// Verbs of `aquifer replicate`.
#[derive(Debug, Subcommand)]
enum ReplicateVerb {
    /// Report whether targets are behind
    Status(Status),
    /// Turn a send stream into checksums of its objects and blocks
    Items(Items),
}

/// Read the stream of a snapshot from standard input, and write the checksums of its objects and blocks to standard output.
///
/// `aquifer replicate --verify` runs it on the other machine, so that the stream stays there.
#[derive(Debug, Args)]
struct Items {}

/// Say whether the target has all snapshots of the source.
///
/// Exit codes: 0 it is up to date, 3 it is behind, 4 a dataset of it cannot be continued, 1 a side could not be read,
/// 2 wrong usage.
#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    which: Which,
    /// The target is behind when its newest common snapshot is older than this: 90m, 36h, 2d.
    #[arg(long, value_name = "AGE", value_parser = config::age)]
    max_age: Option<u64>,
    /// Print JSON.
    #[arg(short = 'j', long)]
    json: bool,
}

/// Which jobs.
#[derive(Debug, Args)]
struct Which {
    /// SOURCE and TARGET; with --config names of jobs (default: all).
    #[arg(value_name = "SOURCE TARGET|JOB")]
    names: Vec<String>,
    /// Run the jobs of a file (default: /etc/aquifer/replicate.toml). The file has all their settings.
    #[arg(short = 'c', long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = config::PATH)]
    #[arg(conflicts_with_all = ["recursive", "exclude", "via", "source_via", "name"])]
    config: Option<PathBuf>,
    /// Replicate all descendent datasets, too.
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Exclude a dataset below the source and its descendants, by its name relative to the source; may be repeated.
    #[arg(short = 'X', long, value_name = "DATASET")]
    exclude: Vec<String>,
    /// Reach the target by this command, which gets a shell command line as its last argument: 'docker exec -i box sh -c'.
    #[arg(long, value_name = "COMMAND")]
    via: Option<String>,
    /// Reach the source by this command.
    #[arg(long, value_name = "COMMAND")]
    source_via: Option<String>,
    /// The job's name, which is part of the names of its snapshots, bookmarks and holds.
    #[arg(long, default_value = "replicate")]
    name: String,
}

/// How it is done. The jobs of a file have settings of their own.
#[derive(Debug, Args)]
#[group(conflicts_with = "config")]
struct How {
    /// Take a snapshot of the source first.
    #[arg(short, long)]
    snapshot: bool,
    /// Send only the newest snapshot, not those before it.
    #[arg(long)]
    newest: bool,
    /// The job's snapshots to keep on the source: 24h,7d,4w,12m,5y keeps one of each hour, day, …; a number alone the newest.
    #[arg(long, value_name = "RULE")]
    keep: Option<Rule>,
    /// The job's snapshots to keep on the target.
    #[arg(long, value_name = "RULE")]
    keep_target: Option<Rule>,
    /// Limit on the bytes sent per second: 500K, 20M.
    #[arg(long, value_name = "BYTES", value_parser = config::bytes)]
    rate: Option<u64>,
    /// The datasets to send raw: when-encrypted (as they are on disk), always, never (decrypted).
    #[arg(long, value_parser = config::raw, default_value = "when-encrypted")]
    raw: Raw,
    /// Roll datasets of the target back that were changed or have newer snapshots.
    #[arg(short = 'F', long)]
    force: bool,
    /// Do not make new datasets of the target read-only.
    #[arg(long)]
    writable: bool,
    /// Send properties, too.
    #[arg(short, long)]
    props: bool,
    /// Do not hold the newest common snapshots.
    #[arg(long)]
    no_holds: bool,
    /// Compare the newest common snapshot of each dataset at the end, not the older ones. A machine with Aquifer sends checksums,
    /// any other machine sends the whole snapshot.
    #[arg(long)]
    verify: bool,
}

impl Which {
    /// The jobs of the file, or the one of the line.
    fn jobs(&self) -> Result<Vec<Job>, Failure> {
        if let Some(path) = &self.config {
            return self.of_file(path);
        }
        let [source, target] = &self.names[..] else {
            return Err(Failure::usage("a source and a target are needed, or --config"));
        };
        config::check_name(&self.name).map_err(Failure::usage)?;
        let place =
            |word: &str, via: &Option<String>| Place::parse(word, via.as_deref()).map_err(Failure::usage);
        let mut job = Job::new(&self.name, place(source, &self.source_via)?, place(target, &self.via)?);
        job.recursive = self.recursive;
        job.exclude = self.exclude.clone();
        job.check().map_err(Failure::usage)?;
        Ok(vec![job])
    }

    fn of_file(&self, path: &Path) -> Result<Vec<Job>, Failure> {
        let mut all: BTreeMap<String, Job> = config::read(path).map_err(Failure::failed)?;
        if self.names.is_empty() {
            return Ok(all.into_values().collect());
        }
        let job = |name: &String| {
            all.remove(name).ok_or_else(|| Failure::failed(format!("{}: no job '{name}'", path.display())))
        };
        self.names.iter().map(job).collect()
    }
}

fn around(ctx: &Ctx) -> Result<Around, Failure> {
    let program = std::env::current_exe()?;
    Ok(Around { program, stop: ctx.interrupt.flag() })
}

fn items() -> Outcome {
    let (from, to) = (std::io::stdin().lock(), std::io::stdout().lock());
    if from.is_terminal() || to.is_terminal() {
        return Err(Failure::usage(
            "a stream is read from standard input, and no terminal shows the checksums",
        ));
    }
    let (from, to) = (BufReader::with_capacity(1 << 20, from), BufWriter::with_capacity(1 << 16, to));
    ::replicate::write_items(from, to).map_err(Failure::failed)?;
    Ok(Exit::OK)
}

impl Verb for Replicate {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self.verb {
            Some(ReplicateVerb::Status(status)) => status.run(ctx),
            Some(ReplicateVerb::Items(_)) => items(),
            None => self.replicate(ctx),
        }
    }
}

impl Replicate {
    fn replicate(self, ctx: &mut Ctx) -> Outcome {
        let mut jobs = self.which.jobs()?;
        if self.which.config.is_none() {
            jobs.iter_mut().for_each(|job| self.how.apply(job));
        }
        let (around, mut exit, mut docs) = (around(ctx)?, Exit::OK, Vec::new());
        for job in &jobs {
            let mut report = Report::new(self.quiet);
            let done = run(job, &around, self.dry_run, &mut report);
            let mut doc = report.json();
            doc_of(job, &mut doc);
            match done {
                Ok(Done::Whole) => {}
                Ok(Done::Partly) => exit = exit.worse(Exit::FAILED),
                Err(e) if e.is_stopped => return Err(Failure::Interrupted),
                Err(e) => {
                    failed(job, &e, &mut doc, ctx);
                    exit = exit.worse(Exit::FAILED);
                }
            }
            docs.push(doc);
        }
        if self.json {
            let mut doc = document(&ctx.command);
            doc.insert("jobs".into(), docs.into());
            print(&mut *ctx.out, &doc.into())?;
        }
        Ok(exit)
    }
}

fn doc_of(job: &Job, doc: &mut Value) {
    if let Some(doc) = doc.as_object_mut() {
        doc.insert("job".into(), json!(job.name));
        doc.insert("source".into(), json!(job.source.to_string()));
        doc.insert("target".into(), json!(job.target.to_string()));
    }
}

fn failed(job: &Job, e: &Failed, doc: &mut Value, ctx: &mut Ctx) {
    ctx.warn(format!("{}: {e}", job.name));
    if let Some(doc) = doc.as_object_mut() {
        doc.insert("error".into(), json!(e.text));
    }
}

impl How {
    fn apply(&self, job: &mut Job) {
        job.snapshot = self.snapshot;
        job.newest = self.newest;
        job.keep = self.keep.clone();
        job.keep_target = self.keep_target.clone();
        job.rate = self.rate;
        job.raw = self.raw;
        job.force = self.force;
        job.writable = self.writable;
        job.props = self.props;
        job.no_holds = self.no_holds;
        job.verify = self.verify;
    }
}

impl Status {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let (around, mut exit, mut docs) = (around(ctx)?, Exit::OK, Vec::new());
        for mut job in self.which.jobs()? {
            job.max_age = self.max_age.or(job.max_age);
            let mut doc = json!({});
            doc_of(&job, &mut doc);
            match status(&job, &around) {
                Ok((state, text, told)) => {
                    exit = worse(exit, Exit(state.code()));
                    doc = told;
                    if !self.json {
                        write!(ctx.out, "{text}")?;
                    }
                }
                Err(e) if e.is_stopped => return Err(Failure::Interrupted),
                Err(e) => {
                    failed(&job, &e, &mut doc, ctx);
                    exit = worse(exit, Exit::FAILED);
                }
            }
            docs.push(doc);
        }
        if self.json {
            let mut doc = document(&ctx.command);
            doc.insert("jobs".into(), docs.into());
            print(&mut *ctx.out, &doc.into())?;
        }
        Ok(exit)
    }
}

/// The code of several jobs: a failed look counts more than a target that is behind, and a stuck one most.
fn worse(one: Exit, other: Exit) -> Exit {
    let rank = |exit: Exit| match exit.0 {
        0 => 0,
        code if code == State::Behind.code() => 1,
        1 => 2,
        _ => 3,
    };
    if rank(other) > rank(one) { other } else { one }
}
