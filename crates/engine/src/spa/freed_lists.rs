//! The lists of blocks that wait to be freed: an import checks them before it writes the pool, a rebuild replaces them.
//!
//! - `sync_bplist`: blocks that another writer freed too late in its last txg;
//! - `free_bpobj`: blocks of destroyed snapshots;
//! - `bptree_obj`: trees of destroyed heads;
//! - deleted livelists: blocks of destroyed clones.
//!
//! Each txg reads them, and one that cannot be read would suspend the pool. They only name blocks to which nothing else refers,
//! so a rebuild does without them: the derived space maps count those blocks as free.

use std::collections::BTreeSet;

use ondisk::bpobj::Bpobj;
use ondisk::dsl::{Bptree, BptreeEntry, DslDataset, DslDir};
use ondisk::names::{MOS_DIRECTORY_OBJECT, dsl_dataset, dsl_dir, mos};
use ondisk::{Byteswap, ObjectType};
use zcommon::features::Feature;

use super::Spa;
use super::pool::Pool;
use crate::dmu::{Object, Tx};
use crate::dsl::Delta;
use crate::dsl::write::{MosTx, lists, names, space};
use crate::error::{Error, Result};
use crate::zap::Zap;

/// Their names in the MOS directory.
const NAMES: [&str; 4] = [mos::SYNC_BPOBJ, mos::FREE_BPOBJ, mos::BPTREE_OBJ, mos::DELETED_CLONES];
/// Blocks of each list that an import reads: a million pointers.
const AT_IMPORT: u64 = 1024;
/// Lists below one list that are followed.
const MAX_LISTS: usize = 1 << 20;
/// Bytes of a pointer.
const BLKPTR: u64 = 128;
/// Blocks that are read ahead.
const AHEAD: u64 = 16;

/// Objects of lists that a rebuild replaces, and counts of the remaining lists.
#[derive(Debug, Clone, Default)]
pub(super) struct ReplacedLists {
    pub(super) objects: BTreeSet<u64>,
    pub(super) names: Vec<String>,
    /// Livelists, and uses of the shared empty list, of the datasets; unknown if a list of one cannot be read.
    counts: Option<(u64, u64)>,
}

/// Reads lists; remembers their objects.
struct Lists<'a> {
    pool: &'a Pool,
    objects: BTreeSet<u64>,
    /// The shared empty list, and how often it was met.
    shared: (u64, u64),
    /// Blocks of pointers that are still to be read.
    left: u64,
}

impl<'a> Lists<'a> {
    fn new(pool: &'a Pool, left: u64) -> Result<Self> {
        let shared = pool.directory()?.u64(mos::EMPTY_BPOBJ)?.unwrap_or(0);
        Ok(Self { pool, objects: BTreeSet::new(), shared: (shared, 0), left })
    }

    fn object(&mut self, number: u64) -> Result<Object> {
        self.objects.insert(number);
        self.pool.mos.object(number)
    }

    /// A list of the directory.
    fn named(&mut self, name: &str, number: u64) -> Result<()> {
        match name {
            mos::BPTREE_OBJ => {
                let object = self.object(number)?;
                let head = Bptree::from_bytes(object.dnode.bonus())
                    .map_err(|e| malformed(&object, &e.to_string()))?;
                self.read(&object, head.end, BptreeEntry::SIZE as u64)
            }
            mos::DELETED_CLONES => {
                let all = Zap::open(&self.object(number)?)?.to_vec()?;
                all.iter().filter_map(|entry| entry.value.first()).try_for_each(|list| self.dead(list))
            }
            _ => self.blocks(number),
        }
    }

    /// A deadlist or livelist of either form; 0 is none.
    fn dead(&mut self, number: u64) -> Result<()> {
        if number == 0 {
            return Ok(());
        }
        let object = self.object(number)?;
        if object.dnode.object_type.byteswap() != Some(Byteswap::Zap) {
            return self.blocks(number);
        }
        let all = Zap::open(&object)?.to_vec()?;
        all.iter().filter_map(|entry| entry.value.first()).try_for_each(|list| self.blocks(list))
    }

    /// A block list and those below it.
    fn blocks(&mut self, number: u64) -> Result<()> {
        let (mut todo, mut met) = (vec![number], 0);
        while let Some(number) = todo.pop() {
            if number == self.shared.0 {
                self.shared.1 += 1;
                continue;
            }
            let object = self.object(number)?;
            let head =
                Bpobj::from_bonus(object.dnode.bonus()).map_err(|e| malformed(&object, &e.to_string()))?;
            if head.have_subobj && head.phys.subobjs != 0 {
                let below = self.object(head.phys.subobjs)?;
                todo.extend(numbers(&below, head.phys.num_subobjs)?);
            }
            met += 1;
            if met > MAX_LISTS || todo.len() > MAX_LISTS {
                return Err(malformed(&object, "the list has too many lists below it"));
            }
            self.read(&object, head.phys.num_blkptrs, BLKPTR)?;
        }
        Ok(())
    }

    /// Reads the blocks of `count` entries of `size` bytes, the last first: the order in which they are freed.
    fn read(&mut self, object: &Object, count: u64, size: u64) -> Result<()> {
        let blocks = count.checked_mul(size).map(|bytes| bytes.div_ceil(object.dnode.datablksz().max(1)));
        let blocks = blocks.filter(|blocks| *blocks <= object.dnode.maxblkid.saturating_add(1));
        let blocks =
            blocks.ok_or_else(|| malformed(object, "the object is shorter than the list that it holds"))?;
        for blkid in (0..blocks).rev() {
            if self.left == 0 {
                return Ok(());
            }
            self.left -= 1;
            if blkid % AHEAD == AHEAD - 1 {
                object.read_ahead(blkid.saturating_sub(2 * AHEAD), AHEAD, false);
            }
            object.block(blkid)?;
        }
        Ok(())
    }
}

fn malformed(object: &Object, what: &str) -> Error {
    Error::corrupt(what).at_block(object.at(0, 0))
}

fn numbers(object: &Object, count: u64) -> Result<Vec<u64>> {
    let len = usize::try_from(count).ok().filter(|len| *len <= MAX_LISTS).and_then(|len| len.checked_mul(8));
    let len = len.ok_or_else(|| malformed(object, "the list has too many lists below it"))?;
    let bytes = object.read_vec(0, len)?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

fn listed(pool: &Pool) -> Result<Vec<(&'static str, u64)>> {
    let directory = pool.directory()?;
    let numbers = NAMES.iter().map(|name| Ok((*name, directory.u64(name)?.unwrap_or(0))));
    numbers.filter(|entry| entry.as_ref().map_or(true, |(_, number)| *number != 0)).collect()
}

/// Lists that cannot be read: their names and why. Of each, `most` blocks are read.
pub(crate) fn damage(pool: &Pool, most: u64) -> Result<Vec<(String, Error)>> {
    let mut found = Vec::new();
    for (name, number) in listed(pool)? {
        if let Err(why) = Lists::new(pool, most)?.named(name, number) {
            found.push((format!("list of blocks to be freed ({name}, object {number})"), why));
        }
    }
    Ok(found)
}

/// Refuses a pool with a list that its next txgs could not read.
pub(super) fn check(pool: &Pool) -> Result<()> {
    match damage(pool, AT_IMPORT)?.into_iter().next() {
        None => Ok(()),
        Some((name, why)) => Err(Error::corrupt(format!("{name} cannot be read")).because(why)),
    }
}

impl ReplacedLists {
    /// Finds the objects of the lists, as far as they can be read; others by their types, if all that belong to datasets are
    /// known.
    pub(super) fn find(pool: &Pool) -> Result<Self> {
        let mut found = Self::default();
        let mut all = Lists::new(pool, 0)?;
        for (name, number) in listed(pool)? {
            // Unreadable lists are not followed.
            let _ = all.named(name, number);
            found.names.push(name.to_owned());
        }
        found.objects = all.objects;
        if let Ok((kept, livelists)) = of_datasets(pool) {
            found.counts = Some((livelists, kept.shared.1));
            for object in pool.mos.objects() {
                let object = object?;
                let kind = object.dnode.object_type;
                if [ObjectType::BPOBJ, ObjectType::BPOBJ_SUBOBJ, ObjectType::DEADLIST].contains(&kind) {
                    found.objects.insert(object.number);
                }
            }
            found.objects.retain(|number| !kept.objects.contains(number));
        }
        found.objects.remove(&all.shared.0);
        Ok(found)
    }
}

/// Lists of datasets and of removed vdevs, and the number of livelists.
fn of_datasets(pool: &Pool) -> Result<(Lists<'_>, u64)> {
    let (mut kept, mut livelists) = (Lists::new(pool, 0)?, 0);
    if let Some(obsolete) = pool.directory()?.u64(mos::OBSOLETE_BPOBJ)? {
        kept.blocks(obsolete)?;
    }
    for object in pool.mos.objects() {
        let object = object?;
        let is_zap = object.dnode.object_type.byteswap() == Some(Byteswap::Zap);
        let extra = |name: &str| if is_zap { Zap::open(&object)?.u64(name) } else { Ok(None) };
        match object.dnode.bonustype {
            ObjectType::DSL_DATASET => {
                let phys = DslDataset::from_bytes(object.dnode.bonus())
                    .map_err(|e| malformed(&object, &e.to_string()))?;
                kept.dead(phys.deadlist_obj)?;
                kept.dead(extra(dsl_dataset::REMAP_DEADLIST)?.unwrap_or(0))?;
            }
            ObjectType::DSL_DIR => {
                let list = extra(dsl_dir::LIVELIST)?.unwrap_or(0);
                livelists += u64::from(list != 0);
                kept.dead(list)?;
            }
            _ => {}
        }
    }
    Ok((kept, livelists))
}

impl Spa {
    /// Makes empty lists in the place of those that a rebuild has forgotten (syncing context).
    pub(super) fn replace_lists(&self, replaced: &ReplacedLists, tx: &Tx) -> Result<()> {
        let at = MosTx::new(&self.mos, tx, self);
        for name in &replaced.names {
            let number = match name.as_str() {
                mos::SYNC_BPOBJ => lists::alloc_deferred(&at)?,
                mos::FREE_BPOBJ => lists::alloc(&at, lists::BLOCK)?,
                _ => continue,
            };
            at.zap_add(MOS_DIRECTORY_OBJECT, name, number)?;
        }
        set_count(self, Feature::AsyncDestroy, 0, tx)?;
        if let Some((livelists, shared)) = replaced.counts {
            set_count(self, Feature::Livelist, livelists, tx)?;
            if shared == 0
                && let Some(number) = at.zap_word(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ)?
            {
                at.zap_remove(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ)?;
                at.free_object(number)?;
            }
            set_count(self, Feature::EmptyBpobj, shared, tx)?;
        }
        if let Ok(dir) = names::free_dir(&at) {
            let phys = at.dir(dir)?;
            let all = Delta::of(phys.used_bytes, phys.compressed_bytes, phys.uncompressed_bytes);
            space::charge(&at, dir, DslDir::USED_HEAD, all.negated())?;
        }
        self.freeing.stop(false);
        Ok(())
    }
}

/// Corrects the count of a feature in use.
fn set_count(spa: &Spa, feature: Feature, count: u64, tx: &Tx) -> Result<()> {
    match count.cast_signed().wrapping_sub(spa.features.count(feature).cast_signed()) {
        0 => Ok(()),
        delta => spa.features.count_by(feature, delta, tx),
    }
}
