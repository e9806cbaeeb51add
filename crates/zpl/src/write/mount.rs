//! A file system of an open pool, mounted for writing: with its properties, its intent log, and the pool's space.
//!
//! ```text
//!  mount ─ the log of before the import is done again ─▶ FsWriter, and files of the delete queue are removed behind it
//!     operations ─▶ transactions, records ── fsync ─▶ one write of the log
//!  unmount ─ everything is on disk, the log is empty
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::dmu::Tx;
use engine::dsl::write::space_throttle::SpaceThrottles;
use engine::dsl::write::{Hooks, LiveDataset};
use engine::memory::Limit;
use engine::spa::Spa;
use engine::zil::Zil;
use engine::zil::replay::{Record, Replayed, Replayer, replay};
use engine::{Error, Kind, Result};
use ondisk::ObjsetType;
use ondisk::zil::{LogRecord, Write};
use parking_lot::Mutex;
use zcommon::features::Feature;
use zcommon::props::{PropDefault, ZfsProp};

use super::aces::{AclInherit, AclMode};
use super::counting::Counting;
use super::fs::{FsWriter, Options, Transactions};
use super::log::Log;

/// Largest record without the feature `large_blocks`.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
const OLD_MAX_BLOCK: u64 = 128 << 10;
/// Longest name without the feature `longname`, and with it.
const MAX_NAME: (usize, usize) = (255, 1023);

/// Settings of a mount that override properties.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overrides {
    /// `atime`.
    pub atime: Option<bool>,
    /// `relatime`.
    pub relatime: Option<bool>,
    /// `readonly`: reads then leave access times as they are.
    pub read_only: Option<bool>,
}

/// The pool, as a mounted file system sees it.
#[derive(Debug)]
struct Place {
    spa: Arc<Spa>,
    dataset: Arc<LiveDataset>,
    rooms: SpaceThrottles,
}

impl Transactions for Place {
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        let reserved = Some(self.rooms.wait(&*self.spa, &self.dataset, (bytes, frees))?);
        if frees { self.spa.begin_free(reserved) } else { self.spa.begin_reserved(reserved) }
    }

    fn begin_within(&self, bytes: u64, grows: u64, is_dirty: &dyn Fn(u64) -> bool) -> Result<Tx> {
        if let Some(reserved) = self.rooms.admit(&*self.spa, &self.dataset, bytes)? {
            return self.spa.begin_reserved(Some(reserved));
        }
        if let Some(reserved) = self.rooms.admit_within(&*self.spa, &self.dataset, grows)? {
            let tx = self.spa.begin_reserved(Some(reserved))?;
            if is_dirty(tx.txg()) {
                return Ok(tx);
            }
        }
        self.begin(bytes, false)
    }

    fn sync(&self) -> Result<()> {
        self.spa.sync()
    }

    fn use_feature(&self, feature: Feature, tx: &Tx) -> Result<bool> {
        let is_off =
            feature == Feature::Zilsaxattr && !self.spa.pool.env.memory.limits.is_on(Limit::LogXattrs);
        if is_off || self.spa.feature(feature).is_none() {
            return Ok(false);
        }
        let in_use = self.spa.datasets.view().extra(self.dataset.number, feature.info().guid)?.is_some();
        if !in_use {
            self.dataset.use_feature(feature, tx);
        }
        Ok(in_use)
    }
}

/// State of a mounted [`FsWriter`].
#[derive(Debug)]
pub(super) struct Mounted {
    place: Arc<Place>,
    zil: Arc<Zil>,
    overrides: Mutex<Overrides>,
    replayed: Replayed,
    counting: Mutex<Counting>,
    /// Its log was closed. Held while it is closed.
    ended: Mutex<bool>,
}

/// Space of a mounted file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Referenced bytes.
    pub referenced: u64,
    /// Bytes that may still be written.
    pub available: u64,
    /// Files and other objects.
    pub objects: u64,
}

struct FsReplay<'a> {
    fs: &'a FsWriter,
    /// Files that got whole blocks, which may reach beyond their ends.
    blocks: BTreeSet<u64>,
}

impl Replayer for FsReplay<'_> {
    fn replay(&mut self, _: &Zil, record: &Record<'_>) -> Result<()> {
        let data = record.data.as_ref().map(|(offset, bytes)| (*offset, &**bytes));
        if let LogRecord::Write(Write { lr, data: None }) = &record.record {
            self.blocks.insert(lr.foid);
        }
        self.fs.replay().record(record.txtype, &record.record, record.endian, data)
    }
}

/// Mounts the file system `name` of a pool for writing. First replays its intent log.
///
/// # Errors
/// `Busy` when it is mounted already; `Unsupported` for volumes. Whatever a record of its log can't be done again for:
/// the log is kept then.
#[doc(alias = "zfs_domount")]
pub fn mount(spa: &Arc<Spa>, name: &str, overrides: Overrides) -> Result<Arc<FsWriter>> {
    mount_some(spa, name, overrides, None).map_err(|e| e.in_dataset(name))
}

/// Mounts a file system again whose content was exchanged after `before` had been unmounted. Files that are
/// open in `before` and still the same keep their open counts.
///
/// # Errors
/// As [`mount`].
#[doc(alias = "zfs_resume_fs")]
pub fn mount_after(spa: &Arc<Spa>, name: &str, before: &FsWriter) -> Result<Arc<FsWriter>> {
    let overrides = *before.mounted()?.overrides.lock();
    mount_some(spa, name, overrides, Some(before)).map_err(|e| e.in_dataset(name))
}

fn mount_some(
    spa: &Arc<Spa>,
    name: &str,
    overrides: Overrides,
    before: Option<&FsWriter>,
) -> Result<Arc<FsWriter>> {
    let number = spa.pool.dsl.dataset(name)?.number;
    let dataset = spa.datasets.open(&**spa, number)?;
    if dataset.objset.objset_type() != ObjsetType::Zfs {
        return Err(Error::unsupported("not a file system"));
    }
    let place = Arc::new(Place { spa: Arc::clone(spa), dataset, rooms: SpaceThrottles::default() });
    let options = options(spa, number, overrides)?;
    let clock = Arc::clone(&spa.pool.env.clock);
    let txs = Arc::clone(&place) as Arc<dyn Transactions>;
    let fs = FsWriter::load(&place.dataset.objset, Arc::clone(&txs), clock, options, spa.pool.env.guid())?;
    if let Some(before) = before {
        fs.take_over(before);
    }
    let zil = Zil::open(&place.dataset.objset, spa.logs().host())?;
    zil.set_policy(spa.datasets.log_policy(number)?);
    fs.set_sink(Some(Arc::new(Log { zil: Arc::clone(&zil), txs })));
    let told = |done: Replayed| {
        if let Some(e) = &done.error {
            spa.reports().notify_log_lost(name, done.lost, e);
        }
        done.complete()
    };
    let note = zil.needs_replay().then(|| spa.logs().note_replay(name, &place.dataset.objset)).transpose();
    let done = note.and_then(|_note| replay_log(&fs, &zil).and_then(told));
    let replayed = match done {
        Ok(replayed) => replayed,
        Err(e) => {
            fs.set_sink(None);
            // Closing fails in a suspended pool, whose reason is more useful than this error.
            if zil.close().is_err() {
                zil.abandon();
            }
            return Err(e);
        }
    };
    let weak = Arc::downgrade(&fs);
    // Files drop old property values only when they are used next.
    place.dataset.watch(Some(Arc::new(move || {
        if let Some(fs) = weak.upgrade() {
            let _ = fs.refresh();
        }
    })));
    let overrides = Mutex::new(overrides);
    let mounted =
        Mounted { place, zil, overrides, replayed, counting: Mutex::default(), ended: Mutex::new(false) };
    if fs.mounted.set(mounted).is_err() {
        return Err(Error::new(Kind::Busy, "the file system is mounted"));
    }
    fs.count_what_is_there();
    // Unreadable parts of the delete queue do not prevent the mount.
    let _ = fs.delete_queue().drain();
    Ok(fs)
}

/// Settings from properties and features.
fn options(spa: &Spa, number: u64, overrides: Overrides) -> Result<Options> {
    let value = |prop: ZfsProp| -> Result<u64> {
        let info = prop.info();
        let default = if let PropDefault::Number(n) = info.default { n } else { 0 };
        Ok(spa.datasets.number_property(number, info.name)?.unwrap_or(default))
    };
    let enabled = |feature| spa.feature(feature).is_some();
    let largest = if enabled(Feature::LargeBlocks) { u64::MAX } else { OLD_MAX_BLOCK };
    let dnodesize = match value(ZfsProp::Dnodesize)? {
        _ if !enabled(Feature::LargeDnode) => 512,
        0 => 512,
        1 => 1024,
        bytes => usize::try_from(bytes.clamp(512, 16384)).unwrap_or(512),
    };
    let longname = value(ZfsProp::Longname)? != 0 && enabled(Feature::Longname);
    let read_only = overrides.read_only.map_or_else(|| value(ZfsProp::Readonly).map(|v| v != 0), Ok)?;
    let atime = overrides.atime.map_or_else(|| value(ZfsProp::Atime).map(|v| v != 0), Ok)?;
    Ok(Options {
        recordsize: value(ZfsProp::Recordsize)?.clamp(ondisk::MIN_BLOCK_SIZE, largest),
        xattr_sa: value(ZfsProp::Xattr)? == 2,
        aclmode: AclMode::from_number(value(ZfsProp::Aclmode)?),
        aclinherit: AclInherit::from_number(value(ZfsProp::Aclinherit)?),
        dnodesize,
        max_name: if longname { MAX_NAME.1 } else { MAX_NAME.0 },
        atime: atime && !read_only,
        relatime: overrides.relatime.map_or_else(|| value(ZfsProp::Relatime).map(|v| v != 0), Ok)?,
        projects: enabled(Feature::ProjectQuota),
        reads_ahead: value(ZfsProp::Prefetch)? == PREFETCH_ALL,
    })
}

/// The value of the property `prefetch` with which the content of files is read ahead.
#[doc(alias = "ZFS_PREFETCH_ALL")]
const PREFETCH_ALL: u64 = 2;

impl FsWriter {
    /// Counts existing files for their owners, in the background, where the pool got that accounting after
    /// the file system was created. Must be called at its first use of any kind.
    #[doc(alias("dmu_objset_own", "dmu_objset_upgrade"))]
    pub(super) fn count_what_is_there(&self) {
        if let Some(Mounted { place, counting, .. }) = self.mounted.get() {
            counting.lock().start(&place.spa, &place.dataset);
        }
    }

    fn mounted(&self) -> Result<&Mounted> {
        self.mounted.get().ok_or_else(|| Error::new(Kind::Invalid, "the file system is not mounted"))
    }

    /// The pool; `None` when it is not mounted.
    pub(super) fn spa(&self) -> Option<&Arc<Spa>> {
        self.mounted.get().map(|mounted| &mounted.place.spa)
    }

    /// The last txg on disk; `None` when it is not mounted.
    pub(super) fn synced(&self) -> Option<u64> {
        self.mounted.get().map(|mounted| mounted.place.spa.txgs.synced())
    }

    /// The records replayed from the intent log at the mount.
    pub fn replayed(&self) -> Option<&Replayed> {
        self.mounted.get().map(|mounted| &mounted.replayed)
    }

    /// Decides otherwise than when it was mounted.
    pub fn set_overrides(&self, overrides: Overrides) -> Result<()> {
        *self.mounted()?.overrides.lock() = overrides;
        self.refresh()
    }

    /// Reads its properties again. Called whenever some have changed.
    pub fn refresh(&self) -> Result<()> {
        let Mounted { place, zil, overrides, .. } = self.mounted()?;
        let overrides = *overrides.lock();
        self.set_options(options(&place.spa, place.dataset.number, overrides)?);
        zil.set_policy(place.spa.datasets.log_policy(place.dataset.number)?);
        Ok(())
    }

    /// Space of the dataset, as of the last txg on disk.
    #[doc(alias = "zfs_statvfs")]
    pub fn space(&self) -> Result<Space> {
        let Mounted { place, .. } = self.mounted()?;
        let referenced = place.spa.datasets.view().dataset(place.dataset.number)?.referenced_bytes;
        let available = place.rooms.of(&*place.spa, &place.dataset, false)?.least();
        Ok(Space { referenced, available, objects: self.objset.rootbp().fill() })
    }

    /// Bytes that may still be written, as of the last txg on disk; `None` when it is not mounted.
    pub(super) fn available(&self) -> Result<Option<u64>> {
        self.mounted.get().map(|_| self.space().map(|space| space.available)).transpose()
    }

    /// Begins to end the mount: all later operations on the file system fail. [`FsWriter::unmount`] waits for
    /// the rest; a caller that unmounts many calls this for all of them first, so that one txg ends all.
    pub fn begin_unmount(&self) -> Result<()> {
        let Mounted { place, zil, counting, .. } = self.mounted()?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.drain.end();
        place.dataset.watch(None);
        // The thread may wait for a txg whose transactions need the lock.
        let thread = counting.lock().end();
        if let Some(thread) = thread {
            // A thread that panicked has reported itself.
            let _ = thread.join();
        }
        zil.begin_close()
    }

    /// Ends the mount: everything is on disk then and the log is empty. Whatever is done with the file system
    /// afterwards fails. After an error, it can be called again.
    #[doc(alias("zfs_umount", "zil_close"))]
    pub fn unmount(&self) -> Result<()> {
        let begun = self.begin_unmount();
        let Mounted { zil, ended, .. } = self.mounted()?;
        let mut ended = ended.lock();
        if !*ended {
            begun?;
            zil.close()?;
            *ended = true;
        }
        Ok(())
    }
}

fn replay_log(fs: &FsWriter, zil: &Arc<Zil>) -> Result<Replayed> {
    fs.replaying.store(true, Ordering::Release);
    let mut replayer = FsReplay { fs, blocks: BTreeSet::new() };
    let done = replay(zil, &mut replayer);
    if done.as_ref().is_ok_and(|done| done.error.is_none()) {
        for file in replayer.blocks {
            // The file may be gone; what stays behind an end is no part of the file.
            let _ = fs.replay().clear_behind_end(file);
        }
    }
    fs.replaying.store(false, Ordering::Release);
    done
}
