//! A dataset, snapshot or bookmark of a listing before its properties are read.
//!
//! A pool may have a million of them, so that an entry has only its name, the numbers that find it again, and the
//! order in which it is listed.

use clikit::output::row::DatasetKind;
use engine::dsl::props::bookmarks::BookmarkInfo;
use engine::dsl::{Dataset, DatasetKind as HeadKind};
use engine::spa::Pool;
use engine::{Kind, Result};

use super::prop::Node;

/// One row of the listing.
#[derive(Debug)]
pub struct Entry {
    /// The index of its pool.
    pub pool: usize,
    /// The full name.
    pub name: Box<str>,
    /// The txg that created it.
    pub createtxg: u64,
    /// Its type.
    pub kind: DatasetKind,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Its object in the MOS, and the guid that tells it from a later one there.
    Dataset { number: u64, guid: u64, head: HeadKind },
    /// Of that head.
    Bookmark(Box<(String, BookmarkInfo)>),
}

impl Entry {
    /// Of the pool with that index.
    pub fn new(pool: usize, node: Node) -> Self {
        let (name, createtxg, kind) = (node.name().into_boxed_str(), node.createtxg(), node.kind());
        let what = match node {
            Node::Dataset(dataset, head) => {
                What::Dataset { number: dataset.number, guid: dataset.phys.guid, head }
            }
            Node::Bookmark(head, info) => What::Bookmark(Box::new((head, info))),
        };
        Self { pool, name, createtxg, kind, what }
    }

    /// Opens the dataset or bookmark as it is now; returns `None` when it is gone.
    pub fn open(&self, pool: &Pool) -> Result<Option<Node>> {
        match &self.what {
            What::Dataset { number, guid, head } => {
                match Dataset::open(&pool.dsl, *number, self.name.clone().into_string()) {
                    Ok(now) => Ok((now.phys.guid == *guid).then_some(Node::Dataset(now, *head))),
                    Err(e) if e.kind() == Kind::NotFound => Ok(None),
                    // Another object may have taken its number.
                    Err(e) => match pool.dsl.dataset(&self.name) {
                        Err(e) if e.kind() == Kind::NotFound => Ok(None),
                        Ok(now) if now.number != *number => Ok(None),
                        _ => Err(e),
                    },
                }
            }
            What::Bookmark(known) => Ok(Some(Node::Bookmark(known.0.clone(), known.1.clone()))),
        }
    }
}
