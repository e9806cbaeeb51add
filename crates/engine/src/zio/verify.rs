//! Is this the block? Checksums of block pointers, and of blocks that carry their own.

use std::sync::Arc;

use checksum::{Algorithm, Salted};
use ondisk::{Blkptr, ChecksumType, Eck, Endian, ObjectType};

use super::drive::Judge;
use crate::error::{Error, Kind, Result};

/// The function behind a checksum number, for those that a block pointer holds.
pub fn algorithm(kind: ChecksumType) -> Option<Algorithm> {
    Some(match kind {
        ChecksumType::Off | ChecksumType::NoParity => Algorithm::Off,
        ChecksumType::Fletcher2 | ChecksumType::Zilog => Algorithm::Fletcher2,
        ChecksumType::Fletcher4 | ChecksumType::Zilog2 | ChecksumType::On => Algorithm::Fletcher4,
        ChecksumType::Sha256 | ChecksumType::Label | ChecksumType::GangHeader => Algorithm::Sha256,
        ChecksumType::Sha512 => Algorithm::Sha512,
        ChecksumType::Skein => Algorithm::Skein,
        ChecksumType::Edonr => Algorithm::Edonr,
        ChecksumType::Blake3 => Algorithm::Blake3,
        ChecksumType::Inherit => return None,
    })
}

/// The judge for a block pointer's physical bytes.
pub fn judge(bp: &Blkptr, salt: Option<Arc<Salted>>) -> Result<Judge> {
    let kind = bp.checksum().ok_or_else(|| {
        Error::unsupported(format!("checksum function {} is not known to this build", bp.checksum_raw()))
    })?;
    if kind.is_embedded() {
        return Err(Error::corrupt("a block pointer names a trailer checksum"));
    }
    let algorithm = algorithm(kind).ok_or_else(|| Error::corrupt("a block pointer inherits its checksum"))?;
    if algorithm == Algorithm::Off {
        return Ok(Arc::new(|_| true));
    }
    if algorithm.is_salted() && salt.is_none() {
        return Err(Error::new(Kind::Corrupt, "a salted checksum in a pool without a salt"));
    }
    // Protected blocks keep their MAC in the upper half of the checksum; object sets keep theirs inside.
    let want = bp.checksum_words();
    let words = if bp.uses_crypt() && bp.object_type() != ObjectType::OBJSET { 2 } else { 4 };
    let swap = bp.should_byteswap();
    Ok(Arc::new(move |bytes| {
        let have = match &salt {
            Some(salt) if algorithm.is_salted() => salt.digest(algorithm, bytes, swap),
            _ => checksum::digest(algorithm, bytes, None, swap),
        };
        have.iter().zip(&want).take(words).all(|(a, b)| a == b)
    }))
}

/// Checks a block that ends in a trailer (`zio_eck_t`): the checksum was made with `verifier` in the
/// trailer's place. Gives the byte order in which it was written.
pub fn embedded(kind: ChecksumType, block: &[u8], verifier: [u64; 4]) -> Option<Endian> {
    let eck = Eck::from_trailer(block).ok()?;
    let algorithm = algorithm(kind)?;
    let swap = eck.endian == Endian::Big;
    let mut copy = block.to_vec();
    let at = copy.len().checked_sub(32)?;
    for (to, word) in copy.get_mut(at..)?.chunks_exact_mut(8).zip(verifier) {
        to.copy_from_slice(&if swap { word.to_be_bytes() } else { word.to_le_bytes() });
    }
    (checksum::digest(algorithm, &copy, None, swap) == eck.cksum).then_some(eck.endian)
}
