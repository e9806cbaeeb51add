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
        self.write(Drr { payloadlen, body: DrrBody::Begin(record), checksum: None }, payload)
    }

    /// Any other record with its payload.
    pub(super) fn record(&mut self, body: DrrBody, payload: &[u8]) -> Result<()> {
        self.write(Drr { payloadlen: 0, body, checksum: Some([0; 4]) }, payload)
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

    fn write(&mut self, mut drr: Drr, payload: &[u8]) -> Result<()> {
        let bytes = drr.to_bytes(Endian::Little);
        self.sum.update(bytes.get(..DRR_CHECKSUM_OFFSET).unwrap_or_default());
        if drr.checksum.is_some() {
            drr.checksum = Some(self.sums());
        }
        let bytes = drr.to_bytes(Endian::Little);
        self.sum.update(bytes.get(DRR_CHECKSUM_OFFSET..).unwrap_or_default());
        self.sum.update(payload);
        self.meter.count(bytes.len() + payload.len())?;
        self.out.write_all(&bytes).and_then(|()| self.out.write_all(payload)).map_err(output)
    }
}
