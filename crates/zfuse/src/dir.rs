//! Lists a directory: its own entries, the datasets below it, and the path to snapshots.
//!
//! No state of a listing is kept between requests. The offset encodes the position:
//! ```text
//!  0 ─ `.` ─ 1 ─ `..` ─ 2 ─ `.zfs` or child datasets ─ … 2^28 ─ the ZAP's entries by hash and cd ─ 2^62 ─ added by the log
//! ```
//! so an entry that stays is listed once, however many others are added and removed meanwhile, and an old offset is
//! never wrong.

use std::sync::Arc;

use crate::wire::FileType;
use engine::{Error, Result};
use zpl::{FileKind, Inode};

use crate::attr::file_type;
use crate::node::{Node, What};
use crate::space::{Content, Slot, Space};

/// An entry ready to be returned.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its name.
    pub name: Vec<u8>,
    /// The number of its file, [`UNKNOWN`] if a lookup has to find it (a dataset).
    pub ino: u64,
    /// Its type.
    pub kind: FileType,
    /// The offset at which the listing continues.
    pub next: u64,
}

/// Inode number of an entry that has none before its lookup.
pub const UNKNOWN: u64 = u64::MAX;

/// Offsets from here on are positions in a ZAP. Lower ones number the entries outside a ZAP.
#[doc(alias = "zap_cursor_serialize")]
const STORED: u64 = 1 << 28;

/// The ZAP cookie at which a listing at `offset` continues.
pub fn cookie(offset: u64) -> u64 {
    if offset < STORED { 0 } else { offset }
}

/// Entries from a ZAP.
type Stored = Box<dyn Iterator<Item = Result<Item>>>;

/// Entries of a directory from `offset` on; 0 is the beginning, with `.` and `..`. An unreadable part yields an
/// error, and the rest follows.
pub fn list(
    space: &Space,
    node: Node,
    inode: Option<&Inode>,
    offset: u64,
) -> Result<impl Iterator<Item = Result<Item>> + use<>> {
    let slot = space.slot(node.slot).ok_or_else(|| Error::not_found("no such dataset in this mount"))?;
    let stored = match (node.what, inode) {
        (What::SnapDir, _) => snapshots(&slot, offset)?,
        (What::Top | What::Object(_), Some(inode)) => own(node, &slot, inode, offset)?,
        _ => Box::new(std::iter::empty()),
    };
    let mut others = Vec::new();
    if offset < STORED {
        let here = node.encode().unwrap_or(UNKNOWN);
        others = vec![directory(b".", here), directory(b"..", parent(space, node, inode))];
        match node.what {
            What::Ctl => others.push(directory(b"snapshot", number(node.slot, What::SnapDir))),
            What::Top => {
                others.extend(slot.children().iter().map(|(name, _)| directory(name.as_bytes(), UNKNOWN)));
            }
            What::SnapDir | What::Object(_) => {}
        }
    }
    Ok(numbered(others, offset).map(Ok).chain(stored))
}

/// Entries outside a ZAP, from `offset` on. `items` may be empty if `offset` is a ZAP position.
pub fn numbered(items: Vec<Item>, offset: u64) -> impl Iterator<Item = Item> {
    let skip = usize::try_from(offset).unwrap_or(usize::MAX);
    (1..).zip(items).skip(skip).map(|(next, item)| Item { next, ..item })
}

/// Names of snapshots.
fn snapshots(slot: &Slot, offset: u64) -> Result<Stored> {
    let Some(mut cursor) = slot.dataset.snapshot_names(cookie(offset))? else {
        return Ok(Box::new(std::iter::empty()));
    };
    Ok(Box::new(std::iter::from_fn(move || {
        let item = cursor
            .next()?
            .map(|entry| Item { next: cursor.cookie_after(&entry), ..directory(entry.name(), UNKNOWN) });
        Some(item)
    })))
}

/// The file system's entries in the directory. Child datasets hide entries of the same name, as mounts do.
fn own(node: Node, slot: &Arc<Slot>, inode: &Inode, offset: u64) -> Result<Stored> {
    let hiding = (node.what == What::Top).then(|| Arc::clone(slot));
    let is_hidden = move |name: &[u8]| {
        let by = |(child, _): &(String, u64)| child.as_bytes().cmp(name);
        hiding.as_ref().is_some_and(|slot| slot.children().binary_search_by(by).is_ok())
    };
    let fs = Arc::clone(inode.filesystem());
    let entries = inode.entries_from(cookie(offset))?;
    let entries = entries.filter(move |entry| !entry.as_ref().is_ok_and(|(_, e)| is_hidden(&e.name)));
    Ok(Box::new(entries.map(move |entry| {
        let (next, entry) = entry?;
        // As in the writable tree: old file systems store no types.
        let stored = entry.kind.or_else(|| fs.inode(entry.object).ok().map(|inode| inode.attr().kind));
        let kind = file_type(stored.unwrap_or(FileKind::Regular));
        Ok(Item { name: entry.name, ino: number(node.slot, What::Object(entry.object)), kind, next })
    })))
}

fn parent(space: &Space, node: Node, inode: Option<&Inode>) -> u64 {
    let up = match node.what {
        What::SnapDir => Node { slot: node.slot, what: What::Ctl },
        What::Ctl => Node::top(node.slot),
        What::Top => Node::top(space.slot(node.slot).map_or(0, |s| s.parent)),
        What::Object(_) => match inode.map(|i| i.attr().parent) {
            Some(parent) if !is_root(space, node.slot, parent) => {
                Node { slot: node.slot, what: What::Object(parent) }
            }
            _ => Node::top(node.slot),
        },
    };
    up.encode().unwrap_or(UNKNOWN)
}

/// Whether `object` is the root directory of the file system in `slot`.
pub fn is_root(space: &Space, slot: usize, object: u64) -> bool {
    let slot = space.slot(slot);
    slot.is_some_and(|s| matches!(s.content(), Content::Filesystem(fs) if fs.root == object))
}

fn number(slot: usize, what: What) -> u64 {
    Node { slot, what }.encode().unwrap_or(UNKNOWN)
}

/// A directory outside a ZAP.
pub fn directory(name: &[u8], ino: u64) -> Item {
    Item { name: name.to_vec(), ino, kind: FileType::Directory, next: 0 }
}
