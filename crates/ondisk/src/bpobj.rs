//! Block lists (`bpobj`): an object whose data is an array of block pointers and whose bonus buffer
//! counts them. Deadlists, livelists and lists of blocks to free are made of them.
//!
//! The bonus buffer grew over time: 16, 32, 48, 56 bytes. Source: bpobj.h, OpenZFS 2.3.

use crate::words::word_struct;
use crate::{Blkptr, Malformed};

word_struct! {
    /// A block list's bonus buffer.
    #[doc(alias = "bpobj_phys_t")]
    BpobjPhys = "bpobj", 56 bytes, at least 16 {
        /// Pointers in the object.
        num_blkptrs: u64,
        /// Bytes allocated, lists below included.
        bytes: u64,
        /// Bytes before redundancy.
        comp: u64,
        /// Bytes before compression.
        uncomp: u64,
        /// Object that holds the numbers of the lists below; 0: none.
        subobjs: u64,
        /// Number of lists below.
        num_subobjs: u64,
        /// Entries that are frees (livelists).
        num_freed: u64,
    }
}

/// A block list's bonus buffer, with the fields of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bpobj {
    /// The fields; those the generation lacks are 0.
    pub phys: BpobjPhys,
    /// `comp` and `uncomp` are kept.
    pub have_comp: bool,
    /// There may be lists below.
    pub have_subobj: bool,
    /// `num_freed` is kept.
    pub have_freed: bool,
}

impl Bpobj {
    /// Decodes a bonus buffer of any generation.
    pub fn from_bonus(bonus: &[u8]) -> Result<Self, Malformed> {
        let phys = BpobjPhys::from_bytes(bonus)?;
        Ok(Self {
            phys,
            have_comp: bonus.len() > 16,
            have_subobj: bonus.len() > 32,
            have_freed: bonus.len() > 48,
        })
    }
}

/// A pointer as a block list stores it: without its fill count, without its checksum (unless it is of a block
/// in a dedup table), without an embedded payload. `freed` marks a free in a livelist.
#[doc(alias = "bpobj_enqueue")]
pub fn listed(bp: &Blkptr, freed: bool) -> Blkptr {
    let mut words = *bp.words();
    for (i, word) in words.iter_mut().enumerate() {
        match i {
            // Properties and births.
            6 | 10 => {}
            11 => *word = u64::from(freed),
            12.. if bp.dedup() && !bp.is_embedded() => {}
            12.. => *word = 0,
            _ if bp.is_embedded() => *word = 0,
            _ => {}
        }
    }
    Blkptr::from_words(words)
}

/// Whether an entry of a livelist is a free (else an allocation).
#[doc(alias = "BP_GET_FREE")]
pub fn is_free_entry(bp: &Blkptr) -> bool {
    bp.words().get(11).is_some_and(|fill| fill & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_generations() {
        for (len, flags) in
            [(16, [false; 3]), (32, [true, false, false]), (48, [true, true, false]), (56, [true; 3])]
        {
            let bpo = Bpobj::from_bonus(&[1; 56][..len]).unwrap();
            assert_eq!([bpo.have_comp, bpo.have_subobj, bpo.have_freed], flags);
        }
        assert!(Bpobj::from_bonus(&[0; 15]).is_err());
    }
}
