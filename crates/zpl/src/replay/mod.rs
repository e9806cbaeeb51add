//! The intent log of a pool that was not exported, replayed in memory.
//!
//! A synchronous write is promised when its record is in the log; the txg that makes it part of the file
//! system may never have been synced. An import would replay the log, which writes to the pool. Here the file system's
//! writer replays the same records on an object set whose changes stay in memory ([`Scratch`]): readers see the
//! result, and the pool stays as it is.
//!
//! Records that count: those of a txg that was not synced (`claim_txg` when an import has claimed the log,
//! else one past the newest synced), with a sequence number above the highest that an interrupted replay has
//! done. An unclaimed log ends at a write whose block never reached the disk, as a claim ends it. A snapshot has no log, and
//! neither has a pool that was opened in an older state: the log belongs to later ones.
//!
//! Differs from OpenZFS: a record that can't be replayed is noted and the next one is tried, where an
//! import stops; the times of a write, which the log does not hold, are those of the state before it
//! (an import sets the time of the replay).

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use engine::dmu::dirty::scratch::Scratch;
use engine::dmu::{Objset, Tx};
use engine::dsl::Dataset;
use engine::dsl::props::settings::{PropRules, Settings};
use engine::zil::replay::{data_of, is_gone, visit_waiting};
use engine::{Error, Kind, Result};
use ondisk::Endian;
use ondisk::objset::ObjsetFlags;
use ondisk::zil::{LogRecord, TxType};
use zcommon::features::Feature;
use zcommon::props::ZfsProp;

use crate::filesystem::{Filesystem, Replayed, WithLog};
use crate::write::{AclInherit, AclMode, FsWriter, Options, Transactions};

/// Bytes of memory for the names, attributes and data that a log may change, counted as `zfs_dirty_data_max` counts those of
/// writers.
const MAX_BYTES: u64 = 512 << 20;
/// Longest name of a file: a record shows that the pool allows it.
const MAX_NAME: usize = 1023;

/// Transactions in memory.
#[derive(Debug)]
struct InMemory {
    scratch: Arc<Scratch>,
    max_bytes: u64,
}

impl Transactions for InMemory {
    fn begin(&self, bytes: u64, _: bool) -> Result<Tx> {
        match self.scratch.memory().saturating_add(bytes) <= self.max_bytes {
            true => Ok(self.scratch.begin()),
            false => Err(Error::new(Kind::Limit, "the intent log is too long to be replayed in memory")),
        }
    }

    fn sync(&self) -> Result<()> {
        Err(Error::unsupported("the changes stay in memory"))
    }

    fn use_feature(&self, _: Feature, _: &Tx) -> Result<bool> {
        Ok(true)
    }
}

/// A replay under way.
struct LogReplay {
    plain: Arc<Objset>,
    scratch: Arc<Scratch>,
    fs: Arc<FsWriter>,
}

impl LogReplay {
    /// Over an object set as of txg `synced`.
    fn over(plain: &Arc<Objset>, synced: u64, options: Options, max_bytes: u64) -> Result<Self> {
        let scratch = Arc::new(Scratch::over(plain, synced));
        let txs = Arc::new(InMemory { scratch: Arc::clone(&scratch), max_bytes });
        let fs = FsWriter::load_for_log(scratch.objset(), txs, options)?;
        Ok(Self { plain: Arc::clone(plain), scratch, fs })
    }

    /// Replays a record.
    fn apply(&self, txtype: TxType, endian: Endian, record: &LogRecord<'_>) -> Result<()> {
        catch_unwind(AssertUnwindSafe(|| self.apply_one(txtype, endian, record)))
            .unwrap_or_else(|_| Err(Error::new(Kind::Invalid, "this program has a fault")))
    }

    /// A record may come after the removal of its file: then it has no effect.
    fn apply_one(&self, txtype: TxType, endian: Endian, record: &LogRecord<'_>) -> Result<()> {
        if is_gone(self.scratch.objset(), record)? {
            return Ok(());
        }
        if let LogRecord::Write(write) = record
            && write.data.is_none()
            && self.fs.replay().pointer(write)?
        {
            return Ok(());
        }
        let data = data_of(&self.plain, record)?;
        let data = data.as_ref().map(|(offset, bytes)| (*offset, &**bytes));
        self.fs.replay().record(txtype, record, endian, data)
    }

    /// Replays the log of `dataset`, as of txg `synced`.
    fn replay(self, dataset: &Dataset, synced: u64) -> WithLog {
        let mut replayed = Replayed::default();
        let read = visit_waiting(&self.plain, synced, &mut |one| {
            let applied = one.record.and_then(|record| self.apply(one.txtype, one.endian, &record));
            let Err(e) = applied else {
                replayed.applied += 1;
                return true;
            };
            let kind = e.kind();
            let what = format!("log record {}: {e}", one.seq);
            replayed.note(Error::new(kind, what).in_dataset(&dataset.name));
            kind != Kind::Limit
        });
        if let Err(e) = read {
            replayed.note(e.in_dataset(&dataset.name));
        }
        WithLog { objset: Arc::clone(self.scratch.objset()), replayed }
    }
}

/// The settings of `dataset` that the result of a replay depends on.
fn options(dataset: &Dataset, objset: &Objset) -> Options {
    let rules = PropRules { is_inherited: |_| true, is_for_snapshots: |_| false };
    // Unreadable settings are no reason to do without the log.
    let settings = Settings::of(dataset, rules).unwrap_or_default();
    let number = |prop: ZfsProp| settings.get(prop.name()).and_then(|setting| setting.value.number());
    let defaults = Options::default();
    Options {
        recordsize: number(ZfsProp::Recordsize)
            .map_or(defaults.recordsize, |bytes| bytes.clamp(ondisk::MIN_BLOCK_SIZE, ondisk::MAX_BLOCK_SIZE)),
        aclmode: number(ZfsProp::Aclmode).map_or(defaults.aclmode, AclMode::from_number),
        aclinherit: number(ZfsProp::Aclinherit).map_or(defaults.aclinherit, AclInherit::from_number),
        projects: objset.phys.flags.0 & ObjsetFlags::PROJECTQUOTA_COMPLETE.0 != 0,
        max_name: MAX_NAME,
        ..defaults
    }
}

/// The file system `dataset`, whose object set is `plain`, with what its log holds; `None` when there is nothing to
/// replay.
fn with_log(dataset: &Dataset, plain: &Arc<Objset>) -> Option<WithLog> {
    // In an older state of the pool the log belongs to later ones.
    if dataset.is_snapshot() || plain.phys.zil_header.log.is_hole() || dataset.dsl.is_rewound() {
        return None;
    }
    let synced = dataset.dsl.mos.rootbp.logical_birth();
    let replay = LogReplay::over(plain, synced, options(dataset, plain), MAX_BYTES);
    let done = match replay {
        Ok(replay) => replay.replay(dataset, synced),
        // Without a writer the files are as they were synced, if they can be read at all.
        Err(e) => {
            let notes = vec![e.in_dataset(&dataset.name)];
            let objset = Arc::clone(Scratch::over(plain, synced).objset());
            WithLog { objset, replayed: Replayed { applied: 0, notes } }
        }
    };
    (done.replayed.applied > 0 || !done.replayed.notes.is_empty()).then_some(done)
}

impl Filesystem {
    /// Opens the file system in `dataset` (a head or a snapshot).
    ///
    /// Fails with `KeyMissing` for an encrypted dataset without its key, and with `Unsupported` for a
    /// volume or a newer version. A damaged table of domains is passed over: ids are shown bare.
    ///
    /// Changes in the intent log beyond the newest txg are included, too (see [`crate::replay`]);
    /// [`Filesystem::open_committed`] leaves it out.
    pub fn open(dataset: &Dataset) -> Result<Arc<Self>> {
        let open = || -> Result<Self> {
            let objset = dataset.objset()?;
            match with_log(dataset, &objset) {
                Some(log) => Self::load(dataset, log.objset.view(), Some(log)),
                None => Self::load(dataset, objset, None),
            }
        };
        open().map(Arc::new).map_err(|e| e.in_dataset(&dataset.name))
    }
}
