//! ZAP: objects that map names (or words) to arrays of integers.
//!
//! A *micro* ZAP is one block of fixed entries, each one 64-bit value. A *fat* ZAP hashes its keys into leaf blocks
//! found through a pointer table. `ondisk::zap` decodes the layout; this module finds the blocks, in an object of a
//! pool ([`Zap`] over [`Object`]) or in one under change ([`ZapEdit`], and [`Zap`] over `&dyn Edit`).

mod cursor;
mod edit;
mod fat;
#[cfg(test)]
mod frail_tests;
mod ints;
mod key;
mod many;
mod names;
mod normal;
mod source;
#[cfg(test)]
mod tests;
mod unicode5;
mod verify;
mod words;

use names::Names;
use ondisk::zap::{
    BlockKind, FatHeader, Leaf, LeafEntry, MicroZap, ZapFlags, hash_name, hash_words, table_index,
};
use stdx::Buf;

pub use cursor::Cursor;
pub use edit::{NewZap, ZapEdit};
pub use ints::int_name;
pub use key::{KeyRef, Value, ZapKey};
pub use normal::{FORM, Match, TOUPPER, fold};
pub use source::ZapSource;

use crate::dmu::Object;
use crate::dmu::edit::Head;
use crate::error::{Error, Kind, Result};

/// Bits of a listing's cookie: programs treat it as a signed offset.
const COOKIE_BITS: u32 = 63;
/// Most times that block 0 is read again during a lookup.
const MAX_LOOKS: usize = 64;
/// The cookie after all entries.
const END: u64 = (1 << COOKIE_BITS) - 1;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapEntry {
    /// Its key.
    pub key: ZapKey,
    /// Its value.
    pub value: Value,
    /// Hash of the key.
    pub(crate) hash: u64,
    /// Distinguishes keys of the same hash.
    pub(crate) cd: u32,
}

impl ZapEntry {
    /// The name as bytes; empty for keys of words.
    pub fn name(&self) -> &[u8] {
        match &self.key {
            ZapKey::Name(name) => name,
            ZapKey::Words(_) => &[],
        }
    }

    /// The human-readable name.
    pub fn name_lossy(&self) -> String {
        String::from_utf8_lossy(self.name()).into_owned()
    }
}

/// The result of a normalised lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEntry {
    /// The stored name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Value,
    /// Another entry also matches the name.
    pub(crate) conflict: bool,
}

impl FoundEntry {
    fn new(name: Vec<u8>, value: Value) -> Self {
        Self { name, value, conflict: false }
    }
}

#[derive(Debug, Clone)]
enum Shape {
    /// Block 0, and the number of its content.
    Micro(Buf, Option<u64>),
    Fat(FatHeader, Buf),
}

/// An open ZAP.
#[derive(Debug, Clone)]
pub struct Zap<S = Object> {
    object: S,
    shape: Shape,
}

impl<S: ZapSource + Clone> Zap<S> {
    /// Reads and checks block 0 of `object`.
    pub fn open(object: &S) -> Result<Self> {
        let Head { block, content } = object.head()?;
        let shape = match BlockKind::of(&block) {
            BlockKind::Micro => Shape::Micro(block, content),
            BlockKind::Header => {
                let header = FatHeader::from_bytes(&block).map_err(|e| corrupt(object, 0, &e))?;
                Shape::Fat(header, block)
            }
            _ => return Err(corrupt(object, 0, &"this object is not a ZAP")),
        };
        Ok(Self { object: object.clone(), shape })
    }

    /// The object that holds it.
    #[cfg(test)]
    pub(crate) fn object(&self) -> &S {
        &self.object
    }

    /// The fat header; `None` for a micro ZAP.
    pub fn fat_header(&self) -> Option<&FatHeader> {
        match &self.shape {
            Shape::Fat(header, _) => Some(header),
            Shape::Micro(..) => None,
        }
    }

    /// The normalisation of names in lookups; 0 for exact bytes.
    pub fn normflags(&self) -> u64 {
        match &self.shape {
            Shape::Fat(header, _) => header.normflags,
            Shape::Micro(block, _) => MicroZap::from_bytes(block).map_or(0, |z| z.normflags()),
        }
    }

    /// The value of exactly this name.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Value>> {
        match &self.shape {
            Shape::Micro(block, content) => {
                let micro = MicroZap::from_bytes(block).map_err(|e| corrupt(&self.object, 0, &e))?;
                let names = Names::new(micro, self.object.keeper(), *content);
                Ok(names.find(name).map(|e| Value { width: 8, ints: vec![e.value] }))
            }
            Shape::Fat(header, _) => {
                let hash = hash_name(header.salt, &fold(name, header.normflags), header.flags);
                self.fat_lookup(header, hash, |leaf, entry| leaf.name_is(entry, name))
            }
        }
    }

    /// The first integer of exactly this name's value.
    pub fn first(&self, name: &[u8]) -> Result<Option<u64>> {
        let Shape::Fat(header, _) = &self.shape else {
            return Ok(self.lookup(name)?.and_then(|value| value.first()));
        };
        let hash = hash_name(header.salt, &fold(name, header.normflags), header.flags);
        let mut found = None;
        self.fat_visit(header, hash, |leaf, entry| {
            let is_it = leaf.name_is(entry, name);
            if is_it {
                found = leaf.first_int(entry)?;
            }
            Ok(is_it)
        })?;
        Ok(found)
    }

    /// The first entry whose name `is_it` accepts among those with the hash of `hashed`, which is the name
    /// normalised by the ZAP's [`Self::normflags`]. Also returns the stored name.
    pub fn lookup_normalized(
        &self,
        hashed: &[u8],
        is_it: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<(Vec<u8>, Value)>> {
        match &self.shape {
            Shape::Micro(block, _) => {
                let micro = MicroZap::from_bytes(block).map_err(|e| corrupt(&self.object, 0, &e))?;
                let found = micro.entries().find(|e| is_it(e.name));
                Ok(found.map(|e| (e.name.to_vec(), Value { width: 8, ints: vec![e.value] })))
            }
            Shape::Fat(header, _) => {
                let hash = hash_name(header.salt, hashed, header.flags);
                let mut name = Vec::new();
                let accept = |leaf: &Leaf<'_>, entry: &LeafEntry| {
                    let stored = leaf.name(entry).ok().filter(|n| is_it(n));
                    stored.map(|n| name = n).is_some()
                };
                let value = self.fat_lookup(header, hash, accept)?;
                Ok(value.map(|value| (name, value)))
            }
        }
    }

    /// The entry that matches `name` under the ZAP's own normalisation; the one of lowest `cd` if there are
    /// several.
    #[doc(alias = "zap_lookup_norm")]
    pub fn lookup_norm(&self, name: &[u8], how: Match) -> Result<Option<FoundEntry>> {
        let normflags = self.normflags();
        let wanted = how.fold(name, normflags);
        let mut all: Vec<(u32, FoundEntry)> = Vec::new();
        match &self.shape {
            Shape::Micro(block, _) => {
                let micro = MicroZap::from_bytes(block).map_err(|e| corrupt(&self.object, 0, &e))?;
                let same = micro.entries().filter(|e| how.fold(e.name, normflags) == wanted);
                all.extend(same.map(|e| (e.cd, FoundEntry::new(e.name.to_vec(), e.value.into()))));
            }
            Shape::Fat(header, _) => {
                let hash = hash_name(header.salt, &fold(name, normflags), header.flags);
                self.fat_visit(header, hash, |leaf, entry| {
                    let stored = leaf.name(entry)?;
                    if how.fold(&stored, normflags) == wanted {
                        all.push((entry.cd, FoundEntry::new(stored, leaf_value(leaf, entry)?)));
                    }
                    Ok(false)
                })?;
            }
        }
        all.sort_by_key(|(cd, _)| *cd);
        let conflict = all.len() > 1;
        Ok(all.into_iter().next().map(|(_, found)| FoundEntry { conflict, ..found }))
    }

    /// The value of a key of either kind, exactly.
    pub fn get<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<Value>> {
        match key.into() {
            KeyRef::Name(name) => self.lookup(name),
            KeyRef::Words(words) => self.lookup_words(words),
        }
    }

    /// Number of entries.
    #[doc(alias = "zap_count")]
    pub fn count(&self) -> Result<u64> {
        match &self.shape {
            Shape::Micro(block, _) => {
                let micro = MicroZap::from_bytes(block).map_err(|e| corrupt(&self.object, 0, &e))?;
                Ok(micro.entries().fold(0, |n, _| n + 1))
            }
            Shape::Fat(header, _) => Ok(header.num_entries),
        }
    }

    /// The value of a key of 64-bit words.
    pub(crate) fn lookup_words(&self, key: &[u64]) -> Result<Option<Value>> {
        let Shape::Fat(header, _) = &self.shape else { return Ok(None) };
        let hash = hash_words(header.salt, key, header.flags);
        self.fat_lookup(header, hash, |leaf, entry| leaf.key_words(entry).is_ok_and(|k| k == key))
    }

    /// The single integer of this name; `None` if the name is absent.
    pub fn u64(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.lookup(name.as_bytes())?.and_then(|v| v.first()))
    }

    /// The single integer of a required name.
    pub fn need(&self, name: &str) -> Result<u64> {
        let absent = || self.object.place(Error::not_found(format!("no entry '{name}'")), 0);
        self.u64(name)?.ok_or_else(absent)
    }

    /// All entries in the order of their hashes, which is the order of directory listings. An unreadable leaf
    /// yields one error and is skipped.
    pub fn entries(&self) -> Cursor<S> {
        Cursor::new(self.clone(), (0, 0))
    }

    /// The position after `entry` in the order of [`Self::entries`], as one number below 2^63: it stays valid while
    /// entries are added and removed, a micro ZAP becomes fat, and the pool is exported in between. It is at least
    /// 2^28.
    #[doc(alias("zap_cursor_advance", "zap_cursor_serialize"))]
    pub(crate) fn cookie_after(&self, entry: &ZapEntry) -> u64 {
        let bits = self.hash_bits();
        let (hash, cd) = (entry.hash >> (64 - bits), u64::from(entry.cd).saturating_add(1));
        if cd < 1 << (COOKIE_BITS - bits) {
            return hash | cd << bits;
        }
        // No valid directory has that many names of one hash: the rest of them is skipped.
        if hash + 1 < 1 << bits { (hash + 1) | 1 << bits } else { END }
    }

    /// Entries from the position of a cookie on; 0 is the beginning.
    #[doc(alias = "zap_cursor_init_serialized")]
    pub fn entries_from(&self, cookie: u64) -> Cursor<S> {
        let bits = self.hash_bits();
        let cd = u32::try_from(cookie >> bits);
        match cd {
            _ if cookie >= END => Cursor::at_end(self.clone()),
            Ok(cd) => Cursor::new(self.clone(), (cookie << (64 - bits), cd)),
            Err(_) => Cursor::new(self.clone(), ((cookie << (64 - bits)).saturating_add(1), 0)),
        }
    }

    fn hash_bits(&self) -> u32 {
        self.fat_header().map_or(ZapFlags::default(), |header| header.flags).hash_bits()
    }

    /// All entries, or the first error.
    pub fn to_vec(&self) -> Result<Vec<ZapEntry>> {
        self.entries().collect()
    }

    fn fat_lookup(
        &self,
        header: &FatHeader,
        hash: u64,
        mut is_it: impl FnMut(&Leaf<'_>, &LeafEntry) -> bool,
    ) -> Result<Option<Value>> {
        let mut found = None;
        self.fat_visit(header, hash, |leaf, entry| {
            if !is_it(leaf, entry) {
                return Ok(false);
            }
            found = Some(leaf_value(leaf, entry)?);
            Ok(true)
        })?;
        Ok(found)
    }

    /// Calls `visit` for each entry of this hash until it returns true.
    fn fat_visit(
        &self,
        header: &FatHeader,
        hash: u64,
        mut visit: impl FnMut(&Leaf<'_>, &LeafEntry) -> std::result::Result<bool, ondisk::Malformed>,
    ) -> Result<()> {
        let (blkid, block) = self.leaf_for(header, hash)?;
        let bad = |e| corrupt(&self.object, blkid, &e);
        let leaf = Leaf::from_bytes(&block).map_err(bad)?;
        for entry in leaf.lookup(hash) {
            if visit(&leaf, &entry.map_err(bad)?).map_err(bad)? {
                break;
            }
        }
        Ok(())
    }

    /// The leaf of a hash, with its number. While others change the ZAP, block 0 as it was read at the opening may name
    /// a leaf that was split or freed since: then it is read again.
    fn leaf_for(&self, header: &FatHeader, hash: u64) -> Result<(u64, Buf)> {
        let mut found = self.leaf_now(header, hash);
        let mut last = None::<Self>;
        for _ in 0..MAX_LOOKS {
            if found.is_ok() {
                break;
            }
            let now = Self::open(&self.object)?;
            let Shape::Fat(header, first) = &now.shape else { break };
            if last.as_ref().unwrap_or(self).is_headed(first) {
                break;
            }
            found = now.leaf_now(header, hash);
            last = Some(now);
        }
        found
    }

    fn is_headed(&self, block: &Buf) -> bool {
        matches!(&self.shape, Shape::Fat(_, first) if first[..] == block[..])
    }

    fn leaf_now(&self, header: &FatHeader, hash: u64) -> Result<(u64, Buf)> {
        let blkid = self.leaf_of(header, table_index(hash, header.ptrtbl.shift))?;
        let block = self.object.block(blkid)?;
        let leaf = Leaf::from_bytes(&block).map_err(|e| corrupt(&self.object, blkid, &e))?;
        if !leaf.covers(hash) {
            return Err(corrupt(&self.object, blkid, &"a ZAP leaf stands where it does not belong"));
        }
        Ok((blkid, block))
    }

    /// The leaf block named by slot `index` of the pointer table.
    fn leaf_of(&self, header: &FatHeader, index: u64) -> Result<u64> {
        let bad = || corrupt(&self.object, 0, &"the ZAP's pointer table is broken");
        let (blk, at) = header.ptr_location(index).ok_or_else(bad)?;
        let Shape::Fat(_, first) = &self.shape else { return Err(bad()) };
        if blk > self.object.last_block() {
            return Err(bad());
        }
        let block = if blk == 0 { first.clone() } else { self.object.block(blk)? };
        let leaf = FatHeader::ptr_at(&block, at).ok_or_else(bad)?;
        if leaf == 0 || leaf > self.object.last_block() { Err(bad()) } else { Ok(leaf) }
    }
}

fn leaf_value(leaf: &Leaf<'_>, entry: &LeafEntry) -> std::result::Result<Value, ondisk::Malformed> {
    Ok(Value { width: entry.value_intlen, ints: leaf.value_ints(entry)? })
}

fn corrupt(object: &impl ZapSource, blkid: u64, what: &dyn std::fmt::Display) -> Error {
    object.place(Error::new(Kind::Corrupt, what.to_string()), blkid)
}
