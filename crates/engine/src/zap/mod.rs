//! ZAP: objects that map names (or words) to arrays of integers.
//!
//! A *micro* ZAP is one block of fixed entries, each one 64-bit value. A *fat* ZAP hashes its keys
//! into leaf blocks found through a pointer table. Layout is decoded by `ondisk::zap`; this module
//! finds the blocks. Lookup is by exact bytes; normalised lookup belongs to the file system.

mod cursor;

use ondisk::zap::{BlockKind, FatHeader, Leaf, LeafEntry, MicroZap, hash_name, hash_words, table_index};
use stdx::Buf;

pub use cursor::Cursor;

use crate::dmu::Object;
use crate::error::{Error, Kind, Result};
use crate::types::Bookmark;

/// The value of an entry: integers of 1, 2, 4 or 8 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Bytes of each integer.
    pub width: u8,
    /// The integers.
    pub ints: Vec<u64>,
}

impl Value {
    /// The first integer.
    pub fn first(&self) -> Option<u64> {
        self.ints.first().copied()
    }

    /// An array of bytes; for wider integers, their little-endian bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let width = usize::from(self.width);
        self.ints.iter().flat_map(|n| n.to_le_bytes().into_iter().take(width)).collect()
    }

    /// A string: bytes up to the first NUL.
    pub fn string(&self) -> String {
        let bytes = self.bytes();
        let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

/// A key: a name, or words for ZAPs with 64-bit keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A name of any bytes, without its NUL.
    Name(Vec<u8>),
    /// Words.
    Words(Vec<u64>),
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// Its value.
    pub value: Value,
    /// Hash of the key.
    pub hash: u64,
    /// Tells keys of the same hash apart.
    pub cd: u32,
}

impl Entry {
    /// The name as bytes; empty for keys that are words.
    pub fn name(&self) -> &[u8] {
        match &self.key {
            Key::Name(name) => name,
            Key::Words(_) => &[],
        }
    }

    /// The name for people.
    pub fn name_lossy(&self) -> String {
        String::from_utf8_lossy(self.name()).into_owned()
    }
}

#[derive(Debug, Clone)]
enum Shape {
    Micro(Buf),
    Fat(FatHeader, Buf),
}

/// An open ZAP.
#[derive(Debug, Clone)]
pub struct Zap {
    object: Object,
    shape: Shape,
}

impl Zap {
    /// Reads and checks block 0 of `object`.
    pub fn open(object: &Object) -> Result<Self> {
        let block = object.block(0)?;
        let shape = match BlockKind::of(&block) {
            BlockKind::Micro => Shape::Micro(block),
            BlockKind::Header => {
                let header = FatHeader::from_bytes(&block).map_err(|e| corrupt(object, 0, &e))?;
                Shape::Fat(header, block)
            }
            _ => return Err(corrupt(object, 0, &"this object is not a ZAP")),
        };
        Ok(Self { object: object.clone(), shape })
    }

    /// The object that holds it.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// The fat header; `None` for a micro ZAP.
    pub fn fat_header(&self) -> Option<&FatHeader> {
        match &self.shape {
            Shape::Fat(header, _) => Some(header),
            Shape::Micro(_) => None,
        }
    }

    /// How names are normalised when looked up; 0 for exact bytes.
    pub fn normflags(&self) -> u64 {
        match &self.shape {
            Shape::Fat(header, _) => header.normflags,
            Shape::Micro(block) => MicroZap::from_bytes(block).map_or(0, |z| z.normflags()),
        }
    }

    /// The value of exactly this name.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Value>> {
        match &self.shape {
            Shape::Micro(block) => {
                let micro = MicroZap::from_bytes(block).map_err(|e| corrupt(&self.object, 0, &e))?;
                Ok(micro.find(name).map(|e| Value { width: 8, ints: vec![e.value] }))
            }
            Shape::Fat(header, _) => {
                let hash = hash_name(header.salt, name, header.flags);
                self.fat_lookup(header, hash, |leaf, entry| leaf.name_is(entry, name))
            }
        }
    }

    /// The first entry whose name `is_it` accepts among those that hash like `hashed`: the name as the
    /// ZAP's [`Self::normflags`] make it. Gives the stored name, too.
    pub fn lookup_normalized(
        &self,
        hashed: &[u8],
        is_it: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<(Vec<u8>, Value)>> {
        match &self.shape {
            Shape::Micro(block) => {
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

    /// The value of a key of 64-bit words.
    pub fn lookup_words(&self, key: &[u64]) -> Result<Option<Value>> {
        let Shape::Fat(header, _) = &self.shape else { return Ok(None) };
        let hash = hash_words(header.salt, key, header.flags);
        self.fat_lookup(header, hash, |leaf, entry| leaf.key_words(entry).is_ok_and(|k| k == key))
    }

    /// The single integer of this name; `None` when the name is absent.
    pub fn u64(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.lookup(name.as_bytes())?.and_then(|v| v.first()))
    }

    /// The single integer of a name that must be there.
    pub fn need(&self, name: &str) -> Result<u64> {
        let at = Bookmark::new(self.object.objset.id, self.object.number, 0, 0);
        self.u64(name)?.ok_or_else(|| Error::not_found(format!("no entry '{name}'")).at_block(at))
    }

    /// All entries in the order of their hashes, which is the order a directory lists. A leaf that
    /// can't be read gives one error and is skipped.
    pub fn entries(&self) -> Cursor {
        Cursor::new(self.clone())
    }

    /// All entries, or the first error.
    pub fn to_vec(&self) -> Result<Vec<Entry>> {
        self.entries().collect()
    }

    fn fat_lookup(
        &self,
        header: &FatHeader,
        hash: u64,
        mut is_it: impl FnMut(&Leaf<'_>, &LeafEntry) -> bool,
    ) -> Result<Option<Value>> {
        let blkid = self.leaf_of(header, table_index(hash, header.ptrtbl.shift))?;
        let block = self.object.block(blkid)?;
        let leaf = Leaf::from_bytes(&block).map_err(|e| corrupt(&self.object, blkid, &e))?;
        for entry in leaf.lookup(hash) {
            let entry = entry.map_err(|e| corrupt(&self.object, blkid, &e))?;
            if is_it(&leaf, &entry) {
                return leaf_value(&leaf, &entry).map(Some).map_err(|e| corrupt(&self.object, blkid, &e));
            }
        }
        Ok(None)
    }

    /// The leaf block that slot `index` of the pointer table names.
    fn leaf_of(&self, header: &FatHeader, index: u64) -> Result<u64> {
        let bad = || corrupt(&self.object, 0, &"the ZAP's pointer table is broken");
        let (blk, at) = header.ptr_location(index).ok_or_else(bad)?;
        let Shape::Fat(_, first) = &self.shape else { return Err(bad()) };
        if blk > self.object.dnode.maxblkid {
            return Err(bad());
        }
        let block = if blk == 0 { first.clone() } else { self.object.block(blk)? };
        let leaf = FatHeader::ptr_at(&block, at).ok_or_else(bad)?;
        if leaf == 0 || leaf > self.object.dnode.maxblkid { Err(bad()) } else { Ok(leaf) }
    }
}

fn leaf_value(leaf: &Leaf<'_>, entry: &LeafEntry) -> std::result::Result<Value, ondisk::Malformed> {
    Ok(Value { width: entry.value_intlen, ints: leaf.value_ints(entry)? })
}

fn corrupt(object: &Object, blkid: u64, what: &dyn std::fmt::Display) -> Error {
    let at = Bookmark::new(object.objset.id, object.number, 0, blkid);
    Error::new(Kind::Corrupt, what.to_string()).at_block(at)
}
