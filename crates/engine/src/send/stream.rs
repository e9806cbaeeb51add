//! Records and their running checksum.

use std::io::Write;

use checksum::{Cksum, Fletcher4};
use ondisk::Endian;
use ondisk::drr::{DRR_CHECKSUM_OFFSET, Drr, DrrBegin, DrrBody, DrrEnd};

use super::{Meter, output};
use crate::error::{Error, Result};

/// A stream being written.
pub(super) struct Stream<'a> {
    out: &'a mut dyn Write,
    meter: &'a Meter,
    sum: Fletcher4,
}

impl<'a> Stream<'a> {
    pub(super) fn new(out: &'a mut dyn Write, meter: &'a Meter) -> Self {
        Self { out, meter, sum: Fletcher4::new(false) }
    }

    /// The first record, which alone has no room for the checksum.
    pub(super) fn begin(&mut self, record: DrrBegin, payload: &[u8]) -> Result<()> {
        let payloadlen = u32::try_from(payload.len()).map_err(|_| Error::corrupt("BEGIN is too long"))?;
        self.write(Drr { payloadlen, body: DrrBody::Begin(record), checksum: None }, payload, None)
    }

    /// Any other record with its payload.
    pub(super) fn record(&mut self, body: DrrBody, payload: &[u8]) -> Result<()> {
        self.summed(body, payload, None)
    }

    /// A record with a payload whose own Fletcher-4 sums are known, perhaps.
    pub(super) fn summed(&mut self, body: DrrBody, payload: &[u8], sums: Option<Cksum>) -> Result<()> {
        self.write(Drr { payloadlen: 0, body, checksum: Some([0; 4]) }, payload, sums)
    }

    /// The last record: the checksum of all before it.
    pub(super) fn end(&mut self, toguid: u64) -> Result<()> {
        let checksum = self.sums();
        self.record(DrrBody::End(DrrEnd { checksum, toguid }), &[])?;
        self.flush()
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(output)
    }

    fn sums(&self) -> Cksum {
        self.sum.finish()
    }

    fn write(&mut self, drr: Drr, payload: &[u8], sums: Option<Cksum>) -> Result<()> {
        let mut bytes = drr.to_bytes(Endian::Little);
        let (head, tail) = bytes.split_at_mut_checked(DRR_CHECKSUM_OFFSET).unwrap_or_default();
        self.sum.update(head);
        if drr.checksum.is_some() {
            let (words, _) = tail.as_chunks_mut();
            words.iter_mut().zip(self.sums()).for_each(|(to, word)| *to = word.to_le_bytes());
        }
        self.sum.update(tail);
        match sums {
            Some(sums) => self.sum.append(sums, u64::try_from(payload.len() / 4).unwrap_or(0)),
            None => self.sum.update(payload),
        }
        self.meter.count(bytes.len() + payload.len())?;
        self.out.write_all(&bytes).and_then(|()| self.out.write_all(payload)).map_err(output)
    }
}
