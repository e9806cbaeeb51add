//! The counters of datasets and their intent logs: `aquifer kstat zil`, `aquifer kstat POOL/objset-0x36`, `zilstat`.

use std::sync::Arc;

use clikit::verb::Failure;
use daemon::{Imported, Registry};
use engine::dsl::props::names::dataset_name;

use super::kstat::{UINT64, named};

/// The type of a text in a kstat.
#[doc(alias = "KSTAT_DATA_STRING")]
const STRING: u8 = 7;

/// The counters of one dataset, or of all logs together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ZilSample {
    /// The pool and the dataset's name; `None`: all logs of the process.
    pub dataset: Option<(String, String)>,
    /// The dataset's object in the MOS; 0 for all.
    pub number: u64,
    /// Counters by the names of their kstats, in OpenZFS's order.
    pub counts: Vec<(&'static str, u64)>,
}

impl ZilSample {
    /// The sums of all logs since the start of the process.
    pub(super) fn all_logs(registry: &Registry) -> Self {
        Self { dataset: None, number: 0, counts: registry.memory.stats.zil.all().collect() }
    }

    /// The datasets of a pool that are mounted, or volumes in use.
    pub(super) fn of_pool(pool: &Arc<Imported>) -> Result<Vec<Self>, Failure> {
        let spa = pool.spa().map_err(|e| Failure::failed(e.what()))?;
        let one = |dataset: Arc<engine::dsl::write::LiveDataset>| {
            // One that is destroyed meanwhile has no name.
            let name = dataset_name(&spa.pool.dsl, dataset.number).ok()?;
            let counts = dataset.objset.stats.all().collect();
            Some(Self { dataset: Some((pool.name(), name)), number: dataset.number, counts })
        };
        Ok(spa.datasets.logged().into_iter().filter_map(one).collect())
    }

    /// The counter of that name; 0 if there is none.
    pub(super) fn get(&self, name: &str) -> u64 {
        self.counts.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
    }

    /// The text of the kernel's file.
    pub(super) fn text(&self) -> String {
        let name = self.dataset.iter().map(|(_, name)| ("dataset_name", STRING, name.clone()));
        let counts = self.counts.iter().map(|(name, count)| (*name, UINT64, count.to_string()));
        named(name.chain(counts))
    }
}
