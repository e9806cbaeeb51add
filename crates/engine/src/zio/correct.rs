//! Corrective writes: all copies of a block of which none is good are overwritten with the right bytes from elsewhere.
//!
//! The bytes count as right if they match the checksum in the block's pointer. The write goes to where the block is, so
//! nothing that refers to the block changes. A power cut during the write leaves a block that is still damaged, and the
//! correction can be repeated.
//!
//! Differs from OpenZFS: gang blocks and blocks on removed vdevs are refused.
//!
//! Source: `do_corrective_recv`, dmu_recv.c, OpenZFS 2.4.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::{Blkptr, Dva};
use stdx::{AlignedBuf, Buf};

use super::{Zio, verify};
use crate::error::{Error, Kind, Result};
use crate::taskq::Promise;
use crate::vdev::repair::{Mend, Repaired};

impl Zio {
    /// Overwrites every copy of the block that `bp` references with `data`, the block's stored bytes, and waits for the
    /// writes. Returns false, and writes nothing, if `data` does not match the checksum in `bp`. The caller keeps the block
    /// from being freed meanwhile.
    ///
    /// # Errors
    /// `Unsupported` for gang blocks and blocks on removed vdevs, `ReadOnly` for a pool that is not open for writing, `Io`
    /// if no device took the bytes.
    pub fn correct(self: &Arc<Self>, bp: &Blkptr, data: &Buf) -> Result<bool> {
        let psize = u64::try_from(data.len()).unwrap_or(u64::MAX);
        if psize != bp.psize() || !(verify::judge(bp, self.salted())?)(data) {
            return Ok(false);
        }
        self.allocator()?;
        let birth = bp.physical_birth();
        if !self.is_settled(birth) {
            return Err(Error::new(Kind::Busy, "the block is still being written"));
        }
        let mut written = 0;
        for dva in bp.dvas() {
            written += self.overwrite(&dva, birth, data)?.leaves.len();
        }
        match written {
            0 => Err(Error::new(Kind::Io, "no device took the corrected block")),
            _ => Ok(true),
        }
    }

    /// Overwrites one copy.
    fn overwrite(self: &Arc<Self>, dva: &Dva, birth: u64, data: &Buf) -> Result<Repaired> {
        if dva.gang {
            return Err(Error::unsupported("a gang block cannot be corrected"));
        }
        let entered = self.top_to_use(u64::from(dva.vdev));
        let entered = entered.ok_or_else(|| Error::corrupt(format!("no top-level vdev {}", dva.vdev)))?;
        if entered.top().is_removed() {
            return Err(Error::unsupported("a block on a removed vdev cannot be corrected"));
        }
        let promise = Promise::default();
        let theirs = promise.clone();
        entered.top().repair(
            (dva.offset, birth),
            data,
            &[],
            Mend::All,
            Box::new(move |done| theirs.set(done)),
        );
        let done: Repaired = promise.wait(&**self.executor());
        let count = u64::try_from(done.leaves.len()).unwrap_or(0);
        self.stats.mended.fetch_add(count, Ordering::Relaxed);
        self.stats.mended_bytes.fetch_add(done.bytes(), Ordering::Relaxed);
        Ok(done)
    }
}

type Encode = fn(compress::Algorithm, u8, &[u8], usize) -> Option<Vec<u8>>;

/// The stored forms that the logical bytes of a block can have had, by the pointer's compression: as OpenZFS compresses
/// them, and as our faster encoder of gzip does. zstd has levels, which a pointer does not record.
pub(crate) fn stored_forms(bp: &Blkptr, logical: &[u8]) -> impl Iterator<Item = AlignedBuf> {
    /// Levels of zstd and fast zstd, the default first; levels unknown to the encoder are skipped.
    const LEVELS: std::ops::RangeInclusive<u8> = 0..=123;
    const THEIRS: &[Encode] = &[compress::compress_as_openzfs];
    const BOTH: &[Encode] = &[compress::compress_as_openzfs, compress::compress];
    let psize = usize::try_from(bp.psize()).unwrap_or(0);
    let coded = bp
        .compress()
        .and_then(|kind| super::write::algorithm(kind, 0).map(|(algorithm, _)| (kind, algorithm)));
    let whole = if coded.is_none() { padded(logical, psize) } else { None };
    let (levels, encoders) = match coded {
        Some((_, compress::Algorithm::Zstd)) => (LEVELS, THEIRS),
        Some((_, compress::Algorithm::Gzip)) => (0..=0, BOTH),
        _ => (0..=0, THEIRS),
    };
    let forms = levels.flat_map(move |level| encoders.iter().map(move |encode| (level, encode)));
    whole.into_iter().chain(forms.filter_map(move |(level, encode)| {
        let (algorithm, level) = super::write::algorithm(coded?.0, level)?;
        // Encoders give up early where room is scarce, and the writer had more of it than the block needs.
        padded(&encode(algorithm, level, logical, logical.len())?, psize)
    }))
}

/// `bytes`, followed by zeros up to `size` bytes; `None` if they are longer.
pub(crate) fn padded(bytes: &[u8], size: usize) -> Option<AlignedBuf> {
    let mut all = AlignedBuf::zeroed(size);
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(all)
}
