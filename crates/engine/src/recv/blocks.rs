//! Blocks are written, embedded, freed, redacted.

use std::sync::Arc;

use crypt::BlockParams;
use ondisk::drr::{DrrFree, DrrRedact, DrrSpill, DrrWrite, DrrWriteEmbedded, drr_flag};
use ondisk::{
    Blkptr, CompressType, Endian, MAX_BLOCK_SIZE, MIN_BLOCK_SIZE, ObjectType, Raw, blkptr, byteswap, dnode,
};
use stdx::AlignedBuf;

use super::{Receiver, malformed};
use crate::dmu::dirty::{Handle, StoredBlock};
use crate::error::Result;
use crate::zio::transform;
use crate::zio::write::AsStored;

/// A length that means "to the end of the object".
#[doc(alias = "DMU_OBJECT_END")]
const TO_END: u64 = u64::MAX;
/// OpenZFS sends a spill block that lies in its pointer as this block of the object.
#[doc(alias = "DMU_SPILL_BLKID")]
const SPILL: u64 = u64::MAX - 1;
/// Bytes of the largest object.
const MAX_END: u64 = 1 << 63;

/// The form of a payload of `bytes` bytes, which a little-endian system has written.
fn form((lsize, bytes): (u64, usize), compression: u8, crypt: Option<BlockParams>) -> Result<AsStored> {
    let compress = CompressType::from_raw(compression);
    let compress =
        compress.filter(|c| !matches!(c, CompressType::Inherit | CompressType::On | CompressType::Empty));
    let compress = compress.ok_or_else(|| malformed(format!("the unknown compression {compression}")))?;
    let psize = u64::try_from(bytes).unwrap_or(u64::MAX);
    let whole = psize > 0 && psize % MIN_BLOCK_SIZE == 0 && psize <= lsize && lsize % MIN_BLOCK_SIZE == 0;
    if !whole || lsize > MAX_BLOCK_SIZE || (compress == CompressType::Off && psize != lsize) {
        return Err(malformed(format!("a block of {lsize} bytes in {psize}")));
    }
    Ok(AsStored { lsize, compress, crypt, endian: Endian::Little })
}

fn sealed(salt: Raw<8>, iv: Raw<12>, mac: Raw<16>) -> BlockParams {
    BlockParams { salt: salt.0, iv: iv.0, mac: mac.0 }
}

/// Whether the bonus leaves room for the pointer of a spill block.
fn check_spill_room(handle: &Handle) -> Result<()> {
    let dnode = handle.dnode();
    let taken = if dnode.spill().is_some() { 0 } else { blkptr::BLKPTR_SIZE };
    match dnode.bonus().len() <= dnode.max_bonus().saturating_sub(taken) {
        true => Ok(()),
        false => Err(malformed("an object without room for a spill pointer")),
    }
}

/// Whether a block tree can reach a block.
fn check_reach(handle: &Handle, blkid: u64) -> Result<()> {
    let dnode = handle.dnode();
    let shift = dnode.blocks_per_indirect_shift();
    let (mut left, mut levels) = (blkid / u64::try_from(dnode.nblkptr().max(1)).unwrap_or(1), 1);
    while left > 0 {
        (left, levels) = (left.checked_shr(shift).unwrap_or(0), levels + 1);
    }
    match levels <= dnode::MAX_LEVELS && shift > 0 {
        true => Ok(()),
        false => Err(malformed(format!("block {blkid} is beyond what an object can have"))),
    }
}

impl Receiver {
    /// The byte order in which a block of a raw stream was written. `flags`: those of its record, which say whether it is the
    /// other one than that of the sender.
    #[doc(alias = "DRR_IS_RAW_BYTESWAPPED")]
    pub(super) fn order_of(&self, flags: u8) -> Endian {
        match self.swap != (flags & drr_flag::RAW_BYTESWAP != 0) {
            true => Endian::Big,
            false => Endian::Little,
        }
    }

    /// Where in its object a block begins that must be one of the object's.
    fn block_at(&self, handle: &Handle, offset: u64, size: u64) -> Result<u64> {
        let block = handle.dnode().datablksz().max(1);
        if size != block || !offset.is_multiple_of(block) {
            return Err(malformed(format!("{size} bytes at {offset}, where blocks have {block}")));
        }
        check_reach(handle, offset / block)?;
        Ok(offset / block)
    }

    /// Records of data come in the order of objects and offsets.
    fn in_order(&mut self, object: u64, offset: u64, size: u64) -> Result<()> {
        if (object, offset) < self.last {
            return Err(malformed(format!("object {object}, offset {offset}, comes after {:?}", self.last)));
        }
        if offset > MAX_END - size.min(MAX_END) {
            return Err(malformed(format!("offset {offset} is beyond what an object can have")));
        }
        self.last = (object, offset);
        self.highest = self.highest.max(object);
        Ok(())
    }

    /// A block of data.
    #[doc(alias("receive_process_write_record", "flush_write_batch"))]
    pub(super) fn write(&mut self, body: &DrrWrite, payload: Vec<u8>) -> Result<()> {
        self.in_order(body.object, body.offset, body.logical_size)?;
        if body.logical_size == 0 || body.logical_size > MAX_BLOCK_SIZE {
            return Err(malformed(format!("a write of {} bytes", body.logical_size)));
        }
        let kind = u8::try_from(body.object_type).map(ObjectType).ok().filter(|kind| kind.is_valid());
        let kind = kind.ok_or_else(|| malformed(format!("the unknown type {}", body.object_type)))?;
        let handle = self.named(body.object)?;
        if self.raw {
            return self.write_raw(body, &handle, &payload);
        }
        let swapped = kind.byteswap().filter(|kind| self.swap && *kind != ondisk::Byteswap::Uint8);
        if body.compressiontype == 0 {
            let mut bytes = payload;
            if let Some(kind) = swapped {
                byteswap::swap(kind, &mut bytes);
            }
            return self.write_bytes(&handle, body.offset, &bytes);
        }
        let form = form((body.logical_size, payload.len()), body.compressiontype, None)?;
        let block = handle.dnode().datablksz();
        if swapped.is_some() || form.lsize != block || !body.offset.is_multiple_of(block) {
            let mut bytes = transform::decompress(form.compress, &payload, form.lsize)?;
            if let Some(kind) = swapped {
                byteswap::swap(kind, &mut bytes);
            }
            return self.write_bytes(&handle, body.offset, &bytes);
        }
        self.write_stored(&handle, body.offset, StoredBlock { bytes: payload.as_slice().into(), form })
    }

    fn write_raw(&self, body: &DrrWrite, handle: &Arc<Handle>, payload: &[u8]) -> Result<()> {
        // Uncompressed blocks have the number of "off".
        let compression =
            if body.compressiontype == 0 { CompressType::Off.raw() } else { body.compressiontype };
        let params = sealed(body.salt, body.iv, body.mac);
        let form = form((body.logical_size, payload.len()), compression, Some(params))?;
        let form = AsStored { endian: self.order_of(body.flags), ..form };
        self.write_stored(handle, body.offset, StoredBlock { bytes: payload.into(), form })
    }

    fn write_stored(&self, handle: &Arc<Handle>, offset: u64, block: StoredBlock) -> Result<()> {
        let blkid = self.block_at(handle, offset, block.form.lsize)?;
        let tx = self.begin_for(block.form.lsize, false)?;
        handle.write_stored(&tx, blkid, block)?;
        self.note(&tx, handle.number, offset);
        Ok(())
    }

    fn write_bytes(&self, handle: &Arc<Handle>, offset: u64, bytes: &[u8]) -> Result<()> {
        let block = handle.dnode().datablksz().max(1);
        check_reach(handle, offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(0)) / block)?;
        let tx = self.begin_for(handle.covering(offset, u64::try_from(bytes.len()).unwrap_or(0)), false)?;
        handle.write(&tx, offset, bytes)?;
        self.note(&tx, handle.number, offset);
        Ok(())
    }

    /// A block that lies in its pointer.
    #[doc(alias = "receive_write_embedded")]
    pub(super) fn embedded(&mut self, body: &DrrWriteEmbedded, payload: &[u8]) -> Result<()> {
        const DATA: u8 = 0;
        let psize = usize::try_from(body.psize).unwrap_or(usize::MAX);
        let compress = CompressType::from_raw(body.compression);
        let compress = compress.filter(|c| !matches!(c, CompressType::Inherit | CompressType::On));
        let (Some(compress), Some(bytes)) = (compress, payload.get(..psize)) else {
            return Err(malformed("an embedded block of an unknown form"));
        };
        let fits = (1..=blkptr::EMBEDDED_PAYLOAD_SIZE).contains(&psize)
            && (1..=1 << 25).contains(&body.lsize)
            && u64::from(body.lsize) <= body.length;
        if !fits || body.etype != DATA || self.raw {
            return Err(malformed(format!("an embedded block of {psize} bytes")));
        }
        let handle = self.named(body.object)?;
        let (dnode, lsize) = (handle.dnode(), u64::from(body.lsize));
        let is_spill = body.offset == body.length.wrapping_mul(SPILL) && lsize.is_multiple_of(MIN_BLOCK_SIZE);
        if is_spill {
            let bytes = transform::decompress(compress, bytes, lsize)?;
            return self.spill_bytes(&handle, bytes.to_vec());
        }
        self.in_order(body.object, body.offset, body.length)?;
        if body.length > dnode.datablksz() && body.length <= MAX_BLOCK_SIZE {
            // The file keeps smaller blocks than the sender has.
            let mut bytes = transform::decompress(compress, bytes, lsize)?.to_vec();
            if let Some(kind) = dnode.object_type.byteswap().filter(|_| self.swap) {
                byteswap::swap(kind, &mut bytes);
            }
            bytes.resize(usize::try_from(body.length).unwrap_or(0), 0);
            return self.write_bytes(&handle, body.offset, &bytes);
        }
        let blkid = self.block_at(&handle, body.offset, body.length)?;
        let tx = self.begin(false)?;
        let order = if self.swap { Endian::Big } else { Endian::Little };
        let bp = Blkptr::embedded(bytes, lsize, compress, dnode.object_type, 0, tx.txg()).with_order(order);
        handle.write_pointer(&tx, blkid, bp)?;
        self.note(&tx, body.object, body.offset);
        Ok(())
    }

    /// A range without data.
    #[doc(alias = "receive_free")]
    pub(super) fn free(&mut self, body: &DrrFree) -> Result<()> {
        let end = if body.length == TO_END { Some(TO_END) } else { body.offset.checked_add(body.length) };
        let end = end.ok_or_else(|| malformed("a range that ends before it begins"))?;
        let handle = self.named(body.object)?;
        self.highest = self.highest.max(body.object);
        let block = handle.dnode().datablksz().max(1);
        let first = body.offset.div_ceil(block);
        let last = if end == TO_END { u64::MAX } else { end / block };
        if first < last {
            let from = handle.free_long(first, last, &|| self.begin(true))?;
            let tx = self.begin(true)?;
            handle.free_blocks(&tx, from, last)?;
            if let Some((_, levels, maxblkid)) = self.shape.filter(|shape| shape.0 == body.object) {
                handle.set_shape(&tx, levels, maxblkid)?;
            }
        }
        if self.raw {
            return Ok(());
        }
        // The freed part of a block at either end is zeroed.
        let head = (body.offset, end.min(first.saturating_mul(block)));
        let tail = (last.saturating_mul(block).max(head.1), if end == TO_END { 0 } else { end });
        for (from, to) in [head, tail] {
            self.zero(&handle, from, to)?;
        }
        Ok(())
    }

    /// Zeros within one block, if there is one.
    fn zero(&self, handle: &Arc<Handle>, from: u64, to: u64) -> Result<()> {
        let (dnode, len) = (handle.dnode(), to.saturating_sub(from));
        if len == 0 || from >= dnode.max_offset() || len > dnode.datablksz() {
            return Ok(());
        }
        let zeros = AlignedBuf::zeroed(usize::try_from(len).unwrap_or(0));
        let tx = self.begin_for(dnode.datablksz(), false)?;
        handle.write(&tx, from, &zeros)
    }

    /// A spill block.
    #[doc(alias = "receive_spill")]
    pub(super) fn spill(&mut self, body: &DrrSpill, payload: Vec<u8>) -> Result<()> {
        if !(MIN_BLOCK_SIZE..=self.largest_block()).contains(&body.length)
            || !body.length.is_multiple_of(MIN_BLOCK_SIZE)
        {
            return Err(malformed(format!("a spill block of {} bytes", body.length)));
        }
        let handle = self.named(body.object)?;
        // The object has it, unless its blocks have another size now: then it was made anew, without.
        let unmodified = self.spill && body.flags & drr_flag::SPILL_UNMODIFIED != 0;
        if unmodified && handle.dnode().spill().is_some() {
            return Ok(());
        }
        check_spill_room(&handle)?;
        self.highest = self.highest.max(body.object);
        let mut bytes = payload;
        if self.raw {
            let compression =
                if body.compressiontype == 0 { CompressType::Off.raw() } else { body.compressiontype };
            let params = sealed(body.salt, body.iv, body.mac);
            let form = form((body.length, bytes.len()), compression, Some(params))?;
            let form = AsStored { endian: self.order_of(body.flags), ..form };
            let tx = self.begin(false)?;
            return handle.set_stored_spill(&tx, StoredBlock { bytes: bytes.as_slice().into(), form });
        }
        if body.compressiontype != 0 && body.compressed_size != 0 {
            let form = form((body.length, bytes.len()), body.compressiontype, None)?;
            bytes = transform::decompress(form.compress, &bytes, form.lsize)?.to_vec();
        }
        self.spill_bytes(&handle, bytes)
    }

    fn spill_bytes(&self, handle: &Arc<Handle>, mut bytes: Vec<u8>) -> Result<()> {
        check_spill_room(handle)?;
        if self.swap
            && let Some(kind) = handle.dnode().bonustype.byteswap()
        {
            byteswap::swap(kind, &mut bytes);
        }
        let tx = self.begin(false)?;
        handle.set_spill(&tx, Some(bytes.as_slice().into()))
    }

    /// Handles a range that the sender redacted: it becomes a hole, as in OpenZFS, whose holes a list may cover, too.
    #[doc(alias("receive_redact"))]
    pub(super) fn redact(&mut self, body: &DrrRedact) -> Result<()> {
        self.in_order(body.object, body.offset, body.length)?;
        let handle = self.named(body.object)?;
        let block = handle.dnode().datablksz().max(1);
        if !body.offset.is_multiple_of(block) || !body.length.is_multiple_of(block) {
            return Err(malformed("a redacted range that is not one of blocks"));
        }
        check_reach(&handle, body.offset.saturating_add(body.length) / block)?;
        let DrrRedact { object, offset, length, toguid } = *body;
        self.free(&DrrFree { object, offset, length, toguid })
    }
}
