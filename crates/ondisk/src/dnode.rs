//! Dnodes: the head of every object.
//!
//! ```text
//! 0   type indblkshift nlevels nblkptr bonustype checksum compress flags    (a byte each)
//! 8   datablkszsec:16 bonuslen:16 extra_slots:8 reserved:24
//! 16  maxblkid:64  used:64  reserved:4*64
//! 64  1 to 3 block pointers, then the bonus buffer; with the spill flag a pointer at the very end
//! ```
//!
//! A dnode takes `1 + extra_slots` slots of 512 bytes in its block, 16 KiB at most. Source:
//! `dnode_phys_t`, dnode.h, OpenZFS 2.3.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::blkptr::BLKPTR_SIZE;
use crate::{Blkptr, MAX_BLOCK_SIZE, MIN_BLOCK_SHIFT, Malformed, ObjectType};

/// log2 of a dnode slot.
pub const DNODE_SHIFT: u32 = 9;
/// Bytes of a dnode slot.
pub const DNODE_MIN_SIZE: usize = 512;
/// Bytes of the largest dnode.
pub const DNODE_MAX_SIZE: usize = 16384;
/// Bytes of a block of dnodes.
pub const DNODE_BLOCK_SIZE: usize = 16384;
/// Bytes before the block pointers.
pub const DNODE_CORE_SIZE: usize = 64;
/// Most block pointers in a dnode.
pub const MAX_NBLKPTR: usize = 3;
/// log2 of the indirect blocks of new objects.
#[doc(alias = "DN_MAX_INDBLKSHIFT")]
pub const DEFAULT_INDIRECT_SHIFT: u8 = 17;
/// First object number that can't exist.
pub const MAX_OBJECT: u64 = 1 << 48;
/// Most levels that [`Dnode::from_bytes`] accepts; OpenZFS never makes more than 12, old ones 20.
pub const MAX_LEVELS: u8 = 30;

/// The fixed head of a dnode as it lies on disk.
#[doc(alias = "dnode_phys_t")]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[expect(missing_docs, reason = "explained at Dnode's fields")]
pub struct DnodePhys {
    pub object_type: u8,
    pub indblkshift: u8,
    pub nlevels: u8,
    pub nblkptr: u8,
    pub bonustype: u8,
    pub checksum: u8,
    pub compress: u8,
    pub flags: u8,
    pub datablkszsec: U16,
    pub bonuslen: U16,
    pub extra_slots: u8,
    pub pad2: [u8; 3],
    pub maxblkid: U64,
    pub used: U64,
    pub pad3: [U64; 4],
}

const _: () = assert!(size_of::<DnodePhys>() == DNODE_CORE_SIZE && align_of::<DnodePhys>() == 1);
const _: () = assert!(std::mem::offset_of!(DnodePhys, maxblkid) == 16);

/// Flag bits of a dnode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DnodeFlags(pub u8);

impl DnodeFlags {
    /// `used` is in bytes, else in 512-byte sectors.
    pub const USED_BYTES: Self = Self(1);
    /// Its space is counted in the user-used objects.
    pub const USERUSED_ACCOUNTED: Self = Self(2);
    /// A spill block pointer lies at the end.
    pub const SPILL_BLKPTR: Self = Self(4);
    /// Itself is counted in the user-used objects.
    pub const USEROBJUSED_ACCOUNTED: Self = Self(8);

    /// Whether all bits of `flag` are set.
    pub fn has(self, flag: Self) -> bool {
        self.0 & flag.0 == flag.0
    }
}

/// A dnode in core. A free slot has type [`ObjectType::NONE`] and zeros elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dnode {
    /// Type of the object; `NONE` when free.
    pub object_type: ObjectType,
    /// log2 of an indirect block.
    pub indblkshift: u8,
    /// 1: the pointers here lead to data.
    pub nlevels: u8,
    /// Type of the bonus buffer.
    pub bonustype: ObjectType,
    /// Raw checksum function for new blocks, 0 inherits.
    pub checksum: u8,
    /// Raw compression function for new blocks, 0 inherits.
    pub compress: u8,
    /// Flags.
    pub flags: DnodeFlags,
    /// Data block size in 512-byte sectors.
    pub datablkszsec: u16,
    /// Bonus length as stored; [`Self::bonus`] may be shorter in a damaged dnode with a spill block.
    pub bonuslen: u16,
    /// Slots beyond the first.
    pub extra_slots: u8,
    /// Reserved; kept verbatim.
    pub pad2: [u8; 3],
    /// Largest block number allocated.
    pub maxblkid: u64,
    /// Raw space count; see [`Self::used_bytes`].
    pub used: u64,
    /// Reserved; kept verbatim.
    pub pad3: [u64; 4],
    /// 1 to 3 pointers.
    nblkptr: u8,
    blkptr: [Blkptr; MAX_NBLKPTR],
    bonus: Box<[u8]>,
    /// The bytes behind the bonus, where more was encrypted than is in use; empty when they are zeros.
    behind_bonus: Box<[u8]>,
    spill: Option<Blkptr>,
}

/// A dnode in use as its bytes hold it, checked: for those of which little is wanted.
#[derive(Clone, Copy, Debug)]
pub struct DnodeRef<'a> {
    phys: &'a DnodePhys,
    pointers: &'a [u8],
    bonus: &'a [u8],
    behind_bonus: &'a [u8],
    /// The bytes of the spill pointer.
    spill: Option<&'a [u8]>,
}

impl<'a> DnodeRef<'a> {
    /// Checks the dnode at the start of `bytes`, which must hold all its slots; `None`: the slot is free.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let (phys, _) = DnodePhys::ref_from_prefix(bytes)
            .map_err(|_| Malformed::short("dnode", bytes.len(), DNODE_CORE_SIZE))?;
        if phys.object_type == ObjectType::NONE.raw() {
            return Ok(None);
        }
        verify(phys)?;
        let size = (usize::from(phys.extra_slots) + 1) * DNODE_MIN_SIZE;
        let slots = bytes.get(..size).ok_or_else(|| Malformed::short("dnode", bytes.len(), size))?;
        let (_, tail) = slots.split_at_checked(DNODE_CORE_SIZE).unwrap_or((&[], &[]));
        Self::from_parts(phys, tail).map(Some)
    }

    fn from_parts(phys: &'a DnodePhys, tail: &'a [u8]) -> Result<Self, Malformed> {
        let flags = DnodeFlags(phys.flags);
        let mut nblkptr = phys.nblkptr;
        if flags.has(DnodeFlags::SPILL_BLKPTR)
            && nblkptr > 1
            && (usize::from(nblkptr) + 1) * BLKPTR_SIZE > tail.len()
        {
            // A redaction list of OpenZFS with many snapshots has no bonus, three pointers and a spill pointer, which is
            // written over the third one.
            nblkptr -= 1;
        }
        let (pointers, mut bonus) = tail
            .split_at_checked(usize::from(nblkptr) * BLKPTR_SIZE)
            .ok_or_else(|| Malformed::new("dnode", "pointers past its end"))?;
        let mut spill = None;
        if flags.has(DnodeFlags::SPILL_BLKPTR) {
            let at = bonus.len().checked_sub(BLKPTR_SIZE);
            let (head, raw) = at
                .and_then(|at| bonus.split_at_checked(at))
                .ok_or_else(|| Malformed::new("dnode", "no room for its spill pointer"))?;
            (bonus, spill) = (head, Some(raw));
        }
        let bonuslen = usize::from(phys.bonuslen.get());
        if spill.is_none() && bonuslen > bonus.len() {
            return Err(Malformed::new(
                "dnode",
                format!("bonus of {bonuslen} bytes where {} fit", bonus.len()),
            ));
        }
        let (bonus, behind_bonus) = bonus.split_at_checked(bonuslen).unwrap_or((bonus, &[]));
        Ok(Self { phys, pointers, bonus, behind_bonus, spill })
    }

    /// Its fields.
    pub const fn phys(&self) -> &'a DnodePhys {
        self.phys
    }

    /// Size of a data block in bytes.
    pub fn datablksz(&self) -> u64 {
        u64::from(self.phys.datablkszsec.get()) << MIN_BLOCK_SHIFT
    }

    /// One past the last byte of its last block.
    pub fn max_offset(&self) -> u64 {
        self.phys.maxblkid.get().saturating_add(1).saturating_mul(self.datablksz())
    }

    /// Number of top block pointers.
    pub const fn nblkptr(&self) -> usize {
        self.pointers.len() / BLKPTR_SIZE
    }

    /// Its top block pointers.
    pub fn blkptrs(&self) -> impl Iterator<Item = Blkptr> + use<'a> {
        self.pointers.chunks_exact(BLKPTR_SIZE).filter_map(Blkptr::from_bytes)
    }

    /// The spill block's pointer.
    pub fn spill(&self) -> Option<Blkptr> {
        self.spill.and_then(Blkptr::from_bytes)
    }

    /// The dnode in core.
    pub fn to_dnode(&self) -> Dnode {
        let phys = self.phys;
        let mut blkptr = [Blkptr::default(); MAX_NBLKPTR];
        blkptr.iter_mut().zip(self.blkptrs()).for_each(|(to, bp)| *to = bp);
        let behind = self.behind_bonus;
        let behind = if behind.iter().all(|&byte| byte == 0) { &[] } else { behind };
        Dnode {
            object_type: ObjectType(phys.object_type),
            indblkshift: phys.indblkshift,
            nlevels: phys.nlevels,
            bonustype: ObjectType(phys.bonustype),
            checksum: phys.checksum,
            compress: phys.compress,
            flags: DnodeFlags(phys.flags),
            datablkszsec: phys.datablkszsec.get(),
            bonuslen: phys.bonuslen.get(),
            extra_slots: phys.extra_slots,
            pad2: phys.pad2,
            maxblkid: phys.maxblkid.get(),
            used: phys.used.get(),
            pad3: phys.pad3.map(U64::get),
            nblkptr: u8::try_from(self.nblkptr()).unwrap_or(0),
            blkptr,
            bonus: self.bonus.into(),
            behind_bonus: behind.into(),
            spill: self.spill(),
        }
    }
}

impl Dnode {
    /// Decodes and checks the dnode at the start of `bytes`, which must hold all its slots.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(DnodeRef::from_bytes(bytes)?.map_or_else(Self::default, |found| found.to_dnode()))
    }

    /// Whether the slot is free.
    pub fn is_free(&self) -> bool {
        self.object_type == ObjectType::NONE
    }

    /// Slots of 512 bytes that it takes.
    pub fn slots(&self) -> usize {
        usize::from(self.extra_slots) + 1
    }

    /// Bytes that it takes in its block.
    pub fn size(&self) -> usize {
        self.slots() * DNODE_MIN_SIZE
    }

    /// Its top block pointers.
    pub fn blkptrs(&self) -> &[Blkptr] {
        self.blkptr.get(..usize::from(self.nblkptr)).unwrap_or(&self.blkptr)
    }

    /// Number of top block pointers.
    pub fn nblkptr(&self) -> usize {
        self.blkptrs().len()
    }

    /// The bonus buffer.
    pub fn bonus(&self) -> &[u8] {
        &self.bonus
    }

    /// The bonus buffer, for changes in place.
    pub fn bonus_mut(&mut self) -> &mut [u8] {
        &mut self.bonus
    }

    /// The spill block's pointer.
    pub fn spill(&self) -> Option<&Blkptr> {
        self.spill.as_ref()
    }

    /// Maximum size of the bonus buffer: the bytes of the slots without pointers and spill pointer.
    #[doc(alias = "DN_MAX_BONUS_LEN")]
    pub fn max_bonus(&self) -> usize {
        let spill = if self.spill.is_some() { BLKPTR_SIZE } else { 0 };
        self.size().saturating_sub(DNODE_CORE_SIZE + usize::from(self.nblkptr) * BLKPTR_SIZE + spill)
    }

    /// A dnode without blocks. `slots` of 512 bytes, `blocksize` bytes a data block; it has as many pointers
    /// as a bonus of `bonuslen` bytes leaves room for, one to three.
    pub fn new(
        object_type: ObjectType,
        blocksize: u64,
        slots: usize,
        bonustype: ObjectType,
        bonuslen: usize,
    ) -> Self {
        let extra_slots = u8::try_from(slots.clamp(1, DNODE_MAX_SIZE / DNODE_MIN_SIZE) - 1).unwrap_or(0);
        let sectors = blocksize >> MIN_BLOCK_SHIFT;
        assert!(sectors > 0 && blocksize <= MAX_BLOCK_SIZE, "a data block has 512 bytes to 16 MiB");
        let room = slots.max(1) * DNODE_MIN_SIZE - DNODE_CORE_SIZE;
        assert!(bonuslen + BLKPTR_SIZE <= room, "a bonus fits its dnode");
        let nblkptr = match bonustype {
            // System attributes grow: they get all the room there is but one pointer.
            ObjectType::SA => 1,
            _ => ((room - bonuslen) / BLKPTR_SIZE).min(MAX_NBLKPTR),
        };
        Self {
            object_type,
            indblkshift: DEFAULT_INDIRECT_SHIFT,
            nlevels: 1,
            bonustype,
            datablkszsec: u16::try_from(sectors).unwrap_or(u16::MAX),
            bonuslen: u16::try_from(bonuslen).unwrap_or(0),
            flags: DnodeFlags::USED_BYTES,
            extra_slots,
            nblkptr: u8::try_from(nblkptr).unwrap_or(1),
            bonus: vec![0; bonuslen].into(),
            ..Self::default()
        }
    }

    /// Sets the top block pointers; there are as many as the dnode has room for.
    pub fn set_blkptr(&mut self, index: usize, bp: Blkptr) {
        assert!(index < usize::from(self.nblkptr), "the dnode has that pointer");
        if let Some(slot) = self.blkptr.get_mut(index) {
            *slot = bp;
        }
    }

    /// Replaces the bonus buffer. It may not be longer than [`Dnode::max_bonus`].
    pub fn set_bonus(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.max_bonus(), "a bonus fits its dnode");
        self.bonuslen = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.bonus = bytes.into();
        self.behind_bonus = Box::default();
    }

    /// Replaces the bonus buffer by encrypted bytes: all that there is room for was encrypted ([`Dnode::max_bonus`]), and
    /// the first `len` are in use.
    pub fn set_sealed_bonus(&mut self, bytes: &[u8], len: usize) {
        let (bonus, behind) = bytes.split_at_checked(len).unwrap_or((bytes, &[]));
        assert!(bytes.len() <= self.max_bonus(), "a bonus fits its dnode");
        self.set_bonus(bonus);
        self.behind_bonus = behind.into();
    }

    /// Sets or clears the spill block's pointer, and its flag. The bonus must leave room for it.
    pub fn set_spill(&mut self, bp: Option<Blkptr>) {
        self.spill = bp;
        self.flags.0 &= !DnodeFlags::SPILL_BLKPTR.0;
        if bp.is_some() {
            self.flags.0 |= DnodeFlags::SPILL_BLKPTR.0;
            assert!(self.bonus.len() <= self.max_bonus(), "the bonus leaves room for a spill pointer");
        }
    }

    /// Bytes of a data block.
    pub fn datablksz(&self) -> u64 {
        u64::from(self.datablkszsec) << MIN_BLOCK_SHIFT
    }

    /// log2 of the data block size, when it is a power of two.
    pub fn datablkshift(&self) -> Option<u32> {
        let size = self.datablksz();
        size.is_power_of_two().then(|| size.trailing_zeros())
    }

    /// log2 of the pointers in an indirect block.
    #[doc(alias = "dn_indblkshift")]
    pub fn blocks_per_indirect_shift(&self) -> u32 {
        u32::from(self.indblkshift).saturating_sub(BLKPTR_SIZE.trailing_zeros())
    }

    /// Bytes of an indirect block.
    pub fn indirect_size(&self) -> u64 {
        1u64.checked_shl(u32::from(self.indblkshift)).unwrap_or(0)
    }

    /// Disk space used by the object, in bytes.
    #[doc(alias = "DN_USED_BYTES")]
    pub fn used_bytes(&self) -> u64 {
        if self.flags.has(DnodeFlags::USED_BYTES) { self.used } else { self.used.saturating_mul(512) }
    }

    /// Bytes up to the end of the last allocated block.
    pub fn max_offset(&self) -> u64 {
        self.maxblkid.saturating_add(1).saturating_mul(self.datablksz())
    }

    /// Writes the dnode over its slots; false (and nothing written) when `out` is too short.
    pub fn write_to(&self, out: &mut [u8]) -> bool {
        let Some(out) = out.get_mut(..self.size()) else { return false };
        out.fill(0);
        if self.is_free() {
            return true;
        }
        let Some((head, tail)) = out.split_at_mut_checked(DNODE_CORE_SIZE) else { return false };
        head.copy_from_slice(self.phys().as_bytes());
        let (pointers, mut rest) = tail.split_at_mut(tail.len().min(self.nblkptr() * BLKPTR_SIZE));
        for (to, bp) in pointers.as_chunks_mut::<BLKPTR_SIZE>().0.iter_mut().zip(self.blkptrs()) {
            *to = bp.to_bytes();
        }
        for part in [&self.bonus, &self.behind_bonus] {
            let (to, behind) = rest.split_at_mut(rest.len().min(part.len()));
            to.copy_from_slice(part.get(..to.len()).unwrap_or_default());
            rest = behind;
        }
        if let (Some(bp), Some(last)) = (&self.spill, tail.last_chunk_mut::<BLKPTR_SIZE>()) {
            *last = bp.to_bytes();
        }
        true
    }

    fn phys(&self) -> DnodePhys {
        DnodePhys {
            object_type: self.object_type.raw(),
            indblkshift: self.indblkshift,
            nlevels: self.nlevels,
            nblkptr: self.nblkptr,
            bonustype: self.bonustype.raw(),
            checksum: self.checksum,
            compress: self.compress,
            flags: self.flags.0,
            datablkszsec: self.datablkszsec.into(),
            bonuslen: self.bonuslen.into(),
            extra_slots: self.extra_slots,
            pad2: self.pad2,
            maxblkid: self.maxblkid.into(),
            used: self.used.into(),
            pad3: self.pad3.map(U64::new),
        }
    }
}

fn verify(phys: &DnodePhys) -> Result<(), Malformed> {
    let bad = |detail: String| Err(Malformed::new("dnode", detail));
    if !ObjectType(phys.object_type).is_valid() {
        return bad(format!("unknown type {}", phys.object_type));
    }
    if !ObjectType(phys.bonustype).is_valid() {
        return bad(format!("unknown bonus type {}", phys.bonustype));
    }
    if !(1..=MAX_LEVELS).contains(&phys.nlevels) {
        return bad(format!("{} levels", phys.nlevels));
    }
    // Fewer than two pointers an indirect block would never reach the data; 16 MiB is the largest block.
    if phys.nlevels > 1 && !(8..=24).contains(&phys.indblkshift) {
        return bad(format!("indirect block shift {}", phys.indblkshift));
    }
    if !(1..=MAX_NBLKPTR as u8).contains(&phys.nblkptr) {
        return bad(format!("{} block pointers", phys.nblkptr));
    }
    let sectors = u64::from(phys.datablkszsec.get());
    if sectors == 0 || sectors << MIN_BLOCK_SHIFT > MAX_BLOCK_SIZE {
        return bad(format!("data block of {sectors} sectors"));
    }
    if usize::from(phys.extra_slots) >= DNODE_MAX_SIZE / DNODE_MIN_SIZE {
        return bad(format!("{} extra slots", phys.extra_slots));
    }
    Ok(())
}

/// Walks the dnodes of a block: each item is the slot number and the bytes from that slot on, as
/// far as the dnode claims (clipped to the block). Interior slots of large dnodes are passed over.
pub fn slots(block: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut slot = 0;
    std::iter::from_fn(move || {
        let rest = block.get(slot * DNODE_MIN_SIZE..).filter(|r| r.len() >= DNODE_MIN_SIZE)?;
        let (phys, _) = DnodePhys::ref_from_prefix(rest).ok()?;
        let free = phys.object_type == ObjectType::NONE.raw();
        let count = if free { 1 } else { usize::from(phys.extra_slots) + 1 };
        let item = (slot, rest.get(..count * DNODE_MIN_SIZE).unwrap_or(rest));
        slot += count;
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A redaction list of OpenZFS with many snapshots: three pointers, no bonus, and the spill pointer over the third.
    #[test]
    fn a_spill_pointer_over_the_last_pointer_takes_its_place() {
        let kind = ObjectType::newtype(crate::Byteswap::Uint64, true, false);
        let mut dnode = Dnode::new(kind, 128 << 10, 1, ObjectType::SA, 0);
        dnode.set_spill(Some(Blkptr::redacted(512, kind, 7)));
        let mut bytes = [0; DNODE_MIN_SIZE];
        assert!(dnode.write_to(&mut bytes));
        // dn_nblkptr
        bytes[3] = 3;
        let read = Dnode::from_bytes(&bytes).unwrap();
        assert_eq!((read.nblkptr(), read.spill().map(Blkptr::logical_birth)), (2, Some(7)));
        assert!(read.blkptrs().iter().all(Blkptr::is_hole));
    }
}
