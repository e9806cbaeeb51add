//! Block lists: objects that hold block pointers, and other block lists below.
//!
//! ```text
//!  bonus   counts, space                         sublists' object: numbers of lists below
//!  data    pointer, pointer, pointer …           list, list …  (their space counts in the upper list, too)
//! ```
//!
//! A list is appended to and worked off from its end, so one that was interrupted is just shorter. A list that is
//! put below another is dissolved when it is small: one block of pointers is copied, one block of sublists moves
//! up.
//!
//! Lists that are empty can all be one shared object (feature `empty_bpobj`); code that appends to a list
//! that may be that one first creates a list of its own.
//!
//! Source: bpobj.c, OpenZFS 2.3.

use std::collections::HashSet;
use std::ops::ControlFlow;

use ondisk::bpobj::{Bpobj, is_free_entry, listed};
use ondisk::{Blkptr, ObjectType};

use super::delta::Delta;
use crate::dmu::NewObject;
use crate::dmu::edit::{Edit, Objects};
use crate::error::{Error, Result};

/// Bytes of a pointer, and of a list's number.
const BLKPTR: u64 = 128;
const NUMBER: u64 = 8;
/// Block size of the object that holds the numbers of sublists.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
const SUBLISTS_BLOCK: u64 = 128 << 10;
/// Lists below one list that are followed.
const MAX_LISTS: usize = 1 << 20;

/// The pool operations that block lists need.
pub trait Lists: Objects {
    /// Bytes that a block takes, all copies together, as users count them.
    #[doc(alias = "bp_get_dsize_sync")]
    fn dsize(&self, bp: &Blkptr) -> u64;
    /// Makes an empty list.
    #[doc(alias = "bpobj_alloc")]
    fn new_list(&self) -> Result<u64>;
    /// Lists that stay empty for some time: the shared one so often if the pool has that, else new ones.
    #[doc(alias = "bpobj_alloc_empty")]
    fn empty_lists(&self, count: usize) -> Result<Vec<u64>>;
    /// The shared empty list, if there is one.
    fn shared(&self) -> Result<Option<u64>>;
    /// Some uses of the shared empty list end. After the last use it is freed: its number may be reused.
    #[doc(alias = "bpobj_decr_empty")]
    fn release_shared(&self, uses: usize) -> Result<()>;

    /// One list that stays empty for some time.
    fn empty_list(&self) -> Result<u64> {
        let lists = self.empty_lists(1)?;
        lists.first().copied().ok_or_else(|| Error::corrupt("no empty list was made"))
    }

    /// Whether it is the shared empty list.
    fn is_shared(&self, list: u64) -> Result<bool> {
        Ok(self.shared()? == Some(list))
    }
}

/// Space of one block, negative for a free in a livelist.
pub fn space_of(pool: &dyn Lists, bp: &Blkptr, freed: bool) -> Delta {
    let delta = Delta::of(pool.dsize(bp), bp.psize(), bp.ucsize());
    if freed { delta.negated() } else { delta }
}

/// Called for each pointer, with whether it is a free; returns whether to continue.
pub type VisitPointer<'v> = dyn FnMut(&Blkptr, bool) -> Result<ControlFlow<()>> + 'v;

/// A block list.
#[derive(Clone, Copy)]
pub struct BlockList<'p> {
    pool: &'p dyn Lists,
    number: u64,
}

impl std::fmt::Debug for BlockList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockList({})", self.number)
    }
}

impl<'p> BlockList<'p> {
    /// Opens a list.
    pub fn open(pool: &'p dyn Lists, number: u64) -> Result<Self> {
        let list = Self { pool, number };
        list.head()?;
        Ok(list)
    }

    fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(format!("{what} (block list {})", self.number))
    }

    fn edit(&self) -> Result<Box<dyn Edit + 'p>> {
        self.pool.edit(self.number)
    }

    /// Its head, checked against the size of its object.
    pub fn head(&self) -> Result<Bpobj> {
        let edit = self.edit()?;
        let head = Bpobj::from_bonus(&edit.bonus()).map_err(|e| self.corrupt(&e.to_string()))?;
        if !can_hold(&*edit, head.phys.num_blkptrs, BLKPTR) {
            return Err(self.corrupt("the object is shorter than the list that it holds"));
        }
        Ok(head)
    }

    /// Changes the head. It keeps the length of its generation.
    fn change(&self, work: impl FnOnce(&mut Bpobj)) -> Result<()> {
        let mut edit = self.edit()?;
        let mut bonus = edit.bonus();
        let mut head = Bpobj::from_bonus(&bonus).map_err(|e| self.corrupt(&e.to_string()))?;
        work(&mut head);
        for (to, from) in bonus.iter_mut().zip(head.phys.to_bytes()) {
            *to = from;
        }
        edit.set_bonus(&bonus)
    }

    fn charge(&self, delta: Delta) -> Result<()> {
        self.change(|head| add_space(head, delta))
    }

    /// Whether it has neither pointers nor lists below.
    #[doc(alias = "bpobj_is_empty")]
    pub fn is_empty(&self) -> Result<bool> {
        let head = self.head()?;
        Ok(head.phys.num_blkptrs == 0 && (!head.have_subobj || head.phys.num_subobjs == 0))
    }

    /// Space of all blocks in it and below.
    #[doc(alias = "bpobj_space")]
    pub fn space(&self) -> Result<Delta> {
        let head = self.head()?;
        if head.have_comp {
            return Ok(Delta::of(head.phys.bytes, head.phys.comp, head.phys.uncomp));
        }
        self.space_range(0, u64::MAX)
    }

    /// Space of the blocks born after `after`, up to and with `until`.
    #[doc(alias = "bpobj_space_range")]
    pub(crate) fn space_range(&self, after: u64, until: u64) -> Result<Delta> {
        let head = self.head()?;
        if after == 0 && until == u64::MAX && head.have_comp {
            return self.space();
        }
        let mut total = Delta::default();
        let _ = self.iterate(&mut |bp, _| {
            let birth = bp.accounting_birth();
            if birth > after && birth <= until {
                total = total.plus(space_of(self.pool, bp, false));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(total)
    }

    /// Appends blocks. `freed`: they are frees of a livelist.
    #[doc(alias = "bpobj_enqueue")]
    pub fn append(&self, blocks: &[Blkptr], freed: bool) -> Result<()> {
        let head = self.head()?;
        if freed && !head.have_freed {
            return Err(self.corrupt("a list without marks for frees can't be a livelist"));
        }
        let mut total = Delta::default();
        let mut bytes = Vec::with_capacity(blocks.len() * 128);
        for bp in blocks {
            bytes.extend_from_slice(&listed(bp, freed).to_bytes());
            total = total.plus(space_of(self.pool, bp, freed));
        }
        let count = u64::try_from(blocks.len()).unwrap_or(u64::MAX);
        self.edit()?.write_at(head.phys.num_blkptrs * BLKPTR, &bytes)?;
        self.change(|head| {
            head.phys.num_blkptrs += count;
            head.phys.num_freed += if freed { count } else { 0 };
            add_space(head, total);
        })
    }

    /// Puts all that is in the list `other` into this one; `other` is gone afterwards.
    #[doc(alias = "bpobj_enqueue_subobj")]
    pub(crate) fn append_list(&self, other: u64) -> Result<()> {
        if self.pool.is_shared(other)? {
            return self.pool.release_shared(1);
        }
        let below = Self::open(self.pool, other)?;
        if below.is_empty()? {
            return below.free();
        }
        if other == self.number || !self.head()?.have_subobj {
            return Err(self.corrupt("a list can't be put below this one"));
        }
        let space = below.space()?;
        let lists = below.head()?.phys.subobjs;
        let dissolved = lists == 0 || self.move_sublists(&below, lists)?;
        if dissolved && below.edit()?.max_block() == 0 {
            let count = below.head()?.phys.num_blkptrs;
            let bytes = below.edit()?.read_at(0, usize::try_from(count * BLKPTR).unwrap_or(0))?;
            self.edit()?.write_at(self.head()?.phys.num_blkptrs * BLKPTR, &bytes)?;
            self.change(|head| head.phys.num_blkptrs += count)?;
            self.pool.free(other)?;
        } else {
            self.add_sublists(&[other])?;
        }
        self.charge(space)
    }

    /// Moves the lists below `from` up to this one, if their numbers fill one block at most.
    fn move_sublists(&self, from: &Self, lists: u64) -> Result<bool> {
        let numbers = {
            let edit = self.pool.edit(lists)?;
            if edit.max_block() > 0 {
                return Ok(false);
            }
            self.numbers(&*edit, from.head()?.phys.num_subobjs)?
        };
        self.add_sublists(&numbers)?;
        from.change(|head| head.phys.subobjs = 0)?;
        self.pool.free(lists)?;
        Ok(true)
    }

    fn add_sublists(&self, numbers: &[u64]) -> Result<()> {
        let head = self.head()?;
        let lists = match head.phys.subobjs {
            0 => {
                let number = self.pool.create(&NewObject::plain(ObjectType::BPOBJ_SUBOBJ, SUBLISTS_BLOCK))?;
                self.change(|head| (head.phys.subobjs, head.phys.num_subobjs) = (number, 0))?;
                number
            }
            number => number,
        };
        let at = self.head()?.phys.num_subobjs;
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let at_byte = at.checked_mul(NUMBER).ok_or_else(|| self.corrupt("too many sublists"))?;
        self.pool.edit(lists)?.write_at(at_byte, &bytes)?;
        let count = u64::try_from(numbers.len()).unwrap_or(0);
        self.change(|head| head.phys.num_subobjs = at.saturating_add(count))
    }

    /// Numbers of the lists directly below.
    pub(crate) fn sublists(&self) -> Result<Vec<u64>> {
        let head = self.head()?;
        if !head.have_subobj || head.phys.subobjs == 0 {
            return Ok(Vec::new());
        }
        self.numbers(&*self.pool.edit(head.phys.subobjs)?, head.phys.num_subobjs)
    }

    fn last_sublist(&self) -> Result<Option<u64>> {
        let head = self.head()?;
        if !head.have_subobj || head.phys.subobjs == 0 || head.phys.num_subobjs == 0 {
            return Ok(None);
        }
        let lists = self.pool.edit(head.phys.subobjs)?;
        if !can_hold(&*lists, head.phys.num_subobjs, NUMBER) {
            return Err(self.corrupt("the object of sublists is too short for them"));
        }
        let bytes = lists.read_at((head.phys.num_subobjs - 1) * NUMBER, 8)?;
        Ok(bytes.first_chunk().map(|b| u64::from_le_bytes(*b)))
    }

    fn numbers(&self, lists: &dyn Edit, count: u64) -> Result<Vec<u64>> {
        let len = usize::try_from(count).ok().filter(|n| *n <= MAX_LISTS && can_hold(lists, count, NUMBER));
        let len = len.ok_or_else(|| self.corrupt("the object of sublists is too short for them"))?;
        let bytes = lists.read_at(0, len * 8)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect())
    }

    /// Calls `visit` for each block in this list and those below, the newest first, until it returns to stop.
    #[doc(alias = "bpobj_iterate_nofree")]
    pub fn iterate(&self, visit: &mut VisitPointer<'_>) -> Result<ControlFlow<()>> {
        let mut todo = vec![self.number];
        let mut seen = HashSet::new();
        while let Some(number) = todo.pop() {
            let list = Self::open(self.pool, number)?;
            if !seen.insert(number) || seen.len() > MAX_LISTS {
                return Err(list.corrupt("a list contains itself"));
            }
            todo.extend(list.sublists()?);
            if list.own(visit)?.1.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Visits the pointers of this very list, the last first; returns the number of visited pointers.
    fn own(&self, visit: &mut VisitPointer<'_>) -> Result<(u64, ControlFlow<()>)> {
        let count = self.head()?.phys.num_blkptrs;
        let edit = self.edit()?;
        let per_block = (edit.block_size() / BLKPTR).max(1);
        let mut passed = 0;
        for blkid in (0..count.div_ceil(per_block)).rev() {
            let block = edit.read_block(blkid)?;
            let here = usize::try_from((count - blkid * per_block).min(per_block)).unwrap_or(0);
            let raw = block.as_chunks::<128>().0.get(..here);
            for raw in raw.ok_or_else(|| self.corrupt("data block is too short"))?.iter().rev() {
                let bp = Blkptr::from_bytes(raw).unwrap_or_default();
                if visit(&bp, is_free_entry(&bp))?.is_break() {
                    return Ok((passed, ControlFlow::Break(())));
                }
                passed += 1;
            }
        }
        Ok((passed, ControlFlow::Continue(())))
    }

    /// Calls `visit` for each block in this list and those below, and removes those for which it returns to
    /// continue; lists below are freed when they are empty. An error of `visit`, or a part of the list that cannot be read,
    /// stops like a break; blocks visited before are removed.
    #[doc(alias = "bpobj_iterate")]
    pub fn drain(&self, visit: &mut VisitPointer<'_>) -> Result<ControlFlow<()>> {
        let mut stack = vec![*self];
        let mut met = 0;
        while let Some(list) = stack.last().copied() {
            if list.drain_own(&stack, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            match list.last_sublist()? {
                Some(number) => {
                    met += 1;
                    if met > MAX_LISTS || stack.iter().any(|l| l.number == number) {
                        return Err(list.corrupt("a list contains itself"));
                    }
                    stack.push(Self::open(self.pool, number)?);
                }
                None => {
                    stack.pop();
                    if let Some(above) = stack.last() {
                        above.drop_last_sublist(list)?;
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Takes out pointers of this very list; `stack` is it and all above it, whose space shrinks, too.
    fn drain_own(&self, stack: &[Self], visit: &mut VisitPointer<'_>) -> Result<ControlFlow<()>> {
        let (mut passed, mut frees, mut gone) = (0u64, 0u64, Delta::default());
        let mut failed = None;
        let pool = self.pool;
        let met = self.own(&mut |bp, freed| {
            match visit(bp, freed) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(stop) => return Ok(stop),
                Err(error) => {
                    failed = Some(error);
                    return Ok(ControlFlow::Break(()));
                }
            }
            passed += 1;
            frees += u64::from(freed);
            gone = gone.plus(space_of(pool, bp, freed));
            Ok(ControlFlow::Continue(()))
        });
        // The blocks before an unreadable part of the list are removed, too.
        let flow = met.map_or_else(
            |unread| {
                failed.get_or_insert(unread);
                ControlFlow::Break(())
            },
            |(_, flow)| flow,
        );
        if passed > 0 {
            let left = self.head()?.phys.num_blkptrs.saturating_sub(passed);
            self.change(|head| {
                head.phys.num_blkptrs = left;
                head.phys.num_freed = head.phys.num_freed.saturating_sub(frees);
            })?;
            cut(&mut *self.edit()?, left * BLKPTR)?;
            stack.iter().try_for_each(|list| list.charge(gone.negated()))?;
        }
        failed.map_or(Ok(flow), Err)
    }

    /// Frees the empty list `below`, the last of the sublists.
    fn drop_last_sublist(&self, below: Self) -> Result<()> {
        let head = self.head()?;
        let left = head.phys.num_subobjs.saturating_sub(1);
        let mut lists = self.pool.edit(head.phys.subobjs)?;
        lists.write_at(left * NUMBER, &[0; 8])?;
        if (left * NUMBER).is_multiple_of(lists.block_size()) {
            lists.free_from(left * NUMBER / lists.block_size())?;
        }
        self.change(|head| head.phys.num_subobjs = left)?;
        below.free()
    }

    /// Frees the list and all lists below, not the blocks in them.
    #[doc(alias = "bpobj_free")]
    pub fn free(self) -> Result<()> {
        let mut todo = vec![self.number];
        let mut seen = HashSet::new();
        while let Some(number) = todo.pop() {
            let list = Self::open(self.pool, number)?;
            if !seen.insert(number) || seen.len() > MAX_LISTS {
                return Err(list.corrupt("a list contains itself"));
            }
            let head = list.head()?;
            if head.have_subobj && head.phys.subobjs != 0 {
                todo.extend(list.sublists()?);
                self.pool.free(head.phys.subobjs)?;
            }
            self.pool.free(number)?;
        }
        Ok(())
    }
}

fn add_space(head: &mut Bpobj, delta: Delta) {
    head.phys.bytes = head.phys.bytes.wrapping_add_signed(delta.used);
    if head.have_comp {
        head.phys.comp = head.phys.comp.wrapping_add_signed(delta.compressed);
        head.phys.uncomp = head.phys.uncomp.wrapping_add_signed(delta.uncompressed);
    }
}

/// Whether an object has the blocks for `count` entries of `size` bytes.
fn can_hold(edit: &dyn Edit, count: u64, size: u64) -> bool {
    let held = edit.max_block().checked_add(1).and_then(|blocks| blocks.checked_mul(edit.block_size()));
    count.checked_mul(size).is_some_and(|needed| held.is_none_or(|held| needed <= held))
}

/// Frees an object's blocks from byte `end` on, and zeroes the rest of its last block.
fn cut(edit: &mut dyn Edit, end: u64) -> Result<()> {
    let size = edit.block_size().max(1);
    let keep = usize::try_from(end % size).unwrap_or(0);
    if keep > 0 {
        let mut block = edit.read_block(end / size)?.into_owned();
        block.iter_mut().skip(keep).for_each(|b| *b = 0);
        edit.write_block(end / size, block)?;
    }
    edit.free_from(end.div_ceil(size))
}
