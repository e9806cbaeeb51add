//! Gang headers: a block that found no single place lies in pieces, and this block names them.
//!
//! A header is 512 bytes (three pointers), or with `dynamic_gang_header` as large as the vdev's
//! smallest allocation. The last 40 bytes are a checksum trailer. Source: `zio_gbh_phys_t`, zio.h,
//! OpenZFS 2.3 and 2.4.

use crate::blkptr::BLKPTR_SIZE;
use crate::{Blkptr, Eck, EckPhys, Malformed};

/// Bytes of a header without `dynamic_gang_header`.
#[doc(alias = "SPA_OLD_GANGBLOCKSIZE")]
pub const GANG_SIZE: usize = 512;

/// Pointers in a header of `size` bytes.
#[doc(alias = "gbh_nblkptrs")]
pub fn gang_nblkptrs(size: usize) -> usize {
    size.saturating_sub(EckPhys::SIZE) / BLKPTR_SIZE
}

/// A gang header.
#[doc(alias = "zio_gbh_phys_t")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangHeader {
    /// All pointers, holes included.
    pub blkptrs: Vec<Blkptr>,
    /// The trailer.
    pub tail: Eck,
}

impl GangHeader {
    /// Decodes a whole header block, which has been byte-swapped if need be ([`crate::byteswap::words`],
    /// all 64-bit words but the trailer, which has its own order).
    pub fn from_bytes(block: &[u8]) -> Result<Self, Malformed> {
        if block.len() < GANG_SIZE || block.len() > 1 << 24 {
            return Err(Malformed::new("gang header", format!("{} bytes", block.len())));
        }
        let tail = Eck::from_trailer(block)?;
        let blkptrs = block.chunks_exact(BLKPTR_SIZE).take(gang_nblkptrs(block.len()));
        Ok(Self { blkptrs: blkptrs.filter_map(Blkptr::from_bytes).collect(), tail })
    }

    /// The members, in the order of their data.
    pub fn members(&self) -> impl Iterator<Item = &Blkptr> {
        self.blkptrs.iter().filter(|bp| !bp.is_hole())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endian;

    #[test]
    fn sizes_of_headers() {
        assert_eq!([512, 4096, 16384].map(gang_nblkptrs), [3, 31, 127]);
        let mut block = vec![0; 4096 - EckPhys::SIZE];
        block[3 * 128] = 1;
        block.extend(Eck { endian: Endian::Big, cksum: [0; 4] }.to_bytes());
        let header = GangHeader::from_bytes(&block).unwrap();
        assert_eq!((header.blkptrs.len(), header.members().count()), (31, 1));
    }
}
