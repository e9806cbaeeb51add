//! One record applied.

use engine::{Error, Kind, Result};
use nvpair::{NvList, NvValue};
use ondisk::zil::{CloneRange, LogRecord, LrTruncate, Setattr, Setsaxattr, TxType, Write, decode_log_aces};
use stdx::Buf;

use super::patch::Source;
use super::state::{OverlayState, Stored};
use super::{create, names};
use crate::inode::AclSource;
use crate::record;

/// Blocks of one clone record that are looked at; a record can't hold more.
const MAX_CLONED: usize = 1 << 16;

/// Bytes that a file's own extended attributes take at most, packed.
#[doc(alias = "DXATTR_MAX_SA_SIZE")]
const MAX_XATTRS: usize = 64 << 10;

pub(super) fn record(state: &mut OverlayState<'_>, txtype: u64, said: LogRecord<'_>) -> Result<()> {
    match said {
        LogRecord::Commit => Ok(()),
        LogRecord::Create(c) => create::create(state, TxType(txtype), &c),
        LogRecord::CreateAcl(c) => {
            let aces =
                decode_log_aces(c.acl.aces, state.endian).map_err(|e| Error::corrupt(e.to_string()))?;
            create::create_acl(state, &c, aces)
        }
        LogRecord::Remove(r) => names::remove(state, r.lr.doid, r.name),
        LogRecord::Link(l) => names::link(state, l.lr.doid, l.lr.link_obj, l.name),
        LogRecord::Rename(r) => names::rename(state, &r),
        LogRecord::RenameExchange(r) => names::exchange(state, &r),
        LogRecord::RenameWhiteout(r) => names::rename_whiteout(state, &r),
        LogRecord::Write(w) => write(state, &w),
        LogRecord::Write2(w) => grow(state, w.lr.foid, w.lr.offset.saturating_add(w.lr.length)),
        LogRecord::Truncate(t) => truncate(state, &t),
        LogRecord::Setattr(s) => setattr(state, &s),
        LogRecord::Setsaxattr(s) => setsaxattr(state, &s),
        LogRecord::AclV0(a) => set_acl(state, a.lr.foid, a.aces),
        LogRecord::Acl(a) => set_acl(state, a.foid, a.aces),
        LogRecord::CloneRange(c) => clone_range(state, &c),
        LogRecord::Unknown(_) => Err(Error::unsupported(format!("record type {txtype} is not known"))),
    }
}

/// A record may come after the removal of its file: then it is ignored.
fn late<'s>(state: &'s mut OverlayState<'_>, number: u64) -> Result<Option<&'s mut Stored>> {
    state.find(number)
}

fn write(state: &mut OverlayState<'_>, w: &Write<'_>) -> Result<()> {
    let lr = w.lr;
    let end = lr.offset.checked_add(lr.length);
    let end =
        end.ok_or_else(|| state.fs.error(Kind::Corrupt, "a write past the end of all files", lr.foid))?;
    let Some(node) = late(state, lr.foid)? else { return Ok(()) };
    match w.data {
        Some(data) => node.changes().data.put(lr.offset..end, Source::Bytes(Buf::from(data))),
        None => {
            let (start, size) = w.block_range();
            let source = if lr.blkptr.is_hole() { Source::Zero } else { Source::Logged(lr, 0) };
            let range = start..start.saturating_add(size);
            node.changes().data.put(range, source);
        }
    }
    node.attr.size = node.attr.size.max(end);
    Ok(())
}

fn grow(state: &mut OverlayState<'_>, number: u64, end: u64) -> Result<()> {
    if let Some(node) = late(state, number)? {
        node.attr.size = node.attr.size.max(end);
    }
    Ok(())
}

/// Sets the size; data past a smaller one is gone, even if the file grows again.
fn resize(node: &mut Stored, size: u64) {
    if size < node.attr.size {
        node.changes().data.put(size..u64::MAX, Source::Zero);
    }
    node.attr.size = size;
}

fn truncate(state: &mut OverlayState<'_>, t: &LrTruncate) -> Result<()> {
    let Some(node) = late(state, t.foid)? else { return Ok(()) };
    let end = t.offset.saturating_add(t.length);
    if t.length == 0 {
        resize(node, t.offset);
    } else {
        // A freed range that reaches beyond the end of the file moves the end.
        node.changes().data.put(t.offset..end, Source::Zero);
        node.attr.size = node.attr.size.max(end);
    }
    Ok(())
}

fn setattr(state: &mut OverlayState<'_>, s: &Setattr<'_>) -> Result<()> {
    let set = record::settings(s, state.endian);
    let Some(node) = late(state, s.lr.foid)? else { return Ok(()) };
    if let Some(mode) = set.mode {
        node.attr.perm = (mode & 0o7777) as u32;
    }
    if let Some(uid) = set.uid {
        (node.attr.owner, node.attr.uid) = (uid, uid as u32);
    }
    if let Some(gid) = set.gid {
        (node.attr.group, node.attr.gid) = (gid, gid as u32);
    }
    if let Some(size) = set.size {
        resize(node, size);
    }
    if let Some((value, which)) = set.flags {
        node.attr.flags = node.attr.flags & !which | value & which;
    }
    node.attr.atime = set.atime.unwrap_or(node.attr.atime);
    node.attr.mtime = set.mtime.unwrap_or(node.attr.mtime);
    node.attr.crtime = set.crtime.unwrap_or(node.attr.crtime);
    Ok(())
}

fn set_acl(state: &mut OverlayState<'_>, number: u64, aces: &[u8]) -> Result<()> {
    let aces = decode_log_aces(aces, state.endian).map_err(|e| Error::corrupt(e.to_string()))?;
    if let Some(node) = late(state, number)? {
        node.acl = AclSource::Decoded(aces);
        node.attr.flags &= !ondisk::znode::pflags::ACL_TRIVIAL;
    }
    Ok(())
}

fn setsaxattr(state: &mut OverlayState<'_>, s: &Setsaxattr<'_>) -> Result<()> {
    let Some(node) = late(state, s.lr.foid)? else { return Ok(()) };
    let packed = node.dxattr.as_deref().filter(|p| !p.is_empty());
    let list = packed.map(NvList::decode).transpose();
    let mut list = list.map_err(|e| Error::corrupt(e.to_string()))?.unwrap_or_default();
    if s.value.is_empty() {
        list.remove(s.name);
    } else {
        list.add(s.name, NvValue::ByteArray(s.value.to_vec()));
    }
    let packed = list.encode_xdr().map_err(|e| Error::corrupt(e.to_string()))?;
    if packed.len() > MAX_XATTRS {
        return Err(state.fs.error(
            Kind::TooLong,
            "more extended attributes than a file can have",
            s.lr.foid,
        ));
    }
    node.dxattr = Some(packed);
    Ok(())
}

fn clone_range(state: &mut OverlayState<'_>, c: &CloneRange) -> Result<()> {
    let lr = c.lr;
    let Some(node) = late(state, lr.foid)? else { return Ok(()) };
    let end = lr.offset.saturating_add(lr.length);
    let mut at = lr.offset;
    for bp in c.bps.iter().take(MAX_CLONED) {
        let to = at.saturating_add(lr.blksz).min(end);
        let source = if bp.is_hole() { Source::Zero } else { Source::Cloned(*bp, 0) };
        node.changes().data.put(at..to, source);
        at = to;
    }
    node.attr.size = node.attr.size.max(end);
    Ok(())
}
