//! Finds objects that may have changed, and the change of each.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use zpl::{FileKind, Filesystem, Inode, Time};

/// Deepest path that is followed upwards.
const MAX_DEPTH: usize = 4096;
/// Component that stands for a file's directory of extended attributes.
const XATTR_DIR: &[u8] = b"<xattrdir>";

/// One line of the report.
#[derive(Debug)]
pub struct Change {
    /// `+`, `-`, `M` or `R`.
    pub sign: char,
    /// Type of the file.
    pub(super) kind: FileKind,
    /// Its path below the file system's root; before it was renamed.
    pub path: Vec<u8>,
    /// Its path afterwards.
    pub(super) renamed: Option<Vec<u8>>,
    /// Hard links more or fewer.
    pub(super) links: i64,
    /// When it changed.
    pub(super) time: Time,
}

/// One state of the file system, with the names of directories that were looked at.
pub struct Side {
    fs: Arc<Filesystem>,
    root: u64,
    names: RefCell<HashMap<u64, Rc<HashMap<u64, Vec<u8>>>>>,
}

impl Side {
    /// No directory was looked at yet.
    pub fn new(fs: Arc<Filesystem>) -> Self {
        let root = fs.root().map_or(0, |root| root.number());
        Self { fs, root, names: RefCell::default() }
    }

    /// The file with that number, and its path; `None` when there is no such file.
    fn stat(&self, number: u64) -> Option<(Inode, Vec<u8>)> {
        let inode = self.fs.inode(number).ok()?;
        let path = self.path(&inode)?;
        Some((inode, path))
    }

    /// The path of a file; `None` for one that has no name any more.
    #[doc(alias = "zfs_obj_to_path")]
    fn path(&self, inode: &Inode) -> Option<Vec<u8>> {
        if inode.number() == self.root {
            return Some(b"/".to_vec());
        }
        let mut parts = Vec::new();
        let mut at = inode.clone();
        for _ in 0..MAX_DEPTH {
            if at.number() == self.root {
                parts.reverse();
                return Some(parts.concat());
            }
            let parent = at.parent().ok()?;
            let name = if at.attr().is_xattr() && !parent.attr().is_xattr() && at.is_dir() {
                XATTR_DIR.to_vec()
            } else {
                self.names_in(&parent)?.get(&at.number())?.clone()
            };
            parts.push([b"/".as_slice(), &name].concat());
            at = parent;
        }
        None
    }

    /// Names in a directory by object; of a file with several the first, as a directory lists them.
    fn names_in(&self, dir: &Inode) -> Option<Rc<HashMap<u64, Vec<u8>>>> {
        if let Some(known) = self.names.borrow().get(&dir.number()) {
            return Some(Rc::clone(known));
        }
        let mut names = HashMap::new();
        for entry in dir.entries().ok()?.flatten() {
            names.entry(entry.object).or_insert(entry.name);
        }
        let names = Rc::new(names);
        self.names.borrow_mut().insert(dir.number(), Rc::clone(&names));
        Some(names)
    }
}

/// Returns the changes of an object between two states.
#[doc(alias = "write_inuse_diffs_one")]
pub fn of_object(from: &Side, to: &Side, number: u64) -> Vec<Change> {
    let line = |sign: char, side: &(Inode, Vec<u8>)| Change {
        sign,
        kind: side.0.attr().kind,
        path: side.1.clone(),
        renamed: None,
        links: 0,
        time: side.0.attr().ctime,
    };
    match (from.stat(number), to.stat(number)) {
        (None, None) => Vec::new(),
        (None, Some(new)) => vec![line('+', &new)],
        (Some(old), None) => vec![line('-', &old)],
        (Some(old), Some(new)) => {
            let (a, b) = (old.0.attr(), new.0.attr());
            if a.generation != b.generation || a.kind != b.kind {
                return vec![line('-', &old), line('+', &new)];
            }
            if a.ctime == b.ctime {
                return Vec::new();
            }
            let links =
                if a.is_dir() { 0 } else { b.links.cast_signed().wrapping_sub(a.links.cast_signed()) };
            let changed = line('M', &new);
            vec![match (links, old.1 == new.1) {
                (0, true) => changed,
                (0, false) => Change { sign: 'R', path: old.1, renamed: Some(new.1), ..changed },
                (links, _) => {
                    let path = if links > 0 { old.1 } else { new.1 };
                    Change { links, path, ..changed }
                }
            }]
        }
    }
}
