//! Redaction lists, as they are read: runs of blocks in the order of objects and blocks.
//!
//! Source: `redact_block_phys_t`, `redaction_list_phys_t`, OpenZFS 2.3.

use std::collections::VecDeque;

use ondisk::ObjectType;
use ondisk::dsl::{RedactBlock, RedactionList};

use crate::dmu::{Dense, Object};
use crate::dsl::Dsl;
use crate::dsl::props::bookmarks::redaction_list;
use crate::error::{Error, Kind, Result};

/// A redaction list in the MOS.
#[derive(Debug, Clone)]
pub struct Redaction {
    object: Object,
    /// Its head and the guids of the snapshots that it redacts.
    pub(crate) list: RedactionList,
}

impl Redaction {
    /// Opens the list in MOS object `number`.
    ///
    /// # Errors
    /// `Corrupt` when the object can't be a list.
    pub fn open(dsl: &Dsl, number: u64) -> Result<Self> {
        let object = dsl.mos.object(number)?;
        let list = redaction_list(&object)?;
        let room = object.max_offset() / ENTRY;
        if list.head.num_entries > room || object.dnode.object_type == ObjectType::NONE {
            let what = format!("a redaction list of {} entries has room for {room}", list.head.num_entries);
            return Err(Error::corrupt(what).at_block(object.bookmark()));
        }
        Ok(Self { object, list })
    }

    /// Whether all of the snapshots was looked at when it was made.
    #[doc(alias = "redact_complete")]
    pub fn is_complete(&self) -> bool {
        self.list.head.last_object == u64::MAX && self.list.head.last_blkid == u64::MAX
    }

    /// Its runs, in order, without those that end before `(object, block)`.
    pub fn runs(&self, from: (u64, u64)) -> Runs<'_> {
        let len = self.list.head.num_entries.saturating_mul(ENTRY);
        let left = self.list.head.num_entries;
        Runs { blocks: Dense::new(&self.object, len), left, ready: VecDeque::new(), from, last: (0, 0) }
    }
}

/// Bytes of an entry.
const ENTRY: u64 = RedactBlock::SIZE as u64;

/// A run of redacted blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedactedRange {
    /// The object.
    pub object: u64,
    /// First block.
    pub start: u64,
    /// One past the last block.
    pub end: u64,
    /// Bytes of a block.
    pub size: u64,
}

/// The runs of a list.
#[derive(Debug)]
pub struct Runs<'a> {
    blocks: Dense<'a>,
    left: u64,
    ready: VecDeque<RedactedRange>,
    from: (u64, u64),
    last: (u64, u64),
}

impl Runs<'_> {
    fn fill(&mut self) -> Result<bool> {
        let Some(block) = self.blocks.next() else { return Ok(false) };
        for bytes in block?.chunks_exact(RedactBlock::SIZE) {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            let entry = RedactBlock::from_bytes(bytes).map_err(|e| Error::corrupt(e.to_string()))?;
            let end = entry.blkid.saturating_add(entry.count());
            let run =
                RedactedRange { object: entry.object, start: entry.blkid, end, size: entry.block_size() };
            if (run.object, run.start) < self.last || run.object == 0 || run.size == 0 {
                let what = format!("a redaction list is out of order at object {}", run.object);
                return Err(Error::new(Kind::Corrupt, what));
            }
            self.last = (run.object, run.end);
            if (run.object, run.end) > self.from {
                self.ready.push_back(run);
            }
        }
        Ok(true)
    }
}

impl Iterator for Runs<'_> {
    type Item = Result<RedactedRange>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(e) => {
                    self.left = 0;
                    return Some(Err(e));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }
}
