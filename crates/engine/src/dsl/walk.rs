//! All directories of a pool, parents first.

use std::collections::HashSet;

use super::{Dir, MAX_NESTING};
use crate::error::{Error, Kind, Result};

/// Iterator over directories.
#[derive(Debug)]
pub struct Walk {
    /// Still to visit, the next one last; a directory is opened when its turn comes.
    stack: Vec<Result<Dir>>,
    /// Object numbers seen: a tree that contains itself ends here.
    seen: HashSet<u64>,
}

impl Walk {
    pub(super) fn new(from: Dir) -> Self {
        Self { stack: vec![Ok(from)], seen: HashSet::new() }
    }

    fn push_children(&mut self, dir: &Dir) {
        let children = match dir.children() {
            Ok(children) => children,
            Err(e) => return self.stack.push(Err(e.in_dataset(&dir.name))),
        };
        for (part, number) in children.into_iter().rev() {
            let child = Dir::open(&dir.dsl, number, format!("{}/{part}", dir.name));
            if !child.as_ref().is_ok_and(Dir::is_internal) {
                self.stack.push(child);
            }
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Dir>;

    fn next(&mut self) -> Option<Self::Item> {
        let dir = match self.stack.pop()? {
            Ok(dir) => dir,
            Err(e) => return Some(Err(e)),
        };
        if !self.seen.insert(dir.number) || dir.name.split('/').count() > MAX_NESTING {
            return Some(Err(
                Error::new(Kind::Loop, "the dataset tree contains itself").in_dataset(&dir.name)
            ));
        }
        self.push_children(&dir);
        Some(Ok(dir))
    }
}
