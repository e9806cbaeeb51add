//! All directories of a pool, parents first.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Dir, MAX_NESTING};
use crate::error::{Error, Kind, Result};

/// Damage after which the rest is given up.
const MAX_ERRORS: u32 = 10_000;

/// Iterator over directories.
#[derive(Debug)]
pub struct DslDirs {
    /// Still to visit, the next one last; a directory is opened when its turn comes.
    stack: Vec<Next>,
    /// Object numbers seen: a tree that contains itself ends here.
    seen: HashSet<u64>,
    errors: u32,
}

#[derive(Debug)]
enum Next {
    Root(Box<Dir>),
    Child { above: Arc<Dir>, part: String, number: u64 },
    Failed(Error),
}

impl DslDirs {
    pub(super) fn new(from: Dir) -> Self {
        Self { stack: vec![Next::Root(Box::new(from))], seen: HashSet::new(), errors: 0 }
    }

    fn push_children(&mut self, dir: &Dir) {
        let children = match dir.children() {
            Ok(children) => children,
            Err(e) => return self.stack.push(Next::Failed(e.in_dataset(&dir.name))),
        };
        let above = Arc::new(dir.clone());
        let child = |(part, number)| Next::Child { above: Arc::clone(&above), part, number };
        self.stack.extend(children.into_iter().rev().map(child));
    }

    fn visit(&mut self, next: Next) -> Option<Result<Dir>> {
        let dir = match next {
            Next::Root(dir) => *dir,
            Next::Failed(e) => return Some(Err(e)),
            Next::Child { above, part, number } => {
                let name = format!("{}/{part}", above.name);
                if self.seen.contains(&number) {
                    return Some(Err(circle(&name)));
                }
                match Dir::open(&above.dsl, number, name) {
                    Ok(dir) if dir.is_internal() => return None,
                    Ok(dir) => dir,
                    Err(e) => return Some(Err(e)),
                }
            }
        };
        if !self.seen.insert(dir.number) || dir.name.split('/').count() > MAX_NESTING {
            return Some(Err(circle(&dir.name)));
        }
        self.push_children(&dir);
        Some(Ok(dir))
    }
}

fn circle(name: &str) -> Error {
    Error::new(Kind::Loop, "the dataset tree contains itself").in_dataset(name)
}

impl Iterator for DslDirs {
    type Item = Result<Dir>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.errors < MAX_ERRORS {
            let next = self.stack.pop()?;
            if let Some(item) = self.visit(next) {
                self.errors += u32::from(item.is_err());
                return Some(item);
            }
        }
        None
    }
}
