//! Objects come and go.

use std::sync::Arc;

use crypt::BlockParams;
use ondisk::drr::{DrrObject, DrrObjectRange, drr_flag};
use ondisk::{
    ChecksumType, CompressType, MAX_BLOCK_SIZE, MIN_BLOCK_SIZE, OLD_MAX_BLOCK_SIZE, ObjectType, byteswap,
    dnode,
};

use zcommon::features::Feature;

use super::{Receiver, malformed};
use crate::dmu::dirty::Handle;
use crate::dmu::{NewObject, Tx};
use crate::error::{Kind, Result};
use crate::sa::usage;

/// Dnode slots in a block.
const SLOTS: u64 = 32;
/// Blocks of dnodes whose encryption parameters are kept in memory, at most.
const MOST_RANGES: usize = 1 << 16;

/// The checked values of an OBJECT record.
struct Wanted {
    number: u64,
    new: NewObject,
    slots: usize,
    nblkptr: usize,
    functions: (u8, u8),
    has_spill: bool,
    bonus: Vec<u8>,
    /// Levels and last block, in a raw stream.
    shape: Option<(u8, u64)>,
}

fn object_type(raw: u32) -> Result<ObjectType> {
    let kind = u8::try_from(raw).map(ObjectType).ok().filter(|kind| kind.is_valid());
    kind.ok_or_else(|| malformed(format!("an object of the unknown type {raw}")))
}

/// Turns a bonus buffer of a stream in the other byte order (`swap`).
fn turn(kind: ObjectType, bonus: &mut [u8], swap: bool) {
    if let Some(kind) = kind.byteswap().filter(|_| swap) {
        byteswap::swap(kind, bonus);
    }
}

impl Wanted {
    fn of(body: &DrrObject, mut bonus: Vec<u8>, raw: bool, swap: bool) -> Result<Self> {
        let number = body.object;
        let slots = u64::from(body.dn_slots.max(1));
        if number == 0 || number >= dnode::MAX_OBJECT || number % SLOTS + slots > SLOTS {
            return Err(malformed(format!("object {number} of {slots} slots")));
        }
        let slots = usize::try_from(slots).unwrap_or(1);
        let (kind, bonus_type) = (object_type(body.object_type)?, object_type(body.bonustype)?);
        let block_size = u64::from(body.blksz);
        if kind == ObjectType::NONE
            || !(MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&block_size)
            || block_size % MIN_BLOCK_SIZE != 0
        {
            return Err(malformed(format!("an object with blocks of {block_size} bytes")));
        }
        let room = slots * dnode::DNODE_MIN_SIZE - dnode::DNODE_CORE_SIZE - ondisk::blkptr::BLKPTR_SIZE;
        let bonus_len = usize::try_from(body.bonuslen).unwrap_or(usize::MAX);
        if bonus_len > room || bonus_len > bonus.len() {
            return Err(malformed(format!("a bonus of {bonus_len} bytes")));
        }
        if ChecksumType::from_raw(body.checksumtype).is_none()
            || CompressType::from_raw(body.compress).is_none()
        {
            return Err(malformed("an object with unknown functions"));
        }
        let dnode_size = slots * dnode::DNODE_MIN_SIZE;
        let mut new =
            NewObject { object_type: kind, block_size, bonus_type, bonus_len, dnode_size, indirect_shift: 0 };
        let mut shape = None;
        if raw {
            if !(12..=17).contains(&body.indblkshift) || !(1..=dnode::MAX_LEVELS).contains(&body.nlevels) {
                return Err(malformed("an object with impossible indirect blocks"));
            }
            // Block pointers that the levels have room for; none of this is authenticated until the key is loaded.
            let fanout = u32::from(body.nlevels - 1) * u32::from(body.indblkshift.saturating_sub(7));
            let most =
                1u64.checked_shl(fanout).and_then(|fanout| fanout.checked_mul(u64::from(body.nblkptr)));
            if most.is_some_and(|most| body.maxblkid >= most.max(1)) {
                return Err(malformed(format!("block {} in {} levels", body.maxblkid, body.nlevels)));
            }
            new.indirect_shift = body.indblkshift;
            shape = Some((body.nlevels, body.maxblkid));
            // An encrypted one is as its system wrote it; the sender has turned any other one into its own order.
            if !crypt::is_encrypted_type(bonus_type.raw()) {
                turn(bonus_type, &mut bonus, swap);
            }
        } else {
            bonus.truncate(bonus_len);
            turn(bonus_type, &mut bonus, swap);
        }
        let nblkptr = new.nblkptr();
        if raw && usize::from(body.nblkptr) != nblkptr {
            return Err(malformed(format!("an object with {} block pointers", body.nblkptr)));
        }
        let has_spill = body.flags & drr_flag::OBJECT_SPILL != 0;
        let functions = (body.checksumtype, body.compress);
        let wanted = Self { number, new, slots, nblkptr, functions, has_spill, bonus, shape };
        if wanted.bonus.len() > wanted.bonus_room() {
            return Err(malformed(format!("a bonus of {} bytes", wanted.bonus.len())));
        }
        Ok(wanted)
    }

    /// Bytes that the bonus may have.
    fn bonus_room(&self) -> usize {
        let pointers = self.nblkptr + usize::from(self.has_spill);
        self.new.dnode_size.saturating_sub(dnode::DNODE_CORE_SIZE + pointers * ondisk::blkptr::BLKPTR_SIZE)
    }

    /// Whether an object that is there is this one, perhaps changed: then it keeps its content.
    fn is_same(&self, handle: &Handle) -> bool {
        let dnode = handle.dnode();
        let raw = self.shape.is_none_or(|(levels, _)| {
            dnode.indblkshift == self.new.indirect_shift && dnode.nlevels <= levels
        });
        raw && dnode.datablksz() == self.new.block_size
            && dnode.slots() == self.slots
            && dnode.nblkptr() == self.nblkptr
    }
}

impl Receiver {
    /// Whether the pool has a feature, so that it may be used.
    fn pool_has(&self, feature: Feature) -> bool {
        self.spa.features.is_enabled(feature)
    }

    /// Bytes of the largest block that the pool may have.
    #[doc(alias = "spa_maxblocksize")]
    pub(super) fn largest_block(&self) -> u64 {
        if self.pool_has(Feature::LargeBlocks) { MAX_BLOCK_SIZE } else { OLD_MAX_BLOCK_SIZE }
    }

    /// The object of that number. Numbers of objects that no stream has, such as those with the space used by users, count as
    /// unused.
    fn existing(&self, number: u64) -> Result<Option<Arc<Handle>>> {
        if number == 0 || number >= dnode::MAX_OBJECT {
            return Ok(None);
        }
        match self.dataset.objset.handle(number) {
            Ok(handle) => Ok(Some(handle)),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The object of that number, which the stream has named.
    pub(super) fn named(&self, number: u64) -> Result<Arc<Handle>> {
        self.existing(number)?.ok_or_else(|| malformed(format!("object {number} does not exist")))
    }

    /// An object is there, or becomes another.
    #[doc(alias("receive_object", "receive_handle_existing_object"))]
    pub(super) fn object(&mut self, body: &DrrObject, payload: Vec<u8>) -> Result<()> {
        let wanted = Wanted::of(body, payload, self.raw, self.swap)?;
        let most_slots = if self.pool_has(Feature::LargeDnode) { SLOTS } else { 1 };
        if wanted.new.block_size > self.largest_block() || wanted.slots as u64 > most_slots {
            return Err(malformed("an object that needs a feature which the pool has not enabled"));
        }
        self.highest = self.highest.max(wanted.number);
        self.shape = wanted.shape.map(|(levels, last)| (wanted.number, levels, last));
        let existing = self.existing(wanted.number)?;
        let handle = match existing {
            Some(handle) if wanted.is_same(&handle) || self.keeps_split_blocks(&wanted, &handle) => handle,
            Some(handle) if handle.dnode().slots() == wanted.slots => {
                self.empty(&handle)?;
                let tx = self.begin(false)?;
                self.dataset.objset.replace_object(&tx, wanted.number, wanted.new)?
            }
            other => {
                // A handle that is held would keep its number in use.
                drop(other);
                self.clear_slots(&wanted)?;
                let tx = self.begin(false)?;
                self.dataset.objset.create_object_at(&tx, wanted.number, wanted.new)?
            }
        };
        let tx = self.begin(false)?;
        self.describe(&handle, &wanted, &tx)?;
        self.note(&tx, wanted.number, 0);
        Ok(())
    }

    /// Whether a file keeps its blocks of 128 KiB though the sender's are larger: a stream without large blocks has split them,
    /// and this one has only those that have changed since.
    #[doc(alias("receive_handle_existing_object", "receive_object_is_same_generation"))]
    fn keeps_split_blocks(&self, wanted: &Wanted, handle: &Handle) -> bool {
        let dnode = handle.dnode();
        let is_file = |kind: ObjectType| kind == ObjectType::PLAIN_FILE_CONTENTS;
        let is_split = dnode.datablksz() == OLD_MAX_BLOCK_SIZE && wanted.new.block_size > OLD_MAX_BLOCK_SIZE;
        let generation = usage::generation(dnode.bonustype, dnode.bonus());
        !self.raw
            && self.begun().wish.from_guid != 0
            && is_split
            && is_file(dnode.object_type)
            && is_file(wanted.new.object_type)
            && dnode.slots() == wanted.slots
            && dnode.nblkptr() == wanted.nblkptr
            && generation.is_some()
            && generation == usage::generation(wanted.new.bonus_type, &wanted.bonus)
    }

    fn describe(&self, handle: &Arc<Handle>, wanted: &Wanted, tx: &Tx) -> Result<()> {
        let dnode = handle.dnode();
        if dnode.spill().is_some() && !wanted.has_spill && self.spill {
            handle.set_spill(tx, None)?;
        }
        if wanted.bonus.len() > handle.dnode().max_bonus() {
            return Err(malformed("a bonus that leaves no room for the spill pointer"));
        }
        if dnode.object_type != wanted.new.object_type {
            handle.set_object_type(tx, wanted.new.object_type)?;
        }
        handle.set_functions(tx, wanted.functions.0, wanted.functions.1)?;
        let Some((levels, last)) = wanted.shape else {
            return handle.set_typed_bonus(tx, wanted.new.bonus_type, &wanted.bonus);
        };
        handle.set_typed_bonus(tx, wanted.new.bonus_type, &[])?;
        handle.set_sealed_bonus(tx, &wanted.bonus, wanted.new.bonus_len)?;
        handle.set_shape(tx, levels, last)
    }

    /// Frees the objects in the place of a new one, and waits until that txg is on disk.
    fn clear_slots(&mut self, wanted: &Wanted) -> Result<()> {
        let count = u64::try_from(wanted.slots).unwrap_or(1);
        for number in wanted.number..wanted.number.saturating_add(count) {
            if let Some(handle) = self.existing(number)? {
                self.remove(&handle)?;
            }
        }
        let objset = &self.dataset.objset;
        if !objset.has_room_at(wanted.number, wanted.slots)? {
            self.spa.sync()?;
            objset.forget_unused();
        }
        match objset.has_room_at(wanted.number, wanted.slots)? {
            true => Ok(()),
            false => Err(malformed(format!("object {} lies within another one", wanted.number))),
        }
    }

    /// Frees the blocks of an object but for the last ones.
    fn empty(&self, handle: &Arc<Handle>) -> Result<()> {
        handle.free_long(0, u64::MAX, &|| self.begin(true)).map(drop)
    }

    fn remove(&self, handle: &Arc<Handle>) -> Result<()> {
        self.empty(handle)?;
        let tx = self.begin(true)?;
        handle.free(&tx)
    }

    /// Objects that don't exist on the other side.
    #[doc(alias = "receive_freeobjects")]
    pub(super) fn free_objects(&mut self, first: u64, count: u64) -> Result<()> {
        let end = first.checked_add(count).ok_or_else(|| malformed("a run of objects without an end"))?;
        let objset = self.dataset.objset.view();
        for object in objset.objects_from(first) {
            let number = object?.number;
            if number >= end {
                break;
            }
            if number < first.max(1) {
                continue;
            }
            if let Some(handle) = self.existing(number)? {
                self.remove(&handle)?;
            }
        }
        self.highest = self.highest.max(end.saturating_sub(1).min(dnode::MAX_OBJECT));
        Ok(())
    }

    /// How a block of dnodes was sealed.
    #[doc(alias = "receive_object_range")]
    pub(super) fn range(&mut self, body: &DrrObjectRange) -> Result<()> {
        if !self.raw {
            return Err(malformed("an object range in a stream that is not raw"));
        }
        if body.numslots != SLOTS
            || !body.firstobj.is_multiple_of(SLOTS)
            || body.firstobj >= dnode::MAX_OBJECT
        {
            return Err(malformed(format!("a range of {} objects from {} on", body.numslots, body.firstobj)));
        }
        if self.dataset.objset.ranges() >= MOST_RANGES {
            // Streams do not return to earlier objects, so their state on disk does not change.
            self.spa.sync()?;
            self.dataset.objset.forget_ranges();
        }
        let params = BlockParams { salt: body.salt.0, iv: body.iv.0, mac: body.mac.0 };
        self.dataset.objset.set_range(body.firstobj / SLOTS, params, self.order_of(body.flags));
        Ok(())
    }
}
