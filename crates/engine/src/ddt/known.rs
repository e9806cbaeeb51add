//! The keys that ZAPs of a table have, as fingerprints in memory: a key without one needs no look-up.
//!
//! A fingerprint is part of the key's hash in its ZAP: so the ZAPs are read in the order of the fingerprints, and the *covered*
//! part grows bucket by bucket. A table that is new is covered from the start;
//! that of an imported pool is read in slices, by txgs that look keys up in it ([`Known::slice`]). When memory is short the
//! covered part shrinks. Each key takes 4 to 5 bytes.
//!
//! Within the covered part each key of the ZAPs has a fingerprint, and equal ones are kept as often as they occur: a missing
//! one would turn a block with owners into one that is unknown, and free it too early. Keys of logs are not here, because
//! logs are in memory.

use ondisk::ddt::DdtKey;
use ondisk::zap::{ZapFlags, hash_words};

/// The hash of a key in its ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hashing {
    /// The first word of the checksum: the same in all ZAPs of the table.
    Word,
    /// Computed with the salt of one ZAP, for checksums that OpenZFS does not take as a hash (edonr).
    Salted(u64),
}

impl Hashing {
    /// The flags of such a ZAP.
    pub(super) fn flags(self) -> ZapFlags {
        let hashed = if self == Self::Word { ZapFlags::PRE_HASHED_KEY.0 } else { 0 };
        ZapFlags(ZapFlags::HASH64.0 | ZapFlags::UINT64_KEY.0 | hashed)
    }

    /// Whether a ZAP of these flags and this salt hashes keys so.
    pub(super) fn is_of(self, flags: ZapFlags, salt: u64) -> bool {
        let is_word = flags.has(ZapFlags::PRE_HASHED_KEY);
        flags.has(self.flags()) && is_word == (self == Self::Word) && (is_word || self == Self::Salted(salt))
    }

    pub(super) fn hash(self, key: &DdtKey) -> u64 {
        let salt = if let Self::Salted(salt) = self { salt } else { 0 };
        hash_words(salt, &key.to_words(), self.flags())
    }
}

/// Bits of the word that choose the bucket. The next 32 bits are the fingerprint; hashes have 48.
const BUCKET_BITS: u32 = 14;
/// Buckets.
pub(super) const BUCKETS: usize = 1 << BUCKET_BITS;
/// Bytes of a bucket without entries.
const BUCKET_BYTES: u64 = size_of::<Vec<u32>>() as u64;

/// Fingerprints of the keys of ZAPs with the same hashes.
#[derive(Debug)]
pub(super) struct Known {
    hashing: Hashing,
    /// Sorted.
    buckets: Vec<Vec<u32>>,
    /// Buckets that are complete, from the first on.
    covered: usize,
    /// Buckets that may be covered: beyond there are bytes that cannot be read.
    most: usize,
    /// Bytes of all buckets.
    bytes: u64,
}

fn place(hash: u64) -> (usize, u32) {
    let bucket = usize::try_from(hash >> (64 - BUCKET_BITS)).unwrap_or(usize::MAX);
    (bucket, (hash >> (32 - BUCKET_BITS)) as u32)
}

/// The first hash of a bucket; `None` after the last one.
pub(super) fn first_hash(bucket: usize) -> Option<u64> {
    (bucket < BUCKETS).then(|| u64::try_from(bucket).unwrap_or(0) << (64 - BUCKET_BITS))
}

impl Known {
    /// The index of no ZAPs, or of empty ones.
    pub(crate) fn complete(hashing: Hashing) -> Self {
        Self { covered: BUCKETS, ..Self::nothing(hashing) }
    }

    /// The index of ZAPs that have not been read.
    pub(crate) fn nothing(hashing: Hashing) -> Self {
        Self {
            hashing,
            buckets: vec![Vec::new(); BUCKETS],
            covered: 0,
            most: BUCKETS,
            bytes: BUCKETS as u64 * BUCKET_BYTES,
        }
    }

    /// Whether a ZAP may have the key; `None` where that is not covered.
    pub(crate) fn has(&self, key: &DdtKey) -> Option<bool> {
        let (bucket, print) = place(self.hashing.hash(key));
        let bucket = self.buckets.get(bucket).filter(|_| bucket < self.covered)?;
        Some(bucket.binary_search(&print).is_ok())
    }

    /// A ZAP has a key that none had.
    pub(crate) fn insert(&mut self, key: &DdtKey) {
        let (number, print) = place(self.hashing.hash(key));
        let Some(bucket) = self.buckets.get_mut(number).filter(|_| number < self.covered) else { return };
        let before = bucket.capacity();
        let at = bucket.partition_point(|other| *other < print);
        if bucket.len() == before {
            bucket.reserve_exact(before / 8 + 4);
        }
        bucket.insert(at, print);
        self.bytes = self.bytes.saturating_add(4 * (bucket.capacity() - before) as u64);
    }

    /// A ZAP has a key that may have been counted.
    pub(crate) fn ensure(&mut self, key: &DdtKey) {
        if self.has(key) == Some(false) {
            self.insert(key);
        }
    }

    /// A ZAP has a key no longer.
    pub(crate) fn remove(&mut self, key: &DdtKey) {
        let (number, print) = place(self.hashing.hash(key));
        let Some(bucket) = self.buckets.get_mut(number).filter(|_| number < self.covered) else { return };
        match bucket.binary_search(&print) {
            Ok(at) => {
                bucket.remove(at);
            }
            // The ZAPs are not as they were read: nothing here is to be believed.
            Err(_) => self.give_up(0),
        }
    }

    /// How its ZAPs hash keys.
    pub(crate) fn hashing(&self) -> Hashing {
        self.hashing
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Parts of the table that are covered, of [`BUCKETS`].
    pub(crate) fn covered(&self) -> usize {
        self.covered
    }

    /// Whether it covers all that it can.
    pub(crate) fn is_full(&self) -> bool {
        self.covered >= self.most
    }

    /// From `bucket` on nothing will be covered any more.
    pub(crate) fn give_up(&mut self, bucket: usize) {
        self.most = self.most.min(bucket);
        self.shrink_to(self.most);
    }

    fn shrink_to(&mut self, covered: usize) {
        for bucket in self.buckets.iter_mut().take(self.covered).skip(covered) {
            self.bytes = self.bytes.saturating_sub(4 * bucket.capacity() as u64);
            *bucket = Vec::new();
        }
        self.covered = self.covered.min(covered);
    }

    /// Covers a sixteenth less, which is more than the next key needs.
    pub(crate) fn shrink(&mut self) {
        self.shrink_to(self.covered - self.covered.div_ceil(16));
    }

    /// The buckets to be read next: about `entries` of the `total` of all ZAPs, as far as `room` bytes allow.
    pub(crate) fn slice(&self, entries: u64, total: u64, room: u64) -> std::ops::Range<usize> {
        let left = room.saturating_sub(self.bytes) / 5;
        // A nearly full index counts as full: the covered part must not shrink with the next key.
        let may = entries.min(left.saturating_sub(room / 64));
        let count = u128::from(may) * BUCKETS as u128 / u128::from(total.max(1));
        let count = if may == 0 { 0 } else { usize::try_from(count).unwrap_or(BUCKETS).max(1) };
        self.covered..self.covered.saturating_add(count).min(self.most)
    }

    /// Takes the hashes of the next slice: all that the ZAPs have in these buckets.
    pub(crate) fn cover(&mut self, slice: std::ops::Range<usize>, hashes: impl Iterator<Item = u64>) {
        debug_assert_eq!(slice.start, self.covered, "slices follow each other");
        for hash in hashes {
            let (number, print) = place(hash);
            if let Some(bucket) = self.buckets.get_mut(number).filter(|_| slice.contains(&number)) {
                bucket.push(print);
            }
        }
        for bucket in self.buckets.get_mut(slice.clone()).unwrap_or_default() {
            bucket.sort_unstable();
            bucket.shrink_to_fit();
            self.bytes = self.bytes.saturating_add(4 * bucket.capacity() as u64);
        }
        self.covered = slice.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> DdtKey {
        DdtKey { cksum: [n.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1, 2, 3], prop: n }
    }

    #[test]
    fn covered_keys_are_known_exactly() {
        exactly(Hashing::Word);
        exactly(Hashing::Salted(77));
    }

    fn exactly(hashing: Hashing) {
        let mut known = Known::complete(hashing);
        (0..200_000).for_each(|n| known.insert(&key(n)));
        assert!((0..200_000).all(|n| known.has(&key(n)) == Some(true)));
        assert!((200_000..300_000).filter(|n| known.has(&key(*n)) == Some(true)).count() < 3);
        assert!(known.bytes() < 200_000 * 8, "{} bytes", known.bytes());
        // Two keys of one fingerprint: the second stays known.
        let twin = if hashing == Hashing::Word { DdtKey { prop: 99, ..key(7) } } else { key(7) };
        known.insert(&twin);
        known.remove(&key(7));
        assert_eq!(known.has(&twin), Some(true));
        known.remove(&twin);
        assert_eq!(known.has(&twin), Some(false));
        let bytes = known.bytes();
        while known.bytes() > bytes / 2 {
            known.shrink();
        }
        assert!(known.bytes() <= bytes / 2 && known.covered() > 0);
        assert!((8..200_000).all(|n| known.has(&key(n)) != Some(false)));
        assert!((8..200_000).any(|n| known.has(&key(n)).is_none()));
    }

    #[test]
    fn slices_cover_bit_by_bit() {
        let mut known = Known::nothing(Hashing::Word);
        let all: Vec<DdtKey> = (0..50_000).map(key).collect();
        while known.covered() < BUCKETS {
            let slice = known.slice(3_000, 50_000, 1 << 30);
            known.cover(slice, all.iter().map(|key| key.cksum[0]));
            assert!(all.iter().all(|key| known.has(key) != Some(false)));
        }
        assert!(all.iter().all(|key| known.has(key) == Some(true)));
        assert_eq!(Known::nothing(Hashing::Word).slice(3_000, 50_000, 1 << 10).len(), 0, "no room");
        known.remove(&key(99_999_999));
        assert_eq!(known.has(&all[0]), None, "a key that was never there");
        assert_eq!(known.slice(100, 100, 1 << 30).len(), 0);
    }
}
