//! Changes a ZAP.
//!
//! A ZAP begins as a *micro* ZAP if its keys are names: one block that grows by 512 bytes at a time up to a limit.
//! It becomes *fat* for good when a name is longer than 49 bytes, a value is not one 64-bit integer, the block
//! cannot grow any more, or too many names of one hash would not fit in one leaf. [`super::fat`] changes fat ones.
//!
//! No state is kept between calls: each reads what it needs and changes blocks at once, so that other readers
//! (within the same transaction) may read the ZAP at any time. A micro ZAP is changed in place, and its object may keep an
//! index of its names ([`super::names`]). A call that fails because of its arguments (already
//! present, absent, too long) or because of the ZAP's bytes has changed nothing.

use std::collections::HashSet;

use ondisk::zap::{
    BlockKind, FatHeader, Leaf, LeafMut, MICRO_NAME_SIZE, MicroIndex, MicroZap, MicroZapMut, PtrTable,
    ZapFlags, hash_name, hash_words,
};
use stdx::AlignedBuf;

use super::fat::{Fat, Hashed};
use super::names::Names;
use super::{FoundEntry, KeyRef, Match, Value, Zap, ZapEntry, ZapSource, fold};
use crate::dmu::edit::{Edit, Head, MemObject};
use crate::error::{Error, Kind, Result};

/// Block size of a fat ZAP that was a micro ZAP.
#[doc(alias = "fzap_default_block_shift")]
const FAT_BLOCK_SIZE: u64 = 1 << 14;
/// Default maximum size of a micro ZAP.
#[doc(alias = "zap_micro_max_size")]
const MICRO_MAX: u64 = 128 << 10;
/// Maximum size of a value, in bytes.
#[doc(alias = "ZAP_MAXVALUELEN")]
const MAX_VALUE: usize = 8192;
/// Maximum length of a name, including its NUL, in bytes; without the feature `longname` file systems allow 256.
#[doc(alias = "ZAP_MAXNAMELEN_NEW")]
const MAX_NAME: usize = 1024;

/// Parameters of a new ZAP.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewZap {
    /// Kind of keys and length of hashes; with any flag the ZAP is fat from the start, and the object's block size
    /// (a power of two, 4 KiB or more) stays.
    pub flags: ZapFlags,
    /// The normalisation of names (`U8_TEXTPREP_*`); 0 for none.
    pub normflags: u64,
    /// Any number: the seed of the hash, with its lowest bit set.
    pub salt: u64,
}

/// The end of an attempt to store an entry in a micro ZAP.
enum Stored {
    Done,
    /// Others changed it meanwhile.
    Overtaken,
    /// It must become fat first.
    NeedsFat,
}

impl Stored {
    fn of(done: bool) -> Self {
        if done { Self::Done } else { Self::Overtaken }
    }
}

/// A ZAP open for changes. See the module's documentation for its state (none).
pub struct ZapEdit<'a> {
    object: &'a mut dyn Edit,
    micro_max: u64,
}

impl std::fmt::Debug for ZapEdit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ZapEdit(object {})", self.object.number())
    }
}

impl<'a> ZapEdit<'a> {
    /// Creates an empty ZAP in a new object (usually of 512-byte blocks).
    #[doc(alias("zap_create", "zap_create_flags", "zap_create_norm"))]
    pub fn create(object: &'a mut dyn Edit, new: &NewZap) -> Result<Self> {
        let salt = new.salt | 1;
        if new.flags == ZapFlags::default() {
            let mut block = AlignedBuf::zeroed(length(object.block_size())?);
            MicroZapMut::init(&mut block, salt, new.normflags).map_err(invalid)?;
            object.write_block(0, block)?;
        } else {
            init_fat(object, salt, new.normflags, new.flags)?;
        }
        Ok(Self { object, micro_max: MICRO_MAX })
    }

    /// Opens an existing ZAP.
    pub fn open(object: &'a mut dyn Edit) -> Result<Self> {
        let zap = Self::unread(object);
        zap.read()?;
        Ok(zap)
    }

    /// An existing ZAP, of which nothing is read yet: each change checks the blocks that it reads.
    pub fn unread(object: &'a mut dyn Edit) -> Self {
        Self { object, micro_max: MICRO_MAX }
    }

    /// Sets the maximum size of a micro ZAP to `bytes` instead of 128 KiB: larger with the feature
    /// `large_microzap`, or smaller.
    #[must_use]
    pub fn micro_max(mut self, bytes: u64) -> Self {
        self.micro_max = bytes;
        self
    }

    /// The read side, including unwritten changes.
    pub fn read(&self) -> Result<Zap<&dyn Edit>> {
        Zap::open(&&*self.object)
    }

    /// All entries in the order of their hashes, or the first error.
    pub fn to_vec(&self) -> Result<Vec<ZapEntry>> {
        self.read()?.to_vec()
    }

    /// Number of entries.
    pub fn count(&self) -> Result<u64> {
        self.read()?.count()
    }

    /// The value of exactly this key.
    #[doc(alias("zap_lookup", "zap_lookup_uint64"))]
    pub fn lookup<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<Value>> {
        self.read()?.get(key)
    }

    /// The entry that matches a name under the ZAP's normalisation.
    pub fn lookup_norm(&self, name: &[u8], how: Match) -> Result<Option<FoundEntry>> {
        self.read()?.lookup_norm(name, how)
    }

    /// Adds an entry; [`Kind::Exists`] if exactly this key is present. Names that are equal under the ZAP's
    /// normalisation can coexist: a caller that forbids this must look first.
    #[doc(alias("zap_add", "zap_add_uint64"))]
    pub fn insert<'k>(&mut self, key: impl Into<KeyRef<'k>>, value: impl Into<Value>) -> Result<()> {
        self.store(key.into(), &value.into(), false)
    }

    /// Adds an entry or replaces its value.
    #[doc(alias("zap_update", "zap_update_uint64"))]
    pub fn update<'k>(&mut self, key: impl Into<KeyRef<'k>>, value: impl Into<Value>) -> Result<()> {
        self.store(key.into(), &value.into(), true)
    }

    /// Removes the entry of exactly this key; [`Kind::NotFound`] if there is none.
    #[doc(alias("zap_remove", "zap_remove_uint64"))]
    pub fn remove<'k>(&mut self, key: impl Into<KeyRef<'k>>) -> Result<()> {
        let key = key.into();
        loop {
            let head = self.object.head()?;
            if BlockKind::of(&head.block) != BlockKind::Micro {
                let mut fat = Fat::over(self.object, head.block)?;
                let hashed = hashed(&fat.header, key)?;
                return fat.remove(&hashed);
            }
            let KeyRef::Name(name) = key else { return Err(wrong_kind()) };
            let place = self.names(&head)?.place(name);
            let slot = place.old.ok_or_else(|| absent(key))?;
            let size = self.object.block_size();
            let done = self.micro_write(head, size, &mut |zap, index| {
                zap.remove(slot);
                if let Some(index) = index {
                    index.remove(place.hash, slot);
                }
            })?;
            if done {
                return Ok(());
            }
        }
    }

    /// Removes the entry that matches a name under the ZAP's normalisation; returns its stored name.
    #[doc(alias = "zap_remove_norm")]
    pub(crate) fn remove_norm(&mut self, name: &[u8], how: Match) -> Result<Vec<u8>> {
        let found = self.lookup_norm(name, how)?.ok_or_else(|| absent(KeyRef::Name(name)))?;
        self.remove(found.name.as_slice())?;
        Ok(found.name)
    }

    fn store(&mut self, key: KeyRef<'_>, value: &Value, replace: bool) -> Result<()> {
        check_value(value)?;
        if let KeyRef::Name(name) = key {
            check_name(name)?;
        }
        let first = loop {
            let head = self.object.head()?;
            if BlockKind::of(&head.block) != BlockKind::Micro {
                break head.block;
            }
            let KeyRef::Name(name) = key else { return Err(wrong_kind()) };
            match self.micro_store(head, name, value, replace)? {
                Stored::Done => return Ok(()),
                Stored::Overtaken => {}
                Stored::NeedsFat => self.upgrade()?,
            }
        };
        let mut fat = Fat::over(self.object, first)?;
        let hashed = hashed(&fat.header, key)?;
        fat.store(&hashed, None, value, replace)
    }

    fn micro_store(&mut self, head: Head, name: &[u8], value: &Value, replace: bool) -> Result<Stored> {
        let place = self.names(&head)?.place(name);
        if place.old.is_some() && !replace {
            return Err(exists(KeyRef::Name(name)));
        }
        let word = value.single().filter(|_| name.len() < MICRO_NAME_SIZE);
        let Some(word) = word else { return Ok(Stored::NeedsFat) };
        let size = self.object.block_size();
        if let Some(slot) = place.old {
            let done = self.micro_write(head, size, &mut |zap, _| zap.set_value(slot, word))?;
            return Ok(Stored::of(done));
        }
        let Some(cd) = place.cd else { return Ok(Stored::NeedsFat) };
        let slots = self.micro(&head.block)?.slots();
        let (slot, size) = match place.free {
            Some(slot) => (slot, size),
            None => (slots, size.saturating_add(ondisk::MIN_BLOCK_SIZE)),
        };
        if place.free.is_none() && size > self.micro_max {
            return Ok(Stored::NeedsFat);
        }
        let done = self.micro_write(head, size, &mut |zap, index| {
            zap.put(slot, name, word, cd);
            if let Some(index) = index {
                index.grow_to(zap.slots());
                index.add(place.hash, slot);
            }
        })?;
        Ok(Stored::of(done))
    }

    fn micro<'b>(&self, block: &'b [u8]) -> Result<MicroZap<'b>> {
        MicroZap::from_bytes(block).map_err(|e| self.corrupt(&e))
    }

    fn names<'b>(&'b self, head: &'b Head) -> Result<Names<'b>> {
        Ok(Names::new(self.micro(&head.block)?, self.object.keeper(), head.content))
    }

    /// Changes the block of a micro ZAP, which was read as `head`, and its index; returns false if others changed it since.
    fn micro_write(
        &mut self,
        head: Head,
        size: u64,
        change: &mut dyn FnMut(&mut MicroZapMut<'_>, Option<&mut MicroIndex>),
    ) -> Result<bool> {
        self.object.patch_names(head, size, &mut |bytes, index| {
            // The caller has read it as a micro ZAP.
            if let Ok(mut zap) = MicroZapMut::from_bytes(bytes) {
                change(&mut zap, index);
            }
        })
    }

    /// Converts a micro ZAP to a fat one with the same entries and salt. The new one is built separately first, so
    /// that a ZAP that cannot be converted stays unchanged.
    #[doc(alias = "mzap_upgrade")]
    fn upgrade(&mut self) -> Result<()> {
        let block = self.object.read_block(0)?;
        let micro = self.micro(&block)?;
        let mut fat = MemObject::new(self.object.number(), FAT_BLOCK_SIZE);
        init_fat(&mut fat, micro.salt(), micro.normflags(), ZapFlags::default())?;
        let mut names = HashSet::new();
        for entry in micro.entries() {
            if !names.insert(entry.name) {
                return Err(self.corrupt(&"a name stands twice in a micro ZAP"));
            }
            let mut fat = Fat::open(&mut fat)?;
            let hashed = hashed(&fat.header, KeyRef::Name(entry.name))?;
            fat.store(&hashed, Some(entry.cd), &entry.value.into(), false)?;
        }
        if self.object.max_block() != 0 {
            return Err(self.corrupt(&"a micro ZAP has more than one block"));
        }
        self.object.set_block_size(FAT_BLOCK_SIZE)?;
        // Block 0 last: other readers find leaves through it.
        for blkid in (1..=fat.max_block()).chain([0]) {
            self.object.write_block(blkid, fat.read_block(blkid)?.into_owned())?;
        }
        Ok(())
    }

    fn corrupt(&self, what: &dyn std::fmt::Display) -> Error {
        (&&*self.object as &dyn ZapSource).place(Error::corrupt(what.to_string()), 0)
    }
}

/// Writes header and first leaf of an empty fat ZAP in blocks of the object's size.
#[doc(alias = "fzap_upgrade")]
fn init_fat(object: &mut dyn Edit, salt: u64, normflags: u64, flags: ZapFlags) -> Result<()> {
    let size = length(object.block_size())?;
    if !size.is_power_of_two() || !(4096..=1 << 20).contains(&size) {
        return Err(Error::new(Kind::Invalid, format!("a ZAP cannot have blocks of {size} bytes")));
    }
    let block_shift = size.trailing_zeros();
    let header = FatHeader {
        block_shift,
        ptrtbl: PtrTable { shift: block_shift - 4, ..PtrTable::default() },
        freeblk: 2,
        num_leafs: 1,
        num_entries: 0,
        salt,
        normflags,
        flags,
    };
    let mut block = AlignedBuf::zeroed(size);
    header.write_to(&mut block);
    let (_, table) = block.as_chunks_mut::<8>().0.split_at_mut(size / 16);
    table.fill(1u64.to_le_bytes());
    let mut leaf = AlignedBuf::zeroed(size);
    LeafMut::init(&mut leaf, normflags != 0).map_err(invalid)?;
    debug_assert!(Leaf::from_bytes(&leaf).is_ok());
    object.write_block(0, block)?;
    object.write_block(1, leaf)
}

/// A key in the stored form of a fat ZAP with this header.
fn hashed<'k>(header: &FatHeader, key: KeyRef<'k>) -> Result<Hashed<'k>> {
    let words = header.flags.has(ZapFlags::UINT64_KEY);
    match key {
        KeyRef::Name(name) if !words => {
            let hash = hash_name(header.salt, &fold(name, header.normflags), header.flags);
            Ok(Hashed { hash, stored: [name, &[0]].concat(), intlen: 1, key })
        }
        KeyRef::Words(key_words) if words && !key_words.is_empty() && key_words.len() <= MAX_NAME / 8 => {
            let hash = hash_words(header.salt, key_words, header.flags);
            let stored = key_words.iter().flat_map(|w| w.to_be_bytes()).collect();
            Ok(Hashed { hash, stored, intlen: 8, key })
        }
        _ => Err(wrong_kind()),
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.contains(&0) {
        return Err(Error::new(Kind::Invalid, "a name in a ZAP cannot be empty or contain NUL"));
    }
    if name.len() >= MAX_NAME {
        return Err(Error::new(Kind::TooLong, format!("name too long ({} bytes)", name.len())));
    }
    Ok(())
}

fn check_value(value: &Value) -> Result<()> {
    let width = usize::from(value.width);
    if !matches!(width, 1 | 2 | 4 | 8) {
        return Err(Error::new(Kind::Invalid, format!("integers of {width} bytes")));
    }
    if value.ints.len().saturating_mul(width) > MAX_VALUE {
        return Err(Error::new(Kind::TooLong, format!("a value of {} integers", value.ints.len())));
    }
    Ok(())
}

fn length(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::new(Kind::Invalid, "block too large"))
}

fn invalid(e: ondisk::Malformed) -> Error {
    Error::new(Kind::Invalid, e.to_string())
}

fn wrong_kind() -> Error {
    Error::new(Kind::Invalid, "this ZAP has keys of another kind")
}

pub(super) fn exists(key: KeyRef<'_>) -> Error {
    Error::new(Kind::Exists, format!("entry '{}' is there already", key.text()))
}

pub(super) fn absent(key: KeyRef<'_>) -> Error {
    Error::not_found(format!("no entry '{}'", key.text()))
}
