//! `zfs redact`: makes the bookmark whose redaction list is filled, and fills it by further transactions.

use ondisk::dsl::{RedactBlock, RedactionListHead};
use zcommon::features::Feature;

use super::bookmarks::{self, BookmarkSource};
use super::redaction::{COMPLETE, MAX_BONUS, MAX_SPILL, RedactedPlace, Unfinished, get, put, same};
use super::tasks::Tasks;
use super::{names, space};
use crate::dmu::edit::Edit;
use crate::error::{Error, Kind, Result};

impl Tasks<'_> {
    /// Makes the bookmark `name` (`tank/a#b`) of the snapshot `of` with a list to be filled, with respect to the
    /// snapshots `by`; or finds one that is not complete. The caller fills it by [`Tasks::redact`].
    ///
    /// # Errors
    /// `Unsupported` without the feature, `TooLarge` for too many snapshots, `Exists` when the bookmark is there
    /// and is none of these or is complete, `NotFound` for snapshots, `OtherDevice` when an unfinished list has other
    /// snapshots, `Invalid` when one does not descend from `of`, `NotPermitted` when one is redacted itself.
    #[doc(alias("dsl_bookmark_create_redacted", "dmu_redact_snap"))]
    pub fn begin_redaction(&self, name: &str, of: &str, by: &[String]) -> Result<Unfinished> {
        space::check_room(&self.at, 5, false)?;
        let invalid = |what: &str| Error::new(Kind::Invalid, what).in_dataset(name);
        let (dir, mark) = name.split_once('#').ok_or_else(|| invalid("no name of a bookmark"))?;
        let (found, snapshot) = names::find_snapshot(&self.at, self.pool, of)?;
        self.check_not_redacted(snapshot, of)?;
        let txg = self.at.dataset(snapshot)?.creation_txg;
        let mut guids = Vec::new();
        for name in by {
            let (head, number) = names::find_snapshot(&self.at, self.pool, name)?;
            let phys = self.at.dataset(number)?;
            if number == snapshot || phys.creation_txg <= txg {
                return Err(invalid("a redaction snapshot is not younger than the snapshot"));
            }
            self.check_before(head.head, found.head, txg)?;
            self.check_not_redacted(number, name)?;
            guids.push(phys.guid);
        }
        names::check_part(mark).map_err(|e| e.in_dataset(name))?;
        if let Some(known) = bookmarks::find(&self.at, found.head, mark)? {
            return self.go_on(known.redaction_obj, &guids).map_err(|e| e.in_dataset(name));
        }
        if !self.at.enabled(Feature::RedactionBookmarks) {
            return Err(Error::unsupported("redaction bookmarks feature not enabled").in_dataset(name));
        }
        let most = if self.at.enabled(Feature::RedactionListSpill) { MAX_SPILL } else { MAX_BONUS };
        if RedactionListHead::SIZE + guids.len() * size_of::<u64>() > most {
            return Err(Error::new(Kind::TooLarge, "too many redaction snapshots specified").in_dataset(name));
        }
        let list = bookmarks::create(&self.at, found.head, mark, &BookmarkSource::Redacted(snapshot, guids))?;
        let what = format!("name={mark} creation_txg={txg} target_snap={snapshot} redact_obj={list}");
        self.log("bookmark", dir, found.head, &what)?;
        Ok(Unfinished { list, place: (0, 0) })
    }

    fn check_not_redacted(&self, number: u64, name: &str) -> Result<()> {
        match self.at.extra(number, Feature::RedactedDatasets.info().guid)? {
            Some(_) => Err(Error::new(Kind::NotPermitted, "the dataset is redacted itself").in_dataset(name)),
            None => Ok(()),
        }
    }

    fn go_on(&self, number: u64, guids: &[u64]) -> Result<Unfinished> {
        let exists = || Error::new(Kind::Exists, "bookmark already exists");
        if number == 0 {
            return Err(exists());
        }
        let list = get(&self.at, number)?;
        if !same(&list.snaps, guids) {
            return Err(Error::new(Kind::OtherDevice, "the unfinished list has other redaction snapshots"));
        }
        match (list.head.last_object, list.head.last_blkid) {
            COMPLETE => Err(exists()),
            place if self.datasets.long_holds.has(number) => {
                let what = format!("another redaction is at object {}", place.0);
                Err(Error::new(Kind::Busy, what))
            }
            place => Ok(Unfinished { list: number, place }),
        }
    }

    /// Adds entries to a list, which then goes up to `reached`.
    ///
    /// # Errors
    /// `NotFound` when the list is gone.
    #[doc(alias = "redaction_list_update_sync")]
    pub fn redact(&self, number: u64, blocks: &[RedactBlock], reached: RedactedPlace) -> Result<()> {
        space::check_room(&self.at, 2, false)?;
        let mut list = get(&self.at, number)?;
        let entries: Vec<u8> = blocks.iter().flat_map(RedactBlock::to_bytes).collect();
        let size = RedactBlock::SIZE as u64;
        let offset = list.head.num_entries.saturating_mul(size);
        if !entries.is_empty() {
            self.at.handle(number)?.edit(self.at.tx).write_at(offset, &entries)?;
        }
        let head = &mut list.head;
        head.num_entries += u64::try_from(entries.len()).unwrap_or(0) / size;
        (head.last_object, head.last_blkid) = reached;
        put(&self.at, number, &list)
    }
}
