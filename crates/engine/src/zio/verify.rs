//! Verifies blocks against their checksums: those of block pointers, and those that blocks carry themselves.

use std::sync::Arc;

use checksum::{Algorithm, Salted};
use ondisk::label::ECK_MAGIC;
use ondisk::{Blkptr, ChecksumType, Eck, EckPhys, Endian, ObjectType};

use super::drive::Judge;
use crate::error::{Error, Kind, Result};

/// The function behind a checksum number, for those that a block pointer holds.
pub(crate) fn algorithm(kind: ChecksumType) -> Option<Algorithm> {
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
pub(crate) fn judge(bp: &Blkptr, salt: Option<Arc<Salted>>) -> Result<Judge> {
    let kind = bp.checksum().ok_or_else(|| {
        Error::unsupported(format!("checksum function {} is not known to this build", bp.checksum_raw()))
    })?;
    if kind.is_embedded() {
        return trailer_judge(kind, bp);
    }
    let algorithm = algorithm(kind).ok_or_else(|| Error::corrupt("a block pointer inherits its checksum"))?;
    if algorithm == Algorithm::Off {
        return Ok(Arc::new(|_| true));
    }
    if algorithm.is_salted() && salt.is_none() {
        return Err(Error::new(Kind::Corrupt, "a salted checksum in a pool without a salt"));
    }
    let want = bp.checksum_words();
    let swap = bp.should_byteswap();
    let fold = folding(kind, bp);
    Ok(Arc::new(move |bytes| {
        let have = match &salt {
            Some(salt) if algorithm.is_salted() => salt.digest(algorithm, bytes, swap),
            _ => checksum::digest(algorithm, bytes, None, swap),
        };
        fold.equal(have, want)
    }))
}

/// How the computed and the stored words are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Folding {
    /// All four words.
    Whole,
    /// Words 2 and 3 hold a MAC: a strong checksum is truncated.
    Truncated,
    /// Words 2 and 3 hold a MAC: a weak checksum's words are folded onto the first two.
    Folded,
}

/// Protected blocks keep their MAC in the upper half of the checksum; object sets keep theirs inside.
fn folding(kind: ChecksumType, bp: &Blkptr) -> Folding {
    if !bp.uses_crypt() || bp.object_type() == ObjectType::OBJSET {
        Folding::Whole
    } else if kind.is_dedup_strong() {
        Folding::Truncated
    } else {
        Folding::Folded
    }
}

impl Folding {
    fn equal(self, have: [u64; 4], want: [u64; 4]) -> bool {
        let [a, b, c, d] = have;
        match self {
            Self::Whole => have == want,
            Self::Truncated => [a, b] == [want[0], want[1]],
            Self::Folded => [a ^ c, b ^ d] == [want[0], want[1]],
        }
    }
}

/// Returns the checksum words for a new block's pointer or trailer; with encryption, words 2 and 3 are `mac`.
#[doc(alias = "zio_checksum_handle_crypt")]
pub(crate) fn stored_words(kind: ChecksumType, bp: &Blkptr, words: [u64; 4], mac: [u64; 2]) -> [u64; 4] {
    let ([a, b, c, d], [e, f]) = (words, mac);
    match folding(kind, bp) {
        Folding::Whole => words,
        Folding::Truncated => [a, b, e, f],
        Folding::Folded => [a ^ c, b ^ d, e, f],
    }
}

/// The judge of an intent-log block: the pointer holds the verifier, the block its checksum.
fn trailer_judge(kind: ChecksumType, bp: &Blkptr) -> Result<Judge> {
    let verifier = bp.checksum_words();
    let fold = folding(kind, bp);
    match kind {
        ChecksumType::Zilog => Ok(Arc::new(move |bytes| embedded(kind, bytes, verifier).is_some())),
        ChecksumType::Zilog2 => Ok(Arc::new(move |bytes| log_block(bytes, verifier, fold).unwrap_or(false))),
        _ => Err(Error::corrupt("a block pointer names a trailer checksum that only vdevs use")),
    }
}

/// Bytes that an intent-log block's checksum is rounded to (`ZIL_MIN_BLKSZ`).
const LOG_UNIT: usize = 4096;
/// Where the trailer stands in the chain header: after a word, a block pointer and a word.
const LOG_ECK: usize = LOG_NUSED + 8;
/// Offset of the used bytes in the chain header.
const LOG_NUSED: usize = 8 + 128;

/// Checks an intent-log block that carries its trailer in the chain header in front (`zil_chain_t`):
/// only the used part is summed.
fn log_block(block: &[u8], verifier: [u64; 4], fold: Folding) -> Option<bool> {
    let eck = Eck::from_bytes(block.get(LOG_ECK..LOG_ECK + EckPhys::SIZE)?).ok()?;
    let swap = eck.endian == Endian::Big;
    let nused = block.get(LOG_NUSED..)?.first_chunk::<8>()?;
    let nused = if swap { u64::from_be_bytes(*nused) } else { u64::from_le_bytes(*nused) };
    let nused = usize::try_from(nused).ok().filter(|&n| n >= LOG_ECK + EckPhys::SIZE && n <= block.len())?;
    let mut copy = block.get(..nused.next_multiple_of(LOG_UNIT).min(block.len()))?.to_vec();
    put_words(&mut copy, LOG_ECK + 8, verifier, swap)?;
    let have = checksum::digest(Algorithm::Fletcher4, &copy, None, swap);
    Some(match fold {
        Folding::Whole => have == eck.cksum,
        _ => fold.equal(have, eck.cksum),
    })
}

/// Puts the checksum into an intent-log block of `bp` whose chain header is in front, little-endian. In an encrypted
/// dataset its MAC is there already. False when the block is no such block.
pub(crate) fn seal_log_block(block: &mut [u8], bp: &Blkptr) -> bool {
    let mut sealed = || {
        let nused = u64::from_le_bytes(*block.get(LOG_NUSED..)?.first_chunk::<8>()?);
        let nused =
            usize::try_from(nused).ok().filter(|&n| n >= LOG_ECK + EckPhys::SIZE && n <= block.len())?;
        let mac =
            [24, 32].map(|at| block.get(LOG_ECK + at..)?.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)));
        let mac = [mac[0]?, mac[1]?];
        block.get_mut(LOG_ECK..LOG_ECK + 8)?.copy_from_slice(&ECK_MAGIC.to_le_bytes());
        put_words(block, LOG_ECK + 8, bp.checksum_words(), false)?;
        let summed = block.get(..nused.next_multiple_of(LOG_UNIT).min(block.len()))?;
        let words = checksum::digest(Algorithm::Fletcher4, summed, None, false);
        put_words(block, LOG_ECK + 8, stored_words(ChecksumType::Zilog2, bp, words, mac), false)
    };
    sealed().is_some()
}

fn put_words(block: &mut [u8], at: usize, words: [u64; 4], big: bool) -> Option<()> {
    for (to, word) in block.get_mut(at..at + 32)?.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&if big { word.to_be_bytes() } else { word.to_le_bytes() });
    }
    Some(())
}

/// Checks a block that ends in a trailer (`zio_eck_t`): the checksum was made with `verifier` in the
/// trailer's place. Returns the byte order in which it was written.
pub(crate) fn embedded(kind: ChecksumType, block: &[u8], verifier: [u64; 4]) -> Option<Endian> {
    trailer(kind, block, verifier, Folding::Whole)
}

/// Checks the header of the gang `bp`. In an encrypted dataset its checksum is folded as a block's is.
pub(crate) fn gang_header(bp: &Blkptr, block: &[u8]) -> bool {
    let kind = ChecksumType::GangHeader;
    trailer(kind, block, ondisk::label::gang_verifier(bp), folding(kind, bp)).is_some()
}

fn trailer(kind: ChecksumType, block: &[u8], verifier: [u64; 4], fold: Folding) -> Option<Endian> {
    let eck = Eck::from_trailer(block).ok()?;
    let algorithm = algorithm(kind)?;
    let swap = eck.endian == Endian::Big;
    let mut copy = block.to_vec();
    let at = copy.len().checked_sub(32)?;
    put_words(&mut copy, at, verifier, swap)?;
    fold.equal(checksum::digest(algorithm, &copy, None, swap), eck.cksum).then_some(eck.endian)
}
