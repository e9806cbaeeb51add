//! A send stream, record by record: read with its checksums checked, and written again with checksums of its own.

use std::io::{self, IsTerminal, Read, Write};

use checksum::{Cksum, Fletcher4};
use clikit::verb::Failure;
use ondisk::Endian;
use ondisk::drr::{DRR_CHECKSUM_OFFSET, DRR_SIZE, Drr, DrrBody, DrrEnd};

/// Largest payload of a record: a block of 16 MiB; lists of properties of a whole tree are shorter.
const MAX_PAYLOAD: u64 = 256 << 20;
/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;

pub(super) fn malformed(what: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("invalid stream: {what}"))
}

/// The stream and the checksum of the bytes read so far.
pub(super) struct Input<R> {
    from: R,
    sum: Fletcher4,
    /// Bytes of the parts that were read whole: both parts of a record's header, and its payload.
    pub(super) length: u64,
    /// The stream ends within a record.
    pub(super) is_cut: bool,
    /// The byte order of its numbers.
    pub(super) endian: Endian,
}

impl<R: Read> Input<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, sum: Fletcher4::new(false), length: 0, is_cut: false, endian: Endian::Little }
    }

    /// The next record, and the checksum of the bytes before it; `None` at the end.
    pub(super) fn record(&mut self, check: bool) -> Result<Option<(Drr, Cksum)>, Failure> {
        let mut bytes = Vec::with_capacity(DRR_SIZE);
        self.from.by_ref().take(DRR_SIZE as u64).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() < DRR_SIZE {
            let whole = if bytes.len() < DRR_CHECKSUM_OFFSET { 0 } else { DRR_CHECKSUM_OFFSET };
            return Err(self.cut(whole as u64));
        }
        self.length += DRR_SIZE as u64;
        // Type 0 is BEGIN in either order; a stream keeps to one.
        if bytes.starts_with(&[0; 4]) {
            self.endian = Drr::detect(&bytes).map_err(malformed)?;
        }
        let drr = Drr::from_bytes(&bytes, self.endian).map_err(malformed)?;
        if matches!(drr.body, DrrBody::Begin(_)) {
            self.sum = Fletcher4::new(self.endian == Endian::Big);
        }
        let before = self.sum.finish();
        let (head, tail) = bytes.split_at_checked(DRR_CHECKSUM_OFFSET).unwrap_or((&bytes, &[]));
        self.sum.update(head);
        let is = self.sum.finish();
        if check && drr.checksum.is_some_and(|said| said != [0; 4] && said != is) {
            let said = drr.checksum.unwrap_or_default();
            let what = "incorrect checksum in a record's header";
            return Err(malformed(format!("{what}: expected {}, found {}", sum(is), sum(said))));
        }
        self.sum.update(tail);
        Ok(Some((drr, before)))
    }

    /// Notes that the stream ends within a record; `whole`: bytes of the record that were read whole.
    fn cut(&mut self, whole: u64) -> Failure {
        self.length += whole;
        self.is_cut = true;
        malformed("it ends within a record")
    }

    /// Reads over a payload.
    pub(super) fn skip(&mut self, size: u64) -> Result<(), Failure> {
        self.pieces(size, &mut |_| Ok(()))
    }

    /// Reads a payload.
    pub(super) fn payload(&mut self, size: u64) -> Result<Vec<u8>, Failure> {
        let mut all = Vec::new();
        self.pieces(size, &mut |piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(all)
    }

    /// Hands a payload to `take` in pieces; all but the last one have the same size, a multiple of 16.
    pub(super) fn pieces(
        &mut self,
        size: u64,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if size > MAX_PAYLOAD {
            return Err(malformed(format!("a record of {size} bytes")));
        }
        let mut left = size;
        while left > 0 {
            let mut piece = Vec::new();
            let wanted = left.min(PIECE);
            self.from.by_ref().take(wanted).read_to_end(&mut piece)?;
            if (piece.len() as u64) < wanted {
                return Err(self.cut(0));
            }
            self.sum.update(&piece);
            take(&piece)?;
            left -= wanted;
        }
        self.length += size;
        Ok(())
    }
}

pub(super) fn sum(words: Cksum) -> String {
    words.map(|word| format!("{word:x}")).join("/")
}

/// A stream that is being written.
pub(super) struct Output<'a> {
    to: &'a mut dyn Write,
    sum: Fletcher4,
}

impl<'a> Output<'a> {
    pub(super) fn new(to: &'a mut dyn Write) -> Self {
        Self { to, sum: Fletcher4::new(false) }
    }

    /// Writes a record with its payload. Each but BEGIN gets a checksum, as OpenZFS's tool writes it, also the ENDs of
    /// packages, which their sender wrote without one. The checksum of a stream that an END repeats is left out where the
    /// sender left it out.
    #[doc(alias = "dump_record")]
    pub(super) fn put(&mut self, mut drr: Drr, payload: &[u8], endian: Endian) -> io::Result<()> {
        if matches!(drr.body, DrrBody::Begin(_)) {
            self.sum = Fletcher4::new(endian == Endian::Big);
        }
        if let DrrBody::End(DrrEnd { checksum, .. }) = &mut drr.body
            && *checksum != [0; 4]
        {
            *checksum = self.sum.finish();
        }
        let bytes = drr.to_bytes(endian);
        self.sum.update(bytes.get(..DRR_CHECKSUM_OFFSET).unwrap_or_default());
        drr.checksum = drr.checksum.map(|_| self.sum.finish());
        let bytes = drr.to_bytes(endian);
        self.sum.update(bytes.get(DRR_CHECKSUM_OFFSET..).unwrap_or_default());
        self.sum.update(payload);
        if matches!(drr.body, DrrBody::End(_)) {
            // The END of a package follows that of its last stream.
            self.sum = Fletcher4::new(endian == Endian::Big);
        }
        self.to.write_all(&bytes)?;
        self.to.write_all(payload)
    }
}

/// Copies a stream, each record but BEGIN and END as `change` leaves it with its payload, or leaves it out if that returns
/// false; `begin` may refuse a BEGIN, or change it.
pub(super) fn rewrite(
    from: impl Read,
    to: &mut dyn Write,
    begin: &dyn Fn(&mut DrrBody) -> Result<(), Failure>,
    change: &mut dyn FnMut(&mut Drr, &mut Vec<u8>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let (mut input, mut output) = (Input::new(from), Output::new(to));
    while let Some((mut drr, before)) = input.record(true)? {
        let mut payload = input.payload(drr.payload_size())?;
        let stays = match &mut drr.body {
            DrrBody::Begin(_) => begin(&mut drr.body).map(|()| true)?,
            DrrBody::End(DrrEnd { checksum, .. }) if *checksum != [0; 4] && *checksum != before => {
                let what = format!("its checksum is {}, not {}", sum(before), sum(*checksum));
                return Err(malformed(what));
            }
            DrrBody::End(_) => true,
            _ => change(&mut drr, &mut payload)?,
        };
        if stays {
            output.put(drr, &payload, input.endian)?;
        }
    }
    Ok(())
}

/// A stream is nothing for a terminal, on either side.
pub(super) fn redirected(out_is_terminal: bool) -> Result<(), Failure> {
    if out_is_terminal {
        return Err(Failure::failed("a stream can't be written to a terminal: redirect standard output"));
    }
    if io::stdin().is_terminal() {
        return Err(Failure::failed("a stream can't be read from a terminal: redirect standard input"));
    }
    Ok(())
}
