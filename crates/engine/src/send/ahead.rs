//! Reads blocks ahead of the events that use them, within a bound of memory.
//!
//! Events wait in a queue, each with the read that it began; the oldest is turned into records as soon as the
//! queue needs more memory than its share ([`Share`]), or when it waits for nothing: a long queue of events that are ready
//! falls out of the processor's cache. Blocks that were read stay up to [`KEPT`], so that reads go on while
//! the reader of the stream pauses. Blocks bypass the cache: a stream reads each once, and the blocks
//! cached before are worth more.
//!
//! A read that failed is done once more by a reader that waits for a suspended pool.

use std::collections::VecDeque;

use ondisk::Blkptr;
use stdx::{AlignedBuf, Buf};

use super::event::{Sink, StreamEvent};
use super::records::Sender;
use super::until::Until;
use crate::error::Result;
use crate::memory::ahead::Share;
use crate::taskq::Promise;
use crate::types::Bookmark;
use crate::zio::{ReadOptions, ReadOutcome};

/// Memory charged for an event beside the bytes of its block: its object, and the plan and promise of a read under way.
const EVENT: u64 = 2048;
/// Bytes of queued events below which blocks that were read wait for the next ones.
const KEPT: u64 = 4 << 20;
/// Buffers begin at pages, so a small one costs a page.
const PAGE: u64 = 4096;

/// A queue in front of the writer of records.
pub(super) struct Ahead<'a> {
    sender: Sender<'a>,
    queue: VecDeque<Waiting>,
    share: Share,
    /// The end of the stream, if the dataset contains more than the part that was received in order.
    until: Option<Until>,
    /// Blocks are not read.
    dry: bool,
}

struct Waiting {
    event: StreamEvent,
    read: Option<Promise<ReadOutcome>>,
    cost: u64,
}

impl<'a> Ahead<'a> {
    /// A queue in front of `sender` with a share of the process's read-ahead; events from `until` on are dropped, and with
    /// `dry` blocks are not read.
    pub(super) fn new(sender: Sender<'a>, share: Share, until: Option<Until>, dry: bool) -> Self {
        Self { sender, queue: VecDeque::new(), share, until, dry }
    }

    /// All events were taken.
    pub(super) fn finish(mut self) -> Result<Sender<'a>> {
        while let Some(first) = self.queue.pop_front() {
            self.share.remove(first.cost);
            self.write(first)?;
        }
        Ok(self.sender)
    }

    /// Whether the oldest event waits for nothing.
    fn is_ready(&self) -> bool {
        self.queue.front().is_some_and(|first| match &first.read {
            Some(read) => self.share.bytes() > KEPT && read.is_set(),
            None => true,
        })
    }

    fn write(&mut self, waiting: Waiting) -> Result<()> {
        let Waiting { event, read, .. } = waiting;
        let block = self.sender.wants(&event);
        let data = match (read, block) {
            (Some(read), Some((bp, object, blkid))) => Some(self.read(&read, &bp, (object, blkid))?),
            (None, Some((bp, ..))) => Some(self.zeros(&bp)),
            _ => None,
        };
        self.sender.write(&event, data.as_ref())
    }

    fn read(&self, read: &Promise<ReadOutcome>, bp: &Blkptr, at: (u64, u64)) -> Result<Buf> {
        let arc = self.sender.objset().arc();
        let zio = arc.zio();
        if let Ok(data) = read.wait(&**zio.executor()).data {
            return Ok(data);
        }
        let _counted = arc.count_large(bp);
        zio.read_wait(bp, self.place(at), self.options(bp)).data
    }

    fn zeros(&self, bp: &Blkptr) -> Buf {
        let size = if self.sender.form_of(bp).is_cached() { bp.lsize() } else { bp.psize() };
        AlignedBuf::zeroed(usize::try_from(size).unwrap_or(0)).into()
    }

    fn options(&self, bp: &Blkptr) -> ReadOptions {
        ReadOptions { form: self.sender.form_of(bp), ..ReadOptions::default() }
    }

    fn place(&self, (object, blkid): (u64, u64)) -> Bookmark {
        Bookmark::new(self.sender.objset().id, object, 0, blkid)
    }

    fn start(&self, bp: &Blkptr, at: (u64, u64)) -> Promise<ReadOutcome> {
        let promise = Promise::default();
        let theirs = promise.clone();
        let arc = self.sender.objset().arc();
        // The read's device buffers count as memory until it ends.
        let counted = arc.count_large(bp);
        let done = Box::new(move |outcome| {
            drop(counted);
            theirs.set(outcome);
        });
        arc.zio().read(bp, self.place(at), self.options(bp), done);
        promise
    }
}

impl Sink for Ahead<'_> {
    fn take(&mut self, event: StreamEvent) -> Result<()> {
        let event = match &self.until {
            Some(until) => until.cut(event),
            None => Some(event),
        };
        let Some(event) = event else { return Ok(()) };
        let block = self.sender.wants(&event);
        if block.is_none() && self.queue.is_empty() {
            return self.sender.write(&event, None);
        }
        let (mut read, mut cost) = (None, EVENT);
        if let Some((bp, object, blkid)) = block.filter(|_| !self.dry) {
            cost += bp.lsize().next_multiple_of(PAGE);
            read = Some(self.start(&bp, (object, blkid)));
        }
        self.share.add(cost);
        self.queue.push_back(Waiting { event, read, cost });
        while (self.share.is_over() || self.is_ready())
            && let Some(first) = self.queue.pop_front()
        {
            self.share.remove(first.cost);
            self.write(first)?;
        }
        Ok(())
    }
}
