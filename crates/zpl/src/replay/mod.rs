//! The intent log of a pool that was not exported, replayed in memory.
//!
//! The file system's writer applies the records ([`engine::zil::in_memory`]).
//!
//! Differs from OpenZFS: the times of a write, which the log does not hold, are those of the state before it (an import sets the
//! time of the replay).

#[cfg(test)]
mod tests;

use std::sync::Arc;

use engine::dmu::dirty::scratch::Scratch;
use engine::dmu::{Objset, Tx};
use engine::dsl::Dataset;
use engine::dsl::due_log::DueLog;
use engine::dsl::props::settings::{PropRules, Settings};
use engine::zil::in_memory::{InMemory, MAX_BYTES, MemoryReplay, WithLog};
use engine::zil::replay::{data_of, is_gone};
use engine::{Error, Result};
use ondisk::Endian;
use ondisk::objset::ObjsetFlags;
use ondisk::zil::{LogRecord, TxType};
use zcommon::features::Feature;
use zcommon::props::ZfsProp;

use crate::filesystem::Filesystem;
use crate::write::{AclInherit, AclMode, FsWriter, Options, Transactions};

/// Longest name of a file: a record shows that the pool allows it.
const MAX_NAME: usize = 1023;

impl Transactions for InMemory {
    fn begin(&self, bytes: u64, _: bool) -> Result<Tx> {
        InMemory::begin(self, bytes)
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
        let txs = Arc::new(InMemory::over(plain, synced, max_bytes));
        let scratch = Arc::clone(&txs.scratch);
        let fs = FsWriter::load_for_log(scratch.objset(), txs, options)?;
        Ok(Self { plain: Arc::clone(plain), scratch, fs })
    }

    /// Replays a record. It may come after the removal of its file: then it has no effect.
    fn apply(&self, txtype: TxType, endian: Endian, record: &LogRecord<'_>) -> Result<()> {
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
    let due = DueLog::of(dataset, plain)?;
    let done = match LogReplay::over(plain, due.synced, options(dataset, plain), MAX_BYTES) {
        Ok(log) => {
            let replayed = due.replay(&mut |txtype, endian, record| log.apply(txtype, endian, record));
            WithLog { objset: Arc::clone(log.scratch.objset()), replayed }
        }
        // Without a writer the files are as they were synced, if they can be read at all.
        Err(e) => {
            let objset = Arc::clone(Scratch::over(plain, due.synced).objset());
            WithLog { objset, replayed: MemoryReplay::failed(e.in_dataset(&dataset.name)) }
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
    /// Changes in the intent log beyond the newest txg are included, too (see [`engine::zil::in_memory`]);
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
