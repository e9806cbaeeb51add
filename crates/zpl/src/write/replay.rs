//! Records of the intent log done again, by the same functions that the operations go through.
//!
//! Object numbers, generations and times of creation are the record's. The reader of the log skips records of
//! txgs that are on disk, and those of objects that are gone.

use std::sync::atomic::Ordering;

use engine::types::Bookmark;
use engine::zio::ReadOptions;
use ondisk::zil::{
    CloneRange, LogRecord, LrAttr, LrCloneRange, LrCreate, LrRename, LrWrite, TxType, Write, decode_log_aces,
};
use ondisk::{Blkptr, Endian};

use engine::{Error, Kind, Result};
use stdx::{AlignedBuf, Buf};

use super::fs::{FsWriter, RecordReplay};
use super::make::{Given, NewNode};
use super::sink::{RenameKind, Settings};
use crate::attr::{FileKind, Time};
use crate::record::{self, OBJECT_MASK};

/// Largest block of a file.
const MAX_BLOCK: u64 = 16 << 20;

/// A new file from its record.
fn new_node<'a>(lr: &LrCreate, attr: Option<&LrAttr>, endian: Endian) -> Result<NewNode<'a>> {
    let bad = || Error::corrupt(format!("mode {:o} names no known file type", lr.mode));
    let kind = FileKind::from_mode(lr.mode).ok_or_else(bad)?;
    let given = Given {
        object: lr.foid & OBJECT_MASK,
        slots: record::slots(lr.foid),
        r#gen: lr.r#gen,
        crtime: Time::from_words(lr.crtime),
    };
    let node = NewNode::new(kind, lr.mode & 0o7777, lr.uid, lr.gid).device(lr.rdev);
    let settings = attr.map(|attr| record::with_optional(Settings::default(), attr, endian));
    Ok(NewNode { given: Some(given), settings, ..node })
}

impl RecordReplay<'_> {
    /// Replays a record. `data`: for a write, its bytes and their offset; they may be a whole block around
    /// the written range.
    ///
    /// # Errors
    /// `Unsupported` for types that are not known.
    #[doc(alias = "zfs_replay_vector")]
    pub fn record(
        self,
        txtype: TxType,
        said: &LogRecord<'_>,
        endian: Endian,
        data: Option<(u64, &[u8])>,
    ) -> Result<()> {
        // On file systems of mixed case a record may be of a request without regard to case, of an SMB server in a kernel.
        self.fs.ignores_case.store(txtype.is_case_insensitive(), Ordering::Relaxed);
        let done = replay_record(self.fs, txtype, said, endian, data);
        self.fs.ignores_case.store(false, Ordering::Relaxed);
        done
    }

    /// Makes the block of a write record that has only a pointer to it the file's, without reading it; false where it does not
    /// fit. That is for changes that are never written: the reference is not counted.
    pub(crate) fn pointer(self, w: &Write<'_>) -> Result<bool> {
        let LrWrite { foid, offset, length, blkptr, .. } = w.lr;
        let (start, blksz) = w.block_range();
        if blkptr.is_hole() {
            return Ok(false);
        }
        let length = offset.saturating_add(length).saturating_sub(start);
        let lr = LrCloneRange { foid, offset: start, length, blksz, nbps: 1 };
        self.fs.clones().replay(&CloneRange { lr, bps: vec![blkptr] })
    }
}

fn replay_record(
    fs: &FsWriter,
    txtype: TxType,
    said: &LogRecord<'_>,
    endian: Endian,
    data: Option<(u64, &[u8])>,
) -> Result<()> {
    let aces = |bytes: &[u8]| decode_log_aces(bytes, endian).map_err(|e| Error::corrupt(e.to_string()));
    match said {
        LogRecord::Commit => Ok(()),
        LogRecord::Create(c) if txtype.raw() == TxType::MKXATTR => {
            make_xattr_dir_at(fs, c.lr.doid, &new_node(&c.lr, None, endian)?)
        }
        LogRecord::Create(c) => {
            let new = NewNode { target: c.link, ..new_node(&c.lr, c.attr.as_ref(), endian)? };
            fs.dirs().create(c.lr.doid, c.name, &new).map(drop)
        }
        LogRecord::CreateAcl(c) => {
            let list = aces(c.acl.aces)?;
            let acl = Some(&*list).filter(|list| !list.is_empty());
            let new = NewNode { acl, ..new_node(&c.lr, c.attr.as_ref(), endian)? };
            fs.dirs().create(c.lr.doid, c.name, &new).map(drop)
        }
        LogRecord::Remove(r) if txtype.raw() == TxType::RMDIR => fs.dirs().rmdir(r.lr.doid, r.name),
        LogRecord::Remove(r) => fs.dirs().unlink(r.lr.doid, r.name),
        LogRecord::Link(l) => fs.dirs().link(l.lr.link_obj, l.lr.doid, l.name),
        LogRecord::Rename(r) => replay_rename(fs, &r.lr, (r.source, r.target), RenameKind::Plain, None),
        LogRecord::RenameExchange(r) => {
            replay_rename(fs, &r.lr, (r.source, r.target), RenameKind::Exchange, None)
        }
        LogRecord::RenameWhiteout(w) => {
            let (r, lr) = (&w.rename, &w.whiteout);
            let given = Given {
                object: lr.wfoid & OBJECT_MASK,
                slots: record::slots(lr.wfoid),
                r#gen: lr.wgen,
                crtime: Time::from_words(lr.wcrtime),
            };
            let made = Some((given, (lr.wuid, lr.wgid)));
            replay_rename(fs, &r.lr, (r.source, r.target), RenameKind::Whiteout, made)
        }
        LogRecord::Write(w) | LogRecord::Write2(w) => {
            let end = w.lr.offset.saturating_add(w.lr.length);
            let data = data.or(w.data.map(|bytes| (w.lr.offset, bytes)));
            replay_write(fs, w.lr.foid, end, data)
        }
        LogRecord::Truncate(t) => replay_truncate(fs, t.foid, t.offset, t.length),
        LogRecord::Setattr(s) => fs.attrs().set(s.lr.foid, &record::settings(s, endian)),
        LogRecord::Setsaxattr(s) => {
            let node = fs.node(s.lr.foid)?;
            let tx = fs.begin()?;
            let value = Some(s.value).filter(|v| !v.is_empty());
            match fs.attempt(&tx, |steps| fs.xattrs().pack(steps, &node, s.name, value))? {
                true => Ok(()),
                false => Err(Error::new(Kind::TooLong, "more extended attributes than a file can have")),
            }
        }
        LogRecord::AclV0(a) => fs.acls().set(a.lr.foid, &aces(a.aces)?),
        LogRecord::Acl(a) => fs.acls().set(a.foid, &aces(a.aces)?),
        LogRecord::CloneRange(c) => replay_clones(fs, c),
        LogRecord::Unknown(_) => {
            Err(Error::unsupported(format!("record type {} is not known", txtype.raw())))
        }
    }
}

fn replay_rename(
    fs: &FsWriter,
    lr: &LrRename,
    (source, target): (&[u8], &[u8]),
    kind: RenameKind,
    whiteout: Option<(Given, (u64, u64))>,
) -> Result<()> {
    let (given, ids) = whiteout.unzip();
    fs.dirs().rename_given((lr.sdoid, source), (lr.tdoid, target), kind, ids.unwrap_or_default(), given)
}

/// A write extends the file only to its own end, however long the block of the record is. The bytes of the block behind
/// that end are written, too: a record without data (TX_WRITE2) may follow, whose bytes they are.
#[doc(alias("zfs_replay_write", "zfs_replay_write2"))]
fn replay_write(fs: &FsWriter, object: u64, end: u64, data: Option<(u64, &[u8])>) -> Result<()> {
    match data {
        Some((offset, bytes)) => fs.replay().write_block(object, offset, bytes, end),
        None => fs.replay().extend(object, end),
    }
}

/// A freed range that reaches beyond the end of the file moves the end.
#[doc(alias("zfs_replay_truncate", "zfs_freesp"))]
fn replay_truncate(fs: &FsWriter, object: u64, offset: u64, length: u64) -> Result<()> {
    let size = fs.node(object)?.word(fs.fields.size);
    let end = offset.saturating_add(length);
    match () {
        () if length == 0 => fs.data().truncate(object, offset),
        () if end <= size => fs.data().punch(object, offset, length),
        () if offset >= size => fs.data().truncate(object, end),
        () => fs.replay().cut_and_extend(object, offset, end),
    }
}

/// Clones the blocks, to which the log has references of its own; where they do not fit their bytes are written.
fn replay_clones(fs: &FsWriter, c: &CloneRange) -> Result<()> {
    if fs.clones().replay(c)? {
        return Ok(());
    }
    let (lr, mut at) = (c.lr, c.lr.offset);
    let end = lr.offset.saturating_add(lr.length);
    if lr.blksz > MAX_BLOCK {
        return Err(Error::corrupt("blocks of a clone are larger than any block"));
    }
    let mut left = c.bps.iter().peekable();
    while let Some(bp) = left.next() {
        let len = usize::try_from(lr.blksz.min(end.saturating_sub(at))).unwrap_or(0);
        let bytes = match bp.is_hole() {
            true => AlignedBuf::zeroed(len).into(),
            false => cloned(fs, bp, lr.foid, at)?,
        };
        let bytes = bytes.get(..len).ok_or_else(|| Error::corrupt("a cloned block is too short"))?;
        match left.peek() {
            Some(_) => fs.replay().write_part(lr.foid, at, bytes)?,
            None => fs.replay().write_once(lr.foid, at, bytes)?,
        }
        at = at.saturating_add(lr.blksz);
    }
    Ok(())
}

fn cloned(fs: &FsWriter, bp: &Blkptr, object: u64, offset: u64) -> Result<Buf> {
    let blkid = offset.checked_div(bp.lsize()).unwrap_or(0);
    let place = Bookmark::new(fs.objset.id, object, 0, blkid);
    fs.objset.arc().zio().read_wait(bp, place, ReadOptions::default()).data
}

fn make_xattr_dir_at(fs: &FsWriter, object: u64, new: &NewNode<'_>) -> Result<()> {
    let node = fs.node(object)?;
    if node.word(fs.fields.xattr) != 0 {
        return Err(Error::new(Kind::Exists, "the file has a directory of attributes"));
    }
    let tx = fs.begin()?;
    let _names = fs.names.read();
    fs.attempt(&tx, |steps| fs.xattrs().make_dir(steps, &node, new)).map(drop)
}
