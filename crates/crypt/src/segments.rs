//! Which parts of a block are encrypted and which are only authenticated.

use std::ops::Range;

use zeroize::Zeroizing;

use crate::aead::Aead;
use crate::error::{Error, Result};
use crate::{Iv, Mac};

/// The parts of one block, in the order in which the cipher sees them. Ranges lie within the block and
/// do not overlap: parsers take them from left to right.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    /// Additional authenticated data, assembled.
    pub aad: Vec<u8>,
    /// Encrypted byte ranges.
    pub encrypted: Vec<Range<usize>>,
}

impl Segments {
    /// Encrypts the ranges in place and returns the MAC.
    pub(crate) fn seal(&self, aead: &Aead, iv: &Iv, block: &mut [u8]) -> Result<Mac> {
        let mut parts = self.gather(block)?;
        let mac = aead.seal(iv, &self.aad, &mut parts)?;
        self.scatter(&parts, block)?;
        Ok(mac)
    }

    /// Decrypts the ranges in place; the block is unchanged when the MAC doesn't match.
    pub(crate) fn open(&self, aead: &Aead, iv: &Iv, mac: &Mac, block: &mut [u8]) -> Result<()> {
        let mut parts = self.gather(block)?;
        aead.open(iv, &self.aad, &mut parts, mac)?;
        self.scatter(&parts, block)
    }

    fn gather(&self, block: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        let len = self.encrypted.iter().map(ExactSizeIterator::len).sum();
        let mut parts = Zeroizing::new(Vec::with_capacity(len));
        for range in &self.encrypted {
            parts.extend_from_slice(block.get(range.clone()).ok_or_else(|| outside(range))?);
        }
        Ok(parts)
    }

    fn scatter(&self, parts: &[u8], block: &mut [u8]) -> Result<()> {
        let mut rest = parts;
        for range in &self.encrypted {
            let to = block.get_mut(range.clone()).ok_or_else(|| outside(range))?;
            let (now, later) = rest.split_at_checked(to.len()).ok_or_else(|| outside(range))?;
            to.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }
}

fn outside(range: &Range<usize>) -> Error {
    Error::Malformed { what: "encrypted", offset: range.start }
}
