//! Converts the events of a walk into records. Neighbouring frees become one.

use std::sync::Arc;

use checksum::Cksum;
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::bookmark::SPILL_BLKID;
use ondisk::ddt::DdtKey;
use ondisk::dnode::DNODE_CORE_SIZE;
use ondisk::drr::{
    DrrBody, DrrFree, DrrFreeobjects, DrrObject, DrrObjectRange, DrrRedact, DrrSpill, DrrWrite,
    DrrWriteEmbedded, drr_flag, stream_feature as feature,
};
use ondisk::{
    Blkptr, Byteswap, ChecksumType, CompressType, DnodeFlags, DnodeRef, EmbeddedType, OLD_MAX_BLOCK_SIZE,
    Raw, dnode,
};

use super::event::{DnodeAt, StreamEvent};
use super::stream::Stream;
use crate::dmu::{Object, Objset};
use crate::error::Result;
use crate::zio::Form;
use stdx::Buf;

/// A length that means "to the end of the object".
#[doc(alias = "DMU_OBJECT_END")]
const TO_END: u64 = u64::MAX;

/// Converts the events of a walk into records.
pub(super) struct Sender<'a> {
    stream: Stream<'a>,
    objset: Arc<Objset>,
    features: u64,
    toguid: u64,
    from_txg: u64,
    /// Objects before it are at the receiver.
    resume_object: u64,
    /// A record that its successor may lengthen.
    pending: Option<DrrBody>,
}

impl<'a> Sender<'a> {
    pub(super) fn new(
        stream: Stream<'a>,
        objset: &Arc<Objset>,
        features: u64,
        toguid: u64,
        (from_txg, resume_object): (u64, u64),
    ) -> Self {
        Self { stream, objset: Arc::clone(objset), features, toguid, from_txg, resume_object, pending: None }
    }

    /// The block that an event's record holds: its pointer, object and number.
    pub(super) fn wants(&self, event: &StreamEvent) -> Option<(Blkptr, u64, u64)> {
        let unmodified = |bp: &Blkptr| !bp.is_hole() && bp.logical_birth() <= self.from_txg;
        match event {
            StreamEvent::Data { object, bp, blkid } if !self.stays_embedded(bp) => {
                Some((*bp, object.number, *blkid))
            }
            StreamEvent::Spill { object, bp } if !bp.is_hole() => Some((*bp, object.number, SPILL_BLKID)),
            StreamEvent::Object(found) if found.number >= self.resume_object => {
                found.spill().filter(unmodified).map(|bp| (bp, found.number, SPILL_BLKID))
            }
            _ => None,
        }
    }

    /// Writes an event's records; `data` are the bytes of the block that it [`Self::wants`].
    pub(super) fn write(&mut self, event: &StreamEvent, data: Option<&Buf>) -> Result<()> {
        match event {
            StreamEvent::Dnodes { bp, blkid, slots } => self.object_range(bp, *blkid, *slots),
            StreamEvent::Object(found) if found.number < self.resume_object => Ok(()),
            StreamEvent::Object(found) => {
                self.object(found)?;
                match (found.spill(), data) {
                    (Some(spill), Some(data)) => self.spill(found.number, &spill, data),
                    _ => Ok(()),
                }
            }
            StreamEvent::NoObject { number } if *number < self.resume_object => Ok(()),
            StreamEvent::NoObject { number } => self.free_objects(*number, 1),
            StreamEvent::NoObjects { start, end } => {
                let per_block = self.objset.phys.meta_dnode.datablksz() >> dnode::DNODE_SHIFT;
                let first = start.saturating_mul(per_block);
                self.free_objects(first, end.saturating_mul(per_block).saturating_sub(first))
            }
            StreamEvent::Hole { object, start, end, .. } => self.hole(object, *start, *end),
            StreamEvent::Data { object, bp, blkid } => self.data(object, bp, *blkid, data),
            StreamEvent::Redact { object, start, end, size } => self.redacted(*object, (*start, *end), *size),
            StreamEvent::Spill { object, bp } => match data {
                Some(data) => self.spill(object.number, bp, data),
                None => Ok(()),
            },
        }
    }

    /// The object set that is sent.
    pub(super) fn objset(&self) -> &Arc<Objset> {
        &self.objset
    }

    fn has(&self, bit: u64) -> bool {
        self.features & bit != 0
    }

    fn flush(&mut self) -> Result<()> {
        if let Some(body) = &self.pending {
            self.stream.record(body, &[])?;
            self.pending = None;
        }
        Ok(())
    }

    fn record(&mut self, body: &DrrBody, payload: &[u8]) -> Result<()> {
        self.flush()?;
        self.stream.record(body, payload)
    }

    /// Everything was written. Without `whole` the stream stays open: its receiver learns that more is to come.
    pub(super) fn end(mut self, whole: bool) -> Result<()> {
        self.flush()?;
        if whole { self.stream.end(self.toguid) } else { self.stream.flush() }
    }

    /// Objects that don't exist; none that can't exist here.
    fn free_objects(&mut self, first: u64, count: u64) -> Result<()> {
        let meta = &self.objset.phys.meta_dnode;
        let per_block = meta.datablksz() >> dnode::DNODE_SHIFT;
        let max = meta.maxblkid.saturating_add(1).saturating_mul(per_block);
        if max <= first {
            return Ok(());
        }
        let count = count.min(max - first);
        if let Some(DrrBody::Freeobjects(run)) = &mut self.pending
            && run.firstobj.wrapping_add(run.numobjs) == first
        {
            run.numobjs = run.numobjs.wrapping_add(count);
            return Ok(());
        }
        self.flush()?;
        let run = DrrFreeobjects { firstobj: first, numobjs: count, toguid: self.toguid };
        self.pending = Some(DrrBody::Freeobjects(run));
        Ok(())
    }

    fn free(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        let length = if offset.checked_add(length).is_none() { TO_END } else { length };
        if let Some(DrrBody::Free(run)) = &mut self.pending
            && run.object == object
            && run.offset.wrapping_add(run.length) == offset
        {
            run.length = if length == TO_END { TO_END } else { run.length.wrapping_add(length) };
            return Ok(());
        }
        self.flush()?;
        let run = DrrBody::Free(DrrFree { object, offset, length, toguid: self.toguid });
        if length == TO_END {
            return self.stream.record(&run, &[]);
        }
        self.pending = Some(run);
        Ok(())
    }

    /// Blocks `start` to `end` (not included; wraps to 0) are holes.
    fn hole(&mut self, object: &Object, start: u64, end: u64) -> Result<()> {
        let size = object.dnode.datablksz();
        let Some(offset) = start.checked_mul(size) else { return Ok(()) };
        let length = end.saturating_mul(size).wrapping_sub(offset);
        self.free(object.number, offset, length)
    }

    /// Blocks `start..end` of `size` bytes, whose content a redacted stream leaves out.
    fn redacted(&mut self, object: u64, (start, end): (u64, u64), size: u64) -> Result<()> {
        let length = end.saturating_sub(start).saturating_mul(size);
        let offset = start.saturating_mul(size);
        if let Some(DrrBody::Redact(run)) = &mut self.pending
            && run.object == object
            && run.offset.wrapping_add(run.length) == offset
        {
            run.length = run.length.wrapping_add(length);
            return Ok(());
        }
        self.flush()?;
        let run = DrrRedact { object, offset, length, toguid: self.toguid };
        self.pending = Some(DrrBody::Redact(run));
        Ok(())
    }

    /// How a block of dnodes was encrypted: in a raw stream alone.
    fn object_range(&mut self, bp: &Blkptr, blkid: u64, slots: u64) -> Result<()> {
        if !self.has(feature::RAW) {
            return Ok(());
        }
        let (salt, iv, mac) = crypt(bp);
        let body = DrrObjectRange {
            firstobj: blkid.saturating_mul(slots),
            numslots: slots,
            toguid: self.toguid,
            salt,
            iv,
            mac,
            flags: byteswap_flag(bp),
            ..Default::default()
        };
        self.record(&DrrBody::ObjectRange(body), &[])
    }

    /// An object, without its blocks.
    fn object(&mut self, found: &DnodeAt) -> Result<()> {
        let dnode = found.dnode()?;
        let (phys, number) = (dnode.phys(), found.number);
        let blksz = u32::try_from(dnode.datablksz()).unwrap_or(u32::MAX);
        let most = u32::try_from(OLD_MAX_BLOCK_SIZE).unwrap_or(u32::MAX);
        // The MAC of the block of dnodes covers the block size: a raw stream has it as it is, also where all large
        // blocks are holes, for which OpenZFS does not count the feature as used.
        let mut body = DrrObject {
            object: number,
            object_type: u32::from(phys.object_type),
            bonustype: u32::from(phys.bonustype),
            blksz: if self.has(feature::LARGE_BLOCKS | feature::RAW) { blksz } else { blksz.min(most) },
            bonuslen: u32::from(phys.bonuslen.get()),
            dn_slots: phys.extra_slots.saturating_add(1),
            checksumtype: phys.checksum,
            compress: phys.compress,
            toguid: self.toguid,
            ..Default::default()
        };
        let mut bonuslen = usize::from(phys.bonuslen.get()).next_multiple_of(8);
        if self.has(feature::RAW) {
            body.flags |= byteswap_flag(&found.dnodes.bp);
            body.maxblkid = phys.maxblkid.get();
            body.indblkshift = phys.indblkshift;
            body.nlevels = phys.nlevels;
            body.nblkptr = u8::try_from(dnode.nblkptr()).unwrap_or(0);
            if bonuslen != 0 {
                // All of it was encrypted, not only the part in use.
                bonuslen = bonus_room(&dnode, found.slots.len());
                body.raw_bonuslen = u32::try_from(bonuslen).unwrap_or(0);
            }
        }
        if DnodeFlags(phys.flags).has(DnodeFlags::SPILL_BLKPTR) {
            body.flags |= drr_flag::OBJECT_SPILL;
        }
        let start = DNODE_CORE_SIZE + dnode.nblkptr() * BLKPTR_SIZE;
        let stored = found.bytes().get(start..).unwrap_or_default();
        match stored.get(..bonuslen) {
            Some(bonus) => self.record(&DrrBody::Object(body), bonus)?,
            None => {
                let mut bonus = stored.to_vec();
                bonus.resize(bonuslen, 0);
                self.record(&DrrBody::Object(body), &bonus)?;
            }
        }
        // Whatever the receiver has beyond the end of the object goes.
        self.free(number, dnode.max_offset(), TO_END)
    }

    /// How a block is read for the stream.
    pub(super) fn form_of(&self, bp: &Blkptr) -> Form {
        if self.has(feature::RAW) {
            return Form::Physical;
        }
        let packed = self.has(feature::COMPRESSED) && bp.compress() != Some(CompressType::Off);
        let whole = bp.lsize() <= OLD_MAX_BLOCK_SIZE || self.has(feature::LARGE_BLOCKS);
        let plain = !bp.should_byteswap() && !bp.is_embedded() && !bp.object_type().is_metadata();
        match packed && whole && plain {
            true if bp.is_protected() => Form::Opened,
            true => Form::Physical,
            false => Form::Logical,
        }
    }

    /// A spill block.
    fn spill(&mut self, object: u64, bp: &Blkptr, data: &Buf) -> Result<()> {
        let mut body = DrrSpill { object, length: bp.lsize(), toguid: self.toguid, ..Default::default() };
        if bp.logical_birth() <= self.from_txg {
            body.flags |= drr_flag::SPILL_UNMODIFIED;
        }
        if self.has(feature::RAW) {
            body.flags |= byteswap_flag(bp);
            body.compressiontype = bp.compress_raw();
            body.compressed_size = bp.psize();
            (body.salt, body.iv, body.mac) = crypt(bp);
        }
        self.record(&DrrBody::Spill(body), data)
    }

    /// A data block.
    fn data(&mut self, object: &Object, bp: &Blkptr, blkid: u64, data: Option<&Buf>) -> Result<()> {
        let offset = blkid.saturating_mul(object.dnode.datablksz());
        let Some(data) = data else { return self.embedded(object, bp, offset) };
        let size = bp_size(bp);
        if size > OLD_MAX_BLOCK_SIZE && !self.has(feature::LARGE_BLOCKS) {
            return self.pieces(object, offset, data);
        }
        let mut body = self.write_body(object, offset, size);
        let packed = bp.compress() != Some(CompressType::Off) && !self.form_of(bp).is_cached();
        let raw = self.has(feature::RAW);
        if raw || packed {
            if raw {
                body.flags |= byteswap_flag(bp);
                (body.salt, body.iv, body.mac) = crypt(bp);
            }
            body.compressiontype = bp.compress_raw();
            body.compressed_size = bp.psize();
        }
        if bp.is_embedded() || (bp.is_protected() && !raw) {
            body.checksumtype = ChecksumType::Off.raw();
        } else {
            body.checksumtype = bp.checksum_raw();
            body.key = key(bp);
            let strong = bp.checksum().is_some_and(|c| c.is_dedup_strong() || c == ChecksumType::Edonr);
            body.flags |= if strong { drr_flag::CHECKSUM_DEDUP } else { 0 };
        }
        let sums = self.known_sums(bp, data);
        self.flush()?;
        self.stream.summed(&DrrBody::Write(body), data, sums)
    }

    /// The Fletcher-4 sums of the bytes of a block, where its pointer has them: the read has compared them.
    fn known_sums(&self, bp: &Blkptr, data: &[u8]) -> Option<Cksum> {
        let is_stored = !self.form_of(bp).is_cached() || bp.compress() == Some(CompressType::Off);
        let is_known = bp.checksum() == Some(ChecksumType::Fletcher4)
            && is_stored
            && u64::try_from(data.len()) == Ok(bp.psize())
            && !(bp.is_protected() || bp.is_embedded() || bp.is_gang() || bp.should_byteswap());
        is_known.then(|| bp.checksum_words())
    }

    fn write_body(&self, object: &Object, offset: u64, logical_size: u64) -> DrrWrite {
        DrrWrite {
            object: object.number,
            object_type: u32::from(object.dnode.object_type.raw()),
            offset,
            logical_size,
            toguid: self.toguid,
            ..Default::default()
        }
    }

    /// A block too large for the stream, in pieces, each without a checksum of its own.
    fn pieces(&mut self, object: &Object, offset: u64, data: &[u8]) -> Result<()> {
        let size = usize::try_from(OLD_MAX_BLOCK_SIZE).unwrap_or(usize::MAX);
        let mut at = offset;
        for piece in data.chunks(size) {
            let length = u64::try_from(piece.len()).unwrap_or(0);
            let mut body = self.write_body(object, at, length);
            body.checksumtype = ChecksumType::Off.raw();
            self.record(&DrrBody::Write(body), piece)?;
            at = at.saturating_add(length);
        }
        Ok(())
    }

    /// Whether the receiver can take the pointer's payload as it is.
    #[doc(alias = "send_do_embed")]
    fn stays_embedded(&self, bp: &Blkptr) -> bool {
        let known = match bp.compress() {
            Some(CompressType::Zstd) => self.has(feature::ZSTD) && self.has(feature::LZ4),
            Some(CompressType::Lz4) => self.has(feature::LZ4),
            _ => true,
        };
        // A record does not say that its payload is of the other byte order.
        let ordered = !bp.should_byteswap() || bp.object_type().byteswap() == Some(Byteswap::Uint8);
        bp.embedded_type() == Some(EmbeddedType::Data) && known && ordered && self.has(feature::EMBED_DATA)
    }

    fn embedded(&mut self, object: &Object, bp: &Blkptr, offset: u64) -> Result<()> {
        let body = DrrWriteEmbedded {
            object: object.number,
            offset,
            length: object.dnode.datablksz(),
            toguid: self.toguid,
            compression: bp.compress_raw(),
            etype: bp.embedded_type_raw(),
            lsize: u32::try_from(bp.embedded_lsize()).unwrap_or(0),
            psize: u32::try_from(bp.embedded_psize()).unwrap_or(0),
            ..Default::default()
        };
        let psize = usize::try_from(bp.embedded_psize()).unwrap_or(0);
        let payload = bp.embedded_payload();
        let mut bytes = payload.get(..psize).unwrap_or(&payload).to_vec();
        bytes.resize(psize.next_multiple_of(8), 0);
        self.record(&DrrBody::WriteEmbedded(body), &bytes)
    }
}

fn bp_size(bp: &Blkptr) -> u64 {
    if bp.is_embedded() { bp.embedded_lsize() } else { bp.lsize() }
}

/// Room for a bonus buffer in a dnode of `size` bytes.
fn bonus_room(dnode: &DnodeRef<'_>, size: usize) -> usize {
    let pointers =
        dnode.nblkptr() + usize::from(DnodeFlags(dnode.phys().flags).has(DnodeFlags::SPILL_BLKPTR));
    size.saturating_sub(DNODE_CORE_SIZE + pointers * BLKPTR_SIZE)
}

fn byteswap_flag(bp: &Blkptr) -> u8 {
    if bp.should_byteswap() { drr_flag::RAW_BYTESWAP } else { 0 }
}

/// Salt, IV and MAC; blocks that are only authenticated have a MAC alone.
fn crypt(bp: &Blkptr) -> (Raw<8>, Raw<12>, Raw<16>) {
    let encrypted = bp.is_encrypted();
    let salt = if encrypted { bp.salt_bytes() } else { [0; 8] };
    let iv = if encrypted { bp.iv_bytes() } else { [0; 12] };
    (Raw(salt), Raw(iv), Raw(bp.mac()))
}

/// The block's identity, by which a receiver could find a copy.
fn key(bp: &Blkptr) -> DdtKey {
    let sectors = |bytes: u64| (bytes >> ondisk::MIN_BLOCK_SHIFT).wrapping_sub(1) & 0xffff;
    let prop = sectors(bp.lsize())
        | sectors(bp.psize()) << 16
        | u64::from(bp.compress_raw()) << 32
        | u64::from(bp.is_protected()) << 39;
    DdtKey { cksum: bp.checksum_words(), prop }
}

#[cfg(test)]
mod tests {
    use ondisk::ObjectType;

    use super::*;

    #[test]
    fn a_key_has_sizes_compression_and_protection() {
        let prop =
            0xff | 0x7f << 16 | 15 << 32 | u64::from(ObjectType::PLAIN_FILE_CONTENTS.raw()) << 48 | 1 << 63;
        let mut words = [0; 16];
        (words[6], words[12]) = (prop, 77);
        let key = key(&Blkptr::from_words(words));
        assert_eq!((key.lsize(), key.psize(), key.compress_raw(), key.crypt()), (131_072, 65_536, 15, false));
        assert_eq!(key.cksum, [77, 0, 0, 0]);
    }
}
