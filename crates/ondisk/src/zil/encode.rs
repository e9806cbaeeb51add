//! Records and blocks of the log as they are written: little-endian, as this build writes everything.

use super::block::ZilChain;
use super::layout::{LrCommon, LrWrite};
use super::record::{AclRecord, Create, CreateAcl, LogRecord, LrAttr};
use super::tx_type::TxType;
use crate::{Cursor, Endian, Field};

/// Where a record's txg stands.
const TXG: usize = 16;
/// Where its sequence number stands.
const SEQ: usize = 24;

impl LrAttr {
    fn write(&self, out: &mut Vec<u8>) {
        let words = u32::try_from(self.bitmap.len()).unwrap_or(u32::MAX);
        words.write(out, Endian::Little);
        self.bitmap.iter().for_each(|word| word.write(out, Endian::Little));
        self.attrs.write(out, Endian::Little);
        self.crtime.write(out, Endian::Little);
        out.extend_from_slice(&self.scanstamp);
    }
}

impl LogRecord<'_> {
    /// The record's bytes, without txg and sequence number ([`stamp_txg`], [`stamp_seq`]).
    pub fn encode(&self, txtype: TxType) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.room());
        let head = LrCommon { txtype: txtype.0, ..LrCommon::default() };
        head.write(&mut out, Endian::Little);
        self.body(&mut out);
        out.resize(out.len().next_multiple_of(8), 0);
        let len = u64::try_from(out.len()).unwrap_or(u64::MAX);
        put(&mut out, 8, len);
        out
    }

    /// Bytes for which memory is allocated at first. Many records wait for a commit, so those of which there are most have no
    /// more memory than they need.
    fn room(&self) -> usize {
        let named = |words: usize, name: &[u8], link: Option<&[u8]>| {
            let text = name.len().saturating_add(link.map_or(0, |link| link.len().saturating_add(1)));
            (text.saturating_add(words * 8 + 1)).next_multiple_of(8)
        };
        match self {
            Self::Remove(r) => named(5, r.name, None),
            Self::Create(c) if c.attr.is_none() && c.domains.is_empty() => named(13, c.name, c.link),
            _ => 256,
        }
    }

    fn body(&self, out: &mut Vec<u8>) {
        let le = Endian::Little;
        match self {
            Self::Commit => {}
            Self::Create(c) => create(c, out),
            Self::CreateAcl(c) => create_acl(c, out),
            Self::Remove(r) => {
                r.lr.write(out, le);
                string(r.name, out);
            }
            Self::Link(l) => {
                l.lr.write(out, le);
                string(l.name, out);
            }
            Self::Rename(r) | Self::RenameExchange(r) => {
                r.lr.write(out, le);
                string(r.source, out);
                string(r.target, out);
            }
            Self::RenameWhiteout(r) => {
                r.rename.lr.write(out, le);
                r.whiteout.write(out, le);
                string(r.rename.source, out);
                string(r.rename.target, out);
            }
            Self::Write(w) | Self::Write2(w) => {
                w.lr.write(out, le);
                out.extend_from_slice(w.data.unwrap_or(&[]));
            }
            Self::Truncate(t) => t.write(out, le),
            Self::Setattr(s) => {
                s.lr.write(out, le);
                s.attr.iter().for_each(|attr| attr.write(out));
                out.extend_from_slice(s.rest);
            }
            Self::Setsaxattr(s) => {
                s.lr.write(out, le);
                string(s.name, out);
                out.extend_from_slice(s.value);
            }
            Self::AclV0(a) => {
                a.lr.write(out, le);
                out.extend_from_slice(a.aces);
            }
            Self::Acl(a) => {
                a.foid.write(out, le);
                a.lr.write(out, le);
                acl_tables(a, out);
            }
            Self::CloneRange(c) => {
                c.lr.write(out, le);
                c.bps.iter().for_each(|bp| bp.write(out, le));
            }
            Self::Unknown(bytes) => out.extend_from_slice(bytes),
        }
    }
}

fn string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(bytes);
    out.push(0);
}

fn create(c: &Create<'_>, out: &mut Vec<u8>) {
    c.lr.write(out, Endian::Little);
    c.attr.iter().for_each(|attr| attr.write(out));
    c.domains.iter().for_each(|domain| string(domain, out));
    string(c.name, out);
    c.link.iter().for_each(|link| string(link, out));
}

fn create_acl(c: &CreateAcl<'_>, out: &mut Vec<u8>) {
    c.lr.write(out, Endian::Little);
    c.acl.lr.write(out, Endian::Little);
    c.attr.iter().for_each(|attr| attr.write(out));
    acl_tables(&c.acl, out);
    string(c.name, out);
}

fn acl_tables(a: &AclRecord<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(a.aces);
    let pad = a.aces.len().next_multiple_of(8) - a.aces.len();
    out.resize(out.len() + pad, 0);
    a.fuids.iter().for_each(|fuid| fuid.write(out, Endian::Little));
    a.domains.iter().for_each(|domain| string(domain, out));
}

/// A write record followed by its data: `lr` has their offset and length.
pub fn encode_write(lr: &LrWrite, data: &[u8]) -> Vec<u8> {
    let write = super::record::Write { lr: *lr, data: Some(data) };
    LogRecord::Write(write).encode(TxType(TxType::WRITE))
}

/// The fixed part of an encoded write record, and whether its data follow it; `None` for other records.
pub fn encoded_write(record: &[u8]) -> Option<(LrWrite, bool)> {
    let head = LrCommon::read(&mut Cursor::with_endian("log record", record, Endian::Little)).ok()?;
    let (kind, body) = (TxType(head.txtype), record.get(LrCommon::SIZE..)?);
    match LogRecord::decode(kind, body, Endian::Little) {
        Ok(LogRecord::Write(write)) => Some((write.lr, write.data.is_some())),
        _ => None,
    }
}

/// Puts the txg of the change into a record.
pub fn stamp_txg(record: &mut [u8], txg: u64) {
    put(record, TXG, txg);
}

/// Puts its number into a record.
pub fn stamp_seq(record: &mut [u8], seq: u64) {
    put(record, SEQ, seq);
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    if let Some(to) = bytes.get_mut(at..at + 8) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

impl ZilChain {
    /// Its bytes; those of its checksum are 0.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::SIZE);
        self.write(&mut out, Endian::Little);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{LrCreate, LrRemove, LrRename, LrSetsaxattr};
    use super::super::record::{Remove, Rename, Setsaxattr};
    use super::*;

    fn round(txtype: u64, record: &LogRecord<'_>) {
        let bytes = record.encode(TxType(txtype));
        assert_eq!(bytes.len() % 8, 0);
        assert_eq!(bytes[8..16], (bytes.len() as u64).to_le_bytes());
        let again = LogRecord::decode(TxType(txtype), &bytes[32..], Endian::Little).unwrap();
        assert_eq!(format!("{record:?}"), format!("{again:?}"));
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let lr = LrCreate { doid: 4, foid: 9, mode: 0o100_644, uid: 5 << 32 | 1, ..LrCreate::default() };
        let create = Create { lr, attr: None, domains: vec![b"S-1-2"], name: b"file", link: None };
        round(TxType::CREATE, &LogRecord::Create(create));
        let link =
            Create { lr: LrCreate::default(), attr: None, domains: vec![], name: b"l", link: Some(b"to") };
        let link = LogRecord::Create(link);
        round(TxType::SYMLINK, &link);
        // Many of these wait for a commit.
        let remove = LogRecord::Remove(Remove { lr: LrRemove { doid: 4 }, name: b"a file" });
        round(TxType::REMOVE, &remove);
        for bytes in [link.encode(TxType(TxType::SYMLINK)), remove.encode(TxType(TxType::REMOVE))] {
            assert_eq!(bytes.capacity(), bytes.len());
        }
        let rename = Rename { lr: LrRename { sdoid: 3, tdoid: 4 }, source: b"a", target: b"bc" };
        round(TxType::RENAME, &LogRecord::Rename(rename));
        let xattr = Setsaxattr { lr: LrSetsaxattr { foid: 2, size: 5 }, name: b"user.x", value: b"12345" };
        round(TxType::SETSAXATTR, &LogRecord::Setsaxattr(xattr));
        let write = LrWrite { foid: 7, offset: 3, length: 3, ..LrWrite::default() };
        let bytes = encode_write(&write, b"abc");
        assert_eq!(bytes.len(), 32 + 160 + 8);
    }
}
