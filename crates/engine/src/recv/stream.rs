//! Records of a stream with their payloads, checked.

use std::io::{self, Read};

use checksum::Fletcher4;
use ondisk::Endian;
use ondisk::drr::{DRR_CHECKSUM_OFFSET, DRR_SIZE, Drr, DrrBody};

use super::malformed;
use crate::error::{Error, Kind, Result};

/// Longest payload of any record but BEGIN: the largest block.
const MAX_BLOCK: u64 = 16 << 20;
/// Longest list behind a BEGIN.
const MAX_LIST: u64 = 256 << 20;
/// A payload is read in pieces, so that memory is allocated for received bytes, not for the claimed length.
const PIECE: u64 = 1 << 20;

/// A record with its payload.
#[derive(Debug, Clone)]
pub struct Item {
    /// The record.
    pub drr: Drr,
    /// Its payload.
    pub payload: Vec<u8>,
    /// Bytes of the stream before it.
    pub offset: u64,
}

/// A stream that is being read.
pub struct Input<'a> {
    from: &'a mut dyn Read,
    sum: Fletcher4,
    endian: Endian,
    /// The last record was an END.
    ended: bool,
    offset: u64,
    records: u64,
    /// Longest list behind a BEGIN, in bytes.
    most_list: u64,
}

impl std::fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl<'a> Input<'a> {
    /// A stream from its beginning.
    pub fn new(from: &'a mut dyn Read) -> Self {
        let (sum, endian, most_list) = (Fletcher4::new(false), Endian::Little, MAX_LIST);
        Self { from, sum, endian, ended: false, offset: 0, records: 0, most_list }
    }

    /// Refuses lists of more than `bytes` bytes. Lists are decoded in memory, which takes several times their size.
    #[must_use]
    pub fn with_lists_up_to(self, bytes: u64) -> Self {
        Self { most_list: bytes.min(MAX_LIST), ..self }
    }

    /// The byte order of the record that was read last.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Bytes that have been read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next record; `None` at the end of the stream.
    ///
    /// # Errors
    /// `Checksum` when the record or bytes before it differ from those sent; `Corrupt` for bytes that are no
    /// record; `Io` when the stream ends within a record or can't be read.
    pub fn record(&mut self) -> Result<Option<Item>> {
        let offset = self.offset;
        match self.read() {
            Ok(Some((drr, payload))) => {
                self.records += 1;
                Ok(Some(Item { drr, payload, offset }))
            }
            Ok(None) => Ok(None),
            Err(e) => Err(self.place(e, "", offset)),
        }
    }

    /// Adds the position of the faulty record to an error.
    pub fn place(&self, e: Error, name: &str, offset: u64) -> Error {
        let space = if name.is_empty() { "" } else { " " };
        let what =
            format!("{} (record {}{space}{name}, byte {offset} of the stream)", e.what(), self.records);
        Error::new(e.kind(), what).because(e)
    }

    fn read(&mut self) -> Result<Option<(Drr, Vec<u8>)>> {
        let mut bytes = Vec::with_capacity(DRR_SIZE);
        self.fill(&mut bytes, u64::try_from(DRR_SIZE).unwrap_or(0))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let bad = |e: ondisk::Malformed| malformed(e.to_string());
        // Type 0 is BEGIN in either order.
        if bytes.starts_with(&[0; 4]) {
            self.endian = Drr::detect(&bytes).map_err(bad)?;
        }
        let drr = Drr::from_bytes(&bytes, self.endian).map_err(bad)?;
        if matches!(drr.body, DrrBody::Begin(_)) {
            self.sum = Fletcher4::new(self.endian == Endian::Big);
        }
        // The END of a package follows that of its last stream. OpenZFS does not check its sums, and `zstream redup` writes
        // others.
        let of_package = self.ended && matches!(drr.body, DrrBody::End(_));
        self.ended = matches!(drr.body, DrrBody::End(_));
        let before = self.sum.finish();
        let (head, tail) = bytes.split_at_checked(DRR_CHECKSUM_OFFSET).unwrap_or((&bytes, &[]));
        self.sum.update(head);
        if !of_package && drr.checksum.is_some_and(|said| said != [0; 4] && said != self.sum.finish()) {
            return Err(Error::new(Kind::Checksum, "the checksum of a record is wrong"));
        }
        if let DrrBody::End(end) = &drr.body
            && !of_package
            && end.checksum != [0; 4]
            && end.checksum != before
        {
            return Err(Error::new(Kind::Checksum, "the checksum of the stream is wrong"));
        }
        self.sum.update(tail);
        let size = drr.payload_size();
        let most = if matches!(drr.body, DrrBody::Begin(_)) { self.most_list } else { MAX_BLOCK };
        if size > most {
            return Err(malformed(format!("a record says that {size} bytes follow, and at most {most} may")));
        }
        let mut payload = Vec::new();
        self.fill(&mut payload, size)?;
        if u64::try_from(payload.len()) != Ok(size) {
            return Err(Error::new(Kind::Io, "incomplete stream"));
        }
        self.sum.update(&payload);
        Ok(Some((drr, payload)))
    }

    /// Reads `wanted` bytes: all of them or, at the end of the stream, none.
    fn fill(&mut self, to: &mut Vec<u8>, wanted: u64) -> Result<()> {
        let mut left = wanted;
        while left > 0 {
            let piece = left.min(PIECE);
            to.reserve_exact(usize::try_from(piece).unwrap_or(0));
            let read = (&mut *self.from).take(piece).read_to_end(to).map_err(broken)?;
            let read = u64::try_from(read).unwrap_or(0);
            self.offset = self.offset.saturating_add(read);
            left -= read.min(left);
            if read < piece {
                break;
            }
        }
        match left {
            0 => Ok(()),
            left if left == wanted && to.is_empty() => Ok(()),
            _ => Err(Error::new(Kind::Io, "incomplete stream")),
        }
    }
}

fn broken(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::Interrupted => Error::new(Kind::Interrupted, "interrupted"),
        _ => Error::new(Kind::Io, format!("the stream can't be read: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use ondisk::Raw;
    use ondisk::drr::{DRR_MAGIC, DrrBegin};

    use super::*;

    #[test]
    fn longer_lists_than_the_caller_may_send_are_refused_before_they_are_read() {
        let begin = DrrBegin {
            magic: DRR_MAGIC,
            versioninfo: 2,
            creation_time: 0,
            objset_type: 0,
            flags: 0,
            toguid: 0,
            fromguid: 0,
            toname: Raw([0; 256]),
        };
        let record = Drr { payloadlen: 4096, body: DrrBody::Begin(begin), checksum: None };
        let bytes = record.to_bytes(Endian::Little);
        let mut stream = bytes.as_slice().chain(io::repeat(0));
        let why = Input::new(&mut stream).with_lists_up_to(1024).record().unwrap_err();
        assert!(why.what().contains("4096 bytes follow, and at most 1024 may"), "{why}");
    }
}
