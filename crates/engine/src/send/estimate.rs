//! How long a stream will be, from the accounts of space alone.
//!
//! All blocks count as having the dataset's record size: each adds a record, and takes away a pointer, as the accounts
//! include indirect blocks.
//!
//! Source: `dmu_send_estimate_fast`, `dmu_adjust_send_estimate_for_indirects`, dmu_send.c, OpenZFS 2.3.

use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::drr::DRR_SIZE;

use super::{SendOptions, send_with};
use crate::dsl::Dataset;
use crate::dsl::props::written::{self, Space, WrittenSince};
use crate::error::{Error, Kind, Result};

/// Bytes of the blocks that a stream of `to` has, compressed and not: all of them, or those since a moment.
///
/// # Errors
/// `Invalid` when the moment is not before `to`.
pub fn space(to: &Dataset, from: Option<WrittenSince>) -> Result<Space> {
    let p = &to.phys;
    match from {
        Some(moment) => written::since(moment, to),
        None => {
            Ok(Space { used: p.referenced_bytes, comp: p.compressed_bytes, uncomp: p.uncompressed_bytes })
        }
    }
}

/// The length of a stream with so many bytes of blocks, of which each has `record_size` bytes.
pub fn length(space: Space, record_size: u64, compressed: bool) -> u64 {
    let (record, pointer) = (widened(DRR_SIZE), widened(BLKPTR_SIZE));
    let records = space.uncomp.checked_div(record_size).unwrap_or(0);
    let size = if compressed { space.comp } else { space.uncomp };
    let size = size.wrapping_sub(records.wrapping_mul(pointer)).wrapping_add(records.wrapping_mul(record));
    size.wrapping_add(2 * record)
}

fn widened(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(0)
}

/// The length of a stream, by making it without reading its blocks.
///
/// # Errors
/// As [`send_with`].
pub fn exact(dataset: &Dataset, options: &SendOptions, meter: &super::Meter) -> Result<u64> {
    if options.saved.is_some() {
        return Err(Error::new(Kind::Invalid, "what a receive left can't be estimated"));
    }
    let options = SendOptions { dry: true, ..options.clone() };
    send_with(dataset, &options, &mut std::io::sink(), meter)?;
    Ok(meter.bytes())
}
