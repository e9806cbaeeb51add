//! Look-ups of many keys of words at once.
//!
//! Keys are looked up in the order of their hashes, which is the order of the leaves: each leaf is read once, and leaves that
//! are not in memory are read at the same time.

use std::collections::BTreeSet;

use ondisk::zap::{FatHeader, Leaf, hash_words, table_index};

use super::{Shape, Value, Zap, ZapSource, corrupt, leaf_value};
use crate::error::Result;

/// Leaves that are read at the same time, and held meanwhile.
const LEAVES: usize = 64;

/// Leaves that are read at the same time in the background.
const AT_ONCE: usize = 8;

/// A key: its hash, and its position among those of the caller.
type Hashed = (u64, usize);

/// The results of many look-ups.
#[derive(Debug)]
pub(crate) struct Looked {
    /// The value of each key, in the order of the caller.
    pub(crate) values: Vec<Result<Option<Value>>>,
    /// Leaves that were read, from memory or from disk.
    pub(crate) leaves: usize,
}

impl<S: ZapSource + Clone> Zap<S> {
    /// The values of many keys of words.
    pub(crate) fn lookup_many<const N: usize>(&self, keys: &[[u64; N]]) -> Looked {
        let mut looked = Looked { values: keys.iter().map(|_| Ok(None)).collect(), leaves: 0 };
        let Shape::Fat(header, _) = &self.shape else { return looked };
        let hashed = self.by_leaf(header, keys);
        let groups: Vec<&[(Option<u64>, Hashed)]> = hashed.chunk_by(|a, b| a.0 == b.0).collect();
        for part in groups.chunks(LEAVES) {
            let numbers: Vec<u64> = part.iter().filter_map(|group| group.first()?.0).collect();
            looked.leaves += numbers.len();
            let mut blocks = self.object.blocks(&numbers, true).into_iter();
            for group in part {
                let has_leaf = group.first().is_some_and(|first| first.0.is_some());
                let block = if has_leaf { blocks.next().and_then(Result::ok) } else { None };
                let leaf = block.as_ref().and_then(|block| Leaf::from_bytes(block).ok());
                for (_, (hash, at)) in *group {
                    let Some((key, value)) = keys.get(*at).zip(looked.values.get_mut(*at)) else { continue };
                    let found = leaf.as_ref().and_then(|leaf| within(leaf, *hash, key));
                    // Keys of a leaf that was split since, or is damaged, fall back to the lookup of single keys.
                    *value = found.map_or_else(|| self.lookup_words(key), Ok);
                }
            }
        }
        looked
    }

    /// Reads the leaves of keys of words at the same time: they will be needed soon. The caller bounds their number.
    pub(crate) fn read_ahead<const N: usize>(&self, keys: &[[u64; N]]) {
        let Shape::Fat(header, _) = &self.shape else { return };
        let mut leaves: Vec<u64> =
            self.by_leaf(header, keys).into_iter().filter_map(|(leaf, _)| leaf).collect();
        leaves.dedup();
        // Errors come again when the leaf is used.
        drop(self.object.blocks(&leaves, true));
    }

    /// The hashes of all entries from `start` to before `end` (`None`: to the end). The leaves are not kept in memory.
    ///
    /// # Errors
    /// When a leaf cannot be read, or is not where it belongs: a ZAP that changes meanwhile looks so, too.
    pub(crate) fn hashes_between(&self, start: u64, end: Option<u64>) -> Result<Vec<u64>> {
        let Shape::Fat(header, _) = &self.shape else { return Ok(Vec::new()) };
        let last = end.map_or(u64::MAX, |end| end.saturating_sub(1));
        let index = |hash| table_index(hash, header.ptrtbl.shift);
        let leaves = (index(start)..=index(last)).map(|index| self.leaf_of(header, index));
        let mut leaves: Vec<u64> = leaves.collect::<Result<_>>()?;
        leaves.dedup();
        let distinct: BTreeSet<u64> = leaves.iter().copied().collect();
        if distinct.len() < leaves.len() {
            return Err(corrupt(&self.object, 0, &"a ZAP leaf stands at two places"));
        }
        let mut hashes = Vec::new();
        for part in leaves.chunks(AT_ONCE) {
            for (blkid, block) in part.iter().zip(self.object.blocks(part, false)) {
                let block = block?;
                let bad = |e| corrupt(&self.object, *blkid, &e);
                let leaf = Leaf::from_bytes(&block).map_err(bad)?;
                for entry in leaf.entries() {
                    let hash = entry.map_err(bad)?.hash;
                    if (start..=last).contains(&hash) {
                        hashes.push(hash);
                    }
                }
            }
        }
        Ok(hashes)
    }

    /// Keys in the order of their hashes, each with its leaf, if the pointer table can be read.
    fn by_leaf<const N: usize>(&self, header: &FatHeader, keys: &[[u64; N]]) -> Vec<(Option<u64>, Hashed)> {
        let hash = |key: &[u64; N]| hash_words(header.salt, key, header.flags);
        let mut hashed: Vec<Hashed> = keys.iter().map(hash).zip(0..).collect();
        hashed.sort_unstable();
        self.read_table(header, &hashed);
        let leaf = |(hash, _): &Hashed| self.leaf_of(header, table_index(*hash, header.ptrtbl.shift)).ok();
        hashed.iter().map(|key| (leaf(key), *key)).collect()
    }

    /// Reads the blocks of the pointer table that these keys need.
    fn read_table(&self, header: &FatHeader, hashed: &[Hashed]) {
        let block = |(hash, _): &Hashed| {
            let place = header.ptr_location(table_index(*hash, header.ptrtbl.shift));
            place.map(|(block, _)| block).filter(|block| *block > 0 && *block <= self.object.last_block())
        };
        let mut blocks: Vec<u64> = hashed.iter().filter_map(block).collect();
        blocks.dedup();
        for part in blocks.chunks(LEAVES).filter(|part| part.len() > 1) {
            // Errors come again when the block is used.
            drop(self.object.blocks(part, true));
        }
    }
}

/// The answer of a leaf for a key; `None` when it does not cover it, or is damaged.
fn within(leaf: &Leaf<'_>, hash: u64, key: &[u64]) -> Option<Option<Value>> {
    if !leaf.covers(hash) {
        return None;
    }
    for entry in leaf.lookup(hash) {
        let entry = entry.ok()?;
        if leaf.key_words(&entry).is_ok_and(|words| words == key) {
            return leaf_value(leaf, &entry).ok().map(Some);
        }
    }
    Some(None)
}
