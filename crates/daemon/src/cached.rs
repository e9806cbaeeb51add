//! The pools of the cache file: where their devices are, and their import when the daemon starts.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use engine::spa::OpenOptions;
use engine::{Error, Kind, Result};
use nvpair::NvList;
use zutil::PoolCandidate;

use crate::cache::Cache;
use crate::devices::candidate_at;
use crate::imported::{Imported, Manner, leaf_paths};
use crate::located::{Unavailable, found_near, located};
use crate::ops::ImportPool;
use crate::parallel::STACK;
use crate::paths::RunPaths;
use crate::recorded;
use crate::registry::{Registry, Reservation};
use crate::server::Commands;

/// Maximum wait of a starting daemon for the pools of its cache file before it serves requests.
const GRACE: Duration = Duration::from_secs(20);
/// The reason why a pool of the cache file is not imported, if the import of others may change that.
const MISSING: &str = "its devices are not where the cache file says";

/// The pools of a cache file. Its paths, and all files in their folders, are searched: devices were perhaps renamed,
/// added or replaced since the file was written.
///
/// # Errors
/// If the file cannot be read.
#[doc(alias("zpool_find_import_cached", "discover_cached_paths"))]
pub fn cached_in(file: &Path) -> std::io::Result<Vec<PoolCandidate>> {
    std::fs::File::open(file)?;
    let pools = Cache::at(file.to_owned()).pools()?;
    let (mut paths, mut guids) = (Vec::new(), HashSet::new());
    for (_, config) in pools {
        let Some(guid) = config.u64("pool_guid") else { continue };
        guids.insert(guid);
        paths.extend(leaf_paths(&config));
    }
    Ok(found_near(paths, &guids))
}

/// The pool with this name in the cache file of the machine's daemon, at its present location.
pub fn cached(name: &str) -> Option<PoolCandidate> {
    let pools = Cache::at(RunPaths::of_process().cache()).pools().ok()?;
    let (_, config) = pools.into_iter().find(|(cached, _)| cached == name)?;
    candidate_at(&leaf_paths(&config), config.u64("pool_guid")?)
}

impl Registry {
    /// Tries again to import a pool of the cache file that could not be imported; `None`: there is no such pool.
    ///
    /// # Errors
    /// As [`Registry::import`].
    pub fn retry(self: &Arc<Self>, name: &str) -> Option<Result<Arc<Imported>>> {
        let Unavailable { config, .. } = self.failed().remove(name)?;
        let place = match self.reserve_for_import(name) {
            Ok(place) => place,
            // Another command has imported it meanwhile.
            Err(e) => return Some(Err(e)),
        };
        let imported = self.import_one(name, &config, place);
        if let Err(e) = &imported {
            self.note_failed(name, Unavailable { why: e.to_string(), config });
        }
        Some(imported)
    }

    /// Imports the pools of the cache file, each in a thread of its own, and notifies `commands` of each. The wait
    /// for them is limited: a pool whose devices do not answer keeps its name reserved, without delaying the
    /// others. Failures are logged, and the pool stays in the file. A pool with missing devices is retried after
    /// other imports: they may be files in a mount of those pools.
    pub fn import_cached(self: &Arc<Self>, commands: &Arc<dyn Commands>) {
        let until = Instant::now() + GRACE;
        let cached = self.cache.pools().unwrap_or_else(|e| {
            eprintln!("no pool is imported: {e}; import pools with 'zpool import'");
            self.note_damage(e.to_string());
            Vec::new()
        });
        let mut wanted: Vec<_> =
            cached.into_iter().map(|(name, config)| (name, config, String::new())).collect();
        loop {
            let tried = wanted.len();
            wanted = self.import_round(wanted, commands, until);
            if wanted.is_empty() || wanted.len() == tried {
                break;
            }
        }
        for (name, config, why) in wanted {
            eprintln!("pool {name} cannot be imported: {why}");
            self.note_failed(&name, Unavailable { why, config });
        }
    }

    /// Tries to import pools; returns those whose devices are missing, with the reason.
    fn import_round(
        self: &Arc<Self>,
        wanted: Vec<(String, NvList, String)>,
        commands: &Arc<dyn Commands>,
        until: Instant,
    ) -> Vec<(String, NvList, String)> {
        let (ended, ends) = mpsc::channel();
        for (name, config, _) in wanted {
            let Ok(place) = self.reserve_for_import(&name) else { continue };
            let (registry, commands, ended) = (Arc::clone(self), Arc::clone(commands), ended.clone());
            let work = move || match registry.import_one(&name, &config, place) {
                Ok(pool) => commands.imported(&pool, &registry),
                Err(e) if e.kind() == Kind::NoDevice => {
                    // After the timeout the receiver is gone.
                    let _ = ended.send((name, config, e.to_string()));
                }
                Err(e) => {
                    eprintln!("pool {name} cannot be imported: {e}");
                    registry.note_failed(&name, Unavailable { why: e.to_string(), config });
                }
            };
            if let Err(e) = thread::Builder::new().name("import".into()).stack_size(STACK).spawn(work) {
                eprintln!("no thread for the import of a pool: {e}");
            }
        }
        drop(ended);
        // The channel closes when the last of them has ended.
        let left = || until.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| ends.recv_timeout(left()).ok()).collect()
    }

    fn import_one(
        self: &Arc<Self>,
        name: &str,
        config: &NvList,
        place: Reservation,
    ) -> Result<Arc<Imported>> {
        let candidate = located(config);
        let missing = || Error::new(Kind::NoDevice, MISSING);
        let candidate = candidate.ok_or_else(missing)?;
        recorded::check(config, &candidate)?;
        let temporary = candidate.name != name;
        let rename = temporary.then(|| name.to_owned());
        let manner = Manner { cached: true, ..Manner::default() };
        let open = OpenOptions::default();
        let (read_only, force, missing_log) = (false, false, false);
        let new = ImportPool {
            candidate,
            rename,
            temporary,
            read_only,
            force,
            missing_log,
            open,
            manner,
            derived: None,
        };
        self.import_at(place, new)
    }
}
