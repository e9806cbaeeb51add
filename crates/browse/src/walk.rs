//! Walks a tree of files, parents first; each directory is visited again after everything below it.

use std::collections::HashSet;

use engine::{Error, Kind};
use zpl::Inode;

/// Maximum depth of directories.
const MAX_DEPTH: usize = 4096;

/// The order in which a directory's entries are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By name: for display.
    Name,
    /// By object number, which is close to the order on disk: for reading content.
    Object,
}

/// A step of the walk.
#[derive(Debug)]
pub enum Step {
    /// A file, or a directory before its content.
    Enter(Found),
    /// A directory after its content.
    Leave(Found),
    /// Something below `path` could not be read.
    Failed(Vec<u8>, Error),
}

/// A visited file.
#[derive(Debug, Clone)]
pub struct Found {
    /// The start's path, and names below it.
    pub path: Vec<u8>,
    /// Directories between it and the start; 0 for the start.
    pub depth: usize,
    /// The file.
    pub inode: Inode,
}

impl Found {
    /// The last component of its path.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|&b| b == b'/').next().unwrap_or(&self.path)
    }
}

enum Todo {
    Child(Vec<u8>, u64, usize),
    Start(Found),
    Leave(Found),
    Failed(Vec<u8>, Error),
}

/// Iterator over a tree.
pub struct Walk {
    start: Inode,
    order: Order,
    stack: Vec<Todo>,
    /// Visited directories: one that appears again belongs to a tree that contains itself.
    seen: HashSet<u64>,
    /// The directory entered last, whose content comes next unless it is pruned.
    open: Option<Found>,
}

impl Walk {
    /// A walk from `start`, named `path`.
    pub fn new(start: &Inode, path: &[u8], order: Order) -> Self {
        let found = Found { path: path.to_vec(), depth: 0, inode: start.clone() };
        let stack = vec![Todo::Start(found)];
        Self { start: start.clone(), order, stack, seen: HashSet::new(), open: None }
    }

    /// Skips the content of the directory that was entered last.
    pub fn prune(&mut self) {
        if let Some(dir) = self.open.take() {
            self.stack.push(Todo::Leave(dir));
        }
    }

    /// Pushes the content of the directory entered last on the stack.
    fn descend(&mut self) {
        let Some(dir) = self.open.take() else { return };
        let below = |name: &[u8]| join(&dir.path, name);
        let mut todo = vec![];
        let mut children = Vec::new();
        match dir.inode.entries() {
            Err(e) => todo.push(Todo::Failed(dir.path.clone(), e)),
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(entry) => children.push((entry.object, entry.name)),
                        Err(e) => todo.push(Todo::Failed(dir.path.clone(), e)),
                    }
                }
            }
        }
        match self.order {
            Order::Name => children.sort_by(|a, b| a.1.cmp(&b.1)),
            Order::Object => children.sort(),
        }
        let depth = dir.depth + 1;
        let children = children.into_iter().rev();
        let children: Vec<Todo> = children.map(|(o, n)| Todo::Child(below(&n), o, depth)).collect();
        self.stack.push(Todo::Leave(dir));
        self.stack.extend(children);
        self.stack.extend(todo);
    }

    fn enter(&mut self, found: Found) -> Step {
        if !found.inode.is_dir() {
            return Step::Enter(found);
        }
        if !self.seen.insert(found.inode.number()) || found.depth > MAX_DEPTH {
            let e = Error::new(Kind::Loop, "the directory contains itself, or is nested too deeply");
            return Step::Failed(found.path, e.in_dataset(&found.inode.filesystem().name));
        }
        self.open = Some(found.clone());
        Step::Enter(found)
    }
}

impl Iterator for Walk {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.descend();
        Some(match self.stack.pop()? {
            Todo::Start(found) => self.enter(found),
            Todo::Leave(found) => Step::Leave(found),
            Todo::Failed(path, e) => Step::Failed(path, e),
            Todo::Child(path, object, depth) => match self.start.filesystem().inode(object) {
                Ok(inode) => self.enter(Found { path, depth, inode }),
                Err(e) => Step::Failed(path, e),
            },
        })
    }
}

/// `dir/name`, without a double slash.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir.is_empty() || dir.ends_with(b"/") {
        true => [dir, name].concat(),
        false => [dir, b"/", name].concat(),
    }
}

/// Total bytes of the regular files of a tree, for a progress bar; unreadable files count as empty.
pub fn total_bytes(start: &Inode) -> u64 {
    let mut counted = HashSet::new();
    let mut total: u64 = 0;
    for step in Walk::new(start, b"", Order::Object) {
        let Step::Enter(found) = step else { continue };
        let attr = found.inode.attr();
        let first = attr.links < 2 || counted.insert(found.inode.number());
        if attr.kind == zpl::FileKind::Regular && first {
            total = total.saturating_add(attr.size);
        }
    }
    total
}
