//! Walks a ZAP leaf by leaf, in the order of hashes.

use std::collections::HashSet;

use ondisk::zap::{FatHeader, Leaf, LeafEntry, MicroEntry, MicroZap, ZapFlags, hash_name, table_index};

use super::{Shape, Zap, ZapEntry, ZapKey, ZapSource, corrupt, fold, leaf_value};
use crate::dmu::Object;
use crate::error::Result;

/// Number of damaged leaves after which the walk ends.
const MAX_ERRORS: u32 = 1 << 10;
/// Entries of a micro ZAP decoded at a time: a listing in small steps decodes few unneeded ones.
const MICRO_STEP: usize = 256;

/// Iterator over the entries of a ZAP.
#[derive(Debug)]
pub struct Cursor<S = Object> {
    zap: Zap<S>,
    ready: std::vec::IntoIter<Result<ZapEntry>>,
    /// Next slot of the pointer table; `None` at the end.
    slot: Option<u64>,
    /// Visited leaves: a repeated one means that the table is circular.
    visited: HashSet<u64>,
    /// Errors so far: a table full of errors ends the walk.
    errors: u32,
    /// Entries before this hash and cd are skipped.
    from: (u64, u32),
}

impl<S: ZapSource + Clone> Cursor<S> {
    pub(super) fn new(zap: Zap<S>, from: (u64, u32)) -> Self {
        let slot = zap.fat_header().map_or(0, |header| table_index(from.0, header.ptrtbl.shift));
        let ready = Vec::new().into_iter();
        Self { zap, ready, slot: Some(slot), visited: HashSet::new(), errors: 0, from }
    }

    /// A cursor at the end.
    pub(super) fn at_end(zap: Zap<S>) -> Self {
        Self { slot: None, ..Self::new(zap, (0, 0)) }
    }

    /// The position after `entry`, as returned by [`Zap::cookie_after`].
    pub fn cookie_after(&self, entry: &ZapEntry) -> u64 {
        self.zap.cookie_after(entry)
    }

    /// Fills `ready` with the next entries of a micro ZAP.
    fn micro(&mut self, block: &[u8]) {
        self.slot = None;
        let micro = match MicroZap::from_bytes(block) {
            Ok(micro) => micro,
            Err(e) => {
                self.ready = vec![Err(corrupt(&self.zap.object, 0, &e))].into_iter();
                return;
            }
        };
        let (salt, flags) = (micro.salt(), micro.normflags());
        let hash = |name| hash_name(salt, &fold(name, flags), ZapFlags::default());
        let place = |(hash, e): &(u64, MicroEntry<'_>)| (*hash, e.cd, e.index);
        let all = micro.entries().map(|e| (hash(e.name), e));
        let mut some: Vec<_> = all.filter(|(hash, e)| (*hash, e.cd) >= self.from).collect();
        if some.len() > MICRO_STEP {
            let (_, (hash, next), _) = some.select_nth_unstable_by_key(MICRO_STEP, place);
            let from = (*hash, next.cd);
            // The rest follows these. Forged entries with the same position are returned together.
            self.slot = (from > self.from).then_some(0);
            if self.slot.is_some() {
                some.retain(|(hash, e)| (*hash, e.cd) < from);
                self.from = from;
            }
        }
        some.sort_unstable_by_key(place);
        let entry = |(hash, e): (u64, MicroEntry<'_>)| {
            Ok(ZapEntry { key: ZapKey::Name(e.name.to_vec()), value: e.value.into(), hash, cd: e.cd })
        };
        self.ready = some.into_iter().map(entry).collect::<Vec<_>>().into_iter();
    }

    /// Fills `ready` from the leaf of the current slot and advances to the next leaf's slot.
    fn fat(&mut self, header: &FatHeader, slot: u64) -> Result<()> {
        let len = header.ptrtbl_len();
        let advance = |step: u64| slot.checked_add(step.max(1)).filter(|&next| next < len);
        let blkid = match self.zap.leaf_of(header, slot) {
            Ok(blkid) => blkid,
            Err(e) => {
                self.slot = advance(1);
                return Err(e);
            }
        };
        let read = self.zap.object.block(blkid);
        let leaf = match &read {
            Ok(block) => Leaf::from_bytes(block).map_err(|e| corrupt(&self.zap.object, blkid, &e)),
            Err(e) => Err(e.clone()),
        };
        let leaf = match leaf {
            Ok(leaf) => leaf,
            Err(e) => {
                self.slot = advance(self.same_leaf(header, slot, blkid));
                return Err(e);
            }
        };
        let Some(span) = span_of(&leaf, slot, header.ptrtbl.shift).filter(|_| self.visited.insert(blkid))
        else {
            self.slot = advance(self.same_leaf(header, slot, blkid));
            return Err(corrupt(&self.zap.object, blkid, &"a ZAP leaf stands where it does not belong"));
        };
        self.slot = advance(span - (slot & (span - 1)));
        let words = header.flags.has(ZapFlags::UINT64_KEY);
        let mut room = 1_u64 << header.block_shift;
        let mut entries = Vec::new();
        for e in leaf.sorted().into_iter().filter(|e| (e.hash, e.cd) >= self.from) {
            // Each piece of a leaf belongs to one entry, so together they fit into the leaf.
            let name = u64::from(e.name_numints) * if words { 8 } else { 1 };
            let size = name + u64::from(e.value_numints) * u64::from(e.value_intlen);
            let Some(left) = room.checked_sub(size) else {
                entries.push(Err(corrupt(
                    &self.zap.object,
                    blkid,
                    &"entries of a ZAP leaf share their bytes",
                )));
                break;
            };
            room = left;
            // A position in another leaf would lead a listing back.
            entries.push(match leaf.covers(e.hash) {
                true => self.entry(&leaf, &e, words, blkid),
                false => Err(corrupt(&self.zap.object, blkid, &"an entry stands in the wrong ZAP leaf")),
            });
        }
        self.ready = entries.into_iter();
        Ok(())
    }

    /// The number of slots from `slot` on that name the same leaf, for skipping an unreadable one.
    fn same_leaf(&self, header: &FatHeader, slot: u64, blkid: u64) -> u64 {
        let end = header.ptrtbl_len().min(slot.saturating_add(1 << 12));
        let same = (slot..end).take_while(|&s| self.zap.leaf_of(header, s).is_ok_and(|b| b == blkid));
        u64::try_from(same.count()).unwrap_or(1)
    }

    fn entry(&self, leaf: &Leaf<'_>, entry: &LeafEntry, words: bool, blkid: u64) -> Result<ZapEntry> {
        let bad = |e| corrupt(&self.zap.object, blkid, &e);
        let key = if words {
            ZapKey::Words(leaf.key_words(entry).map_err(bad)?)
        } else {
            ZapKey::Name(leaf.name(entry).map_err(bad)?)
        };
        let value = leaf_value(leaf, entry).map_err(bad)?;
        Ok(ZapEntry { key, value, hash: entry.hash, cd: entry.cd })
    }
}

impl<S: ZapSource + Clone> Iterator for Cursor<S> {
    type Item = Result<ZapEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.ready.next() {
                return Some(item);
            }
            let slot = self.slot?;
            match self.zap.shape.clone() {
                Shape::Micro(block, _) => self.micro(&block),
                Shape::Fat(header, _) => {
                    if let Err(e) = self.fat(&header, slot) {
                        self.errors += 1;
                        if self.errors > MAX_ERRORS {
                            self.slot = None;
                        }
                        return Some(Err(e));
                    }
                }
            }
        }
    }
}

/// The number of slots of a pointer table indexed by `shift` bits that name this leaf, if `slot` may be one of
/// them.
pub(super) fn span_of(leaf: &Leaf<'_>, slot: u64, shift: u32) -> Option<u64> {
    let free = shift.checked_sub(u32::from(leaf.header().prefix_len))?;
    (slot >> free == leaf.header().prefix).then_some(1 << free)
}
