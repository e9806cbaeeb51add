//! `zfs redact`: a bookmark that lists the blocks of a snapshot that snapshots of its clones changed.
//!
//! The list is written during the search, so an interrupted command is continued by running it again.
//!
//! Source: `zfs_do_redact`, zfs_main.c, OpenZFS 2.4, for messages and exit codes, which are error numbers.

use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::Dataset;
use engine::dsl::write::LongHold;
use engine::send::Meter;
use engine::send::redact::Search;
use engine::{Error, Kind};
use zcommon::features::Feature;

use super::send::running::{Report, watched};

/// Longest name of a dataset, with the zero at its end.
#[doc(alias = "ZFS_MAX_DATASET_NAME_LEN")]
const MAX_NAME: usize = 256;

/// Create a bookmark that lists the blocks that a redacted stream omits.
#[derive(Debug, Args)]
pub struct Redact {
    /// The snapshot that is to be sent redacted.
    #[arg(value_name = "SNAPSHOT")]
    pub snapshot: String,
    /// The new bookmark's name, without `#`.
    #[arg(value_name = "BOOKMARK")]
    pub bookmark: String,
    /// Snapshots of clones: blocks that all of them changed are redacted.
    #[arg(value_name = "REDACTION_SNAPSHOT", required = true)]
    pub by: Vec<String>,
}

/// A failure: its error number, which is the exit code, and its message.
struct Refused(u8, String);

impl From<Error> for Refused {
    fn from(e: Error) -> Self {
        let descendent = "redaction snapshot must be descendent of snapshot being redacted";
        let text = |text: &str| text.to_owned();
        match e.kind() {
            Kind::NotFound => Self(2, text("dataset does not exist")),
            Kind::Interrupted => Self(4, text("internal error: Interrupted system call")),
            Kind::TooLarge => Self(7, text("too many redaction snapshots specified")),
            Kind::Invalid => Self(22, text(descendent)),
            Kind::Unsupported => Self(95, text("redaction bookmarks feature not enabled")),
            Kind::OtherDevice => {
                Self(3, text("attempted to resume redaction  with a mismatched redaction list"))
            }
            Kind::NotPermitted => {
                Self(114, text("attempted to redact redacted dataset or with respect to redacted dataset"))
            }
            Kind::Busy => Self(16, text("internal error: Device or resource busy")),
            Kind::NoSpace => Self(28, text("internal error: No space left on device")),
            Kind::ReadOnly => Self(30, text("internal error: Read-only file system")),
            Kind::KeyMissing => Self(13, text("internal error: Permission denied (the key is not loaded)")),
            _ => Self(5, format!("internal error: {e}")),
        }
    }
}

impl Verb for Redact {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self.redact(ctx) {
            Ok(()) => Ok(Exit::OK),
            Err(Refused(code, text)) => {
                writeln!(ctx.err, "{text}")?;
                Ok(Exit(code))
            }
        }
    }
}

impl Redact {
    /// Names given, the snapshot first.
    pub fn names(&self) -> Vec<String> {
        let names = std::iter::once(&self.snapshot).chain(&self.by);
        names.cloned().collect()
    }

    fn redact(&self, ctx: &mut Ctx) -> Result<(), Refused> {
        let pool = |name: &str| name.split(['/', '@', '#']).next().unwrap_or_default().to_owned();
        let of_pool = pool(&self.snapshot);
        if self.by.iter().any(|name| pool(name) != of_pool) {
            let text = "potentially invalid redaction snapshot; full dataset names required";
            return Err(Refused(18, text.to_owned()));
        }
        if self.bookmark.contains('#') {
            return Err(Refused(22, "redaction bookmark name must not contain '#'".to_owned()));
        }
        let Some((dataset, _)) = self.snapshot.split_once('@') else {
            return Err(Error::new(Kind::Invalid, "no snapshot").into());
        };
        let name = format!("{dataset}#{}", self.bookmark);
        if name.len() >= MAX_NAME {
            let text = "provided bookmark name cannot be used, final name would be too long";
            return Err(Refused(36, text.to_owned()));
        }
        let (target, of, by) = self.datasets(ctx)?;
        let spa = target.pool.spa()?;
        let hold = |dataset: &Dataset| spa.datasets.hold_long(dataset.number).map(LongHold::with_key);
        let holds = std::iter::once(&of).chain(&by).map(hold);
        let _holds = holds.collect::<engine::Result<Vec<_>>>()?;
        let hole_birth = Feature::HoleBirth.info().guid;
        let features = &target.view.features;
        let known = features.enabled_txg.get(hole_birth).filter(|_| features.is_active(hole_birth));
        let mut search = Search::new(&of, &by, known.copied())?;

        let (new, snapshot, snapshots) = (name.clone(), self.snapshot.clone(), self.by.clone());
        let begun =
            ctx.change(&target.pool, move |tasks, _| tasks.begin_redaction(&new, &snapshot, &snapshots));
        let begun = begun.map_err(|e| match e.kind() {
            Kind::Exists => {
                let text =
                    format!("specified redaction bookmark ({}) provided already exists", self.bookmark);
                Refused(17, text)
            }
            _ => e.into(),
        })?;
        let _list = spa.datasets.hold_list(begun.list)?;
        search.go_on_from(begun.place);
        let meter = Meter::default();
        while !search.is_done() {
            let found = watched(&meter, &name, Report::default(), ctx, |meter| search.next_entries(meter))?;
            let (list, place) = (begun.list, search.place());
            target.pool.task(move |tasks, _| tasks.redact(list, &found, place))?;
        }
        Ok(())
    }

    /// The snapshot and the redaction snapshots, which must exist.
    fn datasets(&self, ctx: &mut Ctx) -> Result<(Target, Dataset, Vec<Dataset>), Refused> {
        let target = Target::of(&self.snapshot, ctx).map_err(|e| match e.is_no_dataset(&self.snapshot) {
            true => self.missing(&[&self.snapshot]),
            false => Refused(e.exit().0, e.message().unwrap_or_default()),
        })?;
        let _quiet = target.pool.quiet();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in std::iter::once(&self.snapshot).chain(&self.by) {
            match target.view.dsl.dataset(name) {
                Ok(dataset) => found.push(dataset),
                Err(e) if e.kind() == Kind::NotFound => missing.push(name),
                Err(e) => return Err(e.into()),
            }
        }
        if !missing.is_empty() {
            return Err(self.missing(&missing));
        }
        if !found.iter().all(Dataset::is_snapshot) {
            return Err(Error::new(Kind::Invalid, "no snapshot").into());
        }
        let of = found.remove(0);
        Ok((target.clone(), of, found))
    }

    fn missing(&self, names: &[&String]) -> Refused {
        let missing = Error::not_found("dataset does not exist");
        let lines = names.iter().map(|name| {
            let first = Failure::cannot("open", name, why(&missing)).message().unwrap_or_default();
            format!("{first}\nprovided snapshot {name} does not exist")
        });
        Refused(2, lines.collect::<Vec<_>>().join("\n"))
    }
}
