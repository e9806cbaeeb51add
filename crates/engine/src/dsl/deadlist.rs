//! Deadlists: the blocks that a dataset's previous snapshot had and the dataset has no more, in lists by birth.
//!
//! A deadlist is a ZAP from transaction groups (in hex) to block lists; a list holds the blocks born after its
//! own key and up to the next key. Keys are the groups of all earlier snapshots, so that destroying a snapshot
//! moves whole lists instead of blocks. Before version 26 a deadlist was one block list.
//!
//! *Livelists* have the same form: a clone's blocks born since it was made, allocations and frees, so that a
//! clone can be destroyed without walking its tree. All entries of one block are in one list, and a list is
//! closed when it has half a million allocations.
//!
//! Source: dsl_deadlist.c, OpenZFS 2.3.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use ondisk::dsl::Deadlist;
use ondisk::{Blkptr, Byteswap};

use super::bpobj::{BlockList, Lists, space_of};
use super::write::space::Delta;
use crate::error::{Error, Result};
use crate::zap::ZapEdit;

/// Allocations after which a livelist begins another list.
#[doc(alias = "zfs_livelist_max_entries")]
const LIVELIST_MAX: u64 = 500_000;

/// A deadlist or livelist.
#[derive(Clone, Copy)]
pub struct DeadList<'p> {
    pool: &'p dyn Lists,
    number: u64,
    /// It is one block list.
    old: bool,
}

impl std::fmt::Debug for DeadList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeadList({})", self.number)
    }
}

impl<'p> DeadList<'p> {
    /// Opens a deadlist of either form.
    #[doc(alias = "dsl_deadlist_open")]
    pub fn open(pool: &'p dyn Lists, number: u64) -> Result<Self> {
        let old = pool.kind(number)?.byteswap() != Some(Byteswap::Zap);
        Ok(Self { pool, number, old })
    }

    /// Its object.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether it is one block list, as before version 26.
    pub fn is_old(&self) -> bool {
        self.old
    }

    fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(format!("{what} (deadlist {})", self.number))
    }

    fn list(&self, number: u64) -> Result<BlockList<'p>> {
        BlockList::open(self.pool, number)
    }

    fn zap<T>(&self, work: impl FnOnce(&mut ZapEdit<'_>) -> Result<T>) -> Result<T> {
        let mut object = self.pool.edit(self.number)?;
        work(&mut ZapEdit::open(&mut *object)?)
    }

    /// Its lists by key; none for one of the old form.
    pub fn entries(&self) -> Result<BTreeMap<u64, u64>> {
        if self.old {
            return Ok(BTreeMap::new());
        }
        let mut all = BTreeMap::new();
        for entry in self.zap(|zap| zap.to_vec())? {
            let key = u64::from_str_radix(&entry.name_lossy(), 16).ok();
            let (Some(key), Some(list)) = (key, entry.value.first()) else {
                return Err(self.corrupt("an entry names no list"));
            };
            all.insert(key, list);
        }
        Ok(all)
    }

    fn head(&self) -> Result<Deadlist> {
        Deadlist::from_bytes(&self.pool.edit(self.number)?.bonus()).map_err(|e| self.corrupt(&e.to_string()))
    }

    fn charge(&self, delta: Delta) -> Result<()> {
        let mut head = self.head()?;
        head.used = head.used.wrapping_add_signed(delta.used);
        head.comp = head.comp.wrapping_add_signed(delta.compressed);
        head.uncomp = head.uncomp.wrapping_add_signed(delta.uncompressed);
        self.pool.edit(self.number)?.set_bonus(&head.to_bytes())
    }

    /// Space of all blocks in it.
    #[doc(alias = "dsl_deadlist_space")]
    pub fn space(&self) -> Result<Delta> {
        if self.old {
            return self.list(self.number)?.space();
        }
        let head = self.head()?;
        Ok(Delta::of(head.used, head.comp, head.uncomp))
    }

    /// Space of the blocks born after `after`, up to and with `until`. Both are keys, or `until` is `u64::MAX`.
    #[doc(alias = "dsl_deadlist_space_range")]
    pub fn space_range(&self, after: u64, until: u64) -> Result<Delta> {
        if self.old {
            return self.list(self.number)?.space_range(after, until);
        }
        let mut total = Delta::default();
        for (_, list) in self.entries()?.range(after..).take_while(|(key, _)| **key < until) {
            if !self.pool.is_shared(*list)? {
                total = total.plus(self.list(*list)?.space()?);
            }
        }
        Ok(total)
    }

    /// Inserts blocks, each into the list of its birth. `freed`: they are frees of a livelist.
    #[doc(alias = "dsl_deadlist_insert")]
    pub fn insert(&self, blocks: &[Blkptr], freed: bool) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        if self.old {
            return self.list(self.number)?.append(blocks, freed);
        }
        let mut entries = self.entries()?;
        let mut by_key: BTreeMap<u64, Vec<Blkptr>> = BTreeMap::new();
        let mut total = Delta::default();
        for bp in blocks {
            let Some((key, _)) = entries.range(..bp.accounting_birth()).next_back() else {
                return Err(self.corrupt(&format!("no list for a block born in {}", bp.accounting_birth())));
            };
            by_key.entry(*key).or_default().push(*bp);
            total = total.plus(space_of(self.pool, bp, freed));
        }
        self.charge(total)?;
        for (key, blocks) in by_key {
            let list = self.own_list(&mut entries, key)?;
            self.list(list)?.append(&blocks, freed)?;
        }
        Ok(())
    }

    /// The list of `key`, which is made if it is the shared empty one.
    fn own_list(&self, entries: &mut BTreeMap<u64, u64>, key: u64) -> Result<u64> {
        let list = entries.get(&key).copied().ok_or_else(|| self.corrupt("no such key"))?;
        if !self.pool.is_shared(list)? {
            return Ok(list);
        }
        let new = self.pool.new_list()?;
        self.pool.release_shared()?;
        self.zap(|zap| zap.update_int_key(key, new))?;
        entries.insert(key, new);
        Ok(new)
    }

    /// Puts the list `from` into that of `key`.
    #[doc(alias = "dle_enqueue_subobj")]
    fn absorb(&self, entries: &mut BTreeMap<u64, u64>, key: u64, from: u64) -> Result<()> {
        let list = entries.get(&key).copied().ok_or_else(|| self.corrupt("no such key"))?;
        if !self.pool.is_shared(list)? {
            return self.list(list)?.append_list(from);
        }
        // The shared list's place is taken over as it is: by the shared list again, if need be.
        self.pool.release_shared()?;
        self.zap(|zap| zap.update_int_key(key, from))?;
        entries.insert(key, from);
        Ok(())
    }

    /// Begins a list for blocks born after `txg`, which is above all keys so far.
    #[doc(alias = "dsl_deadlist_add_key")]
    pub fn add_key(&self, txg: u64) -> Result<()> {
        if self.old {
            return Ok(());
        }
        let list = self.pool.empty_list()?;
        self.zap(|zap| zap.add_int_key(txg, list))
    }

    /// Removes a key; its blocks go to the key before.
    #[doc(alias = "dsl_deadlist_remove_key")]
    pub fn remove_key(&self, txg: u64) -> Result<()> {
        if self.old {
            return Ok(());
        }
        let mut entries = self.entries()?;
        let list = entries.remove(&txg).ok_or_else(|| self.corrupt(&format!("no key {txg}")))?;
        let before = entries.range(..txg).next_back().map(|(key, _)| *key);
        let before = before.ok_or_else(|| self.corrupt(&format!("no key before {txg}")))?;
        self.absorb(&mut entries, before, list)?;
        self.zap(|zap| zap.remove_int(txg))
    }

    /// Removes a key with its list; the blocks in it are the caller's by now.
    #[doc(alias = "dsl_deadlist_remove_entry")]
    pub fn remove_entry(&self, txg: u64) -> Result<()> {
        if self.old {
            return Ok(());
        }
        let list =
            self.entries()?.get(&txg).copied().ok_or_else(|| self.corrupt(&format!("no key {txg}")))?;
        self.zap(|zap| zap.remove_int(txg))?;
        self.drop_list(list)
    }

    /// Empties a key's list.
    #[doc(alias = "dsl_deadlist_clear_entry")]
    pub fn clear_entry(&self, txg: u64) -> Result<()> {
        self.remove_entry(txg)?;
        self.add_key(txg)
    }

    fn drop_list(&self, list: u64) -> Result<()> {
        if self.pool.is_shared(list)? {
            return self.pool.release_shared();
        }
        let list = self.list(list)?;
        self.charge(list.space()?.negated())?;
        list.free()
    }

    /// Moves all blocks of the deadlist `other` to this one; `other` is empty afterwards.
    #[doc(alias = "dsl_deadlist_merge")]
    pub fn merge(&self, other: u64) -> Result<()> {
        let other = Self::open(self.pool, other)?;
        if other.old {
            return self.merge_old(&other);
        }
        if self.old {
            return Err(self.corrupt("a deadlist of lists can't become part of a single list"));
        }
        let mut entries = self.entries()?;
        for (key, list) in other.entries()? {
            let to = entries.range(..=key).next_back().map(|(key, _)| *key);
            let to = to.ok_or_else(|| self.corrupt(&format!("no key up to {key}")))?;
            if !self.pool.is_shared(list)? {
                self.charge(self.list(list)?.space()?)?;
            }
            self.absorb(&mut entries, to, list)?;
            other.zap(|zap| zap.remove_int(key))?;
        }
        self.pool.edit(other.number)?.set_bonus(&Deadlist::default().to_bytes())
    }

    fn merge_old(&self, other: &Self) -> Result<()> {
        let list = self.list(other.number)?;
        let mut blocks = Vec::new();
        let _ = list.drain(&mut |bp, _| {
            blocks.push(*bp);
            if blocks.len() >= 1 << 12 {
                self.insert(&std::mem::take(&mut blocks), false)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        self.insert(&blocks, false)
    }

    /// Moves all lists of blocks born after `after` (a key) to the list `to`.
    #[doc(alias = "dsl_deadlist_move_bpobj")]
    pub fn move_to(&self, to: &BlockList<'_>, after: u64) -> Result<()> {
        if self.old {
            return Err(self.corrupt("a single list has no parts to move"));
        }
        for (key, list) in self.entries()?.split_off(&after) {
            if !self.pool.is_shared(list)? {
                self.charge(self.list(list)?.space()?.negated())?;
            }
            to.append_list(list)?;
            self.zap(|zap| zap.remove_int(key))?;
        }
        Ok(())
    }

    /// Frees the deadlist and its lists, not the blocks in them.
    #[doc(alias = "dsl_deadlist_free")]
    pub fn free(self) -> Result<()> {
        if self.old {
            return self.list(self.number)?.free();
        }
        for list in self.entries()?.into_values() {
            match self.pool.is_shared(list)? {
                true => self.pool.release_shared()?,
                false => self.list(list)?.free()?,
            }
        }
        self.pool.free(self.number)
    }

    /// Notes what group `txg` did to a clone's blocks in its livelist. In a group's first pass a list that is
    /// long enough is closed.
    #[doc(alias = "dsl_flush_pending_livelist")]
    pub fn note_live(&self, txg: u64, first_pass: bool, born: &[Blkptr], freed: &[Blkptr]) -> Result<()> {
        let entries = self.entries()?;
        let full = match entries.values().next_back() {
            None => true,
            Some(_) if !first_pass => false,
            Some(list) => {
                let head = self.list(*list)?.head()?.phys;
                head.num_blkptrs.saturating_sub(head.num_freed) > LIVELIST_MAX
            }
        };
        let key = txg.saturating_sub(1);
        if full && !entries.contains_key(&key) {
            self.add_key(key)?;
        }
        let stored = |blocks: &[Blkptr]| -> Vec<Blkptr> {
            blocks.iter().filter(|bp| !bp.is_embedded() && !bp.is_hole()).copied().collect()
        };
        self.insert(&stored(born), false)?;
        self.insert(&stored(freed), true)
    }
}

/// The blocks of a list of a livelist that are allocated and not freed, the newest first.
#[doc(alias = "dsl_process_sub_livelist")]
pub fn unfreed(list: &BlockList<'_>) -> Result<Vec<Blkptr>> {
    let mut frees: HashMap<(u32, u64), u64> = HashMap::new();
    let mut alive = Vec::new();
    let _ = list.iterate(&mut |bp, freed| {
        let place = bp.dva(0).map(|dva| (dva.vdev, dva.offset)).unwrap_or_default();
        let waiting = frees.entry(place).or_default();
        match (freed, *waiting) {
            (true, _) => *waiting += 1,
            (false, 0) => alive.push(*bp),
            (false, _) => *waiting -= 1,
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(alive)
}
