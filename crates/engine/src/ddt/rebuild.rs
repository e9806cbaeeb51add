//! Rebuilds dedup tables from the blocks of the pool.
//!
//! A block pointer with the dedup bit holds all fields of an entry: key, addresses, birth. The number of such
//! pointers is the number of references. So a walk over the pool yields every entry, also the entries of a
//! table that cannot be read.
//!
//! [`Tables::unknown`] stands in for the tables until [`Tables::replace`] stores the derived entries, in the txg in which the
//! old objects go: a block that is freed in between leaks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ondisk::ddt::{DdtKey, DdtPhys};
use ondisk::names::{self, MOS_DIRECTORY_OBJECT, mos};
use ondisk::{Blkptr, ChecksumType};

use super::host::DdtHost;
use super::live::Live;
use super::stored::FLAT;
use super::write::Tables;
use super::{DdtClass, STORE_TYPE};
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::zap::Zap;

/// Objects of the dedup tables, and the entries of the MOS directory that name them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Named {
    /// Directories, ZAPs, logs, statistics.
    pub(crate) objects: BTreeSet<u64>,
    /// Entries of the MOS directory.
    pub(crate) names: Vec<String>,
    /// Checksums whose table has the form of `fast_dedup`, or would have it when it were made now.
    pub(crate) fast: BTreeSet<u8>,
}

/// Finds the objects of all tables, as far as their directories can be read. `makes_fast`: new tables have the form of
/// `fast_dedup`.
///
/// # Errors
/// When the MOS directory cannot be read.
pub(crate) fn named(mos: &Arc<Objset>, makes_fast: bool) -> Result<Named> {
    let directory = Zap::open(&mos.object(MOS_DIRECTORY_OBJECT)?)?;
    let mut found = Named::default();
    let mut take = |name: String, number: u64| {
        found.names.push(name);
        found.objects.insert(number);
    };
    if let Some(number) = directory.u64(mos::DDT_STATS)? {
        take(mos::DDT_STATS.to_owned(), number);
    }
    let (mut inner, mut fast) = (BTreeSet::new(), BTreeSet::new());
    for checksum in (0..=u8::MAX).filter_map(ChecksumType::from_raw) {
        let mut is_fast = makes_fast;
        for class in DdtClass::ALL {
            let name = names::ddt(checksum.name(), STORE_TYPE, class.name());
            if let Some(number) = directory.u64(&name)? {
                take(name, number);
                is_fast = false;
            }
        }
        let name = names::ddt_directory(checksum.name());
        let own = directory.u64(&name)?;
        if is_fast || own.is_some() {
            fast.insert(checksum.raw());
        }
        let Some(number) = own else { continue };
        take(name, number);
        inner.insert((checksum.raw(), number));
    }
    found.fast = fast;
    for (checksum, number) in inner {
        let Some(checksum) = ChecksumType::from_raw(checksum) else { continue };
        // Objects of a damaged directory are found by their type.
        let Ok(own) = mos.object(number).and_then(|object| Zap::open(&object)) else { continue };
        let zaps = DdtClass::ALL.map(|class| names::ddt(checksum.name(), STORE_TYPE, class.name()));
        let logs = [0, 1].map(|number| names::ddt_log(checksum.name(), number));
        for name in zaps.iter().chain(&logs) {
            found.objects.extend(own.u64(name).ok().flatten());
        }
    }
    Ok(found)
}

/// References of one key and one place.
#[derive(Debug, Clone, Copy)]
struct Seen {
    bp: Blkptr,
    references: u64,
}

/// Entries gathered from block pointers.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    tables: BTreeMap<u8, BTreeMap<DdtKey, Vec<Seen>>>,
}

impl Gathered {
    /// Counts a reference to a block with the dedup bit.
    pub(crate) fn add(&mut self, bp: &Blkptr) {
        let Some(checksum) = bp.checksum() else { return };
        let seen = self.tables.entry(checksum.raw()).or_default().entry(DdtKey::of(bp)).or_default();
        match seen.iter_mut().find(|seen| is_same(&seen.bp, bp)) {
            Some(seen) => {
                seen.references = seen.references.saturating_add(1);
                if bp.dvas().count() > seen.bp.dvas().count() {
                    seen.bp = *bp;
                }
            }
            None => seen.push(Seen { bp: *bp, references: 1 }),
        }
    }

    /// References that the tables do not count: blocks that have lost their variant to another one, and how many references
    /// more than one each has. Clone tables have to count them. Such blocks arise where an entry was pruned: its blocks were
    /// cloned, and their content was written again several times.
    pub(crate) fn uncounted(&self, fast: &BTreeSet<u8>) -> Vec<(Blkptr, u64)> {
        let seen =
            self.tables.iter().flat_map(|(sum, table)| table.values().map(|seen| (fast.contains(sum), seen)));
        let lost =
            seen.filter(|(_, seen)| seen.len() > 1).flat_map(|(flat, seen)| variants(seen.clone(), flat).1);
        lost.filter(|seen| seen.references > 1).map(|seen| (seen.bp, seen.references - 1)).collect()
    }

    /// The variants of each entry.
    fn derive(self, fast: &BTreeSet<u8>) -> BTreeMap<u8, BTreeMap<DdtKey, Vec<DdtPhys>>> {
        let mut all: BTreeMap<u8, BTreeMap<DdtKey, Vec<DdtPhys>>> = BTreeMap::new();
        for (checksum, table) in self.tables {
            let flat = fast.contains(&checksum);
            let entries = table.into_iter().map(|(key, seen)| (key, variants(seen, flat).0));
            all.insert(checksum, entries.collect());
        }
        all
    }
}

/// The variants of an entry, and the blocks without one. An entry of a flat table has one, others one for each number of
/// copies. Of several blocks that compete for a variant, the one with the most references is listed: the others are freed as
/// blocks without an entry.
fn variants(mut seen: Vec<Seen>, flat: bool) -> (Vec<DdtPhys>, Vec<Seen>) {
    seen.sort_by_key(|seen| std::cmp::Reverse(seen.references));
    let (mut variants, mut rest) = (Vec::<DdtPhys>::new(), Vec::new());
    for one in seen {
        let copies = u8::try_from(one.bp.dvas().count().clamp(1, 3)).unwrap_or(1);
        let variant = if flat { FLAT } else { copies };
        if variants.iter().any(|phys| phys.variant == variant) {
            rest.push(one);
        } else {
            variants.push(listed(&one.bp, variant, one.references));
        }
    }
    variants.sort_by_key(|phys| phys.variant);
    (variants, rest)
}

fn is_same(a: &Blkptr, b: &Blkptr) -> bool {
    a.words().first_chunk::<2>() == b.words().first_chunk::<2>() && a.physical_birth() == b.physical_birth()
}

fn listed(bp: &Blkptr, variant: u8, refcnt: u64) -> DdtPhys {
    // The third address of an encrypted block is salt and IV, as in the entry.
    let [a0, a1, b0, b1, c0, c1, ..] = *bp.words();
    let class_start = (variant == FLAT).then_some(0);
    let dva_words = [[a0, a1], [b0, b1], [c0, c1]];
    DdtPhys { variant, dva_words, refcnt, phys_birth: bp.physical_birth(), class_start }
}

impl Tables {
    /// Tables with unknown content: frees of listed blocks leak them, and no block enters.
    pub(crate) fn unknown(why: &Error) -> Self {
        let tables = Self::default();
        let checksums = (0..=u8::MAX).filter_map(ChecksumType::from_raw);
        tables.set_all(checksums.map(|c| (c.raw(), Live::damaged(c, why.clone()))).collect());
        tables
    }

    /// Stores entries in new tables (syncing context). The objects of the old ones, and their names, are gone.
    ///
    /// # Errors
    /// The errors of the MOS.
    pub(crate) fn replace(&self, host: &dyn DdtHost, gathered: Gathered, fast: &BTreeSet<u8>) -> Result<()> {
        let mut all = BTreeMap::new();
        for (raw, entries) in gathered.derive(fast) {
            let Some(checksum) = ChecksumType::from_raw(raw) else { continue };
            let mut live = Live::fresh(checksum, fast.contains(&raw));
            for (key, mut phys) in entries {
                phys.iter_mut().filter_map(|p| p.class_start.as_mut()).for_each(|start| *start = host.now());
                live.put(host, &key, None, phys, &mut Vec::new())?;
            }
            all.insert(raw, live);
        }
        self.set_all(all);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bp(place: u64, key: u64, copies: u64) -> Blkptr {
        let mut words = [0; 16];
        for copy in 0..copies {
            let at = usize::try_from(copy * 2).unwrap();
            words[at] = 8;
            words[at + 1] = place + copy * 64;
        }
        // Checksum sha256 (8), dedup, little-endian.
        words[6] = 7 | 7 << 16 | 2 << 32 | 8 << 40 | 19 << 48 | 1 << 62 | 1 << 63;
        words[10] = 5;
        words[12] = key;
        Blkptr::from_words(words)
    }

    #[test]
    fn references_are_counted_by_place_and_the_fullest_pointer_is_listed() {
        let mut gathered = Gathered::default();
        for bp in [bp(64, 1, 1), bp(64, 1, 2), bp(64, 1, 1), bp(4096, 1, 1), bp(8192, 2, 1)] {
            gathered.add(&bp);
        }
        assert_eq!(gathered.tables.values().map(BTreeMap::len).sum::<usize>(), 2);
        let sha256 = bp(64, 1, 1).checksum().unwrap().raw();
        let tables = gathered.derive(&[sha256].into());
        let counts: Vec<(usize, u64, usize)> = tables[&sha256]
            .values()
            .map(|phys| (phys.len(), phys[0].refcnt, phys[0].dvas(false).count()))
            .collect();
        assert_eq!(counts, [(1, 3, 2), (1, 1, 1)]);
    }

    #[test]
    fn clone_tables_count_the_references_of_the_lesser_block_of_one_key() {
        let mut gathered = Gathered::default();
        for place in [64, 64, 4096, 4096, 4096, 8192] {
            gathered.add(&bp(place, 1, 1));
        }
        let sha256 = bp(64, 1, 1).checksum().unwrap().raw();
        let rest = gathered.uncounted(&[sha256].into());
        assert_eq!(rest.iter().map(|(bp, count)| (bp.words()[1], *count)).collect::<Vec<_>>(), [(64, 1)]);
        let tables = gathered.derive(&[sha256].into());
        let phys = &tables[&sha256].values().next().unwrap()[0];
        assert_eq!((phys.dva_words[0][1], phys.refcnt), (4096, 3));
    }
}
