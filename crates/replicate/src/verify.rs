//! Compares both sides' content of a snapshot: both send it, and every object and block must be the same.
//!
//! Two encrypted datasets are compared as they are on disk, without keys; others by their content, so that compression,
//! record sizes above 128 KiB and holes may differ. A side on another machine that has Aquifer sends digests, about 50 bytes
//! for each block; from any other one the stream comes here.

use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use crate::Around;
use crate::host::{Failed, Host, said, text_of};
use crate::streams::{Item, Items};

/// Items that one stream may be ahead of the other.
const AHEAD: usize = 256;
/// Interval of checks for an interrupt.
const TICK: Duration = Duration::from_millis(200);

/// The two sides of a comparison.
pub(crate) struct Comparison<'a> {
    /// Source and target.
    pub hosts: &'a [Host; 2],
    /// The snapshot's names there.
    pub names: &'a [String; 2],
    /// As it is on disk.
    pub raw: bool,
}

/// Form in which other machines send a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Items, made there where that is possible.
    Items,
    /// Streams.
    Streams,
}

/// A stream that is being read.
struct Side {
    child: Child,
    items: Receiver<Result<Option<Item>, String>>,
    err: thread::JoinHandle<String>,
}

impl Side {
    fn begin(host: &Host, name: &str, (raw, from): (bool, Source)) -> Result<Self, Failed> {
        let words: &[&str] = if raw { &["send", "-w", name] } else { &["send", name] };
        let items = (from == Source::Items).then(|| host.items(words.get(1..).unwrap_or_default())).flatten();
        let mut command = items.unwrap_or_else(|| host.zfs(words));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Failed::new(format!("zfs cannot be run: {e}")))?;
        let err = text_of(child.stderr.take());
        let (to, items) = sync_channel(AHEAD);
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || {
                let mut from = Items::new(std::io::BufReader::with_capacity(1 << 20, out));
                loop {
                    let item = from.next();
                    let is_last = !matches!(item, Ok(Some(_)));
                    // The comparison may have ended.
                    if to.send(item).is_err() || is_last {
                        break;
                    }
                }
            });
        }
        Ok(Self { child, items, err })
    }

    fn next(&mut self, around: &Around) -> Result<Option<Item>, Failed> {
        loop {
            match self.items.recv_timeout(TICK) {
                Ok(Ok(item)) => return Ok(item),
                Ok(Err(e)) => return Err(Failed::new(e)),
                Err(RecvTimeoutError::Timeout) if around.is_stopped() => return Err(Failed::stopped()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Failed::new("the stream ends early")),
            }
        }
    }

    /// Ends the command; returns its message.
    fn end(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        drop(self.items);
        self.err.join().unwrap_or_default()
    }
}

impl Comparison<'_> {
    /// Compares; returns the first difference.
    ///
    /// # Errors
    /// A stream that can't be read; an interruption.
    pub fn run(&self, around: &Around) -> Result<Option<String>, Failed> {
        match self.run_with(around, Source::Items) {
            // A machine may allow nothing but `zfs send`.
            Err(e) if !e.is_stopped && self.hosts.iter().any(Host::is_far) => {
                self.run_with(around, Source::Streams)
            }
            done => done,
        }
    }

    fn run_with(&self, around: &Around, form: Source) -> Result<Option<String>, Failed> {
        let ([source, target], [from, to]) = (self.hosts, self.names);
        let mut one = Side::begin(source, from, (self.raw, form))?;
        let mut other = match Side::begin(target, to, (self.raw, form)) {
            Ok(other) => other,
            Err(e) => {
                one.end();
                return Err(e);
            }
        };
        let (compared, is_source) = loop {
            let first = match one.next(around) {
                Ok(item) => item,
                Err(e) => break (Err(e), true),
            };
            let second = match other.next(around) {
                Ok(item) => item,
                Err(e) => break (Err(e), false),
            };
            if first != second {
                break (Ok(Some(difference(first, second))), true);
            }
            if first.is_none() {
                break (Ok(None), true);
            }
        };
        let (said_one, said_other) = (one.end(), other.end());
        compared.map_err(|e| {
            let text = if is_source { &said_one } else { &said_other };
            match e.is_stopped || text.trim().is_empty() {
                true => e,
                false => Failed::new(format!("{}: {e}", said(text, &["send"]))),
            }
        })
    }
}

fn difference(one: Option<Item>, other: Option<Item>) -> String {
    let place = |item: Item| match item.offset {
        Some(offset) => format!("object {} at offset {offset}", item.object),
        None => format!("object {}", item.object),
    };
    match (one, other) {
        (Some(one), Some(other)) if (one.object, one.offset) == (other.object, other.offset) => place(one),
        (Some(one), Some(other)) => format!("{} here, {} at the target", place(one), place(other)),
        (Some(one), None) => format!("{} is not at the target", place(one)),
        (None, other) => format!("{} is at the target only", other.map(place).unwrap_or_default()),
    }
}
