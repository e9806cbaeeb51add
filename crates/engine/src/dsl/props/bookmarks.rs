//! Bookmarks of a file system or volume.

use ondisk::dsl::{RedactionList, ZfsBookmark};
use ondisk::names::dsl_dataset::BOOKMARK_NAMES;

use crate::dmu::Object;
use crate::dsl::{Dataset, malformed};
use crate::error::Result;

/// A bookmark, read.
#[derive(Debug, Clone)]
pub struct BookmarkInfo {
    /// Its name after the `#`.
    pub name: String,
    /// Its content.
    pub phys: ZfsBookmark,
    /// Guids of the snapshots that it redacts; `None` for an ordinary bookmark.
    pub redact_snaps: Option<Vec<u64>>,
}

/// All bookmarks of a head dataset, in the order of their names' hashes.
#[doc(alias = "dsl_get_bookmarks")]
pub fn bookmarks(head: &Dataset) -> Result<Vec<BookmarkInfo>> {
    let Some(number) = head.extra(BOOKMARK_NAMES)?.and_then(|v| v.first()) else { return Ok(Vec::new()) };
    let Some(zap) = head.dsl.zap(number)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for entry in zap.to_vec()? {
        let phys = ZfsBookmark::from_words(&entry.value.ints).map_err(|e| malformed(number, &e))?;
        let redact_snaps = match phys.redaction_obj {
            0 => None,
            list => Some(redaction_list(&head.dsl.mos.object(list)?)?.snaps),
        };
        all.push(BookmarkInfo { name: entry.name_lossy(), phys, redact_snaps });
    }
    Ok(all)
}

/// The head of a redaction list and the guids of its snapshots: in the object's bonus buffer, or in its spill block.
///
/// # Errors
/// `Corrupt` when the object has neither.
pub(crate) fn redaction_list(object: &Object) -> Result<RedactionList> {
    let list = match object.spill()? {
        Some(spill) => RedactionList::from_bytes(&spill),
        None => RedactionList::from_bytes(object.dnode.bonus()),
    };
    list.map_err(|e| malformed(object.number, &e))
}
