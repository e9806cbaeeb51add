//! Changing a leaf of a fat ZAP in place.
//!
//! Every chunk is an entry, a piece of an array (a name or a value), or on the free list. An entry stands on
//! the hash chain that the bits behind the leaf's prefix choose; chains are kept in the order of `cd`.
//! Pieces and entries are taken from the head of the free list and given back to it with their bytes zeroed,
//! so that a leaf compresses well.
//!
//! The leaf may hold any bytes: whatever contradicts itself is an error, and the caller drops the block, or makes
//! the change with [`LeafMut::attempt`], which restores the leaf. A change that ends with [`Fit::Full`]
//! or [`Fit::Never`] has changed nothing.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::BLOCK_LEAF;
use super::LEAF_MAGIC;
use super::leaf::{
    ARRAY_BYTES, ArrayPhys, CHAIN_END, CHUNK_ARRAY, CHUNK_ENTRY, CHUNK_FREE, CHUNK_SIZE, EntryPhys, Leaf,
    LeafHeaderPhys, hash_entries, num_chunks,
};
use crate::Malformed;

/// Flag of a leaf's header: chains are in the order of `cd`.
#[doc(alias = "ZLF_ENTRIES_CDSORTED")]
pub const LEAF_CDSORTED: u8 = 1;

/// Whether a change fitted into the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is made.
    Done,
    /// The leaf has too few free chunks.
    Full,
    /// It would not fit into an empty leaf.
    Never,
}

/// An array of integers as a leaf stores it: big-endian, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct LeafArray<'a> {
    /// Bytes of each integer: 1, 2, 4 or 8.
    pub intlen: u8,
    /// All of them; a multiple of `intlen`.
    pub bytes: &'a [u8],
}

impl LeafArray<'_> {
    fn chunks(&self) -> usize {
        self.bytes.len().div_ceil(ARRAY_BYTES)
    }

    fn numints(&self) -> Option<u16> {
        if !matches!(self.intlen, 1 | 2 | 4 | 8) {
            return None;
        }
        u16::try_from(self.bytes.len() / usize::from(self.intlen)).ok()
    }
}

/// An entry to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'a> {
    /// Hash of its name.
    pub hash: u64,
    /// Distinguishes it from others of the same hash; `None`: the lowest that is free.
    pub cd: Option<u32>,
    /// Name with its NUL, or key words.
    pub name: LeafArray<'a>,
    /// Value.
    pub value: LeafArray<'a>,
}

/// A leaf open for change.
#[derive(Debug)]
pub struct LeafMut<'a> {
    header: &'a mut LeafHeaderPhys,
    hash: &'a mut [U16],
    chunks: &'a mut [[u8; CHUNK_SIZE]],
    /// The bytes that the attempt in progress has replaced.
    before: Option<Before>,
}

/// The parts of a leaf as they were before an attempt, in the order in which they changed.
#[derive(Debug)]
struct Before {
    header: LeafHeaderPhys,
    heads: Few<(usize, U16)>,
    chunks: Few<(usize, [u8; CHUNK_SIZE])>,
}

/// Chunks that an ordinary change replaces: an entry, its name and value, the entry before it on the chain.
const ORDINARY: usize = 8;

/// A list that allocates nothing for the parts of an ordinary change.
#[derive(Debug, Default)]
struct Few<T> {
    first: [T; ORDINARY],
    len: usize,
    more: Vec<T>,
}

impl<T: Copy> Few<T> {
    fn push(&mut self, item: T) {
        match self.first.get_mut(self.len) {
            Some(place) => (*place, self.len) = (item, self.len + 1),
            None => self.more.push(item),
        }
    }

    /// All of them, the last first.
    fn newest_first(&self) -> impl Iterator<Item = T> + '_ {
        self.more.iter().rev().chain(self.first.iter().take(self.len).rev()).copied()
    }
}

fn bad(detail: impl Into<String>) -> Malformed {
    Malformed::new("zap leaf", detail)
}

impl<'a> LeafMut<'a> {
    /// Makes an empty leaf of `block`, which has the ZAP's block size. `sorted` is for ZAPs whose names
    /// are normalised.
    #[doc(alias = "zap_leaf_init")]
    pub fn init(block: &'a mut [u8], sorted: bool) -> Result<Self, Malformed> {
        block.fill(0);
        let leaf = Self::parts(block)?;
        leaf.header.block_type = U64::new(BLOCK_LEAF);
        leaf.header.magic = U32::new(LEAF_MAGIC);
        leaf.header.nfree = U16::new(count(leaf.chunks.len())?);
        leaf.header.flags = if sorted { LEAF_CDSORTED } else { 0 };
        leaf.hash.fill(U16::new(CHAIN_END));
        let last = leaf.chunks.len().saturating_sub(1);
        for (i, raw) in leaf.chunks.iter_mut().enumerate() {
            let next = if i == last { CHAIN_END } else { count(i + 1)? };
            write_chunk(raw, &ArrayPhys::free(U16::new(next)));
        }
        Ok(leaf)
    }

    /// Opens a leaf block.
    pub fn from_bytes(block: &'a mut [u8]) -> Result<Self, Malformed> {
        Leaf::from_bytes(block)?;
        Self::parts(block)
    }

    fn parts(block: &'a mut [u8]) -> Result<Self, Malformed> {
        let len = block.len();
        if !len.is_power_of_two() || len < 512 {
            return Err(bad(format!("block of {len} bytes")));
        }
        let short = || Malformed::short("zap leaf", len, 512);
        let (header, rest) = LeafHeaderPhys::mut_from_prefix(block).map_err(|_| short())?;
        let (hash, rest) =
            <[U16]>::mut_from_prefix_with_elems(rest, hash_entries(len)).map_err(|_| short())?;
        let (chunks, _) =
            <[[u8; CHUNK_SIZE]]>::mut_from_prefix_with_elems(rest, num_chunks(len)).map_err(|_| short())?;
        Ok(Self { header, hash, chunks, before: None })
    }

    /// Makes a change of entries in `block`, a leaf: all of it, or, when `work` fails, none.
    ///
    /// # Errors
    /// The errors of [`LeafMut::from_bytes`] and of `work`, which must neither split nor widen the leaf.
    pub fn attempt<T>(
        block: &'a mut [u8],
        work: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        let mut leaf = Self::from_bytes(block)?;
        let header = *leaf.header;
        leaf.before = Some(Before { header, heads: Few::default(), chunks: Few::default() });
        let done = work(&mut leaf);
        if done.is_err() {
            leaf.put_back();
        }
        done
    }

    fn put_back(&mut self) {
        let Some(before) = self.before.take() else { return };
        *self.header = before.header;
        for (slot, head) in before.heads.newest_first() {
            self.hash.get_mut(slot).into_iter().for_each(|now| *now = head);
        }
        for (chunk, bytes) in before.chunks.newest_first() {
            self.chunks.get_mut(chunk).into_iter().for_each(|now| *now = bytes);
        }
    }

    /// Keeps a chunk as it is, for [`LeafMut::put_back`].
    fn note_chunk(&mut self, chunk: u16) {
        let chunk = usize::from(chunk);
        if let (Some(before), Some(bytes)) = (&mut self.before, self.chunks.get(chunk)) {
            before.chunks.push((chunk, *bytes));
        }
    }

    /// Free chunks.
    pub fn nfree(&self) -> u16 {
        self.header.nfree.get()
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.header.nentries.get() == 0
    }

    /// Stores an entry. The caller has looked that its name is not there yet.
    #[doc(alias = "zap_entry_create")]
    pub fn insert(&mut self, new: &NewEntry<'_>) -> Result<Fit, Malformed> {
        let (Some(name_numints), Some(value_numints)) = (new.name.numints(), new.value.numints()) else {
            return Ok(Fit::Never);
        };
        let need = 1 + new.name.chunks() + new.value.chunks();
        if need > self.chunks.len() {
            return Ok(Fit::Never);
        }
        let cd = match new.cd {
            Some(cd) => cd,
            None => self.free_cd(new.hash)?,
        };
        if usize::from(self.header.nfree.get()) < need {
            return Ok(Fit::Full);
        }
        let chunk = self.alloc()?;
        let phys = EntryPhys {
            chunk_type: CHUNK_ENTRY,
            value_intlen: new.value.intlen,
            next: U16::new(CHAIN_END),
            name_chunk: U16::new(self.store_array(new.name.bytes)?),
            name_numints: U16::new(name_numints),
            value_chunk: U16::new(self.store_array(new.value.bytes)?),
            value_numints: U16::new(value_numints),
            cd: U32::new(cd),
            hash: U64::new(new.hash),
        };
        self.put(chunk, &phys)?;
        self.link(chunk)?;
        let entries = self.header.nentries.get().checked_add(1).ok_or_else(|| bad("too many entries"))?;
        self.header.nentries.set(entries);
        Ok(Fit::Done)
    }

    /// Replaces the value of the entry in `chunk`, as a lookup gave it.
    #[doc(alias = "zap_entry_update")]
    pub fn set_value(&mut self, chunk: u16, value: LeafArray<'_>) -> Result<Fit, Malformed> {
        let mut entry = *self.entry(chunk)?;
        let Some(numints) = value.numints() else { return Ok(Fit::Never) };
        let old = usize::from(entry.value_intlen) * usize::from(entry.value_numints.get());
        let (had, need) = (old.div_ceil(ARRAY_BYTES), value.chunks());
        if need + 1 > self.chunks.len() {
            return Ok(Fit::Never);
        }
        if need > had + usize::from(self.header.nfree.get()) {
            return Ok(Fit::Full);
        }
        self.free_array(entry.value_chunk.get())?;
        entry.value_chunk.set(self.store_array(value.bytes)?);
        entry.value_intlen = value.intlen;
        entry.value_numints.set(numints);
        self.put(chunk, &entry)?;
        Ok(Fit::Done)
    }

    /// Takes out the entry in `chunk`.
    #[doc(alias = "zap_entry_remove")]
    pub fn remove(&mut self, chunk: u16) -> Result<(), Malformed> {
        let entry = *self.entry(chunk)?;
        self.unlink(chunk, entry.hash.get())?;
        self.free_array(entry.name_chunk.get())?;
        self.free_array(entry.value_chunk.get())?;
        self.free(chunk)?;
        let left = self.header.nentries.get().checked_sub(1).ok_or_else(|| bad("fewer entries than none"))?;
        self.header.nentries.set(left);
        Ok(())
    }

    /// Splits the leaf: its prefix grows by a bit; entries that have it set move to `new`, an empty leaf.
    #[doc(alias = "zap_leaf_split")]
    pub fn split(&mut self, new: &mut LeafMut<'_>, sorted: bool) -> Result<(), Malformed> {
        let len = self.header.prefix_len.get();
        let bit = 63u16.checked_sub(len).ok_or_else(|| bad("its prefix has all bits"))?;
        let prefix = self.header.prefix.get() << 1;
        self.header.prefix.set(prefix);
        self.header.prefix_len.set(len + 1);
        new.header.prefix.set(prefix | 1);
        new.header.prefix_len.set(len + 1);
        if sorted {
            self.header.flags |= LEAF_CDSORTED;
        }
        self.hash.fill(U16::new(CHAIN_END));
        for chunk in 0..count(self.chunks.len())? {
            if self.raw(chunk)?.first() != Some(&CHUNK_ENTRY) {
                continue;
            }
            if self.entry(chunk)?.hash.get() >> bit & 1 == 1 {
                self.transfer(chunk, new)?;
            } else {
                self.link(chunk)?;
            }
        }
        Ok(())
    }

    /// Takes the last bit from the prefix of an empty leaf, which then stands for its sibling, too.
    #[doc(alias = "zap_shrink")]
    pub fn widen(&mut self) -> Result<(), Malformed> {
        let len = self.header.prefix_len.get().checked_sub(1).ok_or_else(|| bad("its prefix has no bits"))?;
        if self.header.nentries.get() != 0 {
            return Err(bad("it has entries"));
        }
        self.header.prefix.set(self.header.prefix.get() >> 1);
        self.header.prefix_len.set(len);
        Ok(())
    }

    fn transfer(&mut self, chunk: u16, new: &mut LeafMut<'_>) -> Result<(), Malformed> {
        let mut entry = *self.entry(chunk)?;
        let to = new.alloc()?;
        for head in [&mut entry.name_chunk, &mut entry.value_chunk] {
            head.set(self.transfer_array(head.get(), new)?);
        }
        new.put(to, &entry)?;
        new.link(to)?;
        self.free(chunk)?;
        let left = self.header.nentries.get().checked_sub(1).ok_or_else(|| bad("fewer entries than none"))?;
        self.header.nentries.set(left);
        new.header.nentries.set(new.header.nentries.get().saturating_add(1));
        Ok(())
    }

    fn transfer_array(&mut self, head: u16, new: &mut LeafMut<'_>) -> Result<u16, Malformed> {
        let mut bytes = Vec::new();
        let mut next = head;
        while next != CHAIN_END {
            let piece = *self.array(next)?;
            bytes.push((new.alloc()?, piece.bytes));
            self.free(next)?;
            next = piece.next.get();
        }
        new.chain(&bytes)
    }

    /// The lowest `cd` that no entry of this hash has.
    fn free_cd(&self, hash: u64) -> Result<u32, Malformed> {
        let mut used: Vec<u32> = Vec::new();
        self.walk(hash, |_, entry| {
            if entry.hash.get() == hash {
                used.push(entry.cd.get());
            }
            false
        })?;
        used.sort_unstable();
        used.dedup();
        let taken = used.iter().zip(0u32..).take_while(|(cd, i)| **cd == *i).count();
        u32::try_from(taken).map_err(|_| bad("too many entries of one hash"))
    }

    /// Visits the chain of `hash` with the slot or chunk that points to each entry, until `stop` returns
    /// true; returns the place that points to the last one visited, or to the chain's end.
    fn walk(
        &self,
        hash: u64,
        mut stop: impl FnMut(u16, &EntryPhys) -> bool,
    ) -> Result<Option<u16>, Malformed> {
        let mut before = None;
        let mut next = self.hash.get(self.slot(hash)).map_or(CHAIN_END, |n| n.get());
        for _ in 0..=self.chunks.len() {
            if next == CHAIN_END {
                return Ok(before);
            }
            let entry = self.entry(next)?;
            if stop(next, entry) {
                return Ok(before);
            }
            before = Some(next);
            next = entry.next.get();
        }
        Err(bad("hash chain is a loop"))
    }

    fn slot(&self, hash: u64) -> usize {
        let bits = self.hash.len().trailing_zeros();
        let shift = 64u32.saturating_sub(bits + u32::from(self.header.prefix_len.get()));
        usize::try_from(hash >> shift).unwrap_or(0) & self.hash.len().saturating_sub(1)
    }

    /// The field that points to the place after `before`: a chain's head, or an entry's link.
    fn pointer(&mut self, before: Option<u16>, hash: u64) -> Result<&mut U16, Malformed> {
        match before {
            Some(chunk) => Ok(&mut self.entry_mut(chunk)?.next),
            None => {
                let slot = self.slot(hash);
                let head = self.hash.get_mut(slot).ok_or_else(|| bad("no hash table"))?;
                if let Some(before) = &mut self.before {
                    before.heads.push((slot, *head));
                }
                Ok(head)
            }
        }
    }

    /// Puts the entry in `chunk` on its chain, before the first that has a higher `cd`.
    fn link(&mut self, chunk: u16) -> Result<(), Malformed> {
        let entry = *self.entry(chunk)?;
        let (hash, cd) = (entry.hash.get(), entry.cd.get());
        let before = self.walk(hash, |_, other| other.cd.get() > cd)?;
        let pointer = self.pointer(before, hash)?;
        let next = pointer.get();
        pointer.set(chunk);
        self.entry_mut(chunk)?.next.set(next);
        Ok(())
    }

    fn unlink(&mut self, chunk: u16, hash: u64) -> Result<(), Malformed> {
        let next = self.entry(chunk)?.next.get();
        let mut found = false;
        let before = self.walk(hash, |at, _| {
            found = at == chunk;
            found
        })?;
        if !found {
            return Err(bad(format!("entry {chunk} is not on its chain")));
        }
        self.pointer(before, hash)?.set(next);
        Ok(())
    }

    fn raw(&self, chunk: u16) -> Result<&[u8; CHUNK_SIZE], Malformed> {
        self.chunks.get(usize::from(chunk)).ok_or_else(|| bad(format!("no chunk {chunk}")))
    }

    fn entry(&self, chunk: u16) -> Result<&EntryPhys, Malformed> {
        let entry = EntryPhys::ref_from_bytes(self.raw(chunk)?).ok();
        entry
            .filter(|e| e.chunk_type == CHUNK_ENTRY)
            .ok_or_else(|| bad(format!("chunk {chunk} is not an entry")))
    }

    fn entry_mut(&mut self, chunk: u16) -> Result<&mut EntryPhys, Malformed> {
        self.note_chunk(chunk);
        let raw = self.chunks.get_mut(usize::from(chunk));
        raw.and_then(|raw| EntryPhys::mut_from_bytes(raw).ok())
            .filter(|e| e.chunk_type == CHUNK_ENTRY)
            .ok_or_else(|| bad(format!("chunk {chunk} is not an entry")))
    }

    fn array(&self, chunk: u16) -> Result<&ArrayPhys, Malformed> {
        let array = ArrayPhys::ref_from_bytes(self.raw(chunk)?).ok();
        array
            .filter(|a| a.chunk_type == CHUNK_ARRAY)
            .ok_or_else(|| bad(format!("chunk {chunk} is not an array")))
    }

    fn put(&mut self, chunk: u16, phys: &(impl IntoBytes + zerocopy::Immutable)) -> Result<(), Malformed> {
        self.note_chunk(chunk);
        let raw = self.chunks.get_mut(usize::from(chunk));
        write_chunk(raw.ok_or_else(|| bad(format!("no chunk {chunk}")))?, phys);
        Ok(())
    }

    fn alloc(&mut self) -> Result<u16, Malformed> {
        let chunk = self.header.freelist.get();
        let raw = self.raw(chunk)?;
        let free = ArrayPhys::ref_from_bytes(raw).ok().filter(|f| f.chunk_type == CHUNK_FREE);
        let free = free.ok_or_else(|| bad(format!("chunk {chunk} of the free list is not free")))?;
        let next = free.next;
        let left = self.header.nfree.get().checked_sub(1).ok_or_else(|| bad("fewer chunks than none"))?;
        self.header.nfree.set(left);
        self.header.freelist = next;
        Ok(chunk)
    }

    fn free(&mut self, chunk: u16) -> Result<(), Malformed> {
        let used = self.raw(chunk)?.first().is_some_and(|kind| *kind != CHUNK_FREE);
        let nfree = self.header.nfree.get().checked_add(1).filter(|_| used);
        let nfree = nfree.ok_or_else(|| bad(format!("chunk {chunk} is free already")))?;
        let head = self.header.freelist;
        self.put(chunk, &ArrayPhys::free(head))?;
        self.header.freelist.set(chunk);
        self.header.nfree.set(nfree);
        Ok(())
    }

    fn free_array(&mut self, head: u16) -> Result<(), Malformed> {
        let mut next = head;
        while next != CHAIN_END {
            let after = self.array(next)?.next.get();
            // A chunk that comes again is free by now, so a loop ends as an error.
            self.free(next)?;
            next = after;
        }
        Ok(())
    }

    fn store_array(&mut self, bytes: &[u8]) -> Result<u16, Malformed> {
        let mut pieces = Vec::with_capacity(bytes.len().div_ceil(ARRAY_BYTES));
        for piece in bytes.chunks(ARRAY_BYTES) {
            let mut full = [0; ARRAY_BYTES];
            full.get_mut(..piece.len()).into_iter().for_each(|to| to.copy_from_slice(piece));
            pieces.push((self.alloc()?, full));
        }
        self.chain(&pieces)
    }

    /// Writes array pieces into their chunks, each pointing to the next; returns the first.
    fn chain(&mut self, pieces: &[(u16, [u8; ARRAY_BYTES])]) -> Result<u16, Malformed> {
        let mut next = CHAIN_END;
        for (chunk, bytes) in pieces.iter().rev() {
            let piece = ArrayPhys { chunk_type: CHUNK_ARRAY, bytes: *bytes, next: U16::new(next) };
            self.put(*chunk, &piece)?;
            next = *chunk;
        }
        Ok(next)
    }
}

impl ArrayPhys {
    fn free(next: U16) -> Self {
        Self { chunk_type: CHUNK_FREE, bytes: [0; ARRAY_BYTES], next }
    }
}

fn write_chunk(raw: &mut [u8; CHUNK_SIZE], phys: &(impl IntoBytes + zerocopy::Immutable)) {
    if let Some(bytes) = phys.as_bytes().first_chunk() {
        *raw = *bytes;
    }
}

fn count(n: usize) -> Result<u16, Malformed> {
    // 0xffff ends a chain, so it numbers no chunk.
    u16::try_from(n).ok().filter(|n| *n != CHAIN_END).ok_or_else(|| bad("block is too large for a leaf"))
}

#[cfg(test)]
mod tests {
    use stdx::rng::Rng;

    use super::*;

    /// A leaf that may be damaged anywhere.
    fn leaf(rng: &mut Rng) -> Vec<u8> {
        let mut block = vec![0; 4096];
        let mut leaf = LeafMut::init(&mut block, false).unwrap();
        for _ in 0..20 {
            let hash = rng.below(1 << 10) << 54;
            let (name, value) =
                (LeafArray { intlen: 1, bytes: &[b'n'; 30] }, LeafArray { intlen: 8, bytes: &[7; 8] });
            leaf.insert(&NewEntry { hash, cd: None, name, value }).unwrap();
        }
        for _ in 0..rng.below(4) {
            let at = rng.below(4096) as usize;
            block[at] = [0, 1, 0xff, CHUNK_FREE, CHUNK_ENTRY, CHUNK_ARRAY][rng.below(6) as usize];
        }
        block
    }

    #[test]
    fn an_attempt_that_fails_has_changed_nothing() {
        let mut rng = Rng::new(17);
        let (mut failed, mut done) = (0, 0);
        for _ in 0..600 {
            let mut block = leaf(&mut rng);
            for _ in 0..20 {
                let before = block.clone();
                let (what, chunk, hash) = (rng.below(3), rng.below(160) as u16, rng.below(1 << 10) << 54);
                let (name, value) = ([b'x'; 50], vec![9; 8 * rng.below(9) as usize]);
                let (name, value) =
                    (LeafArray { intlen: 1, bytes: &name }, LeafArray { intlen: 8, bytes: &value });
                let result = LeafMut::attempt(&mut block, |leaf| match what {
                    0 => leaf.insert(&NewEntry { hash, cd: None, name, value }),
                    1 => leaf.set_value(chunk, value),
                    _ => leaf.remove(chunk).map(|()| Fit::Done),
                });
                failed += usize::from(result.is_err());
                match result {
                    Ok(Fit::Done) => done += 1,
                    _ => assert!(block == before, "{result:?}"),
                }
            }
        }
        assert!(failed > 1000 && done > 1000, "{failed} failed, {done} done");
    }
}
