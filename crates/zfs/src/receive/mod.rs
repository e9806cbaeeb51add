//! `zfs receive`: a send stream from standard input becomes a snapshot.
//!
//! ```text
//! input    standard input that a sender may stall
//! place    which snapshot the stream becomes, and what stands there already
//! one      one stream: dataset begun, filled, ended; properties; mounts
//! permissions  of users other than the owner
//! heal     -c: a stream repairs the blocks of a snapshot
//! reconcile  what the sender renamed or destroyed since the last package
//! roots    encryption roots after a raw package
//! package  streams of -R, -I and -p: a list of datasets, then one stream for each snapshot
//! ```
//!
//! Source: `zfs_receive`, libzfs_sendrecv.c, OpenZFS 2.3.

mod heal;
mod input;
mod one;
mod package;
pub mod permissions;
mod place;
mod props;
mod reconcile;
mod roots;

use std::io::IsTerminal;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::Kind;
use engine::recv::{Input, Item, RECEIVE_CHILD};
use ondisk::drr::{DRR_SIZE, DrrBegin, DrrBody};

/// Receive a stream.
#[derive(Debug, Clone, Default, Args)]
#[command(disable_help_flag = true)]
pub struct Receive {
    /// Set a property on the received datasets instead of the stream's; `origin=SNAPSHOT` receives a full stream as a clone.
    /// May be repeated.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub props: Vec<String>,
    /// Ignore the stream's value of a property. May be repeated.
    #[arg(short = 'x', value_name = "PROPERTY")]
    pub exclude: Vec<String>,
    /// Append the name of the sent dataset, without its pool, to the target's name.
    #[arg(short = 'd')]
    pub without_pool: bool,
    /// Append only the last element of the sent dataset's name to the target's name.
    #[arg(short = 'e')]
    pub last_part: bool,
    /// Receive no holds.
    #[arg(short = 'h')]
    pub no_holds: bool,
    /// Force an unmount of mounted file systems that must be removed or replaced.
    #[arg(short = 'M')]
    pub force_unmount: bool,
    /// Change nothing.
    #[arg(short = 'n')]
    pub dry: bool,
    /// Do not mount received file systems.
    #[arg(short = 'u')]
    pub unmounted: bool,
    /// Print information on the stream and the time of the receive.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Roll back to the snapshot that the stream is based on; with -R, destroy datasets that the sender has destroyed.
    #[arg(short = 'F')]
    pub force: bool,
    /// Keep the received part if the stream is interrupted, so that it can be resumed.
    #[arg(short = 's')]
    pub resumable: bool,
    /// Discard the state of an interrupted receive.
    #[arg(short = 'A')]
    pub abort: bool,
    /// Repair damaged blocks of an existing snapshot with blocks of the stream.
    #[arg(short = 'c')]
    pub heal: bool,
    /// The target dataset or snapshot.
    #[arg(value_name = "FILESYSTEM|VOLUME|SNAPSHOT")]
    pub name: String,
}

/// Longest list of a package from a user other than the owner, in bytes: that of some 50,000 snapshots.
const DELEGATED_LIST: u64 = 8 << 20;

/// The first lines of messages.
pub(super) const PLAIN: &str = "cannot receive";

/// A failure: `cannot receive incremental stream: …`.
fn failed(action: &str, what: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("{action}: {what}"))
}

impl Verb for Receive {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.without_pool && self.last_part {
            let what = "invalid option combination: -d and -e are mutually exclusive";
            return Err(Failure::usage(what));
        }
        if self.abort {
            return self.abort(ctx);
        }
        if ctx.session()?.stdin.is_terminal() {
            let what =
                "Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.";
            return Err(Failure::failed(what));
        }
        let wishes = props::Wishes::of(&self)?;
        if (self.without_pool || self.last_part) && !self.exists(ctx) {
            let absent = format!("specified fs ({}) does not exist", self.name);
            return Err(failed(PLAIN, ctx.why_no_pool_of(&self.name, absent)));
        }
        let mut stdin = input::Stdin::of(ctx)?;
        let mut input = Input::new(&mut stdin);
        if ctx.session()?.delegated.is_some() {
            input = input.with_lists_up_to(DELEGATED_LIST);
        }
        let first = input.record();
        let Some(item) = first.map_err(|e| of_first_record(&e, input.offset()))? else {
            return Err(failed(PLAIN, "failed to read from stream"));
        };
        let DrrBody::Begin(begin) = item.drr.body else {
            return Err(failed(PLAIN, "invalid stream (bad magic number)"));
        };
        match begin.is_compound() {
            true => package::receive(&self, &wishes, &item, &mut input, ctx),
            false => {
                let sent = sent_name(&begin)?;
                let root = sent.split('@').next().unwrap_or_default().to_owned();
                one::receive(
                    &self,
                    &wishes,
                    one::Stream { begin, item, root: &root, listed: None },
                    &mut input,
                    ctx,
                )
                .map(|_| Exit::OK)
            }
        }
    }
}

/// The snapshot's name in a stream.
fn sent_name(begin: &DrrBegin) -> Result<String, Failure> {
    let name = String::from_utf8_lossy(begin.name()).into_owned();
    match name.contains('@') {
        true => Ok(name),
        false => Err(failed(PLAIN, "invalid stream (bad snapshot name)")),
    }
}

/// The failure for a stream that can't be read.
fn of_stream(e: &engine::Error, action: &str) -> Failure {
    match e.what().contains("interrupted") {
        true => Failure::Interrupted,
        false => failed(action, e.what()),
    }
}

/// The failure for bytes that begin no stream; `read`: how many there were, at most a record.
fn of_first_record(e: &engine::Error, read: u64) -> Failure {
    let whole = u64::try_from(DRR_SIZE).unwrap_or(0);
    match e.kind() {
        Kind::Io if read < whole && e.what().starts_with("incomplete stream") => {
            failed(PLAIN, "failed to read from stream")
        }
        // Without the four zeros that a stream begins with it is no record, either.
        Kind::Corrupt if read <= whole && !e.what().contains("bytes follow") => {
            failed(PLAIN, "invalid stream (bad magic number)")
        }
        _ => of_stream(e, PLAIN),
    }
}

/// A BEGIN record with its list.
type First = (DrrBegin, Item);

impl Receive {
    fn exists(&self, ctx: &mut Ctx) -> bool {
        Target::of(&self.name, ctx).is_ok_and(|target| target.exists())
    }

    /// `-A`: destroys the state of an interrupted receive.
    fn abort(&self, ctx: &mut Ctx) -> Outcome {
        let others = self.without_pool || self.last_part || self.dry || self.resumable || self.unmounted;
        if others || self.name.contains('@') {
            return Err(Failure::usage("invalid option"));
        }
        let found = Target::of(&self.name, ctx).and_then(|target| target.dataset().map(|_| target));
        let target = found.map_err(|e| Failure::usage(e.message().unwrap_or_default()))?;
        let (view, name) = (target.view.clone(), self.name.clone());
        let found = {
            let _quiet = target.pool.quiet();
            let has_state = |name: &str| -> Option<(u64, u64)> {
                let dataset = view.dsl.dataset(name).ok()?;
                let state = engine::dsl::props::resume::state(&dataset).ok()?;
                state.map(|_| (dataset.number, dataset.phys.guid))
            };
            let child = view.dsl.dir(&name).ok().and_then(|dir| dir.child(RECEIVE_CHILD).ok().flatten());
            match child.and_then(|child| child.head().ok()) {
                Some(head) => Some(((head.number, head.phys.guid), format!("{name}/{RECEIVE_CHILD}"))),
                None => has_state(&name).map(|dataset| (dataset, name.clone())),
            }
        };
        target.dataset()?;
        let Some((dataset, what)) = found else {
            let what = format!("'{name}' does not have any resumable receive state to abort");
            return Err(Failure::failed(what));
        };
        let done = ctx.change(&target.pool, move |tasks, _| tasks.abort_receive(dataset, &what, false));
        done.map_err(|e| {
            let reason = match e.kind() {
                Kind::Exists | Kind::Busy => e.what().to_owned(),
                _ => clikit::session::why(&e),
            };
            Failure::cannot("destroy", &self.name, reason)
        })?;
        Ok(Exit::OK)
    }
}
