//! Micro ZAPs.
//!
//! ```text
//! 0    block type:64 salt:64 normflags:64 reserved:5*64
//! 64n  value:64 cd:32 reserved:16 name, NUL-terminated, 50 bytes      (name empty: free)
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BLOCK_MICRO, ZapFlags, hash_name};
use crate::Malformed;

/// Bytes of an entry, and of the header.
pub const ENTRY_SIZE: usize = 64;
/// Bytes for the name, NUL included.
pub const NAME_SIZE: usize = 50;

/// The header as it lies on disk.
#[doc(alias = "mzap_phys_t")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MicroHeaderPhys {
    block_type: U64,
    salt: U64,
    normflags: U64,
    pad: [U64; 5],
}

/// An entry as it lies on disk.
#[doc(alias = "mzap_ent_phys_t")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MicroEntryPhys {
    value: U64,
    cd: U32,
    pad: U16,
    name: [u8; NAME_SIZE],
}

const _: () = assert!(size_of::<MicroHeaderPhys>() == ENTRY_SIZE);
const _: () = assert!(size_of::<MicroEntryPhys>() == ENTRY_SIZE && align_of::<MicroEntryPhys>() == 1);

/// An entry of a micro ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// Slot in the block, from 0.
    pub index: usize,
    /// The name, without its NUL.
    pub name: &'a [u8],
    /// The value.
    pub value: u64,
    /// Distinguishes names with the same hash.
    pub cd: u32,
}

/// A micro ZAP: one block, read in place.
#[derive(Clone, Copy, Debug)]
pub struct MicroZap<'a> {
    header: &'a MicroHeaderPhys,
    entries: &'a [MicroEntryPhys],
}

impl<'a> MicroZap<'a> {
    /// Reads a block; an odd tail shorter than an entry is ignored, as OpenZFS does.
    pub fn from_bytes(block: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = MicroHeaderPhys::ref_from_prefix(block)
            .map_err(|_| Malformed::short("micro zap", block.len(), ENTRY_SIZE))?;
        if header.block_type.get() != BLOCK_MICRO {
            return Err(Malformed::new("micro zap", format!("block type {:#x}", header.block_type)));
        }
        let (entries, _) = <[MicroEntryPhys]>::ref_from_prefix_with_elems(rest, rest.len() / ENTRY_SIZE)
            .map_err(|_| Malformed::new("micro zap", "entries"))?;
        Ok(Self { header, entries })
    }

    /// Seed of the hash.
    pub fn salt(&self) -> u64 {
        self.header.salt.get()
    }

    /// How names are normalised before they are hashed and compared; 0: not at all.
    pub fn normflags(&self) -> u64 {
        self.header.normflags.get()
    }

    /// Whether no slot is free.
    pub fn is_full(&self) -> bool {
        self.entries.iter().all(|raw| raw.name.first() != Some(&0))
    }

    /// Entries in the order of their slots. A name without its NUL (damage) ends with its field.
    pub fn entries(&self) -> impl Iterator<Item = MicroEntry<'a>> + use<'a> {
        let zap = *self;
        (0..zap.entries.len()).filter_map(move |index| zap.entry(index))
    }

    /// Entries with their hashes in the order of OpenZFS's cursors (hash, then cd). `normalize` returns the
    /// bytes to hash; pass them through when [`Self::normflags`] is 0.
    pub fn sorted<N: AsRef<[u8]>>(&self, normalize: impl Fn(&'a [u8]) -> N) -> Vec<(u64, MicroEntry<'a>)> {
        let salt = self.salt();
        let mut all: Vec<_> = self
            .entries()
            .map(|e| (hash_name(salt, normalize(e.name).as_ref(), ZapFlags::default()), e))
            .collect();
        all.sort_by_key(|(hash, e)| (*hash, e.cd));
        all
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.entries.len()
    }

    /// The entry in slot `index`; `None` for a free slot. A name without its NUL (damage) ends with its field.
    pub fn entry(&self, index: usize) -> Option<MicroEntry<'a>> {
        let raw = self.entries.get(index)?;
        let len = raw.name.iter().position(|&b| b == 0).unwrap_or(NAME_SIZE);
        let name = raw.name.get(..len).filter(|n| !n.is_empty())?;
        Some(MicroEntry { index, name, value: raw.value.get(), cd: raw.cd.get() })
    }

    /// The lowest free slot.
    pub fn free_slot(&self) -> Option<usize> {
        self.entries.iter().position(|raw| raw.name.first() == Some(&0))
    }

    /// The entry with exactly this name.
    pub fn find(&self, name: &[u8]) -> Option<MicroEntry<'a>> {
        let is_it = |raw: &MicroEntryPhys| {
            raw.name.starts_with(name) && raw.name.get(name.len()).is_none_or(|&end| end == 0)
        };
        // Whole folders are looked through for every name: how long the others' names are does not matter.
        let index = self.entries.iter().position(is_it).filter(|_| !name.is_empty() && !name.contains(&0))?;
        let raw = self.entries.get(index)?;
        let name = raw.name.get(..name.len())?;
        Some(MicroEntry { index, name, value: raw.value.get(), cd: raw.cd.get() })
    }
}

/// A micro ZAP open for change.
#[derive(Debug)]
pub struct MicroZapMut<'a> {
    entries: &'a mut [MicroEntryPhys],
}

impl<'a> MicroZapMut<'a> {
    /// Makes an empty micro ZAP of `block`.
    #[doc(alias = "mzap_create_impl")]
    pub fn init(block: &'a mut [u8], salt: u64, normflags: u64) -> Result<Self, Malformed> {
        block.fill(0);
        let len = block.len();
        let (header, _) = MicroHeaderPhys::mut_from_prefix(block)
            .map_err(|_| Malformed::short("micro zap", len, ENTRY_SIZE))?;
        header.block_type = U64::new(BLOCK_MICRO);
        header.salt = U64::new(salt);
        header.normflags = U64::new(normflags);
        Self::from_bytes(block)
    }

    /// Opens a block.
    pub fn from_bytes(block: &'a mut [u8]) -> Result<Self, Malformed> {
        MicroZap::from_bytes(block)?;
        let (_, rest) = block.split_at_mut_checked(ENTRY_SIZE).unwrap_or_default();
        let count = rest.len() / ENTRY_SIZE;
        let (entries, _) = <[MicroEntryPhys]>::mut_from_prefix_with_elems(rest, count)
            .map_err(|_| Malformed::new("micro zap", "entries"))?;
        Ok(Self { entries })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Stores an entry in the lowest free slot and returns the slot; `None` when there is none, or when the name is empty
    /// or longer than 49 bytes.
    #[doc(alias = "mzap_addent")]
    pub fn insert(&mut self, name: &[u8], value: u64, cd: u32) -> Option<usize> {
        let free = self.entries.iter().position(|e| e.name.first() == Some(&0));
        free.filter(|slot| self.put(*slot, name, value, cd))
    }

    /// Stores an entry in slot `index`; false when there is no such slot, or when the name is empty or longer than 49
    /// bytes.
    pub fn put(&mut self, index: usize, name: &[u8], value: u64, cd: u32) -> bool {
        if name.is_empty() || name.len() >= NAME_SIZE {
            return false;
        }
        let Some(entry) = self.entries.get_mut(index) else { return false };
        *entry = MicroEntryPhys {
            value: U64::new(value),
            cd: U32::new(cd),
            pad: U16::new(0),
            name: [0; NAME_SIZE],
        };
        for (to, from) in entry.name.iter_mut().zip(name) {
            *to = *from;
        }
        true
    }

    /// Changes the value in slot `index`.
    pub fn set_value(&mut self, index: usize, value: u64) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.value = U64::new(value);
        }
    }

    /// Empties slot `index`.
    pub fn remove(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = MicroEntryPhys {
                value: U64::new(0),
                cd: U32::new(0),
                pad: U16::new(0),
                name: [0; NAME_SIZE],
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Vec<u8> {
        let mut block = vec![0; 512];
        block[..8].copy_from_slice(&BLOCK_MICRO.to_le_bytes());
        block[8..16].copy_from_slice(&77u64.to_le_bytes());
        for (slot, name, value) in [(1, "b", 2u64), (3, "aa", 1)] {
            let at = (slot + 1) * ENTRY_SIZE;
            block[at..at + 8].copy_from_slice(&value.to_le_bytes());
            block[at + 14..at + 14 + name.len()].copy_from_slice(name.as_bytes());
        }
        block
    }

    #[test]
    fn free_slots_are_skipped() {
        let block = block();
        let zap = MicroZap::from_bytes(&block).unwrap();
        assert!(!zap.is_full());
        let all: Vec<_> = zap.entries().map(|e| (e.index, e.value)).collect();
        assert_eq!(all, [(1, 2), (3, 1)]);
        assert_eq!(zap.find(b"aa").unwrap().value, 1);
        assert_eq!(zap.find(b"a"), None);
        assert_eq!(zap.sorted(|n| n).len(), 2);
    }

    #[test]
    fn freed_slots_are_used_first() {
        let mut block = vec![9; 512];
        let mut zap = MicroZapMut::init(&mut block, 77, 0).unwrap();
        for (i, name) in ["a", "b", "c", "d", "e", "f", "g"].iter().enumerate() {
            assert_eq!(zap.insert(name.as_bytes(), i as u64, 0), Some(i));
        }
        assert_eq!(zap.insert(b"h", 1, 0), None);
        assert!(MicroZap::from_bytes(&block).unwrap().is_full());
        let mut zap = MicroZapMut::from_bytes(&mut block).unwrap();
        zap.remove(2);
        zap.set_value(3, 33);
        assert_eq!((zap.insert(&[b'x'; 50], 1, 0), zap.insert(b"", 1, 0)), (None, None));
        assert_eq!(zap.insert(&[b'x'; 49], 1, 4), Some(2));
        let zap = MicroZap::from_bytes(&block).unwrap();
        let slots: Vec<_> = zap.entries().map(|e| (e.name.len(), e.value, e.cd)).collect();
        assert_eq!(slots, [(1, 0, 0), (1, 1, 0), (49, 1, 4), (1, 33, 0), (1, 4, 0), (1, 5, 0), (1, 6, 0)]);
    }

    #[test]
    fn names_may_fill_their_field() {
        let mut block = block();
        block[ENTRY_SIZE * 2 + 14..ENTRY_SIZE * 3].fill(b'x');
        assert_eq!(MicroZap::from_bytes(&block).unwrap().entries().next().unwrap().name.len(), NAME_SIZE);
        assert!(MicroZap::from_bytes(&block[..63]).is_err());
    }
}
