//! Corrective receive: damaged blocks of a snapshot are overwritten with those of a stream of the same snapshot.
//!
//! Only WRITE records count. Their blocks are read from the devices; a healthy block is left alone. The bytes of the stream
//! are brought into the stored form of the block (compressed, encrypted with the salt and IV in its pointer), and are
//! written only if they match the pointer's checksum. So a hostile stream changes nothing but blocks that are lost anyway,
//! and those only to bytes with their checksum.
//!
//! A hold keeps the snapshot, hence its blocks, from being freed. A crash leaves the blocks that were not reached damaged.
//!
//! Differs from OpenZFS: blocks of a stream that are compressed as the damaged block was are used as they are, and all levels
//! of zstd are tried.
//!
//! Source: `receive_process_write_record`, `do_corrective_recv`, dmu_recv.c, OpenZFS 2.4.

use std::sync::Arc;

use ondisk::drr::{DrrBody, DrrWrite, stream_feature};
use ondisk::{Blkptr, Byteswap, CompressType, Endian, ObjectType, byteswap};
use stdx::AlignedBuf;

use super::{Input, Wish, malformed};
use crate::dmu::{Object, Objset};
use crate::error::{Error, Kind, Result};
use crate::spa::Spa;
use crate::types::Bookmark;
use crate::zio::correct::{padded, stored_forms};
use crate::zio::{Form, ReadOptions, transform};

/// Repairs the snapshot that `wish` names with the rest of a stream whose BEGIN has been read. After each
/// record, `going` is called with the bytes read so far, and returns whether to continue. Returns the number
/// of blocks that were repaired.
///
/// # Errors
/// As [`super::Receiver::fill`]; `Checksum` for a damaged block that the stream does not repair, `Unsupported` if the stream
/// has it in another size. Blocks repaired before the error stay so.
pub fn heal(
    spa: &Arc<Spa>,
    wish: &Wish,
    input: &mut Input<'_>,
    going: &mut dyn FnMut(u64) -> bool,
) -> Result<u64> {
    let asked = wish.clone();
    let number = spa.dsl_task(move |tasks| tasks.begin_heal(&asked))?;
    let _hold = spa.datasets.hold_long(number)?;
    let snapshot = spa.pool.dsl.dataset(&format!("{}@{}", wish.target, wish.snapshot))?;
    if snapshot.number != number || snapshot.phys.guid != wish.to_guid {
        return Err(Error::new(Kind::Busy, "dataset is busy").in_dataset(&wish.target));
    }
    let raw = wish.features & stream_feature::RAW != 0;
    let objset = snapshot.objset_as(if raw { Form::NoKey } else { Form::Logical })?;
    let mut healer = Healer { spa, objset, raw, swap: input.endian() == Endian::Big, at: None, healed: 0 };
    healer.run(input, going)?;
    let ended = wish.clone();
    spa.dsl_task(move |tasks| tasks.end_heal(&ended, number))?;
    Ok(healer.healed)
}

struct Healer<'s> {
    spa: &'s Arc<Spa>,
    objset: Arc<Objset>,
    raw: bool,
    /// The stream is of the other byte order.
    swap: bool,
    /// The object of the last record.
    at: Option<Object>,
    healed: u64,
}

impl Healer<'_> {
    fn run(&mut self, input: &mut Input<'_>, going: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        loop {
            let offset = input.offset();
            let Some(item) = input.record()? else {
                return Err(input.place(Error::new(Kind::Io, "incomplete stream"), "", offset));
            };
            let name = item.drr.body.name();
            let done = match &item.drr.body {
                DrrBody::End(_) => return Ok(()),
                DrrBody::Begin(_) => Err(malformed("a stream begins within another")),
                DrrBody::Write(body) => self.write(body, &item.payload),
                _ => Ok(()),
            };
            done.map_err(|e| input.place(e, name, offset))?;
            if !going(input.offset()) {
                return Err(input.place(Error::new(Kind::Interrupted, "interrupted"), name, offset));
            }
        }
    }

    fn write(&mut self, body: &DrrWrite, payload: &[u8]) -> Result<()> {
        let kind = u8::try_from(body.object_type).map(ObjectType).ok().filter(|kind| kind.is_valid());
        let kind = kind.ok_or_else(|| malformed(format!("the unknown type {}", body.object_type)))?;
        if body.offset.checked_add(body.logical_size).is_none() {
            return Err(malformed(format!("{} bytes at offset {}", body.logical_size, body.offset)));
        }
        let object = match self.at.take() {
            Some(object) if object.number == body.object => object,
            _ => self.objset.object(body.object)?,
        };
        let blkid = body.offset / object.dnode.datablksz().max(1);
        let found = object.blkptr(0, blkid)?;
        self.at = Some(object);
        let Some(bp) = found.filter(|bp| !bp.is_embedded() && !bp.is_redacted()) else { return Ok(()) };
        let at = Bookmark::new(self.objset.id, body.object, 0, blkid);
        let zio = &self.spa.pool.zio;
        let physical = ReadOptions { form: Form::Physical, ..ReadOptions::default() };
        let probe = ReadOptions { heal: true, speculative: true, ..physical };
        match zio.read_wait(&bp, at, probe).data {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == Kind::Checksum => {}
            Err(e) => return Err(e),
        }
        if body.logical_size != bp.lsize() {
            return Err(Error::unsupported("stream is not compatible with the data in the pool."));
        }
        let unable = || {
            let what = "corrective receive was not able to reconstruct the data needed for healing.";
            Error::new(Kind::Checksum, what)
        };
        if !self.correct(&bp, at, (body, kind), payload)? || zio.read_wait(&bp, at, physical).data.is_err() {
            return Err(unable().at_block(at));
        }
        self.spa.error_log().forget(&bp, at);
        self.healed += 1;
        Ok(())
    }

    /// Tries the stored forms that the block of a record may have. Returns whether one was right.
    fn correct(
        &self,
        bp: &Blkptr,
        at: Bookmark,
        (body, kind): (&DrrWrite, ObjectType),
        payload: &[u8],
    ) -> Result<bool> {
        let zio = &self.spa.pool.zio;
        if self.raw {
            return zio.correct(bp, &payload.into());
        }
        let place = |mut stored: AlignedBuf| -> Result<bool> {
            if bp.is_encrypted() {
                zio.seal_block(bp, at, &mut stored)?;
            }
            zio.correct(bp, &stored.into())
        };
        let swapped = |is_other: bool| kind.byteswap().filter(|kind| is_other && *kind != Byteswap::Uint8);
        let (of_stream, of_block) = (swapped(self.swap), swapped(bp.should_byteswap()));
        let compress = CompressType::from_raw(body.compressiontype).filter(|_| body.compressiontype != 0);
        let mut logical = match compress {
            None => padded(payload, payload.len()).unwrap_or_else(|| AlignedBuf::zeroed(0)),
            Some(kind) => {
                let as_sent = Some(kind) == bp.compress() && of_stream.is_none() && of_block.is_none();
                let psize = usize::try_from(bp.psize()).unwrap_or(0);
                if as_sent
                    && let Some(stored) = padded(payload, psize)
                    && place(stored)?
                {
                    return Ok(true);
                }
                transform::decompress(kind, payload, body.logical_size)?
            }
        };
        for swap in [of_stream, of_block].into_iter().flatten() {
            byteswap::swap(swap, &mut logical);
        }
        for stored in stored_forms(bp, &logical) {
            if place(stored)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
