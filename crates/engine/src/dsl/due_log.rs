//! Logs of datasets that wait for their replay in a pool that is only read ([`crate::zil::in_memory`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::Endian;
use ondisk::zil::{LogRecord, TxType};

use super::{Dataset, Dsl};
use crate::dmu::Objset;
use crate::error::{Error, Kind, Result};
use crate::zil::in_memory::{MemoryReplay, visit_waiting};
use crate::zio::Form;

/// Logs that are listed.
const MAX_LOGS: usize = 1000;

/// The log of a dataset that is to be replayed in memory.
#[derive(Debug)]
pub struct DueLog<'a> {
    dataset: &'a Dataset,
    plain: &'a Arc<Objset>,
    /// The last txg on disk.
    pub synced: u64,
}

impl<'a> DueLog<'a> {
    /// The log of `dataset`, whose object set is `plain`; `None` when it has none, or one of later states of the pool.
    pub fn of(dataset: &'a Dataset, plain: &'a Arc<Objset>) -> Option<Self> {
        if dataset.is_snapshot() || plain.phys.zil_header.log.is_hole() || dataset.dsl.is_rewound() {
            return None;
        }
        Some(Self { dataset, plain, synced: dataset.dsl.mos.rootbp.logical_birth() })
    }

    /// Checks that it can be read whole. Needs no key if the object set was opened without.
    ///
    /// # Errors
    /// The reason why records that were acknowledged, or may have been, cannot be read.
    pub fn check(&self) -> Result<()> {
        let read = visit_waiting(self.plain, self.synced, &mut |_| true);
        read.map_err(|e| e.in_dataset(&self.dataset.name))
    }

    /// Has `apply` apply each record.
    pub fn replay(
        &self,
        apply: &mut dyn FnMut(TxType, Endian, &LogRecord<'_>) -> Result<()>,
    ) -> MemoryReplay {
        let mut replayed = MemoryReplay::default();
        let read = visit_waiting(self.plain, self.synced, &mut |one| {
            let applied = one.record.and_then(|record| guarded(|| apply(one.txtype, one.endian, &record)));
            let Err(e) = applied else {
                replayed.applied += 1;
                return true;
            };
            let kind = e.kind();
            let what = format!("log record {}: {e}", one.seq);
            replayed.note(Error::new(kind, what).in_dataset(&self.dataset.name));
            kind != Kind::Limit
        });
        if let Err(e) = read {
            replayed.note(e.in_dataset(&self.dataset.name));
        }
        replayed
    }
}

/// A log of which acknowledged records cannot be read, or may be missing.
#[derive(Debug)]
pub struct DamagedLog {
    /// The dataset.
    pub dataset: String,
    /// The reason.
    pub why: Error,
}

/// Logs of a pool that is only read that cannot be read whole, at most 1,000. Datasets that cannot be opened are left
/// out. Ends early when `stop` is set.
pub fn damaged_logs(dsl: &Arc<Dsl>, stop: &AtomicBool) -> Vec<DamagedLog> {
    let Ok(root) = dsl.root() else { return Vec::new() };
    let heads = dsl.walk(root).flatten().take_while(|_| !stop.load(Ordering::Relaxed));
    let heads = heads.filter_map(|dir| dir.head().ok());
    heads
        .filter_map(|head| {
            let objset = head.objset_as(Form::NoKey).ok()?;
            let why = DueLog::of(&head, &objset)?.check().err()?;
            Some(DamagedLog { dataset: head.name, why })
        })
        .take(MAX_LOGS)
        .collect()
}

/// The result of `apply`; a panic of it is an error of one record.
fn guarded(apply: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(apply))
        .unwrap_or_else(|_| Err(Error::new(Kind::Invalid, "this program has a fault")))
}
