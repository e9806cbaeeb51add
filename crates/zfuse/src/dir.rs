//! Listing a directory: its own entries, datasets below it, and the way to snapshots.

use crate::wire::FileType;
use zpl::{FileKind, Inode};

use crate::attr::file_type;
use crate::node::{Node, What};
use crate::space::{Content, Slot, Space};

/// An entry ready to be handed out.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its name.
    pub name: Vec<u8>,
    /// What it names; `None` when that is only known by looking it up (a dataset).
    pub ino: u64,
    /// Its type.
    pub kind: FileType,
}

/// Inode number shown for what has none before it is looked up.
const UNKNOWN: u64 = u64::MAX;

/// Everything in a directory, `.` and `..` included. Entries that can't be read are left out; the
/// flag says that there were such.
pub fn list(space: &Space, node: Node, inode: Option<&Inode>) -> (Vec<Item>, bool) {
    let here = node.encode().unwrap_or(UNKNOWN);
    let mut items = vec![directory(b".", here), directory(b"..", parent(space, node, inode))];
    let Some(slot) = space.slot(node.slot) else { return (items, true) };
    let mut damaged = false;
    match node.what {
        What::Ctl => items.push(directory(b"snapshot", number(node.slot, What::SnapDir))),
        What::SnapDir => items.extend(slot.snapshots().iter().map(|(n, _)| directory(n.as_bytes(), UNKNOWN))),
        What::Top | What::Object(_) => damaged = own(node, inode, &mut items),
    }
    if node.what == What::Top {
        add_children(&slot, &mut items);
    }
    (items, damaged)
}

fn own(node: Node, inode: Option<&Inode>, items: &mut Vec<Item>) -> bool {
    let Some(entries) = inode.map(Inode::entries) else { return false };
    let Ok(entries) = entries else { return true };
    let mut damaged = false;
    for entry in entries {
        let Ok(entry) = entry else {
            damaged = true;
            continue;
        };
        let ino = number(node.slot, What::Object(entry.object));
        let kind = file_type(entry.kind.unwrap_or(FileKind::Regular));
        items.push(Item { name: entry.name, ino, kind });
    }
    damaged
}

/// Child datasets hide entries of the same name, as mounts do.
fn add_children(slot: &Slot, items: &mut Vec<Item>) {
    let children = slot.children();
    items.retain(|item| !children.iter().any(|(name, _)| name.as_bytes() == item.name));
    items.extend(children.iter().map(|(name, _)| directory(name.as_bytes(), UNKNOWN)));
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

/// True when `object` is the root directory of the file system in `slot`.
pub fn is_root(space: &Space, slot: usize, object: u64) -> bool {
    let slot = space.slot(slot);
    slot.is_some_and(|s| matches!(s.content(), Content::Filesystem(fs) if fs.root == object))
}

fn number(slot: usize, what: What) -> u64 {
    Node { slot, what }.encode().unwrap_or(UNKNOWN)
}

fn directory(name: &[u8], ino: u64) -> Item {
    Item { name: name.to_vec(), ino, kind: FileType::Directory }
}
