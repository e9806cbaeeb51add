//! The index of all keys of a table, by ZAP where ZAPs have hashes of their own.

use ondisk::ChecksumType;
use ondisk::ddt::DdtKey;

use super::DdtClass;
use super::known::{BUCKETS, Hashing, Known};

/// Fingerprints of the keys of a table's ZAPs.
#[derive(Debug, Default)]
pub(super) struct Fingerprints {
    /// By class; one without a class covers all ZAPs.
    parts: Vec<(Option<DdtClass>, Known)>,
}

impl Fingerprints {
    /// The index of a table without ZAPs.
    pub(crate) fn complete(checksum: ChecksumType) -> Self {
        let one = checksum.is_dedup_strong().then(|| (None, Known::complete(Hashing::Word)));
        Self { parts: one.into_iter().collect() }
    }

    /// The index of ZAPs that have not been read, by their classes and salts.
    pub(crate) fn nothing(checksum: ChecksumType, zaps: impl Iterator<Item = (DdtClass, u64)>) -> Self {
        let parts = match checksum.is_dedup_strong() {
            true => vec![(None, Known::nothing(Hashing::Word))],
            false => zaps.map(|(class, salt)| (Some(class), Known::nothing(Hashing::Salted(salt)))).collect(),
        };
        Self { parts }
    }

    /// How keys are hashed in a new ZAP of this salt.
    pub(crate) fn hashing(checksum: ChecksumType, salt: u64) -> Hashing {
        if checksum.is_dedup_strong() { Hashing::Word } else { Hashing::Salted(salt) }
    }

    /// There is an empty ZAP of this class.
    pub(crate) fn add(&mut self, class: DdtClass, hashing: Hashing) {
        if hashing != Hashing::Word {
            self.parts.push((Some(class), Known::complete(hashing)));
        }
    }

    fn part(&self, class: DdtClass) -> Option<&Known> {
        let found = self.parts.iter().find(|(of, _)| of.is_none_or(|of| of == class));
        found.map(|(_, known)| known)
    }

    fn part_mut(&mut self, class: DdtClass) -> Option<&mut Known> {
        let found = self.parts.iter_mut().find(|(of, _)| of.is_none_or(|of| of == class));
        found.map(|(_, known)| known)
    }

    /// Whether the ZAP of this class may have the key.
    pub(crate) fn may_have(&self, class: DdtClass, key: &DdtKey) -> bool {
        self.part(class).and_then(|known| known.has(key)).unwrap_or(true)
    }

    /// A key enters the ZAP of a class, in which it may be already (`is_there`).
    pub(crate) fn put(&mut self, class: DdtClass, key: &DdtKey, is_there: bool) {
        match self.part_mut(class) {
            Some(known) if is_there => known.ensure(key),
            Some(known) => known.insert(key),
            None => {}
        }
    }

    /// A key left the ZAP of a class.
    pub(crate) fn remove(&mut self, class: DdtClass, key: &DdtKey) {
        self.part_mut(class).into_iter().for_each(|known| known.remove(key));
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, known)| known.bytes()).fold(0, u64::saturating_add)
    }

    /// Whether it covers all that it can.
    pub(crate) fn is_full(&self) -> bool {
        self.parts.iter().all(|(_, known)| known.is_full())
    }

    /// Whether it covers all keys.
    pub(crate) fn is_complete(&self) -> bool {
        self.parts.iter().all(|(_, known)| known.covered() == BUCKETS)
    }

    /// Keeps within `room` bytes.
    pub(crate) fn fit(&mut self, room: u64) {
        while self.bytes() > room {
            let covering = self.parts.iter_mut().map(|(_, known)| known).filter(|known| known.covered() > 0);
            let Some(largest) = covering.max_by_key(|known| known.bytes()) else { return };
            largest.shrink();
        }
    }

    /// The part that is read next, its class, and the bytes that it may take of `room`. A new key needs the word of all parts:
    /// they grow evenly.
    pub(crate) fn next(&mut self, room: u64) -> Option<(Option<DdtClass>, &mut Known, u64)> {
        let all = self.bytes();
        let left = self.parts.iter_mut().filter(|(_, known)| !known.is_full());
        let (class, known) = left.min_by_key(|(_, known)| known.covered())?;
        let own = room.saturating_sub(all.saturating_sub(known.bytes()));
        Some((*class, known, own))
    }

    /// The part of a class, or of all.
    pub(crate) fn of(&mut self, class: Option<DdtClass>) -> Option<&mut Known> {
        self.parts.iter_mut().find(|(of, _)| *of == class).map(|(_, known)| known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddt::LogEntry;
    use crate::ddt::pace::ENTRY_BYTES;

    /// A million unique blocks, written here or read from a table.
    #[test]
    fn a_unique_block_takes_few_bytes() {
        const KEYS: u64 = 1_000_000;
        let key = |n: u64| {
            let word = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            DdtKey { cksum: [word, word.rotate_left(17), n, 3], prop: 7 }
        };
        for checksum in [ChecksumType::Sha256, ChecksumType::Edonr] {
            let (salt, class) = (77, DdtClass::Unique);
            let hashing = Fingerprints::hashing(checksum, salt);
            let mut written = Fingerprints::complete(checksum);
            written.add(class, hashing);
            (0..KEYS).for_each(|n| written.put(class, &key(n), false));
            let mut read = Fingerprints::nothing(checksum, [(class, salt)].into_iter());
            while let Some((_, part, room)) = read.next(1 << 30) {
                let slice = part.slice(KEYS / 4, KEYS, room);
                let hashes: Vec<u64> = (0..KEYS).map(|n| hashing.hash(&key(n))).collect();
                part.cover(slice, hashes.into_iter());
            }
            for (what, index) in [("written", &written), ("read", &read)] {
                assert!(index.is_complete() && (0..KEYS).step_by(99).all(|n| index.may_have(class, &key(n))));
                assert!(
                    (KEYS..2 * KEYS).step_by(99).filter(|n| index.may_have(class, &key(*n))).count() < 20
                );
                println!("{checksum:?}, {what}: {:.2} bytes a block", index.bytes() as f64 / KEYS as f64);
                assert!(index.bytes() <= 6 * KEYS, "{checksum:?}, {what}: {}", index.bytes());
            }
        }
        let entry = size_of::<(DdtKey, LogEntry)>() + size_of::<ondisk::ddt::DdtPhys>();
        println!("until it leaves the log: {entry} bytes, counted as {ENTRY_BYTES}");
        assert!(entry as u64 <= ENTRY_BYTES);
    }
}
