//! Deadlists: the blocks that a dataset's previous snapshot references and the dataset no longer does, in lists by birth.
//!
//! A deadlist is a ZAP from txgs (in hex) to block lists; a list holds the blocks born after its own key and
//! up to the next key. Keys are the txgs of all earlier snapshots, so that destroying a snapshot moves whole
//! lists instead of blocks. Before version 26 a deadlist was one block list.
//!
//! *Livelists* have the same form: a clone's blocks born since it was made, allocations and frees, so that a
//! clone can be destroyed without walking its tree. All entries of one block are in one list, and a list is
//! closed when it has half a million allocations.
//!
//! Source: dsl_deadlist.c, OpenZFS 2.3.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, RangeBounds};

use ondisk::dsl::Deadlist;
use ondisk::{Blkptr, Byteswap};

use super::bpobj::{BlockList, Lists, space_of};
use super::delta::Delta;
use crate::dmu::edit::Edit;
use crate::error::{Error, Result};
use crate::zap::ZapEdit;

/// Txgs after which a livelist looks for lists to join, besides those in which it begins one.
const CONDENSE_EVERY: u64 = 64;

/// A deadlist or livelist.
///
/// It reads its keys once and keeps them: while one value of a deadlist is in use, only that value changes the deadlist.
pub struct DeadList<'p> {
    pool: &'p dyn Lists,
    number: u64,
    /// It is one block list.
    old: bool,
    /// The lists by key, once they were read.
    lists: RefCell<Option<BTreeMap<u64, u64>>>,
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
        Ok(Self { pool, number, old, lists: RefCell::default() })
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
        self.with(|lists| Ok(lists.clone()))
    }

    /// Does something with the lists by key, which are read when they are needed first.
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<u64, u64>) -> Result<T>) -> Result<T> {
        let mut lists = self.lists.borrow_mut();
        match &mut *lists {
            Some(lists) => work(lists),
            none => work(none.insert(self.read()?)),
        }
    }

    fn read(&self) -> Result<BTreeMap<u64, u64>> {
        if self.old {
            return Ok(BTreeMap::new());
        }
        let mut all = Vec::new();
        self.scan_zap(&mut |key, list| {
            all.push((key, list));
            Ok(())
        })?;
        // Sorted input builds a map fastest.
        all.sort_unstable();
        Ok(all.into_iter().collect())
    }

    /// Calls `visit` with each key and its list, in no order, from memory if the keys were read before.
    fn scan(&self, visit: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        if let Some(lists) = &*self.lists.borrow() {
            return lists.iter().try_for_each(|(key, list)| visit(*key, *list));
        }
        self.scan_zap(visit)
    }

    fn scan_zap(&self, visit: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        let key_of = |name: &[u8]| u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok();
        self.zap(|zap| {
            zap.read()?.visit_words(&mut |name, list| {
                visit(key_of(name).ok_or_else(|| self.corrupt("an entry names no list"))?, list)
            })
        })
    }

    /// The lists that are not the shared empty one, by key in ascending order, and how many keys have that one.
    fn own_lists(&self) -> Result<(Vec<(u64, u64)>, usize)> {
        let (shared, mut own, mut empty) = (self.pool.shared()?, Vec::new(), 0);
        self.scan(&mut |key, list| {
            match Some(list) == shared {
                true => empty += 1,
                false => own.push((key, list)),
            }
            Ok(())
        })?;
        own.sort_unstable();
        Ok((own, empty))
    }

    /// The list of a key.
    fn of_key(&self, key: u64) -> Result<u64> {
        let list = self.with(|lists| Ok(lists.get(&key).copied()))?;
        list.ok_or_else(|| self.corrupt(&format!("no key {key}")))
    }

    /// Another list takes the place of a key's.
    fn put(&self, key: u64, list: u64) -> Result<()> {
        self.zap(|zap| zap.update_int_key(key, list))?;
        self.with(|lists| Ok(lists.insert(key, list))).map(drop)
    }

    /// Takes a key out; its list is the caller's.
    fn take(&self, key: u64) -> Result<u64> {
        let list = self.of_key(key)?;
        self.zap(|zap| zap.remove_int(key))?;
        self.with(|lists| Ok(lists.remove(&key)))?;
        Ok(list)
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
    pub(crate) fn space_range(&self, after: u64, until: u64) -> Result<Delta> {
        if self.old {
            return self.list(self.number)?.space_range(after, until);
        }
        let shared = self.pool.shared()?;
        self.with(|lists| {
            let within = lists.range(after..).take_while(|(key, _)| **key < until);
            let own = within.filter(|(_, list)| Some(**list) != shared);
            own.map(|(_, list)| self.list(*list)?.space())
                .try_fold(Delta::default(), |total, space| Ok(total.plus(space?)))
        })
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
        let mut by_key: BTreeMap<u64, Vec<Blkptr>> = BTreeMap::new();
        let mut total = Delta::default();
        for bp in blocks {
            let birth = bp.accounting_birth();
            let Some(key) = self.last_key(..birth)? else {
                return Err(self.corrupt(&format!("no list for a block born in {birth}")));
            };
            by_key.entry(key).or_default().push(*bp);
            total = total.plus(space_of(self.pool, bp, freed));
        }
        self.charge(total)?;
        for (key, blocks) in by_key {
            self.list(self.own_list(key)?)?.append(&blocks, freed)?;
        }
        Ok(())
    }

    /// The last key of a range.
    fn last_key(&self, range: impl RangeBounds<u64>) -> Result<Option<u64>> {
        self.with(|lists| Ok(lists.range(range).next_back().map(|(key, _)| *key)))
    }

    /// The list of `key`, which is made if it is the shared empty one.
    fn own_list(&self, key: u64) -> Result<u64> {
        let list = self.of_key(key)?;
        if !self.pool.is_shared(list)? {
            return Ok(list);
        }
        let new = self.pool.new_list()?;
        self.pool.release_shared(1)?;
        self.put(key, new)?;
        Ok(new)
    }

    /// Puts the list `from` into that of `key`.
    #[doc(alias = "dle_enqueue_subobj")]
    fn absorb(&self, key: u64, from: u64) -> Result<()> {
        let list = self.of_key(key)?;
        if !self.pool.is_shared(list)? {
            return self.list(list)?.append_list(from);
        }
        // The shared list's place is taken over as it is: by the shared list again, if need be.
        self.pool.release_shared(1)?;
        self.put(key, from)
    }

    /// Begins a list for blocks born after `txg`, which is above all keys so far.
    #[doc(alias = "dsl_deadlist_add_key")]
    pub(crate) fn add_key(&self, txg: u64) -> Result<()> {
        if self.old {
            return Ok(());
        }
        let list = self.pool.empty_list()?;
        self.zap(|zap| zap.add_int_key(txg, list))?;
        if let Some(lists) = &mut *self.lists.borrow_mut() {
            lists.insert(txg, list);
        }
        Ok(())
    }

    /// Fills an empty deadlist with the keys of `other` that are less than `before`, each with an empty list.
    #[doc(alias = "dsl_deadlist_clone")]
    pub fn take_keys(&self, other: &Self, before: u64) -> Result<()> {
        let keys = other.with(|lists| Ok(lists.range(..before).map(|(key, _)| *key).collect::<Vec<_>>()))?;
        let lists = self.pool.empty_lists(keys.len())?;
        let all: BTreeMap<u64, u64> = keys.into_iter().zip(lists).collect();
        let taken = self.copy_entries(other, &all)?;
        if !taken {
            self.zap(|zap| all.iter().try_for_each(|(key, list)| zap.add_int_key(*key, *list)))?;
        }
        *self.lists.borrow_mut() = Some(all);
        Ok(())
    }

    /// Takes over the blocks of another deadlist's ZAP, and changes the differing entries; returns false when
    /// that is more work than adding each entry.
    fn copy_entries(&self, other: &Self, wanted: &BTreeMap<u64, u64>) -> Result<bool> {
        let differs = |(key, list): (&u64, &u64)| (wanted.get(key) != Some(list)).then_some(*key);
        let differ = other.with(|lists| Ok(lists.iter().filter_map(differs).collect::<Vec<_>>()))?;
        if differ.len() > wanted.len() / 2 {
            return Ok(false);
        }
        copy_blocks(&*self.pool.edit(other.number)?, &mut *self.pool.edit(self.number)?)?;
        self.zap(|zap| {
            differ.into_iter().try_for_each(|key| match wanted.get(&key) {
                Some(list) => zap.update_int_key(key, *list),
                None => zap.remove_int(key),
            })
        })?;
        Ok(true)
    }

    /// Removes a key; its blocks go to the key before.
    #[doc(alias = "dsl_deadlist_remove_key")]
    pub(crate) fn remove_key(&self, txg: u64) -> Result<()> {
        if self.old {
            return Ok(());
        }
        let before = self.last_key(..txg)?;
        let list = self.take(txg)?;
        self.absorb(before.ok_or_else(|| self.corrupt(&format!("no key before {txg}")))?, list)
    }

    /// Whether it has a key.
    pub(crate) fn has_key(&self, txg: u64) -> Result<bool> {
        self.with(|lists| Ok(lists.contains_key(&txg)))
    }

    /// Removes a key with its list; the blocks in it are the caller's by now.
    #[doc(alias = "dsl_deadlist_remove_entry")]
    pub fn remove_entry(&self, txg: u64) -> Result<()> {
        if self.old {
            return Ok(());
        }
        self.drop_list(self.take(txg)?)
    }

    /// Empties a key's list.
    #[doc(alias = "dsl_deadlist_clear_entry")]
    pub(crate) fn clear_entry(&self, txg: u64) -> Result<()> {
        self.remove_entry(txg)?;
        self.add_key(txg)
    }

    fn drop_list(&self, list: u64) -> Result<()> {
        if self.pool.is_shared(list)? {
            return self.pool.release_shared(1);
        }
        let list = self.list(list)?;
        self.charge(list.space()?.negated())?;
        list.free()
    }

    /// Moves all blocks of the deadlist `other` to this one; `other` is gone afterwards.
    #[doc(alias = "dsl_deadlist_merge")]
    pub fn merge(&self, other: Self) -> Result<()> {
        if other.old {
            self.merge_old(&other)?;
            return other.free();
        }
        if self.old {
            return Err(self.corrupt("a deadlist of lists can't become part of a single list"));
        }
        let (own, empty) = other.own_lists()?;
        for (key, list) in own {
            let to = self.last_key(..=key)?.ok_or_else(|| self.corrupt(&format!("no key up to {key}")))?;
            self.charge(self.list(list)?.space()?)?;
            self.absorb(to, list)?;
        }
        self.pool.release_shared(empty)?;
        self.pool.free(other.number)
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
    pub(crate) fn move_to(&self, to: &BlockList<'_>, after: u64) -> Result<()> {
        if self.old {
            return Err(self.corrupt("a single list has no parts to move"));
        }
        let keys = self.with(|lists| Ok(lists.range(after..).map(|(key, _)| *key).collect::<Vec<_>>()))?;
        for key in keys {
            let list = self.take(key)?;
            if !self.pool.is_shared(list)? {
                self.charge(self.list(list)?.space()?.negated())?;
            }
            to.append_list(list)?;
        }
        Ok(())
    }

    /// Frees the deadlist and its lists, not the blocks in them.
    #[doc(alias = "dsl_deadlist_free")]
    pub fn free(self) -> Result<()> {
        if self.old {
            return self.list(self.number)?.free();
        }
        let (own, empty) = self.own_lists()?;
        own.into_iter().try_for_each(|(_, list)| self.list(list)?.free())?;
        self.pool.release_shared(empty)?;
        self.pool.free(self.number)
    }

    /// Records the births and frees of a clone's blocks in `txg` in its livelist. A list with more than `most` blocks is closed;
    /// `None` in later passes of a txg, in which none is.
    #[doc(alias = "dsl_flush_pending_livelist")]
    pub(crate) fn note_live(
        &self,
        txg: u64,
        most: Option<u64>,
        born: &[Blkptr],
        freed: &[Blkptr],
    ) -> Result<()> {
        let entries = self.entries()?;
        let full = match (entries.values().next_back(), most) {
            (None, _) => true,
            (_, None) => false,
            (Some(list), Some(most)) => {
                let head = self.list(*list)?.head()?.phys;
                head.num_blkptrs.saturating_sub(head.num_freed) > most
            }
        };
        let key = txg.saturating_sub(1);
        let begins = full && !entries.contains_key(&key);
        if begins {
            self.add_key(key)?;
        }
        let stored = |blocks: &[Blkptr]| -> Vec<Blkptr> {
            blocks.iter().filter(|bp| !bp.is_embedded() && !bp.is_hole()).copied().collect()
        };
        self.insert(&stored(born), false)?;
        self.insert(&stored(freed), true)?;
        match most {
            Some(most) if begins || txg.is_multiple_of(CONDENSE_EVERY) => self.condense(most),
            _ => Ok(()),
        }
    }

    /// Joins the oldest two neighbouring lists of a livelist, but not the newest one, whose blocks in use fit one list: the
    /// joined list omits freed blocks. Otherwise the lists of a clone that is rewritten for long would grow for ever.
    #[doc(alias("dsl_livelist_try_condense", "spa_livelist_condense_sync"))]
    fn condense(&self, most: u64) -> Result<()> {
        let entries: Vec<(u64, u64)> = self.entries()?.into_iter().collect();
        for together in entries.windows(3) {
            let [(first, one), (next, other), _] = *together else { continue };
            // Damage in old lists matters when the clone is destroyed, and must not stop the txg.
            let Ok(Some(keep)) = self.joined(one, other, most) else { continue };
            self.clear_entry(first)?;
            self.remove_entry(next)?;
            return self.insert(&keep, false);
        }
        Ok(())
    }

    /// The blocks in use of two lists of a livelist; `None` if they do not fit one list.
    fn joined(&self, one: u64, other: u64, most: u64) -> Result<Option<Vec<Blkptr>>> {
        if self.in_use(one)?.saturating_add(self.in_use(other)?) >= most {
            return Ok(None);
        }
        let (mut keep, more) = unfreed(&self.list(one)?, most)?;
        let (later, more_later) = unfreed(&self.list(other)?, most)?;
        keep.extend(later);
        // There are more where the counts of a list are damaged.
        Ok((!more && !more_later).then_some(keep))
    }

    /// Blocks of a list of a livelist that are not freed.
    #[doc(alias = "dsl_livelist_should_condense")]
    fn in_use(&self, list: u64) -> Result<u64> {
        let head = self.list(list)?.head()?.phys;
        Ok(head.num_blkptrs.saturating_sub(head.num_freed.saturating_mul(2)))
    }
}

/// Makes a new object's blocks those of another.
fn copy_blocks(from: &dyn Edit, to: &mut dyn Edit) -> Result<()> {
    to.set_block_size(from.block_size())?;
    (0..=from.max_block()).try_for_each(|blkid| to.write_block(blkid, from.read_block(blkid)?.into_owned()))
}

/// The blocks of a list of a livelist that are allocated and not freed, the newest first, `most` of them; and whether there
/// are more.
#[doc(alias = "dsl_process_sub_livelist")]
pub(crate) fn unfreed(list: &BlockList<'_>, most: u64) -> Result<(Vec<Blkptr>, bool)> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut frees: HashMap<(u32, u64), u64> = HashMap::new();
    let (mut alive, mut more) = (Vec::new(), false);
    let _ = list.iterate(&mut |bp, freed| {
        let place = bp.dva(0).map(|dva| (dva.vdev, dva.offset)).unwrap_or_default();
        match (freed, frees.get_mut(&place)) {
            (true, Some(waiting)) => *waiting += 1,
            (true, None) => drop(frees.insert(place, 1)),
            (false, Some(waiting)) if *waiting > 1 => *waiting -= 1,
            (false, Some(_)) => drop(frees.remove(&place)),
            (false, None) if alive.len() < most => alive.push(*bp),
            (false, None) => more = true,
        }
        // Whether there are more is known: the rest need not be read.
        Ok(if more { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok((alive, more))
}
