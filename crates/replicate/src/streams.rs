//! A send stream as a sequence of items for objects and blocks, for comparisons.
//!
//! Items also come ready-made from another machine, which is some thousand times less to move than the stream: [`MAGIC`], then
//! for each item a byte (1: an object, 2: a block), the object and, of a block, its byte offset as little-endian 64-bit numbers,
//! and the digest; a byte 0 ends them.
//!
//! Source: `dmu_replay_record_t`, OpenZFS 2.4.

use std::io::{Read, Write};

use ondisk::drr::{Drr, DrrBody};
use sha2::{Digest, Sha256};

/// Bytes of a record.
const RECORD: usize = 312;
/// Most bytes that a record of any sender has behind it: a block, a bonus buffer or a list.
const MAX_PAYLOAD: u64 = 64 << 20;

/// First bytes of ready-made items. No stream begins so: its first record has the type 0.
const MAGIC: [u8; 8] = *b"AQITEMS1";

/// A stream's statement about an object or a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    /// The object.
    pub object: u64,
    /// Byte offset of the block; `None`: the object itself or its spill block.
    pub offset: Option<u64>,
    /// Checksum of all of it that both sides must have.
    pub digest: [u8; 32],
}

impl Item {
    fn new(kind: u8, (object, offset): (u64, Option<u64>), parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        hash.update([kind]);
        for part in parts {
            hash.update(u64::try_from(part.len()).unwrap_or(0).to_le_bytes());
            hash.update(part);
        }
        Self { object, offset, digest: hash.finalize().into() }
    }

    fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        to.write_all(&[if self.offset.is_some() { 2 } else { 1 }])?;
        to.write_all(&self.object.to_le_bytes())?;
        if let Some(offset) = self.offset {
            to.write_all(&offset.to_le_bytes())?;
        }
        to.write_all(&self.digest)
    }
}

/// Form of the input.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// A stream in this byte order.
    Stream(ondisk::Endian),
    /// Ready-made items.
    Items,
}

/// Reads items of one snapshot's stream, or ready-made ones.
#[derive(Debug)]
pub(crate) struct Items<R> {
    from: R,
    form: Option<Form>,
    records: u64,
    done: bool,
}

/// Reads the stream of one snapshot, and writes its items.
///
/// # Errors
/// A message with the number of the record that can't be read, or about the output.
pub fn write_items(from: impl Read, mut to: impl Write) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("cannot write: {e}");
    let mut items = Items::new(from);
    to.write_all(&MAGIC).map_err(failed)?;
    while let Some(item) = items.next()? {
        item.write(&mut to).map_err(failed)?;
    }
    to.write_all(&[0]).and_then(|()| to.flush()).map_err(failed)
}

impl<R: Read> Items<R> {
    pub fn new(from: R) -> Self {
        Self { from, form: None, records: 0, done: false }
    }

    /// The next item; `None` behind the END record.
    ///
    /// # Errors
    /// A message with the number of the record that can't be read.
    pub fn next(&mut self) -> Result<Option<Item>, String> {
        while !self.done {
            let found = self.step().map_err(|e| format!("record {}: {e}", self.records))?;
            self.records += 1;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Reads a record. Returns its item, if it has one.
    fn step(&mut self) -> Result<Option<Item>, String> {
        let (body, payload) = match self.form {
            None => {
                let mut head = [0; MAGIC.len()];
                self.fill(&mut head)?;
                if head == MAGIC {
                    self.form = Some(Form::Items);
                    return self.ready_made();
                }
                let mut bytes = [0; RECORD];
                let (first, rest) = bytes.split_at_mut(head.len());
                first.copy_from_slice(&head);
                self.fill(rest)?;
                let endian = Drr::detect(&bytes).map_err(|e| e.to_string())?;
                self.form = Some(Form::Stream(endian));
                self.record(&bytes, endian)?
            }
            Some(Form::Items) => return self.ready_made(),
            Some(Form::Stream(endian)) => {
                let mut bytes = [0; RECORD];
                self.fill(&mut bytes)?;
                self.record(&bytes, endian)?
            }
        };
        Ok(self.item(&body, &payload))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        self.from.read_exact(bytes).map_err(|_| "the stream ends early".to_owned())
    }

    fn ready_made(&mut self) -> Result<Option<Item>, String> {
        let (mut kind, mut word, mut digest) = ([0], [0; 8], [0; 32]);
        self.fill(&mut kind)?;
        if kind == [0] {
            self.done = true;
            return Ok(None);
        }
        self.fill(&mut word)?;
        let object = u64::from_le_bytes(word);
        let offset = match kind {
            [1] => None,
            [2] => {
                self.fill(&mut word)?;
                Some(u64::from_le_bytes(word))
            }
            [other] => return Err(format!("an item of the unknown kind {other}")),
        };
        self.fill(&mut digest)?;
        Ok(Some(Item { object, offset, digest }))
    }

    /// Takes a record apart, and reads the payload behind it.
    fn record(&mut self, bytes: &[u8; RECORD], endian: ondisk::Endian) -> Result<(DrrBody, Vec<u8>), String> {
        let drr = Drr::from_bytes(bytes, endian).map_err(|e| e.to_string())?;
        let size = drr.payload_size();
        let len = usize::try_from(size).ok().filter(|_| size <= MAX_PAYLOAD);
        let mut payload = vec![0; len.ok_or_else(|| format!("a payload of {size} bytes"))?];
        self.fill(&mut payload)?;
        Ok((drr.body, payload))
    }

    /// Returns the item that both sides must have alike. Holes and frees need not be alike: a block of zeros
    /// may be a hole at the other side.
    fn item(&mut self, body: &DrrBody, payload: &[u8]) -> Option<Item> {
        match body {
            DrrBody::Object(o) => {
                let shape = [o.object_type, o.bonustype, o.blksz, o.bonuslen, u32::from(o.dn_slots.max(1))];
                let shape: Vec<u8> = shape.iter().flat_map(|word| word.to_le_bytes()).collect();
                Some(Item::new(1, (o.object, None), &[&shape, payload]))
            }
            DrrBody::Write(w) if w.compressiontype == 0 && payload.iter().all(|&byte| byte == 0) => None,
            DrrBody::Write(w) => {
                let form = [w.compressiontype];
                let parts = [&form[..], &w.salt.0, &w.iv.0, &w.mac.0, payload];
                Some(Item::new(2, (w.object, Some(w.offset)), &parts))
            }
            DrrBody::WriteEmbedded(w) => {
                let form = [w.compression, w.etype];
                Some(Item::new(3, (w.object, Some(w.offset)), &[&form, payload]))
            }
            DrrBody::Spill(s) => {
                Some(Item::new(4, (s.object, None), &[&s.salt.0, &s.iv.0, &s.mac.0, payload]))
            }
            DrrBody::Redact(r) => Some(Item::new(5, (r.object, Some(r.offset)), &[&r.length.to_le_bytes()])),
            DrrBody::ObjectRange(r) => {
                Some(Item::new(6, (r.firstobj, None), &[&r.salt.0, &r.iv.0, &r.mac.0]))
            }
            DrrBody::End(_) => {
                self.done = true;
                None
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondisk::Endian;
    use ondisk::drr::{DRR_MAGIC, DrrBegin, DrrEnd, DrrWrite};

    fn stream(blocks: &[(u64, u8)]) -> Vec<u8> {
        let record = |body, checksum| Drr { payloadlen: 0, body, checksum }.to_bytes(Endian::Little);
        let begin = DrrBegin { magic: DRR_MAGIC, versioninfo: 1, ..Default::default() };
        let mut bytes = record(DrrBody::Begin(begin), None);
        for (offset, fill) in blocks {
            let write = DrrWrite { object: 7, offset: *offset, logical_size: 512, ..Default::default() };
            bytes.extend(record(DrrBody::Write(write), Some([0; 4])));
            bytes.extend([*fill; 512]);
        }
        bytes.extend(record(DrrBody::End(DrrEnd::default()), Some([0; 4])));
        bytes
    }

    fn items(bytes: &[u8]) -> Result<Vec<Item>, String> {
        let (mut from, mut all) = (Items::new(bytes), Vec::new());
        while let Some(item) = from.next()? {
            all.push(item);
        }
        Ok(all)
    }

    #[test]
    fn streams_are_equal_if_their_content_is() {
        let one = items(&stream(&[(0, 1), (512, 0), (1024, 2)])).unwrap();
        assert_eq!(one, items(&stream(&[(0, 1), (1024, 2)])).unwrap());
        assert_ne!(one, items(&stream(&[(0, 1), (1024, 3)])).unwrap());
        assert_eq!(one.last().map(|item| (item.object, item.offset)), Some((7, Some(1024))));
    }

    #[test]
    fn ready_made_items_are_those_of_the_stream() {
        let whole = stream(&[(0, 1), (512, 0), (1024, 2)]);
        let mut made = Vec::new();
        write_items(&whole[..], &mut made).unwrap();
        assert_eq!(items(&made).unwrap(), items(&whole).unwrap());
        assert!(made.len() < 120, "{}", made.len());
        for len in 0..made.len() {
            assert!(items(&made[..len]).unwrap_err().contains("ends early"), "{len}");
        }
        let unknown = [&MAGIC[..], &[9; 100]].concat();
        assert!(items(&unknown).unwrap_err().contains("unknown kind 9"));
        assert!(write_items(&whole[..700], &mut Vec::new()).is_err());
    }

    #[test]
    fn a_hostile_stream_is_an_error() {
        let whole = stream(&[(0, 1)]);
        for len in [0, 100, 312, 700, whole.len() - 1] {
            assert!(items(&whole[..len]).unwrap_err().contains("record "), "{len}");
        }
        let mut huge = whole.clone();
        // The size of the WRITE record's block.
        huge[312 + 8 + 24..312 + 8 + 32].fill(0xff);
        assert!(items(&huge).unwrap_err().contains("record 1"));
    }
}
