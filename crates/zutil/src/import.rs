//! From a search of devices to an open pool: the offline verbs' way in.
//!
//! Devices are opened read-only; each leaf is taken by its guid wherever it was found.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use engine::env::Env;
use engine::spa::{FoundUberblock, ImportSource, Newest, OpenOptions, Pool};
use engine::vdev::tree::Devices;
use engine::{Error, Kind, Result};
use nvpair::NvList;

use crate::discover::discover;
use crate::open::OpenedPool;
use crate::search::{PoolCandidate, search};

/// Finds the pools on the devices that `paths` name or hold (default places when empty).
pub fn candidates(paths: &[PathBuf]) -> Vec<PoolCandidate> {
    search(&discover(paths).devices)
}

/// The one pool called `wanted`, or of that guid.
pub fn select(candidates: Vec<PoolCandidate>, wanted: &str) -> Result<PoolCandidate> {
    let guid = wanted.parse::<u64>().ok();
    let mut matching: Vec<PoolCandidate> =
        candidates.into_iter().filter(|c| c.name == wanted || Some(c.guid) == guid).collect();
    match matching.len() {
        0 => Err(Error::new(Kind::NotFound, format!("cannot open '{wanted}': no such pool"))),
        1 => Ok(matching.remove(0)),
        _ => {
            let guids: Vec<String> = matching.iter().map(|c| c.guid.to_string()).collect();
            let what =
                format!("several pools are called '{wanted}': give one of the guids {}", guids.join(", "));
            Err(Error::new(Kind::Invalid, what))
        }
    }
}

/// Opens the devices of a candidate and gathers the engine's inputs for opening the pool. Devices that can't
/// be opened are left out, as if missing.
pub fn source(candidate: &PoolCandidate) -> ImportSource {
    source_with(candidate, blkdev::OpenOptions::default())
}

/// As [`source`], with devices opened with `options`.
pub fn source_with(candidate: &PoolCandidate, options: blkdev::OpenOptions) -> ImportSource {
    gathered(candidate, candidate.open(options))
}

/// As [`source`], with devices that are open already.
pub fn gathered(candidate: &PoolCandidate, mut opened: OpenedPool) -> ImportSource {
    add_other_names(candidate, &mut opened);
    let found = opened.uberblocks.into_iter();
    // By the same rules as the first time: members may carry uberblocks of other pools.
    let (again, devices) = (candidate.clone(), opened.devices.clone());
    let newest = Newest::by(move || {
        let found = again.uberblocks(&devices).into_iter();
        found.map(|found| found.uberblock).collect()
    });
    ImportSource {
        label_txgs: label_txgs(candidate, &opened.devices),
        newest: Some(newest),
        name: candidate.name.clone(),
        guid: candidate.guid,
        config: candidate.config.clone(),
        devices: opened.devices,
        uberblocks: found.map(|f| FoundUberblock { uberblock: f.uberblock, copies: f.copies }).collect(),
    }
}

/// The least txg in the labels of each leaf of the pool. Labels of another pool count only if they are of the same leaf: a
/// change of the pool's guid was interrupted.
fn label_txgs(candidate: &PoolCandidate, devices: &Devices) -> HashMap<u64, u64> {
    let mut least = HashMap::new();
    for member in candidate.members.values().filter(|member| member.txg != 0) {
        let number = |config: &NvList, name: &str| config.u64(name).unwrap_or(0);
        let labels = member.device.labels.usable().map(|(_, config)| config);
        let own = labels.filter(|config| {
            number(config, "pool_guid") == candidate.guid || number(config, "guid") == member.guid
        });
        let own: Vec<&NvList> = own.collect();
        let Some(txg) = own.iter().map(|config| number(config, "txg")).min() else { continue };
        let guids = own.iter().map(|config| number(config, "guid"));
        least.extend(guids.filter(|guid| devices.contains_key(guid)).map(|guid| (guid, txg)));
    }
    least
}

/// A device with labels of two leaves of the pool is found under both guids: the last leaf of a mirror takes the mirror's
/// guid, and a power cut may leave two labels of before and two of after, whichever of the two the pool's state is.
fn add_other_names(candidate: &PoolCandidate, opened: &mut OpenedPool) {
    for member in candidate.members.values() {
        let Some(device) = opened.devices.get(&member.guid).cloned() else { continue };
        let others = member.device.labels.others().into_iter();
        for (_, guid) in others.filter(|(pool, _)| *pool == candidate.guid) {
            if !candidate.members.contains_key(&guid) {
                opened.devices.entry(guid).or_insert_with(|| device.clone());
            }
        }
    }
}

/// Finds and opens the pool called `wanted` (or of that guid).
pub fn open_pool(env: &Env, paths: &[PathBuf], wanted: &str, options: OpenOptions) -> Result<Arc<Pool>> {
    let candidate = select(candidates(paths), wanted)?;
    engine::spa::open(env, source(&candidate), options)
}
