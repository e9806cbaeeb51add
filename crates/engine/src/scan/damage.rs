//! Damage of structures that can be derived from the blocks of a pool: space maps, their logs, dedup tables,
//! clone tables; lists of blocks to be freed, which a rebuilt pool does without.
//!
//! Reads each of these objects whole. Nothing else of the pool is read, so it takes seconds also on large pools.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::space_map::SpaceMapDecoder;
use zcommon::features::Feature;

use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::metaslab::rebuild::has_metaslabs;
use crate::metaslab::table::Metaslabs;
use crate::metaslab::{self, check, log};
use crate::spa::Pool;
use crate::spa::freed_lists;
use crate::spa::rebuild::RebuildTables;
use crate::vdev::config::VdevConfig;
use crate::{brt, ddt};

/// Most damaged objects that are named.
const MAX_NAMED: usize = 1 << 12;

/// The damaged structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The space maps of a top-level vdev: their array, or all of them.
    Maps(String),
    /// The space map of one metaslab of a top-level vdev.
    Map(String, u64),
    /// The log of space maps.
    SpaceLog,
    /// A dedup table.
    Dedup,
    /// The clone table of a top-level vdev.
    Clones(u64),
    /// A list of blocks to be freed.
    Freeing(String),
}

/// One finding.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The damaged structure.
    pub what: What,
    /// Why.
    pub why: Error,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Maps(vdev) => write!(f, "space maps of {vdev}"),
            Self::Map(vdev, id) => write!(f, "space map of metaslab {id} of {vdev}"),
            Self::SpaceLog => write!(f, "log of space maps"),
            Self::Dedup => write!(f, "dedup table"),
            Self::Clones(vdev) => write!(f, "clone table of top-level vdev {vdev}"),
            Self::Freeing(list) => f.write_str(list),
        }
    }
}

/// The tables of `pool` that must be rebuilt.
pub fn which(pool: &Pool, damage: &[Damage]) -> RebuildTables {
    let freeing = damage.iter().any(|damage| matches!(damage.what, What::Freeing(_)));
    // Tables count the references of blocks that are to be freed, too.
    let dedup = freeing || damage.iter().any(|damage| matches!(damage.what, What::Dedup | What::Clones(_)));
    // A clone of a block with the dedup bit may be counted in either table: beside a damaged dedup table it is in the clone
    // table, and new dedup tables count all.
    let has_clones = pool.features.count(Feature::BlockCloning.info().guid).is_some();
    RebuildTables { dedup, clones: dedup && has_clones, freeing }
}

/// Reads all structures that can be derived, and lists the damaged ones. Ends early when `stop` is set.
pub fn assess(pool: &Pool, stop: &AtomicBool) -> Vec<Damage> {
    let mut found = Found { all: Vec::new(), stop };
    for config in pool.tree().config.children.iter().filter(|config| has_metaslabs(config)) {
        if config.metaslab_array != 0 {
            found.vdev(&pool.mos, config);
        }
    }
    found.note(What::SpaceLog, space_log(&pool.mos));
    found.dedup(&pool.mos);
    match brt::named(&pool.mos) {
        Ok(tables) => tables.iter().filter_map(|(name, _)| brt::vdev_of(name)).for_each(|vdev| {
            found.note(What::Clones(vdev), clones(&pool.mos, vdev));
        }),
        Err(why) => found.note(What::Clones(0), Err(why)),
    }
    match freed_lists::damage(pool, u64::MAX) {
        Ok(lists) => lists.into_iter().for_each(|(name, why)| found.note(What::Freeing(name), Err(why))),
        Err(why) => found.note(What::Freeing("lists of blocks to be freed".to_owned()), Err(why)),
    }
    found.all
}

struct Found<'a> {
    all: Vec<Damage>,
    stop: &'a AtomicBool,
}

impl Found<'_> {
    fn note(&mut self, what: What, result: Result<()>) {
        if let (Err(why), true) = (result, self.all.len() < MAX_NAMED) {
            self.all.push(Damage { what, why });
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn vdev(&mut self, mos: &Arc<Objset>, config: &VdevConfig) {
        let name = config.name();
        let table = match Metaslabs::load(mos, config) {
            Ok(table) => table,
            Err(why) => return self.note(What::Maps(name), Err(why)),
        };
        for (id, metaslab) in (0..).zip(&table.all) {
            if self.is_stopped() {
                return;
            }
            let read = metaslab
                .as_ref()
                .map_err(Clone::clone)
                .and_then(|metaslab| check::map(mos, config, metaslab));
            self.note(What::Map(name.clone(), id), read);
        }
    }

    fn dedup(&mut self, mos: &Arc<Objset>) {
        let mut notes = Vec::new();
        for table in ddt::tables(mos, &mut notes) {
            for store in table.stores {
                for entry in store.entries() {
                    if self.is_stopped() {
                        return;
                    }
                    if let Err(why) = entry {
                        let why =
                            Error::corrupt(format!("{}, object {}", store.name, store.object)).because(why);
                        notes.push(why);
                        // The cursor may not get past the damage.
                        break;
                    }
                }
            }
        }
        notes.into_iter().for_each(|why| self.note(What::Dedup, Err(why)));
    }
}

fn space_log(mos: &Arc<Objset>) -> Result<()> {
    for log in log::logs(mos)? {
        metaslab::replay(&log.object, SpaceMapDecoder::for_log(), &mut |_| ())?;
    }
    Ok(())
}

fn clones(mos: &Arc<Objset>, vdev: u64) -> Result<()> {
    let Some(table) = brt::table(mos, vdev)? else { return Ok(()) };
    brt::counters(mos, vdev)?;
    table.entries().try_for_each(|entry| entry.map(drop))
}
