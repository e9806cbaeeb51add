//! Dnodes in encrypted datasets (`dnode_phys_t`, dnode.h; `zio_crypt_init_uios_dnode`, OpenZFS 2.3).
//!
//! ```text
//! 0        core          64   block pointers                bonus                  [spill ptr]  end
//! ├── in the clear ───────┼── in the clear ──────────────────┼── encrypted ─────────┼── clear ────┤
//!    authenticated but       authenticated: portable           when its type is and
//!    dn_used, local flags    bits and MAC                      there is one, else
//!                                                              authenticated
//! ```
//!
//! The clear part of a dnode block is authenticated in the order it was written in; within an objset
//! the few fields of more than a byte are authenticated as little-endian numbers.

use std::ops::Range;

use crate::bp::{BLKPTR_SIZE, BpAuth, ByteOrder};
use crate::error::{Error, Result};
use crate::segments::Segments;
use crate::{bytes, is_encrypted_type};

/// Size of a dnode slot.
pub(crate) const DNODE_SIZE: usize = 512;
/// Size of the fields before the first block pointer.
const CORE_SIZE: usize = 64;
const FLAGS: usize = 7;
const USED: Range<usize> = 24..32;
const FLAG_SPILL: u8 = 1 << 2;
/// The only flag that is the same wherever the dataset is received.
#[doc(alias = "DNODE_CRYPT_PORTABLE_FLAGS_MASK")]
const PORTABLE_FLAGS: u8 = FLAG_SPILL;

/// One dnode, with the offsets from its own header.
struct Dnode<'a> {
    bytes: &'a [u8],
    object_type: u8,
    bonus_type: u8,
    has_bonus: bool,
    /// Within `bytes`.
    bonus: Range<usize>,
    /// A spill pointer follows the bonus.
    has_spill: bool,
}

impl<'a> Dnode<'a> {
    /// The dnode at the start of `rest`; `offset` is only for the error.
    fn parse(rest: &'a [u8], offset: usize) -> Result<Self> {
        let bad = Error::Malformed { what: "dnode", offset };
        let [object_type, _, _, pointers, bonus_type, _, _, flags] =
            bytes::array::<8>(rest, 0).ok_or(bad.clone())?;
        let [len0, len1, extra_slots] = bytes::array::<3>(rest, 10).ok_or(bad.clone())?;
        let bytes = rest.get(..DNODE_SIZE * (usize::from(extra_slots) + 1)).ok_or(bad.clone())?;
        let has_spill = flags & FLAG_SPILL != 0;
        let start = CORE_SIZE + BLKPTR_SIZE * usize::from(pointers);
        let end = bytes.len() - if has_spill { BLKPTR_SIZE } else { 0 };
        if start > end {
            return Err(bad);
        }
        let has_bonus = len0 != 0 || len1 != 0;
        Ok(Self { bytes, object_type, bonus_type, has_bonus, bonus: start..end, has_spill })
    }

    fn core(&self) -> [u8; CORE_SIZE] {
        let mut core: [u8; CORE_SIZE] = bytes::array(self.bytes, 0).unwrap_or([0; CORE_SIZE]);
        if let Some(flags) = core.get_mut(FLAGS) {
            *flags &= PORTABLE_FLAGS;
        }
        if let Some(used) = core.get_mut(USED) {
            used.fill(0);
        }
        core
    }

    fn bonus_is_encrypted(&self) -> bool {
        self.object_type != 0 && self.has_bonus && is_encrypted_type(self.bonus_type)
    }

    /// The authenticated part of each block pointer, the spill pointer last.
    fn pointers(&self, version: u64, order: ByteOrder) -> impl Iterator<Item = BpAuth> {
        let direct = self.bytes.get(CORE_SIZE..self.bonus.start).unwrap_or_default();
        let spill = if self.has_spill { self.bytes.get(self.bonus.end..) } else { None };
        let (direct, _) = direct.as_chunks();
        let (spill, _) = spill.unwrap_or_default().as_chunks();
        direct.iter().chain(spill).map(move |bp| BpAuth::new(version, order, bp))
    }
}

/// Finds the parts of a block of dnodes.
pub(crate) fn parse(version: u64, order: ByteOrder, block: &[u8]) -> Result<Segments> {
    let mut parts = Segments::default();
    let mut offset = 0;
    while let Some(rest) = block.get(offset..).filter(|rest| rest.len() >= DNODE_SIZE) {
        let dnode = Dnode::parse(rest, offset)?;
        parts.aad.extend_from_slice(&dnode.core());
        for bp in dnode.pointers(version, order) {
            parts.aad.extend_from_slice(bp.bytes());
        }
        if dnode.bonus_is_encrypted() {
            parts.encrypted.push(offset + dnode.bonus.start..offset + dnode.bonus.end);
        } else {
            parts.aad.extend_from_slice(dnode.bytes.get(dnode.bonus.clone()).unwrap_or_default());
        }
        offset += dnode.bytes.len();
    }
    Ok(parts)
}

/// Feeds the authenticated part of a dnode within an objset to `update`. Bonus buffers don't count.
#[doc(alias = "zio_crypt_do_dnode_hmac_updates")]
pub(crate) fn objset_auth(
    version: u64,
    order: ByteOrder,
    dnode: &[u8; DNODE_SIZE],
    mut update: impl FnMut(&[u8]),
) -> Result<()> {
    // The dnodes of an objset are always single slots.
    let parsed = Dnode::parse(dnode, 0)?;
    let mut core = parsed.core();
    if order == ByteOrder::Big {
        // dn_datablkszsec, dn_bonuslen, dn_maxblkid; dn_used is zero by now.
        for field in [8..10, 10..12, 16..24] {
            if let Some(bytes) = core.get_mut(field) {
                bytes.reverse();
            }
        }
    }
    update(&core);
    for bp in parsed.pointers(version, order) {
        update(bp.bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dnode(pointers: u8, bonus_type: u8, bonus_len: u16, flags: u8, extra: u8) -> Vec<u8> {
        let mut d = vec![0; DNODE_SIZE * (usize::from(extra) + 1)];
        d[..8].copy_from_slice(&[19, 17, 1, pointers, bonus_type, 0, 0, flags]);
        d[10..12].copy_from_slice(&bonus_len.to_le_bytes());
        d[12] = extra;
        d
    }

    #[test]
    fn parts_of_small_and_large_dnodes() {
        let mut block = dnode(1, 44, 168, 0, 0);
        block.extend(dnode(3, 44, 8, FLAG_SPILL, 1)); // spill in the last 128 bytes of 1,024
        block.extend(vec![0; DNODE_SIZE]); // free: 448 bytes of authenticated "bonus"
        block.extend(dnode(1, 17, 264, 0, 0)); // znode bonus: authenticated only
        let parts = parse(1, ByteOrder::Little, &block).unwrap();
        assert_eq!(parts.encrypted, [192..512, 512 + 448..512 + 896]);
        assert_eq!(parts.aad.len(), (64 + 32) + (64 + 4 * 32) + 512 + (64 + 32 + 320));
    }

    #[test]
    fn impossible_dnodes_are_errors() {
        for bad in [dnode(4, 44, 8, 0, 0), dnode(3, 44, 8, FLAG_SPILL, 0), dnode(255, 0, 0, 0, 31)] {
            assert!(matches!(parse(1, ByteOrder::Little, &bad), Err(Error::Malformed { .. })));
        }
        let mut cut = dnode(1, 44, 8, 0, 3);
        cut.truncate(1024);
        assert!(parse(1, ByteOrder::Little, &cut).is_err());
    }
}
