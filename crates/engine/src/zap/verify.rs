//! Verifies the structure of a ZAP more strictly than a reader.

use std::collections::{BTreeMap, HashSet};

use ondisk::zap::{FatHeader, Leaf, MicroZap, ZapFlags, hash_name, hash_words};

use super::{Shape, Zap, ZapKey, ZapSource, corrupt, fold};
use crate::error::Result;

impl<S: ZapSource + Clone> Zap<S> {
    /// Checks the whole structure: every slot of the table names the leaf of its prefix, every leaf accounts for
    /// all its chunks, every key is stored under its hash and only once, counts are correct.
    pub fn verify(&self) -> Result<()> {
        match &self.shape {
            Shape::Micro(block, _) => {
                let micro = MicroZap::from_bytes(block).map_err(|e| corrupt(&self.object, 0, &e))?;
                let mut names = HashSet::new();
                let mut places = HashSet::new();
                let hashes = micro.sorted(|name| fold(name, micro.normflags()));
                let fine =
                    hashes.iter().all(|(hash, e)| names.insert(e.name) && places.insert((*hash, e.cd)));
                if fine { Ok(()) } else { Err(self.wrong(0, "a name stands twice, or two have one cd")) }
            }
            Shape::Fat(header, _) => self.verify_fat(header),
        }
    }

    fn wrong(&self, blkid: u64, what: &str) -> crate::error::Error {
        corrupt(&self.object, blkid, &what)
    }

    fn verify_fat(&self, header: &FatHeader) -> Result<()> {
        let mut spans: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for slot in 0..header.ptrtbl_len() {
            let span = spans.entry(self.leaf_of(header, slot)?).or_insert((slot, 0));
            if span.0 + span.1 != slot {
                return Err(self.wrong(0, "slots of one leaf are not neighbours"));
            }
            span.1 += 1;
        }
        let mut entries = 0;
        let mut keys = HashSet::new();
        for (blkid, (first, slots)) in &spans {
            entries += self.verify_leaf(header, *blkid, *first, *slots, &mut keys)?;
        }
        let leaves = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        if leaves != header.num_leafs || entries != header.num_entries {
            let what = format!(
                "{leaves} leaves and {entries} entries, {} and {} counted",
                header.num_leafs, header.num_entries
            );
            return Err(self.wrong(0, &what));
        }
        let table = header.ptrtbl.blk.saturating_add(header.ptrtbl.numblks);
        let last = spans.keys().next_back().map_or(0, |b| b.saturating_add(1));
        if header.freeblk < table.max(last) {
            return Err(self.wrong(0, "the next free block is used"));
        }
        Ok(())
    }

    fn verify_leaf(
        &self,
        header: &FatHeader,
        blkid: u64,
        first: u64,
        slots: u64,
        keys: &mut HashSet<ZapKey>,
    ) -> Result<u64> {
        let block = self.object.block(blkid)?;
        let bad = |e| corrupt(&self.object, blkid, &e);
        let leaf = Leaf::from_bytes(&block).map_err(bad)?;
        let words = header.flags.has(ZapFlags::UINT64_KEY);
        leaf.verify(words).map_err(bad)?;
        let free = header.ptrtbl.shift.checked_sub(leaf.header().prefix_len.into());
        if !free.is_some_and(|free| slots == 1 << free && first >> free == leaf.header().prefix) {
            return Err(self.wrong(blkid, "the leaf's prefix is not that of its slots"));
        }
        for entry in leaf.entries() {
            let entry = entry.map_err(bad)?;
            let (key, hash) = if words {
                let key = leaf.key_words(&entry).map_err(bad)?;
                let hash = hash_words(header.salt, &key, header.flags);
                (ZapKey::Words(key), hash)
            } else {
                let name = leaf.name(&entry).map_err(bad)?;
                let hash = hash_name(header.salt, &fold(&name, header.normflags), header.flags);
                (ZapKey::Name(name), hash)
            };
            if hash != entry.hash || !keys.insert(key) {
                return Err(self.wrong(blkid, "an entry has a wrong hash, or its name stands twice"));
            }
        }
        Ok(leaf.header().nentries.into())
    }
}
