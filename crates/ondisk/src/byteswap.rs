//! Converts a block of the other byte order to little-endian, in place, by the type of its content.
//!
//! Every function accepts any bytes: sizes and counts in a damaged block never lead past its end. System
//! attributes are not here: see [`crate::sa::to_little_endian`].

use crate::acl::{self, ACE_SPACE, ACL_VERSION_FUID, AclPhys, OLD_ACE_SIZE};
use crate::blkptr::BLKPTR_SIZE;
use crate::dnode::{DNODE_CORE_SIZE, DNODE_MIN_SIZE, MAX_NBLKPTR};
use crate::objset::{OBJSET_SIZES, ZilHeader};
use crate::zap;
use crate::znode::ZnodePhys;
use crate::{Byteswap, DnodeFlags, ObjectType};

/// Width of the integers in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "self-evident")]
pub enum IntWidth {
    U16,
    U32,
    U64,
}

/// Swaps an array of integers; a tail shorter than one is left alone.
pub fn words(bytes: &mut [u8], width: IntWidth) {
    match width {
        IntWidth::U16 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|w| w.reverse()),
        IntWidth::U32 => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|w| w.reverse()),
        IntWidth::U64 => bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|w| w.reverse()),
    }
}

fn words_at(bytes: &mut [u8], start: usize, len: usize, width: IntWidth) {
    let end = start.saturating_add(len).min(bytes.len());
    if let Some(part) = bytes.get_mut(start..end) {
        words(part, width);
    }
}

/// Swaps a block (or bonus buffer) according to its type.
pub fn swap(kind: Byteswap, bytes: &mut [u8]) {
    match kind {
        Byteswap::Uint8 => {}
        Byteswap::Uint16 => words(bytes, IntWidth::U16),
        Byteswap::Uint32 => words(bytes, IntWidth::U32),
        Byteswap::Uint64 => words(bytes, IntWidth::U64),
        Byteswap::Zap => zap(bytes),
        Byteswap::Dnode => dnodes(bytes),
        Byteswap::Objset => objset(bytes),
        Byteswap::Znode => znode(bytes),
        Byteswap::OldAcl => old_acl(bytes),
        Byteswap::Acl => acl(bytes),
    }
}

/// Swaps a data block of this type; indirect blocks are arrays of words whatever their type.
/// False, and nothing swapped, when the type is unknown.
pub fn swap_block(object_type: ObjectType, level: u8, bytes: &mut [u8]) -> bool {
    if level > 0 {
        words(bytes, IntWidth::U64);
        return true;
    }
    let Some(kind) = object_type.byteswap() else { return false };
    swap(kind, bytes);
    true
}

/// Swaps a block of dnodes. Free slots become all zero.
#[doc(alias = "dnode_buf_byteswap")]
pub fn dnodes(bytes: &mut [u8]) {
    let mut rest = bytes;
    while rest.len() >= DNODE_MIN_SIZE {
        let slots = dnode_slots(rest).min(rest.len() / DNODE_MIN_SIZE);
        let Some((this, next)) = rest.split_at_mut_checked(slots * DNODE_MIN_SIZE) else { return };
        dnode(this);
        rest = next;
    }
}

fn dnode_slots(bytes: &[u8]) -> usize {
    let extra = bytes.get(12).copied().unwrap_or(0);
    if bytes.first() == Some(&ObjectType::NONE.raw()) { 1 } else { usize::from(extra) + 1 }
}

/// Swaps one dnode, which has all of `bytes`; its bonus buffer by the bonus type.
fn dnode(bytes: &mut [u8]) {
    let Some((core, tail)) = bytes.split_first_chunk_mut::<DNODE_CORE_SIZE>() else { return };
    let &mut [object_type, _, _, nblkptr, bonustype, _, _, flags, ..] = core;
    if object_type == ObjectType::NONE.raw() {
        bytes.fill(0);
        return;
    }
    words_at(core, 8, 4, IntWidth::U16);
    // The reserved words after maxblkid and used are left alone, as OpenZFS does.
    words_at(core, 16, 16, IntWidth::U64);
    let has_bonus = core.get(10..12) != Some(&[0, 0]);
    let pointers = usize::from(nblkptr).min(MAX_NBLKPTR) * BLKPTR_SIZE;
    let spill = if DnodeFlags(flags).has(DnodeFlags::SPILL_BLKPTR) { BLKPTR_SIZE } else { 0 };
    let Some((pointers, rest)) = tail.split_at_mut_checked(pointers) else { return };
    words(pointers, IntWidth::U64);
    let Some((bonus, spill)) = rest.len().checked_sub(spill).and_then(|at| rest.split_at_mut_checked(at))
    else {
        return;
    };
    words(spill, IntWidth::U64);
    if has_bonus && let Some(kind) = ObjectType(bonustype).byteswap() {
        // No type that can be a bonus nests dnodes, so a hostile one must not make us recurse.
        if !matches!(kind, Byteswap::Dnode | Byteswap::Objset) {
            swap(kind, bonus);
        }
    }
}

/// Swaps an object set of any generation.
#[doc(alias = "dmu_objset_byteswap")]
pub fn objset(bytes: &mut [u8]) {
    let size = bytes.len();
    let [v1, v2, v3] = OBJSET_SIZES;
    dnode_at(bytes, 0);
    // Intent log header, type and flags; the MACs after them are bytes.
    words_at(bytes, DNODE_MIN_SIZE, ZilHeader::SIZE + 16, IntWidth::U64);
    if size >= v2 {
        dnode_at(bytes, v1);
        dnode_at(bytes, v1 + DNODE_MIN_SIZE);
    }
    if size >= v3 {
        dnode_at(bytes, v2);
    }
}

fn dnode_at(bytes: &mut [u8], at: usize) {
    if let Some(slot) = bytes.get_mut(at..at + DNODE_MIN_SIZE) {
        dnode(slot);
    }
}

/// Swaps a block of a ZAP: micro, leaf, or words (header and pointer tables).
#[doc(alias = "zap_byteswap")]
pub fn zap(bytes: &mut [u8]) {
    match bytes.first_chunk().map(|raw| u64::from_be_bytes(*raw)) {
        Some(zap::BLOCK_MICRO) => micro_zap(bytes),
        Some(zap::BLOCK_LEAF) => zap::swap_leaf(bytes),
        _ => words(bytes, IntWidth::U64),
    }
}

fn micro_zap(bytes: &mut [u8]) {
    let (entries, _) = bytes.as_chunks_mut::<64>();
    let Some((header, entries)) = entries.split_first_mut() else { return };
    words_at(header, 0, 24, IntWidth::U64);
    for entry in entries {
        words_at(entry, 0, 8, IntWidth::U64);
        words_at(entry, 8, 4, IntWidth::U32);
    }
}

/// Swaps a znode in a bonus buffer; the following part (a link target) is bytes.
#[doc(alias = "zfs_znode_byteswap")]
pub fn znode(bytes: &mut [u8]) {
    let Some(znode) = bytes.first_chunk_mut::<{ ZnodePhys::SIZE }>() else { return };
    let Some((words64, acl_phys)) = znode.split_at_mut_checked(ZnodePhys::SIZE - AclPhys::SIZE) else {
        return;
    };
    words(words64, IntWidth::U64);
    words_at(acl_phys, 0, 8, IntWidth::U64);
    words_at(acl_phys, 8, 4, IntWidth::U32);
    words_at(acl_phys, 12, 4, IntWidth::U16);
    let version = acl_phys.get(12..14).map(|v| v.iter().rev().fold(0u16, |n, &b| n << 8 | u16::from(b)));
    let Some(aces) = acl_phys.last_chunk_mut::<ACE_SPACE>() else { return };
    if version == Some(ACL_VERSION_FUID) { acl(aces) } else { old_acl(aces) }
}

/// Swaps entries of version 0: who:32 mask:32 flags:16 type:16.
#[doc(alias = "zfs_oldacl_byteswap")]
pub fn old_acl(bytes: &mut [u8]) {
    for ace in bytes.as_chunks_mut::<OLD_ACE_SIZE>().0 {
        words_at(ace, 0, 8, IntWidth::U32);
        words_at(ace, 8, 4, IntWidth::U16);
    }
}

/// Swaps entries of version 1: type:16 flags:16 mask:32, then by type who:64 and two object types.
#[doc(alias = "zfs_acl_byteswap")]
pub fn acl(bytes: &mut [u8]) {
    let mut rest = bytes;
    while let Some((head, tail)) = rest.split_first_chunk_mut::<8>() {
        words_at(head, 0, 4, IntWidth::U16);
        words_at(head, 4, 4, IntWidth::U32);
        let &mut [t0, t1, f0, f1, ..] = head;
        let size = acl::ace_size(u16::from_le_bytes([t0, t1]), u16::from_le_bytes([f0, f1]));
        if size > 8 && tail.len() >= 8 {
            words_at(tail, 0, 8, IntWidth::U64);
        }
        let Some((_, next)) = tail.split_at_mut_checked(size - 8) else { return };
        rest = next;
    }
}
