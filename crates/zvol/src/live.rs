//! A volume in use: read, written, discarded, flushed, resized.
//!
//! Writes are noted in the volume's intent log; a flush makes them durable with one write of it. Lock order: range →
//! transaction; a resize locks the whole range.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::dmu::range_lock::Ranges;
use engine::dmu::{Content, Handle, Object, Span, Tx};
use engine::dsl::write::LiveDataset;
use engine::dsl::write::space_throttle::SpaceThrottles;
use engine::spa::Spa;
use engine::zap::{Zap, ZapEdit};
use engine::zil::replay::{Replayed, replay};
use engine::zil::{Itx, Written, Zil};
use engine::{Error, Kind, Result};
use ondisk::ObjsetType;
use ondisk::names::{ZVOL_OBJECT, ZVOL_ZAP_OBJECT};
use ondisk::zil::{LogRecord, LrTruncate, TxType};
use parking_lot::Mutex;

use crate::replay::{VolumeReplay, discard};

/// Most bytes that one transaction writes.
const CHUNK: usize = 1 << 20;

/// A volume that is open for writing.
#[derive(Debug)]
pub struct LiveVolume {
    spa: Arc<Spa>,
    dataset: Arc<LiveDataset>,
    handle: Arc<Handle>,
    zil: Arc<Zil>,
    rooms: SpaceThrottles,
    ranges: Ranges,
    size: AtomicU64,
    /// It is not written any more.
    closed: AtomicBool,
    /// Its log was closed. Held while it is closed.
    ended: Mutex<bool>,
    /// The replay of its intent log at the opening.
    pub replayed: Replayed,
}

/// Opens the volume `name` of a pool for writing. First replays its intent log.
///
/// # Errors
/// `Busy` when it is open already, `Unsupported` for a file system.
#[doc(alias("zvol_open", "zvol_first_open"))]
pub fn open(spa: &Arc<Spa>, name: &str) -> Result<Arc<LiveVolume>> {
    open_some(spa, name).map_err(|e| e.in_dataset(name))
}

fn open_some(spa: &Arc<Spa>, name: &str) -> Result<Arc<LiveVolume>> {
    let number = spa.pool.dsl.dataset(name)?.number;
    let dataset = spa.datasets.open(&**spa, number)?;
    let objset = &dataset.objset;
    if objset.objset_type() != ObjsetType::Zvol {
        return Err(Error::unsupported("not a volume"));
    }
    let size = Zap::open(&objset.view().object(ZVOL_ZAP_OBJECT)?)?.need("size")?;
    let handle = objset.handle(ZVOL_OBJECT)?;
    let zil = Zil::open(objset, spa.logs().host())?;
    zil.set_policy(spa.datasets.log_policy(number)?);
    let told = |done: Replayed| {
        if let Some(e) = &done.error {
            spa.reports().notify_log_lost(name, done.lost, e);
        }
        done.complete()
    };
    let note = zil.needs_replay().then(|| spa.logs().note_replay(name, objset)).transpose();
    let done = note.and_then(|_note| replay(&zil, &mut VolumeReplay::new(spa, objset)).and_then(told));
    let replayed = match done {
        Ok(replayed) => replayed,
        Err(e) => {
            // Closing fails in a suspended pool, whose reason is more useful than this error.
            if zil.close().is_err() {
                zil.abandon();
            }
            return Err(e);
        }
    };
    let (told, pool) = (Arc::downgrade(&zil), Arc::downgrade(spa));
    dataset.watch(Some(Arc::new(move || {
        if let (Some(zil), Some(spa)) = (told.upgrade(), pool.upgrade())
            && let Ok(policy) = spa.datasets.log_policy(number)
        {
            zil.set_policy(policy);
        }
    })));
    Ok(Arc::new(LiveVolume {
        spa: Arc::clone(spa),
        handle,
        zil,
        rooms: SpaceThrottles::default(),
        ranges: Ranges::default(),
        size: AtomicU64::new(size),
        closed: AtomicBool::new(false),
        ended: Mutex::new(false),
        replayed,
        dataset,
    }))
}

/// Replays the intent logs of all volumes of a pool that was just imported, so that snapshots, streams and readers have what was
/// flushed before a crash. Returns the volumes whose logs still wait, with the reasons.
///
/// # Errors
/// The volumes cannot be listed.
#[doc(alias = "zvol_create_minors")]
pub fn replay_all(spa: &Arc<Spa>) -> Result<Vec<(String, Error)>> {
    let replayed = |name: String| {
        let done = open(spa, &name).and_then(|volume| volume.close());
        done.err().map(|e| (name, e))
    };
    Ok(spa.logs().volumes_to_replay()?.into_iter().filter_map(replayed).collect())
}

fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

impl LiveVolume {
    /// Bytes of the device.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Bytes of a block (`volblocksize`).
    pub fn block_size(&self) -> u64 {
        self.handle.dnode().datablksz().max(1)
    }

    /// Space it takes, in bytes, as of the last txg on disk.
    pub fn used(&self) -> u64 {
        self.handle.dnode().used_bytes()
    }

    fn object(&self) -> Result<Object> {
        self.dataset.objset.object(&self.dataset.objset.view(), ZVOL_OBJECT)
    }

    /// A transaction that changes at most `bytes` bytes of blocks.
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(Kind::Invalid, "the volume was closed"));
        }
        let reserved = Some(self.rooms.wait(&*self.spa, &self.dataset, (bytes, frees))?);
        if frees { self.spa.begin_free(reserved) } else { self.spa.begin_reserved(reserved) }
    }

    /// Frees most of a long range of bytes in bounded pieces, so that one transaction frees the rest.
    fn free_long(&self, offset: u64, end: u64) -> Result<()> {
        let size = self.block_size();
        self.handle.free_long(offset.div_ceil(size), end / size, &|| self.begin(0, true)).map(drop)
    }

    /// Fails when the range is not all in the device; else returns its end.
    fn end(&self, offset: u64, len: u64) -> Result<u64> {
        let end = offset.checked_add(len).filter(|end| *end <= self.size());
        end.ok_or_else(|| Error::new(Kind::Invalid, "past the end of the volume"))
    }

    /// Fills `out` from `offset`; how many bytes there were before the end of the device.
    #[doc(alias = "zvol_read")]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let _range = self.ranges.lock(offset..offset.saturating_add(len64(out.len())), false);
        let read = Content::new(&self.object()?, self.size()).read_at(offset, out)?;
        self.dataset.objset.stats.read(read);
        Ok(read)
    }

    /// The span (data or hole) that starts at `offset`; `None` at the end.
    pub fn span(&self, offset: u64, end: u64) -> Result<Option<Span>> {
        Ok(Content::new(&self.object()?, self.size()).span(offset, end))
    }

    /// Writes `data` at `offset`. `durable`: it survives a crash when this returns (FUA).
    #[doc(alias = "zvol_write")]
    pub fn write_at(&self, offset: u64, data: &[u8], durable: bool) -> Result<()> {
        let len = len64(data.len());
        {
            let _range = self.ranges.lock(offset..offset.saturating_add(len), true);
            // A resize that ended before this lock may have moved the end.
            self.end(offset, len)?;
            let mut at = offset;
            for data in data.chunks(CHUNK) {
                let tx = self.begin(self.handle.covering(at, len64(data.len())), false)?;
                self.handle.write(&tx, at, data)?;
                let block_size = self.block_size();
                self.zil.log_write(
                    &Written { object: ZVOL_OBJECT, offset: at, data, block_size, sync: false },
                    &tx,
                );
                at = at.saturating_add(len64(data.len()));
            }
        }
        self.dataset.objset.stats.written(data.len());
        if durable { self.zil.commit(ZVOL_OBJECT) } else { self.zil.settle(ZVOL_OBJECT) }
    }

    /// Makes a range read as zeros; whole blocks of it take no space then.
    pub fn zero(&self, offset: u64, len: u64) -> Result<()> {
        {
            let _range = self.ranges.lock(offset..offset.saturating_add(len), true);
            // As in a write.
            let end = self.end(offset, len)?;
            self.free_long(offset, end)?;
            let tx = self.begin(self.block_size().saturating_mul(2), true)?;
            discard(&self.handle, &tx, offset, len)?;
            let record = LogRecord::Truncate(LrTruncate { foid: ZVOL_OBJECT, offset, length: len });
            let itx = Itx::new(ZVOL_OBJECT, TxType(TxType::TRUNCATE), &record);
            self.zil.assign(itx.with_sync(false), &tx);
        }
        self.zil.settle(ZVOL_OBJECT)
    }

    /// Discards a range: whole blocks in it are freed.
    #[doc(alias = "zvol_discard")]
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let (end, block) = (self.end(offset, len)?, self.block_size());
        let (start, end) = (offset.next_multiple_of(block), end / block * block);
        if start < end { self.zero(start, end - start) } else { Ok(()) }
    }

    /// Returns when everything that was written survives a crash.
    pub fn flush(&self) -> Result<()> {
        self.zil.commit(ZVOL_OBJECT)
    }

    /// Changes the size of the device; bytes past a smaller size are freed. On disk when it returns.
    #[doc(alias("zvol_set_volsize", "zvol_update_volsize"))]
    pub fn resize(&self, size: u64) -> Result<()> {
        crate::check(size, self.block_size())?;
        let _range = self.ranges.lock(0..u64::MAX, true);
        self.free_long(size, u64::MAX)?;
        let txg = {
            let tx = self.begin(0, size <= self.size())?;
            let properties = self.dataset.objset.handle(ZVOL_ZAP_OBJECT)?;
            ZapEdit::open(&mut properties.edit(&tx))?.update("size", size)?;
            if size < self.size() {
                self.handle.free_blocks(&tx, size / self.block_size(), u64::MAX)?;
            }
            // Writes past a smaller end that are in the log must not be done again.
            self.zil.skip(&tx);
            self.size.store(size, Ordering::Release);
            tx.txg()
        };
        self.spa.wait_synced(txg)
    }

    /// Ends the use: everything is on disk then and the log is empty. After an error, it can be called again.
    #[doc(alias("zvol_last_close", "zil_close"))]
    pub fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        let mut ended = self.ended.lock();
        if !*ended {
            self.dataset.watch(None);
            self.zil.close()?;
            *ended = true;
        }
        Ok(())
    }
}
