//! Merges the events of a walk with redaction lists.
//!
//! Three sequences of ranges, each in order: those that the stream's own bookmark redacts, those of the walk,
//! and those redacted in the bookmark that the stream builds on. Where ranges overlap, the first of these
//! decides. Ranges in both lists are skipped: the receiver has redacted blocks there already. Ranges in the
//! older list only are looked up in the object set that is sent, as the receiver lacks them: data and holes
//! follow.
//!
//! Source: `send_merge_thread`, `send_reader_thread`, dmu_send.c, OpenZFS 2.3, for the behaviour.

use std::iter::Peekable;
use std::sync::Arc;

use ondisk::Blkptr;

use super::event::{Sink, StreamEvent};
use super::redaction::{RedactedRange, Runs};
use crate::dmu::{Blocks, Object, Objset};
use crate::error::{Error, Kind, Result};

/// Dnodes of a block, as the order of ranges counts them.
#[doc(alias = "DNODES_PER_BLOCK")]
const PER_BLOCK: u64 = 32;

/// Where a range begins: object, kind (blocks of dnodes, then objects, then their blocks), block.
type Key = (u64, u8, u64);

/// A walk's events on their way, with redaction lists beside them.
pub(super) struct Merge<'a, S: Sink> {
    to: S,
    objset: Arc<Objset>,
    redact: List<'a>,
    from: List<'a>,
    /// The object that the older list was last looked up in.
    known: Option<(u64, Option<Arc<Object>>)>,
}

/// A list and its first run.
struct List<'a> {
    runs: Option<Peekable<Runs<'a>>>,
    front: Option<RedactedRange>,
}

impl<'a> List<'a> {
    fn new(runs: Option<Runs<'a>>) -> Result<Self> {
        let mut list = Self { runs: runs.map(Iterator::peekable), front: None };
        list.advance()?;
        Ok(list)
    }

    fn advance(&mut self) -> Result<()> {
        self.front = self.runs.as_mut().and_then(Iterator::next).transpose()?;
        Ok(())
    }

    fn key(&self) -> Option<Key> {
        self.front.map(|run| (run.object, 2, run.start))
    }

    /// The front begins at `start` now, or is gone.
    fn cut(&mut self, start: u64) -> Result<()> {
        match &mut self.front {
            Some(run) if run.end > start => {
                run.start = start;
                Ok(())
            }
            _ => self.advance(),
        }
    }
}

/// An event as a range: where it begins, and the blocks of which object it covers.
struct Range {
    event: StreamEvent,
    key: Key,
    /// Object, first block, one past the last; `None` for events that cover no blocks of one object.
    blocks: Option<(u64, u64, u64)>,
}

impl Range {
    fn of(event: StreamEvent) -> Self {
        let end = |end: u64| if end == 0 { u64::MAX } else { end };
        let (key, blocks) = match &event {
            StreamEvent::Dnodes { blkid, .. } => ((blkid.saturating_mul(PER_BLOCK), 0, 0), None),
            StreamEvent::NoObjects { start, .. } => ((start.saturating_mul(PER_BLOCK), 2, 0), None),
            StreamEvent::Object(found) => ((found.number, 1, 0), None),
            StreamEvent::NoObject { number } => ((*number, 1, 0), None),
            StreamEvent::Hole { object, start, end: e, .. } => {
                ((object.number, 2, *start), Some((object.number, *start, end(*e))))
            }
            StreamEvent::Data { object, blkid, .. } => {
                let next = blkid.saturating_add(1);
                ((object.number, 2, *blkid), Some((object.number, *blkid, next)))
            }
            StreamEvent::Redact { object, start, end, .. } => {
                ((*object, 2, *start), Some((*object, *start, *end)))
            }
            StreamEvent::Spill { object, .. } => ((object.number, 3, 0), None),
        };
        Self { event, key, blocks }
    }

    /// The part before block `at` goes, and the rest stays.
    fn split(&mut self, at: u64) -> StreamEvent {
        let mut first = self.event.clone();
        match (&mut first, &mut self.event) {
            (StreamEvent::Hole { end, .. }, StreamEvent::Hole { start, .. })
            | (StreamEvent::Redact { end, .. }, StreamEvent::Redact { start, .. }) => {
                (*end, *start) = (at, at)
            }
            _ => {}
        }
        self.key.2 = at;
        if let Some((_, start, _)) = &mut self.blocks {
            *start = at;
        }
        first
    }
}

impl<'a, S: Sink> Merge<'a, S> {
    pub(super) fn new(
        to: S,
        objset: &Arc<Objset>,
        redact: Option<Runs<'a>>,
        from: Option<Runs<'a>>,
    ) -> Result<Self> {
        let (redact, from) = (List::new(redact)?, List::new(from)?);
        Ok(Self { to, objset: Arc::clone(objset), redact, from, known: None })
    }

    /// The walk has ended: the rest of the lists follows.
    pub(super) fn finish(mut self) -> Result<S> {
        while self.redact.front.is_some() || self.from.front.is_some() {
            self.lists(None)?;
        }
        Ok(self.to)
    }

    /// Passes on the first part of the lists' first range, up to where something else begins. `next` is the range of
    /// the walk that follows.
    fn lists(&mut self, next: Option<&Range>) -> Result<()> {
        let (redact, from) = (self.redact.key(), self.from.key());
        let both = redact.is_some() && redact == from;
        let is_redact = match (redact, from) {
            (Some(redact), Some(from)) => redact <= from,
            (redact, _) => redact.is_some(),
        };
        let front = if is_redact { self.redact.front } else { self.from.front };
        let Some(run) = front else { return Ok(()) };
        let mut end = run.end;
        // Another range of the object that begins or ends within this one ends it.
        let other = if is_redact { self.from.front } else { self.redact.front };
        if let Some(other) = other.filter(|other| other.object == run.object) {
            end = end.min(if both { other.end } else { other.start });
        }
        if let Some((object, start, _)) = next.and_then(|next| next.blocks)
            && object == run.object
        {
            end = end.min(start);
        }
        if end <= run.start {
            return Err(Error::new(Kind::Corrupt, "redaction lists do not advance"));
        }
        if is_redact {
            self.redact.cut(end)?;
            if both {
                return self.from.cut(end);
            }
            let RedactedRange { object, start, size, .. } = run;
            return self.to.take(StreamEvent::Redact { object, start, end, size });
        }
        self.from.cut(end)?;
        self.unredacted(RedactedRange { end, ..run })
    }

    /// The object that a run of the older list is about, if it exists.
    fn object(&mut self, number: u64) -> Result<Option<Arc<Object>>> {
        if let Some((known, object)) = &self.known
            && *known == number
        {
            return Ok(object.clone());
        }
        let found = match self.objset.object(number) {
            Ok(object) => Some(Arc::new(object)),
            Err(e) if e.kind() == Kind::NotFound => None,
            Err(e) => return Err(e),
        };
        self.known = Some((number, found.clone()));
        Ok(found)
    }

    /// Blocks that are redacted at the receiver, and are not any more.
    fn unredacted(&mut self, run: RedactedRange) -> Result<()> {
        // The walk handles an object that was removed since.
        let Some(object) = self.object(run.object)? else { return Ok(()) };
        let last = run.end.min(object.dnode.maxblkid.saturating_add(1));
        let mut at = run.start;
        let mut blocks = Blocks::new(&object);
        while at < last {
            let next = blocks.next_within(at, last).map_err(|(_, e)| e)?.unwrap_or(last);
            if next > at {
                let object = Arc::clone(&object);
                self.to.take(StreamEvent::Hole { object, start: at, end: next, birth: 0 })?;
            }
            if next < last {
                let bp: Option<Blkptr> = object.blkptr(0, next)?;
                self.to.take(data(&object, bp, next))?;
            }
            at = next.saturating_add(1);
        }
        Ok(())
    }
}

fn data(object: &Arc<Object>, bp: Option<Blkptr>, blkid: u64) -> StreamEvent {
    let (number, size) = (object.number, object.dnode.datablksz());
    match bp {
        Some(bp) if bp.is_redacted() => {
            StreamEvent::Redact { object: number, start: blkid, end: blkid.saturating_add(1), size }
        }
        Some(bp) => StreamEvent::Data { object: Arc::clone(object), bp, blkid },
        None => StreamEvent::Hole {
            object: Arc::clone(object),
            start: blkid,
            end: blkid.saturating_add(1),
            birth: 0,
        },
    }
}

impl<S: Sink> Sink for Merge<'_, S> {
    fn take(&mut self, event: StreamEvent) -> Result<()> {
        let mut range = Range::of(event);
        loop {
            let first = [self.redact.key(), self.from.key()].into_iter().flatten().min();
            let Some(first) = first.filter(|first| first.0 <= range.key.0) else { break };
            let Some((object, start, end)) = range.blocks else {
                // An event without blocks is not cut: it only has a position.
                if first < range.key {
                    self.lists(Some(&range))?;
                    continue;
                }
                break;
            };
            if first < range.key {
                self.lists(Some(&range))?;
                continue;
            }
            let begins =
                |list: &List<'_>| list.front.is_some_and(|run| run.object == object && run.start == start);
            if begins(&self.redact) {
                // The stream's own list decides, for as far as it goes: the range is cut there.
                let cut = self.redact.front.map_or(end, |run| run.end).min(end);
                self.redacted_over(start, cut)?;
                if cut >= end {
                    return Ok(());
                }
                range.split(cut);
                continue;
            }
            // The range decides up to where the stream's own list begins; the older list gives way.
            let redact = self.redact.front.filter(|run| run.object == object).map_or(end, |run| run.start);
            let cut = end.min(redact);
            while self.from.front.is_some_and(|run| run.object == object && run.start < cut) {
                self.from.cut(cut)?;
            }
            if cut < end {
                let part = range.split(cut);
                self.to.take(part)?;
                continue;
            }
            break;
        }
        self.to.take(range.event)
    }
}

impl<S: Sink> Merge<'_, S> {
    /// The stream's own list redacts blocks `start..cut` of its first run, whatever else covers them; where
    /// the older list covers them from the same block on, the receiver has them redacted already.
    fn redacted_over(&mut self, start: u64, cut: u64) -> Result<()> {
        let Some(run) = self.redact.front else { return Ok(()) };
        let mut at = start;
        while at < cut {
            let older = self.from.front.filter(|from| from.object == run.object && from.start < cut);
            let (end, is_known) = match older {
                Some(older) if older.start <= at => (older.end.min(cut), true),
                Some(older) => (older.start, false),
                None => (cut, false),
            };
            if is_known {
                self.from.cut(end)?;
            } else {
                let RedactedRange { object, size, .. } = run;
                self.to.take(StreamEvent::Redact { object, start: at, end, size })?;
            }
            at = end;
        }
        self.redact.cut(cut)
    }
}
