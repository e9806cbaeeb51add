//! Bytes that replace a part of a block.

use std::sync::Arc;

use stdx::Buf;

use crate::error::{Error, Result};

/// Parts of a block that are kept without the rest of it. With more of them the whole block is kept.
const MAX_PARTS: usize = 16;
/// They are at most this part of the block.
const SHARE: usize = 4;

/// Bytes over the content of a block on disk, in the order in which they were written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts(Vec<(usize, Arc<[u8]>)>);

impl Parts {
    /// Adds bytes at `skip`; false if there are too many then, and nothing is added.
    pub(super) fn add(&mut self, size: usize, skip: usize, bytes: &[u8]) -> bool {
        let sum = self.0.iter().map(|(_, bytes)| bytes.len()).sum::<usize>().saturating_add(bytes.len());
        let fits = self.0.len() < MAX_PARTS && sum <= size / SHARE;
        if fits {
            self.0.push((skip, bytes.into()));
        }
        fits
    }

    /// The block with these bytes.
    pub(super) fn over(&self, block: Buf) -> Result<Buf> {
        let mut block = block.into_owned();
        match self.0.iter().all(|(skip, bytes)| overwrite(&mut block, *skip, bytes)) {
            true => Ok(block.into()),
            false => Err(Error::corrupt("data block is too short")),
        }
    }
}

/// Copies `bytes` into a block; returns false if they do not fit there.
pub(crate) fn overwrite(block: &mut [u8], skip: usize, bytes: &[u8]) -> bool {
    let target = block.get_mut(skip..).and_then(|b| b.get_mut(..bytes.len()));
    target.is_some_and(|to| {
        to.copy_from_slice(bytes);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_bytes_cover_earlier_ones() {
        let mut parts = Parts::default();
        assert!(parts.add(64, 2, b"abcdef") && parts.add(64, 4, b"XY"));
        assert!(!parts.add(64, 20, &[7; 9]), "more than a quarter");
        assert_eq!(&parts.over(Buf::from(&[b'.'; 10][..])).unwrap()[..], b"..abXYef..");
        assert!(parts.over(Buf::from(&[b'.'; 7][..])).is_err());
        let mut parts = Parts::default();
        assert_eq!((0..20).filter(|_| parts.add(1024, 0, b"a")).count(), MAX_PARTS);
    }
}
