//! Checks that everything in a leaf is accounted for: writers guarantee it, readers need not require it.

use super::leaf::{ARRAY_BYTES, ArrayPhys, CHAIN_END, CHUNK_ARRAY, CHUNK_FREE, Leaf, LeafEntry};
use super::leaf_mut::LEAF_CDSORTED;
use crate::Malformed;
use zerocopy::FromBytes;

fn bad(detail: String) -> Malformed {
    Malformed::new("zap leaf", detail)
}

impl Leaf<'_> {
    /// Checks that each chunk is used exactly once, that each entry stands on the chain of its hash and has a
    /// `cd` of its own, that arrays have the lengths in their entries, and that the counts are right.
    pub fn verify(&self, words: bool) -> Result<(), Malformed> {
        let mut used = vec![false; self.chunks.len()];
        let mut entries = 0u16;
        for slot in 0..self.hash.len() {
            entries = entries.saturating_add(self.verify_chain(slot, words, &mut used)?);
        }
        let header = self.header();
        if entries != header.nentries {
            return Err(bad(format!("{entries} entries on chains, {} counted", header.nentries)));
        }
        let mut next = header.freelist;
        for _ in 0..header.nfree {
            next = self.piece(next, CHUNK_FREE, &mut used)?.next.get();
        }
        match used.iter().position(|used| !used) {
            Some(lost) => Err(bad(format!("chunk {lost} is neither used nor free"))),
            None => Ok(()),
        }
    }

    fn verify_chain(&self, slot: usize, words: bool, used: &mut [bool]) -> Result<u16, Malformed> {
        let mut next = self.hash.get(slot).map_or(CHAIN_END, |n| n.get());
        let mut seen: Vec<(u64, u32)> = Vec::new();
        while next != CHAIN_END {
            take(next, used)?;
            let entry = self.entry(next)?;
            if !self.covers(entry.hash) || self.slot(entry.hash) != slot {
                return Err(bad(format!("entry {next} is on a chain that is not its own")));
            }
            let id = (entry.hash, entry.cd);
            let sorted = self.header().flags & LEAF_CDSORTED == 0 || seen.last().is_none_or(|l| l.1 <= id.1);
            if seen.contains(&id) || !sorted {
                return Err(bad(format!("entry {next}: cd {} is out of order", entry.cd)));
            }
            seen.push(id);
            self.verify_arrays(&entry, words, used)?;
            next = entry.next;
        }
        u16::try_from(seen.len()).map_err(|_| bad("chain too long".into()))
    }

    fn verify_arrays(&self, entry: &LeafEntry, words: bool, used: &mut [bool]) -> Result<(), Malformed> {
        let name = usize::from(entry.name_numints) * if words { 8 } else { 1 };
        let value = usize::from(entry.value_numints) * usize::from(entry.value_intlen);
        for (mut next, len) in [(entry.name_chunk, name), (entry.value_chunk, value)] {
            for _ in 0..len.div_ceil(ARRAY_BYTES) {
                next = self.piece(next, CHUNK_ARRAY, used)?.next.get();
            }
            if next != CHAIN_END {
                return Err(bad(format!("entry {}: an array goes on past its end", entry.chunk)));
            }
        }
        Ok(())
    }

    fn piece(&self, chunk: u16, kind: u8, used: &mut [bool]) -> Result<&ArrayPhys, Malformed> {
        take(chunk, used)?;
        let raw = self.chunks.get(usize::from(chunk));
        raw.and_then(|raw| ArrayPhys::ref_from_bytes(raw).ok())
            .filter(|piece| piece.chunk_type == kind)
            .ok_or_else(|| bad(format!("chunk {chunk} is not of kind {kind}")))
    }
}

fn take(chunk: u16, used: &mut [bool]) -> Result<(), Malformed> {
    match used.get_mut(usize::from(chunk)) {
        Some(seen) if !*seen => *seen = true,
        Some(_) => return Err(bad(format!("chunk {chunk} is used twice"))),
        None => return Err(bad(format!("no chunk {chunk}"))),
    }
    Ok(())
}
