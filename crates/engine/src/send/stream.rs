//! Records and their running checksum.

use std::io::Write;

use checksum::{Cksum, Fletcher4};
use ondisk::Endian;
use ondisk::drr::{DRR_CHECKSUM_OFFSET, DRR_SIZE, DrrBegin, DrrBody, DrrEnd};

use super::{Meter, output};
use crate::error::{Error, Result};

/// A stream being written.
pub(super) struct Stream<'a> {
    out: &'a mut dyn Write,
    meter: &'a Meter,
    sum: Fletcher4,
    /// The record at hand: a stream of small objects has many.
    room: Vec<u8>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(out: &'a mut dyn Write, meter: &'a Meter) -> Self {
        Self { out, meter, sum: Fletcher4::new(false), room: Vec::with_capacity(DRR_SIZE) }
    }

    /// The first record, which alone has no room for the checksum.
    pub(super) fn begin(&mut self, record: DrrBegin, payload: &[u8]) -> Result<()> {
        let payloadlen = u32::try_from(payload.len()).map_err(|_| Error::corrupt("BEGIN is too long"))?;
        DrrBody::Begin(record).put(payloadlen, None, Endian::Little, self.cleared());
        self.write(false, payload, None)
    }

    /// Any other record with its payload.
    pub(super) fn record(&mut self, body: &DrrBody, payload: &[u8]) -> Result<()> {
        self.summed(body, payload, None)
    }

    /// A record with a payload whose own Fletcher-4 sums are known, perhaps.
    pub(super) fn summed(&mut self, body: &DrrBody, payload: &[u8], sums: Option<Cksum>) -> Result<()> {
        body.put(0, Some([0; 4]), Endian::Little, self.cleared());
        self.write(true, payload, sums)
    }

    /// The last record: the checksum of all before it.
    pub(super) fn end(&mut self, toguid: u64) -> Result<()> {
        let checksum = self.sum.finish();
        self.record(&DrrBody::End(DrrEnd { checksum, toguid }), &[])?;
        self.flush()
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(output)
    }

    fn cleared(&mut self) -> &mut Vec<u8> {
        self.room.clear();
        &mut self.room
    }

    /// Writes the record at hand, with the checksum of all before it if it is to have one.
    fn write(&mut self, has_sum: bool, payload: &[u8], sums: Option<Cksum>) -> Result<()> {
        let (head, tail) = self.room.split_at_mut_checked(DRR_CHECKSUM_OFFSET).unwrap_or_default();
        self.sum.update(head);
        if has_sum {
            let (words, _) = tail.as_chunks_mut();
            words.iter_mut().zip(self.sum.finish()).for_each(|(to, word)| *to = word.to_le_bytes());
        }
        self.sum.update(tail);
        match sums {
            Some(sums) => self.sum.append(sums, u64::try_from(payload.len() / 4).unwrap_or(0)),
            None => self.sum.update(payload),
        }
        self.meter.count(self.room.len() + payload.len())?;
        self.out.write_all(&self.room).and_then(|()| self.out.write_all(payload)).map_err(output)
    }
}
