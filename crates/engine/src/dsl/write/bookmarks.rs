//! Bookmarks: a snapshot's txg and guid, which outlive it.
//!
//! With the feature `bookmark_written` a bookmark also knows the size of its snapshot and how much of that was
//! freed before the next snapshot came, so that "written since" can be computed later.

use std::collections::BTreeMap;

use ondisk::ObjectType;
use ondisk::dsl::{DslDataset, ZfsBookmark};
use ondisk::names::dsl_dataset;
use zcommon::features::Feature;

use super::batch::Batch;
use super::mos_tx::{MosTx, MosView, ZAPIFIED};
use super::{names, redaction};
use crate::dsl::Delta;
use crate::dsl::deadlist::DeadList;
use crate::error::{Error, Kind, Result};
use crate::zap::{Match, TOUPPER};

/// Words of a bookmark before the feature `bookmark_v2`.
const OLD_WORDS: usize = 3;
/// Words before `bookmark_written` (`redaction_obj`, `flags`, sizes, and the IV set's guid at the end).
const ALL_WORDS: usize = ZfsBookmark::SIZE / 8;

/// The object that lists a head's bookmarks.
pub(super) fn list(at: &MosView<'_>, head: u64) -> Result<Option<u64>> {
    Ok(at.extra(head, dsl_dataset::BOOKMARK_NAMES)?.and_then(|v| v.first()))
}

/// All bookmarks of a head by name, with the number of words that each has.
fn all(at: &MosView<'_>, head: u64) -> Result<Vec<(String, ZfsBookmark, usize)>> {
    let Some(number) = list(at, head)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for entry in at.zap_entries(number)? {
        let phys = ZfsBookmark::from_words(&entry.value.ints);
        let phys = phys.map_err(|e| super::super::malformed(number, &e))?;
        all.push((entry.name_lossy(), phys, entry.value.ints.len()));
    }
    all.sort_by(|a, b| (a.1.creation_txg, &a.0).cmp(&(b.1.creation_txg, &b.0)));
    Ok(all)
}

fn has_sizes(phys: &ZfsBookmark) -> bool {
    phys.flags & ZfsBookmark::FLAG_HAS_FBN != 0
}

fn words(phys: &ZfsBookmark, count: usize) -> Vec<u64> {
    let bytes = phys.to_bytes();
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().take(count).map(|w| u64::from_le_bytes(*w)).collect()
}

/// Names and txgs of the bookmarks that must count present frees: those since the last snapshot.
pub(super) fn watching(at: &MosView<'_>, head: u64, since: u64) -> Result<Vec<(String, u64)>> {
    let watching = |phys: &ZfsBookmark| has_sizes(phys) && phys.creation_txg >= since;
    let all = all(at, head)?.into_iter();
    Ok(all.filter(|(_, phys, _)| watching(phys)).map(|(name, phys, _)| (name, phys.creation_txg)).collect())
}

/// Adds freed space to bookmarks.
#[doc(alias = "dsl_bookmark_sync_done")]
pub(super) fn freed(at: &MosTx<'_>, head: u64, sums: &BTreeMap<String, Delta>) -> Result<()> {
    if sums.is_empty() {
        return Ok(());
    }
    let Some(number) = list(at, head)? else { return Ok(()) };
    for (name, mut phys, count) in all(at, head)? {
        let Some(sum) = sums.get(&name) else { continue };
        let add = |to: &mut u64, delta: i64| *to = to.wrapping_add_signed(delta);
        add(&mut phys.referenced_freed_before_next_snap, sum.used);
        add(&mut phys.compressed_freed_before_next_snap, sum.compressed);
        add(&mut phys.uncompressed_freed_before_next_snap, sum.uncompressed);
        at.zap_set(number, &name, words(&phys, count))?;
    }
    Ok(())
}

/// A snapshot is made of `head`: the deadlist it leaves gets keys at the txgs of bookmarks, so that the space
/// freed since each of them can be computed.
#[doc(alias = "dsl_bookmark_snapshotted")]
pub(super) fn snapshotted(at: &MosTx<'_>, head: u64, deadlist: u64, since: u64) -> Result<()> {
    let mut last = None;
    for (_, phys, _) in all(at, head)?.iter().rev() {
        if phys.creation_txg <= since {
            break;
        }
        if has_sizes(phys) && last != Some(phys.creation_txg) {
            last = Some(phys.creation_txg);
            DeadList::open(at, deadlist)?.add_key(phys.creation_txg)?;
        }
    }
    Ok(())
}

/// Makes a bookmark of a snapshot, or a copy of a bookmark; returns the number of its redaction list, 0 without one.
/// A bookmark of a redacted snapshot has a complete list without blocks.
#[doc(alias("dsl_bookmark_create_sync_impl_snap", "dsl_bookmark_create_sync_impl_book"))]
pub(super) fn create(at: &MosTx<'_>, head: u64, name: &str, from: &BookmarkSource) -> Result<u64> {
    let (phys, count) = match from {
        BookmarkSource::Snapshot(snapshot) => {
            let by = at.extra(*snapshot, Feature::RedactedDatasets.info().guid)?;
            let list = by.map(|by| redaction::create(at, &by.ints, redaction::COMPLETE)).transpose()?;
            of_snapshot(at, *snapshot, list.unwrap_or(0))?
        }
        BookmarkSource::Redacted(snapshot, by) => {
            of_snapshot(at, *snapshot, redaction::create(at, by, (0, 0))?)?
        }
        BookmarkSource::Bookmark(phys) => {
            let mut phys = *phys;
            phys.redaction_obj = 0;
            (phys, if needs_new_form(&phys) { ALL_WORDS } else { OLD_WORDS })
        }
    };
    if count > OLD_WORDS {
        at.count(Feature::BookmarkV2, 1)?;
    }
    if has_sizes(&phys) {
        at.count(Feature::BookmarkWritten, 1)?;
    }
    add(at, head, name, words(&phys, count))?;
    Ok(phys.redaction_obj)
}

/// Adds an entry to a head's list, which is made when it has none.
#[doc(alias = "dsl_bookmark_node_add")]
fn add(at: &MosTx<'_>, head: u64, name: &str, words: Vec<u64>) -> Result<()> {
    let number = match list(at, head)? {
        Some(number) => number,
        None => {
            let number = at.create_zap_with(ZAPIFIED, ObjectType::NONE, 0, TOUPPER)?;
            at.count(Feature::Bookmarks, 1)?;
            at.set_extra(head, dsl_dataset::BOOKMARK_NAMES, number)?;
            number
        }
    };
    at.zap_add(number, name, words)
}

/// Removes an entry from a head's list, which goes with the last one.
fn remove(at: &MosTx<'_>, head: u64, name: &str) -> Result<()> {
    let Some(number) = list(at, head)? else { return Ok(()) };
    match at.dataset(head)?.flags & DslDataset::FLAG_CI_DATASET {
        0 => at.zap_remove(number, name)?,
        _ => at.zap(number, |zap| zap.remove_norm(name.as_bytes(), Match::Normalized).map(drop))?,
    }
    if at.zap_count(number)? > 0 {
        return Ok(());
    }
    at.free_object(number)?;
    at.count(Feature::Bookmarks, -1)?;
    at.zap_remove(head, dsl_dataset::BOOKMARK_NAMES)
}

/// The txg of a head's newest bookmark; 0 without one.
#[doc(alias = "dsl_bookmark_latest_txg")]
pub(crate) fn newest(at: &MosView<'_>, head: u64) -> Result<u64> {
    Ok(all(at, head)?.last().map_or(0, |(_, phys, _)| phys.creation_txg))
}

/// Whether the bookmarks up to `txg` can change from one head to another: no two may have one name.
///
/// Differs from OpenZFS, which does not ask.
pub(super) fn check_move_up_to(
    at: &MosView<'_>,
    from: u64,
    (to, name_len): (u64, usize),
    txg: u64,
) -> Result<()> {
    for (name, phys, _) in all(at, from)? {
        if phys.creation_txg > txg {
            continue;
        }
        names::check_length(name_len + 1 + name.len())?;
        if find(at, to, &name)?.is_some() {
            return Err(Error::new(Kind::Exists, format!("both have a bookmark '{name}'")));
        }
    }
    Ok(())
}

/// Snapshots up to `txg` change from one head to another, and bookmarks with them.
pub(super) fn move_up_to(at: &MosTx<'_>, from: u64, to: u64, txg: u64) -> Result<()> {
    for (name, phys, count) in all(at, from)? {
        if phys.creation_txg <= txg {
            remove(at, from, &name)?;
            add(at, to, &name, words(&phys, count))?;
        }
    }
    Ok(())
}

/// Another snapshot follows `snapshot` now: its bookmarks count the blocks of that one's deadlist.
#[doc(alias = "dsl_bookmark_next_changed")]
pub(super) fn next_changed(at: &MosTx<'_>, head: u64, snapshot: u64) -> Result<()> {
    let Some(number) = list(at, head)? else { return Ok(()) };
    let snap = at.dataset(snapshot)?;
    let dead = DeadList::open(at, at.dataset(snap.next_snap_obj)?.deadlist_obj)?.space()?;
    for (name, mut phys, count) in all(at, head)? {
        if has_sizes(&phys) && phys.creation_txg == snap.creation_txg {
            phys.referenced_freed_before_next_snap = dead.used.cast_unsigned();
            phys.compressed_freed_before_next_snap = dead.compressed.cast_unsigned();
            phys.uncompressed_freed_before_next_snap = dead.uncompressed.cast_unsigned();
            at.zap_set(number, &name, words(&phys, count))?;
        }
    }
    Ok(())
}

/// The source of a bookmark.
#[derive(Debug, Clone)]
pub(super) enum BookmarkSource {
    /// A snapshot's number.
    Snapshot(u64),
    /// A snapshot's number, and the guids of the redaction snapshots of a list that is to be filled.
    Redacted(u64, Vec<u64>),
    /// Another bookmark.
    Bookmark(ZfsBookmark),
}

fn needs_new_form(phys: &ZfsBookmark) -> bool {
    phys.flags != 0 || phys.ivset_guid != 0 || phys.redaction_obj != 0
}

fn of_snapshot(at: &MosTx<'_>, number: u64, redaction_obj: u64) -> Result<(ZfsBookmark, usize)> {
    let snap = at.dataset(number)?;
    let mut phys = ZfsBookmark {
        guid: snap.guid,
        creation_txg: snap.creation_txg,
        creation_time: snap.creation_time,
        redaction_obj,
        ..ZfsBookmark::default()
    };
    if let Some(ivset) = at.extra(number, dsl_dataset::IVSET_GUID)?.and_then(|v| v.first()) {
        phys.ivset_guid = ivset;
    }
    if at.enabled(Feature::BookmarkWritten) {
        phys.flags = ZfsBookmark::FLAG_HAS_FBN | ZfsBookmark::FLAG_SNAPSHOT_EXISTS;
        phys.referenced_bytes_refd = snap.referenced_bytes;
        phys.compressed_bytes_refd = snap.compressed_bytes;
        phys.uncompressed_bytes_refd = snap.uncompressed_bytes;
        let next = at.dataset(snap.next_snap_obj)?;
        let since = DeadList::open(at, next.deadlist_obj)?.space()?;
        phys.referenced_freed_before_next_snap = since.used.cast_unsigned();
        phys.compressed_freed_before_next_snap = since.compressed.cast_unsigned();
        phys.uncompressed_freed_before_next_snap = since.uncompressed.cast_unsigned();
    }
    Ok((phys, if needs_new_form(&phys) { ALL_WORDS } else { OLD_WORDS }))
}

/// A bookmark by name.
pub(super) fn find(at: &MosView<'_>, head: u64, name: &str) -> Result<Option<ZfsBookmark>> {
    Ok(find_words(at, head, name)?.map(|(phys, _)| phys))
}

/// A bookmark and the number of words that it has.
fn find_words(at: &MosView<'_>, head: u64, name: &str) -> Result<Option<(ZfsBookmark, usize)>> {
    let Some(number) = list(at, head)? else { return Ok(None) };
    let Some(value) = names::in_names_of(at, head, number, name)? else { return Ok(None) };
    let phys = ZfsBookmark::from_words(&value.ints);
    let phys = phys.map_err(|e| super::super::malformed(number, &e))?;
    Ok(Some((phys, value.ints.len())))
}

/// Removes a bookmark; the list goes with the last one. Returns the txg whose keys in deadlists nothing needs any more, if
/// there is one.
#[doc(alias = "dsl_bookmark_destroy_sync_impl")]
pub(super) fn destroy(at: &MosTx<'_>, head: u64, name: &str) -> Result<Option<u64>> {
    let missing = || Error::not_found(format!("no bookmark '{name}'"));
    let (phys, count) = find_words(at, head, name)?.ok_or_else(missing)?;
    discount(at, &phys, count)?;
    remove(at, head, name)?;
    let txg = phys.creation_txg;
    let unneeded = has_sizes(&phys) && !stands_at(at, head, txg)? && !snapshot_at(at, head, txg)?;
    Ok(unneeded.then_some(txg))
}

/// A bookmark of `count` words goes: features count it no more, and its redaction list goes with it.
fn discount(at: &MosTx<'_>, phys: &ZfsBookmark, count: usize) -> Result<()> {
    if count > OLD_WORDS {
        at.count(Feature::BookmarkV2, -1)?;
    }
    if has_sizes(phys) {
        at.count(Feature::BookmarkWritten, -1)?;
    }
    if phys.redaction_obj != 0 {
        redaction::free(at, phys.redaction_obj)?;
    }
    Ok(())
}

/// The head is destroyed: so are its bookmarks.
pub(super) fn destroy_all(at: &MosTx<'_>, head: u64) -> Result<()> {
    for (name, phys, count) in all(at, head)? {
        discount(at, &phys, count)?;
        remove(at, head, &name)?;
    }
    Ok(())
}

/// Whether a bookmark needs the deadlist key of a txg.
fn stands_at(at: &MosView<'_>, head: u64, txg: u64) -> Result<bool> {
    Ok(Marks::read(at, head)?.stand_at(txg))
}

/// Whether a head has a snapshot of a txg.
fn snapshot_at(at: &MosView<'_>, head: u64, txg: u64) -> Result<bool> {
    let mut next = at.dataset(head)?.prev_snap_obj;
    while next != 0 {
        let snap = at.dataset(next)?;
        if snap.creation_txg <= txg {
            return Ok(snap.creation_txg == txg);
        }
        next = snap.prev_snap_obj;
    }
    Ok(false)
}

/// The bookmarks of a head, read once for several questions.
pub(super) struct Marks {
    pub(crate) head: u64,
    /// The object that lists them.
    number: u64,
    /// By txg and name, with the number of words that each has.
    all: Vec<(String, ZfsBookmark, usize)>,
}

impl Marks {
    pub(super) fn read(at: &MosView<'_>, head: u64) -> Result<Self> {
        Ok(Self { head, number: list(at, head)?.unwrap_or(0), all: all(at, head)? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bookmarks with creation txgs from `first` to `last`.
    fn within(&mut self, first: u64, last: u64) -> &mut [(String, ZfsBookmark, usize)] {
        let from = self.all.partition_point(|(_, phys, _)| phys.creation_txg < first);
        let to = self.all.partition_point(|(_, phys, _)| phys.creation_txg <= last);
        self.all.get_mut(from..to.max(from)).unwrap_or_default()
    }

    /// Whether one needs the deadlist key of a txg.
    pub(crate) fn stand_at(&mut self, txg: u64) -> bool {
        self.within(txg, txg).iter().any(|(_, phys, _)| has_sizes(phys))
    }

    /// A snapshot is destroyed: marks its bookmarks, whose counts of freed space then reach up to the
    /// snapshot that follows now.
    #[doc(alias("dsl_bookmark_ds_destroyed", "dsl_bookmark_next_changed"))]
    pub(crate) fn snapshot_destroyed(
        &mut self,
        batch: &mut Batch<'_>,
        snapshot: u64,
        snap: &DslDataset,
    ) -> Result<()> {
        let (at, number) = (batch.at, self.number);
        let next = at.dataset(at.dataset(snapshot)?.next_snap_obj)?.deadlist_obj;
        for (name, phys, count) in self.within(snap.prev_snap_txg, snap.creation_txg) {
            if !has_sizes(phys) {
                continue;
            }
            if phys.creation_txg == snap.creation_txg && phys.guid == snap.guid {
                phys.flags &= !ZfsBookmark::FLAG_SNAPSHOT_EXISTS;
            }
            if phys.creation_txg < snap.creation_txg {
                // So far it was counted up to this snapshot; from now on up to the next one.
                let more = batch.list(next)?.space_range(0, phys.creation_txg)?;
                let add = |to: &mut u64, delta: i64| *to = to.wrapping_add_signed(delta);
                add(&mut phys.referenced_freed_before_next_snap, more.used);
                add(&mut phys.compressed_freed_before_next_snap, more.compressed);
                add(&mut phys.uncompressed_freed_before_next_snap, more.uncompressed);
            }
            at.zap_set(number, name, words(phys, *count))?;
        }
        Ok(())
    }
}
