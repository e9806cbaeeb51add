//! Damage found by reads: posted as events, and written to the pool's error log where no good bytes were
//! left.
//!
//! The log of errors since the last scrub takes them, with the next txg. A scrub rotates the logs.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use nvpair::{NvList, NvValue};
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{Blkptr, Bookmark as StoredBookmark, ErrBookmark, ObjectType};
use parking_lot::Mutex;
use zcommon::features::Feature;
use zcommon::health::Health;
use zcommon::vdev::PoolState;

use super::Spa;
use super::activity::{Activity, Due, SyncPoint};
use super::errlog::{LoggedError, block_at};
use super::subjects::{ErrorLog, Reports};
use crate::dmu::Tx;
use crate::dsl::write::{MosTx, MosView, scan_state};
use crate::error::{Error, Kind, Result};
use crate::types::Bookmark;
use crate::vdev::config::VdevConfig;
use crate::vdev::leaf::{FailedIo, Failure, Leaf};
use crate::vdev::plan::Fault;
use crate::vdev::tree::Tree;
use crate::zap::{Value, Zap};
use crate::zio::{DamagedCopy, FaultSink};

/// Maximum errors that wait to be written; the next scrub finds further ones again.
const MAX_LOST: usize = 1 << 16;

/// An error's number is the time, and the format of the number.
#[doc(alias = "fm_ena_generate")]
const ENA_SHIFT: u32 = 10;
const ENA_FORMAT: u64 = 1;
/// `zio_type_t`.
const ZIO_TYPE_READ: u32 = 1;
const ZIO_TYPE_WRITE: u32 = 2;
const ZIO_TYPE_FLUSH: u32 = 5;
/// Errors of reads: the device failed, or the bytes are wrong (`ECKSUM`, which is Linux's `EBADE`).
const EIO: i32 = 5;
const ECKSUM: i32 = 52;

/// Errors that wait to be written, and those that wait to be removed.
#[derive(Debug, Default)]
pub(super) struct Lost(Mutex<BTreeSet<LoggedError>>, Mutex<BTreeSet<LoggedError>>);

impl Activity for Lost {
    fn is_due(&self, _: &Spa) -> Due {
        if self.0.lock().is_empty() && self.1.lock().is_empty() { Due::No } else { Due::Soon }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if moment == SyncPoint::AfterTasks { sync_errlog(spa, tx) } else { Ok(()) }
    }
}

/// Reports to a pool the damage that its reads find.
#[derive(Debug)]
struct Sink(Weak<Spa>);

impl FaultSink for Sink {
    fn damaged(&self, bp: &Blkptr, at: Bookmark, damage: &[DamagedCopy], repaired: bool) {
        if let Some(spa) = self.0.upgrade() {
            damage.iter().for_each(|damage| report(&spa, bp, at, damage));
            if !repaired {
                report_lost(&spa, bp, at);
            }
        }
    }

    fn not_mended(&self, birth: u64) {
        if let Some(spa) = self.0.upgrade() {
            spa.scanning.note_failed(birth);
        }
    }

    fn not_spared(&self, birth: u64, spares: &BTreeSet<u64>) {
        if let Some(spa) = self.0.upgrade() {
            spa.scanning.note_unserved(birth, spares);
        }
    }
}

fn block(list: &mut NvList, bp: &Blkptr, at: Bookmark) {
    list.add("zio_size", bp.psize()).add("zio_objset", at.objset).add("zio_object", at.object);
    list.add("zio_level", NvValue::Int64(at.level)).add("zio_blkid", at.blkid);
}

/// Adds the entries that describe the place of an ereport's device in the pool.
#[doc(alias = "zfs_ereport_start")]
fn surroundings(list: &mut NvList, leaf: &Leaf, tree: &Tree) {
    let all = tree.config.walk();
    if let Some(own) = all.iter().find(|vdev| vdev.guid == leaf.guid) {
        list.add("vdev_type", own.kind.name());
    }
    if let Some(top) =
        tree.config.children.iter().find(|top| top.walk().iter().any(|vdev| vdev.guid == leaf.guid))
    {
        list.add("vdev_ashift", u64::from(top.ashift));
    }
    list.add("vdev_delays", leaf.stats.slow.load(Ordering::Relaxed));
    let is_above = |vdev: &&&VdevConfig| vdev.children.iter().any(|child| child.guid == leaf.guid);
    if let Some(parent) = all.iter().find(is_above) {
        list.add("parent_guid", parent.guid).add("parent_type", parent.kind.name());
    }
}

/// Adds the entries that describe the device of an event.
fn device(list: &mut NvList, leaf: &Leaf) {
    list.add("vdev_guid", leaf.guid).add("vdev_path", leaf.path.as_str());
    let counts = leaf.errors.counts();
    for (name, count) in
        ["vdev_read_errors", "vdev_write_errors", "vdev_cksum_errors"].into_iter().zip(counts)
    {
        list.add(name, count);
    }
}

impl ErrorLog<'_> {
    /// Reports the blocks for which dedup and clone tables were found damaged: they were read before the pool was open.
    pub(super) fn report_damaged_tables(self) {
        for (_, why) in self.spa.shared.damaged() {
            let Some(at) = why.place().block else { continue };
            let level = u8::try_from(at.level).unwrap_or(0);
            // A block whose pointer is lost, too, has no known birth.
            let bp = block_at(&self.spa.mos.view(), at.object, level, at.blkid).ok().flatten();
            report_lost(self.spa, &bp.unwrap_or_default(), at);
        }
    }

    /// Removes a block from the error log: it was repaired.
    #[doc(alias = "spa_remove_error")]
    pub(crate) fn forget(self, bp: &Blkptr, at: Bookmark) {
        let Bookmark { objset, object, level, blkid } = at;
        let error = LoggedError { objset, object, level, blkid, birth: Some(bp.physical_birth()) };
        self.spa.lost.0.lock().remove(&error);
        self.spa.lost.1.lock().insert(error);
    }

    /// Removes errors from the log, as it names them: no dataset has their blocks any more.
    pub fn forget_gone(self, errors: impl IntoIterator<Item = LoggedError>) {
        self.spa.lost.1.lock().extend(errors);
    }

    /// Lost blocks that are not in the error log on disk yet, as that log will name them.
    pub fn unlogged(self) -> Vec<LoggedError> {
        let waiting: Vec<LoggedError> = self.spa.lost.0.lock().iter().copied().collect();
        let view = MosView { mos: &self.spa.mos };
        let named = |error: LoggedError| match self.spa.features.is_active(Feature::HeadErrlog) {
            true => LoggedError { objset: head_of(&view, error.objset), ..error },
            false => LoggedError { birth: None, ..error },
        };
        waiting.into_iter().map(named).collect()
    }

    /// The log of the scan that ends takes the place of the one before.
    #[doc(alias = "spa_errlog_rotate")]
    pub(super) fn rotate(self, at: &MosTx<'_>) -> Result<()> {
        let log = |name: &str| Ok::<u64, Error>(at.zap_word(MOS_DIRECTORY_OBJECT, name)?.unwrap_or(0));
        let (last, scrub) = (log(mos::ERRLOG_LAST)?, log(mos::ERRLOG_SCRUB)?);
        if last != 0 {
            self.free(at, last)?;
        }
        if last != 0 || scrub != 0 {
            at.zap_set(MOS_DIRECTORY_OBJECT, mos::ERRLOG_LAST, scrub)?;
            at.zap_set(MOS_DIRECTORY_OBJECT, mos::ERRLOG_SCRUB, 0u64)?;
        }
        Ok(())
    }

    /// Frees an error log. Lists that a damaged log names no more stay allocated.
    pub(super) fn free(self, at: &MosTx<'_>, log: u64) -> Result<()> {
        if at.active(Feature::HeadErrlog) {
            let opened = at.mos.view().object(log).and_then(|object| Zap::open(&object));
            let lists = opened.map(|zap| zap.entries().flatten().collect::<Vec<_>>()).unwrap_or_default();
            for list in lists.iter().filter_map(|entry| entry.value.first()) {
                if is_errlog(at, list) {
                    at.free_object(list)?;
                }
            }
        }
        if is_errlog(at, log) { at.free_object(log) } else { Ok(()) }
    }
}

impl Reports<'_> {
    /// Something about a device.
    pub(super) fn report_leaf(self, class: &str, leaf: &Leaf) {
        let mut list = match class.starts_with("ereport.") {
            true => ereport(self.spa, class, Some(leaf)),
            false => self.event_of(class, PoolState::Active),
        };
        device(&mut list, leaf);
        if class.starts_with("ereport.") {
            surroundings(&mut list, leaf, &self.spa.pool.zio.tree());
        }
        self.spa.events.post(&self.spa.pool.env, class.to_owned(), list);
    }

    /// Posts an event of class `class` about an error of the whole pool, and its cause.
    pub fn report_pool(self, class: &str, cause: &str) {
        let mut list = ereport(self.spa, class, None);
        list.add("cause", cause);
        self.spa.events.post(&self.spa.pool.env, class.to_owned(), list);
    }

    /// A device has another state than before.
    #[doc(alias = "zfs_post_state_change")]
    pub(super) fn report_state(self, leaf: &Leaf, before: Health) {
        let class = "resource.fs.zfs.statechange";
        let mut list = self.event_of(class, PoolState::Active);
        list.add("vdev_guid", leaf.guid).add("vdev_state", leaf.health().state as u64);
        list.add("vdev_path", leaf.path.as_str()).add("vdev_laststate", before.state as u64);
        self.spa.events.post(&self.spa.pool.env, class.to_owned(), list);
    }

    /// Reports a failed request that is no read: failed reads are reported with their block.
    pub(super) fn report_failure(self, leaf: &Leaf, failure: &Failure) {
        let class = "ereport.fs.zfs.io";
        if !self.spa.diagnosis.may_report(leaf.guid, self.spa.pool.env.clock.monotonic()) {
            return;
        }
        let mut list = ereport(self.spa, class, Some(leaf));
        device(&mut list, leaf);
        surroundings(&mut list, leaf, &self.spa.pool.zio.tree());
        let kind = if failure.kind == FailedIo::Flush { ZIO_TYPE_FLUSH } else { ZIO_TYPE_WRITE };
        list.add("zio_err", NvValue::Int32(failure.errno)).add("zio_type", NvValue::Uint32(kind));
        list.add("zio_offset", failure.offset).add("zio_size", failure.len);
        self.spa.events.post(&self.spa.pool.env, class.to_owned(), list);
    }

    /// Reports a request that took too long.
    pub(super) fn report_delay(self, leaf: &Leaf) {
        let class = "ereport.fs.zfs.delay";
        let mut list = ereport(self.spa, class, Some(leaf));
        device(&mut list, leaf);
        surroundings(&mut list, leaf, &self.spa.pool.zio.tree());
        list.add("zio_delay", leaf.stats.last_slow.load(Ordering::Relaxed));
        self.spa.events.post(&self.spa.pool.env, class.to_owned(), list);
    }
}

impl Spa {
    /// Registers the pool for reports of its reads.
    pub(super) fn watch(self: &Arc<Self>) {
        self.pool.zio.set_faults(Arc::new(Sink(Arc::downgrade(self))));
    }
}

/// Returns an ereport with the entries that describe the pool, and the device if there is one.
#[doc(alias = "fm_ereport_set")]
fn ereport(spa: &Spa, class: &str, leaf: Option<&Leaf>) -> NvList {
    let mut detector = NvList::new();
    detector.add("version", NvValue::Uint8(0)).add("scheme", "zfs").add("pool", spa.guid());
    if let Some(leaf) = leaf {
        detector.add("vdev", leaf.guid);
    }
    let now = u64::try_from(spa.pool.env.clock.monotonic().as_nanos()).unwrap_or(u64::MAX);
    let mut list = NvList::new();
    list.add("class", class).add("ena", now << ENA_SHIFT | ENA_FORMAT).add("detector", detector);
    spa.reports().of_pool(&mut list, PoolState::Active);
    list
}

/// A copy that could not be used, unless that was known before.
#[doc(alias = "zfs_ereport_post")]
fn report(spa: &Spa, bp: &Blkptr, at: Bookmark, damage: &DamagedCopy) {
    let tree = spa.pool.zio.tree();
    let Some(leaf) = tree.leaf(damage.leaf).filter(|leaf| leaf.device().is_some()) else { return };
    let (class, errno) = match damage.bad.fault {
        Fault::Wrong => ("ereport.fs.zfs.checksum", ECKSUM),
        Fault::Unreadable => ("ereport.fs.zfs.io", EIO),
        Fault::Stale => return,
    };
    if !spa.diagnosis.may_report(leaf.guid, spa.pool.env.clock.monotonic()) {
        return;
    }
    let mut list = ereport(spa, class, Some(leaf));
    device(&mut list, leaf);
    surroundings(&mut list, leaf, &tree);
    list.add("zio_err", NvValue::Int32(errno)).add("zio_type", NvValue::Uint32(ZIO_TYPE_READ));
    list.add("zio_offset", damage.bad.read.offset);
    block(&mut list, bp, at);
    spa.events.post(&spa.pool.env, class.to_owned(), list);
}

/// A block whose bytes are lost.
#[doc(alias = "spa_log_error")]
fn report_lost(spa: &Spa, bp: &Blkptr, at: Bookmark) {
    let class = "ereport.fs.zfs.data";
    let mut list = ereport(spa, class, None);
    block(&mut list, bp, at);
    spa.events.post(&spa.pool.env, class.to_owned(), list);
    let Bookmark { objset, object, level, blkid } = at;
    let error = LoggedError { objset, object, level, blkid, birth: Some(bp.physical_birth()) };
    let mut waiting = spa.lost.0.lock();
    if waiting.len() < MAX_LOST {
        waiting.insert(error);
    }
}

/// Writes the waiting errors to the log.
#[doc(alias = "spa_errlog_sync")]
fn sync_errlog(spa: &Spa, tx: &Tx) -> Result<()> {
    let at = spa.datasets.at(tx, spa);
    let mended = std::mem::take(&mut *spa.lost.1.lock());
    // The error log is advice: damage in it must not suspend the pool.
    mended.iter().for_each(|error| drop(unlog_one(&at, error)));
    let waiting = std::mem::take(&mut *spa.lost.0.lock());
    if waiting.is_empty() {
        return Ok(());
    }
    // Errors found during a scan, paused or not, belong to that scan; its end makes its log the last one.
    let scans = scan_state::running(&at)?.is_some() || super::scrub::errors::running(&at)?.is_some();
    let log = log_of(&at, if scans { mos::ERRLOG_SCRUB } else { mos::ERRLOG_LAST })?;
    waiting.iter().try_for_each(|error| log_entry(&at, log, error))
}

/// Whether the object is an error log: a damaged log may name anything.
pub(super) fn is_errlog(at: &MosView<'_>, number: u64) -> bool {
    at.mos.view().object(number).is_ok_and(|object| object.dnode.object_type == ObjectType::ERROR_LOG)
}

/// The error log of that name in the MOS directory, made if there is none.
pub(super) fn log_of(at: &MosTx<'_>, name: &str) -> Result<u64> {
    if let Some(log) = at.zap_word(MOS_DIRECTORY_OBJECT, name)?.filter(|&number| number != 0) {
        return Ok(log);
    }
    let log = at.create_zap(ObjectType::ERROR_LOG)?;
    at.zap_set(MOS_DIRECTORY_OBJECT, name, log)?;
    Ok(log)
}

/// The head of the dataset that `objset` belongs to; itself for the MOS and for datasets that can't be read.
fn head_of(at: &MosView<'_>, objset: u64) -> u64 {
    let dir = at.dataset(objset).and_then(|dataset| at.dir(dataset.dir_obj));
    dir.map_or(objset, |dir| dir.head_dataset_obj)
}

/// Removes an error from both logs.
fn unlog_one(at: &MosTx<'_>, error: &LoggedError) -> Result<()> {
    let LoggedError { objset, object, level, blkid, birth } = *error;
    for log in [mos::ERRLOG_LAST, mos::ERRLOG_SCRUB] {
        let Some(log) = at.zap_word(MOS_DIRECTORY_OBJECT, log)?.filter(|&number| number != 0) else {
            continue;
        };
        let (list, name) = match at.active(Feature::HeadErrlog) {
            false => (Some(log), StoredBookmark { objset, object, level, blkid }.to_name()),
            true => {
                let list = at.zap_word(log, &crate::zap::int_name(head_of(at, objset)))?;
                (list, ErrBookmark { object, level, blkid, birth: birth.unwrap_or(0) }.to_name())
            }
        };
        if let Some(list) = list
            && at.zap_get(list, &name)?.is_some()
        {
            at.zap_remove(list, &name)?;
        }
    }
    Ok(())
}

/// Enters an error into a log.
pub(super) fn log_entry(at: &MosTx<'_>, log: u64, error: &LoggedError) -> Result<()> {
    // The entry's value is an empty string.
    let nothing = || Value::from("");
    let LoggedError { objset, object, level, blkid, birth } = *error;
    if !at.active(Feature::HeadErrlog) {
        let name = StoredBookmark { objset, object, level, blkid }.to_name();
        return at.zap_set(log, &name, nothing());
    }
    // The dataset was destroyed since the error was found.
    if objset != 0 && at.dataset(objset).is_err_and(|e| e.kind() == Kind::NotFound) {
        return Ok(());
    }
    let key = crate::zap::int_name(head_of(at, objset));
    let list = match at.zap_word(log, &key)? {
        Some(list) if is_errlog(at, list) => list,
        _ => {
            let list = at.create_zap(ObjectType::ERROR_LOG)?;
            at.zap_set(log, &key, list)?;
            list
        }
    };
    let name = ErrBookmark { object, level, blkid, birth: birth.unwrap_or(0) }.to_name();
    at.zap_set(list, &name, nothing())
}
