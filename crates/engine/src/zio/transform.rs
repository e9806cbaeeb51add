//! Converts physical bytes into the consumers' form: decrypt or authenticate, decompress, swap bytes.

use std::sync::Arc;

use compress::Algorithm;
use crypt::ByteOrder;
use ondisk::{Blkptr, Byteswap, CompressType, EmbeddedType, byteswap};
use stdx::{AlignedBuf, Buf};

use super::{Form, Zio};
use crate::error::{Error, Kind, Result};
use crate::types::Bookmark;

/// The bytes of a block that lies in its own pointer.
pub(crate) fn embedded(bp: &Blkptr, form: Form) -> Result<Buf> {
    if bp.embedded_type() != Some(EmbeddedType::Data) {
        return Err(Error::unsupported(format!("embedded block of type {}", bp.embedded_type_raw())));
    }
    let payload = bp.embedded_payload();
    let psize = usize::try_from(bp.embedded_psize()).unwrap_or(0);
    let stored = payload.get(..psize).ok_or_else(|| Error::corrupt("embedded payload is too long"))?;
    if !form.is_cached() {
        return Ok(stored.into());
    }
    let mut data = expand(bp, stored, bp.embedded_lsize())?;
    order(bp, &mut data);
    Ok(data.into())
}

/// The logical bytes behind accepted physical ones.
pub(crate) fn logical(zio: &Arc<Zio>, bp: &Blkptr, at: Bookmark, form: Form, data: Buf) -> Result<Buf> {
    let protected = bp.is_protected() && !bp.has_indirect_mac() && form != Form::NoKey;
    let data = if protected { open(zio, bp, at, data)? } else { data };
    if form == Form::Opened {
        return Ok(data);
    }
    let compressed = bp.compress() != Some(CompressType::Off);
    if !compressed && !swaps(bp) && !bp.has_indirect_mac() {
        return Ok(data);
    }
    let mut data = if compressed { expand(bp, &data, bp.lsize())? } else { data.into_owned() };
    if bp.has_indirect_mac() && form == Form::Logical {
        // The MACs in the pointers are authenticated as they were written, before any byte swap.
        crypt::verify_indirect(ByteOrder::of_prop(bp.prop()), &data, &bp.mac())
            .map_err(|e| Error::new(Kind::Checksum, e.to_string()))?;
    }
    order(bp, &mut data);
    Ok(data.into())
}

fn open(zio: &Arc<Zio>, bp: &Blkptr, at: Bookmark, data: Buf) -> Result<Buf> {
    let keys = zio.keys()?;
    let mut data = data.into_owned();
    keys.open_block(bp, at, &mut data)?;
    Ok(data.into())
}

fn expand(bp: &Blkptr, stored: &[u8], lsize: u64) -> Result<AlignedBuf> {
    let kind = bp.compress().ok_or_else(|| {
        Error::unsupported(format!("compression function {} is not known to this build", bp.compress_raw()))
    })?;
    decompress(kind, stored, lsize)
}

/// The `lsize` bytes (16 MiB at most) that were compressed to `stored`.
pub(crate) fn decompress(kind: CompressType, stored: &[u8], lsize: u64) -> Result<AlignedBuf> {
    let lsize = usize::try_from(lsize).ok().filter(|&n| n <= 16 << 20);
    let mut data = AlignedBuf::zeroed(lsize.ok_or_else(|| Error::corrupt("logical size out of bounds"))?);
    let algorithm = match kind {
        CompressType::Empty => return Ok(data),
        CompressType::Off => {
            let whole =
                stored.get(..data.len()).ok_or_else(|| Error::corrupt("block shorter than it says"))?;
            data.copy_from_slice(whole);
            return Ok(data);
        }
        CompressType::Inherit => return Err(Error::corrupt("a block pointer inherits its compression")),
        CompressType::On | CompressType::Lzjb => Algorithm::Lzjb,
        CompressType::Zle => Algorithm::Zle,
        CompressType::Lz4 => Algorithm::Lz4,
        CompressType::Zstd => Algorithm::Zstd,
        _ => Algorithm::Gzip,
    };
    compress::decompress(algorithm, stored, &mut data)
        .map_err(|e| Error::corrupt(format!("a block with a good checksum does not decompress: {e}")))?;
    Ok(data)
}

fn swaps(bp: &Blkptr) -> bool {
    bp.should_byteswap() && kind(bp) != Some(Byteswap::Uint8)
}

fn kind(bp: &Blkptr) -> Option<Byteswap> {
    if bp.level() > 0 { Some(Byteswap::Uint64) } else { bp.object_type().byteswap() }
}

/// Turns the block little-endian when a big-endian host wrote it.
fn order(bp: &Blkptr, data: &mut [u8]) {
    if let Some(kind) = kind(bp).filter(|_| swaps(bp)) {
        byteswap::swap(kind, data);
    }
}
