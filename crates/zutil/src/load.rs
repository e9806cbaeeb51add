//! Loads a candidate's own metadata, for facts that a listing needs and its labels lack: every top-level
//! vdev, allocation classes, spares and cache devices, disabled features, an unfinished resilver.

use engine::Kind;
use engine::env::Env;
use engine::spa::{OpenOptions, Pool, has_heartbeats, packed_nvlist};
use engine::zap::{Value, Zap};
use nvpair::NvList;
use ondisk::names::{mos, vdev_top};
use zcommon::features::{FEATURES, Feature};
use zcommon::vdev::VdevKind;
use zcommon::version::SPA_VERSION_FEATURES;

use crate::import::source;
use crate::import_listing::{LoadOutcome, MosFacts};
use crate::import_status::system_hostid;
use crate::search::PoolCandidate;
use crate::tree::VdevNode;

/// Newest features, which the release that listings are compared with doesn't have: that a pool lacks
/// them is not worth a word in a program that only reads.
const NOT_MISSED: [Feature; 3] =
    [Feature::DynamicGangHeader, Feature::BlockCloningEndian, Feature::PhysicalRewrite];

/// `dsl_scan_phys_t`: function and state are its first words.
const SCAN_FUNC_RESILVER: u64 = 2;
const SCAN_STATE_SCANNING: u64 = 1;
/// `vdev_rebuild_phys_t`: the state is its first word.
const REBUILD_STATE_ACTIVE: u64 = 1;
/// `zpool_errata_t`: encrypted snapshots made before `bookmark_v2`.
const ERRATA_ZOL_8308_ENCRYPTION: u64 = 4;

/// Opens the pool, read-only, and gathers the facts for a listing.
pub fn load(env: &Env, candidate: &PoolCandidate) -> LoadOutcome {
    if let Some(outcome) = LoadOutcome::from_label(candidate)
        && !matches!(outcome, LoadOutcome::VersionNewer)
    {
        return outcome;
    }
    // Forced, so that features are judged here, where each can be named.
    let options = OpenOptions { force: true, ..OpenOptions::default() };
    match engine::spa::open(env, source(candidate), options) {
        Ok(pool) => examine(&pool),
        Err(err) if err.kind() == Kind::Unsupported => LoadOutcome::VersionNewer,
        Err(_) => LoadOutcome::Corrupt,
    }
}

fn examine(pool: &Pool) -> LoadOutcome {
    if has_heartbeats(&pool.uberblock) && system_hostid() == 0 {
        return LoadOutcome::HostidRequired;
    }
    let unreadable = pool.features.unreadable();
    let read_only = unreadable.is_empty();
    let unknown = if read_only { pool.features.unwritable() } else { unreadable };
    if !unknown.is_empty() {
        let describe = |guid: &str| pool.features.descriptions.get(guid).cloned().unwrap_or_default();
        let features = unknown.iter().map(|guid| ((*guid).to_owned(), describe(guid))).collect();
        return LoadOutcome::Unsupported { features, read_only };
    }
    facts(pool).map_or(LoadOutcome::Corrupt, |facts| LoadOutcome::Loaded(Box::new(facts)))
}

/// Facts from an open pool's metadata that its labels lack. `None` when the configuration in the MOS can't be
/// read: the labels' has gaps where devices are missing.
pub fn facts(pool: &Pool) -> Option<MosFacts> {
    let config = pool.config.nvlist("vdev_tree")?;
    let mut tree = VdevNode::from_config(config)?;
    if tree.children.iter().any(|top| top.kind == VdevKind::Missing) {
        return None;
    }
    let mut rebuilding = false;
    let parts = config.nvlist_array("children").unwrap_or_default();
    for (top, part) in tree.children.iter_mut().zip(parts) {
        let Some(zap) = top_zap(pool, part) else { continue };
        top.bias = lookup(&zap, vdev_top::ALLOCATION_BIAS).map(|value| value.string());
        rebuilding |= lookup(&zap, vdev_top::VDEV_REBUILD_PHYS).and_then(|value| value.first())
            == Some(REBUILD_STATE_ACTIVE);
    }
    let directory = pool.directory().ok()?;
    let scan = lookup(&directory, mos::SCAN).map(|value| value.ints).unwrap_or_default();
    Some(MosFacts {
        tree,
        version: pool.version(),
        features_disabled: features_disabled(pool),
        spares: aux_vdevs(pool, &directory, mos::SPARES),
        l2cache: aux_vdevs(pool, &directory, mos::L2CACHE),
        resilvering: scan.starts_with(&[SCAN_FUNC_RESILVER, SCAN_STATE_SCANNING]),
        rebuilding,
        comment: pool.config.str("comment").map(str::to_owned),
        errata: errata(pool),
    })
}

fn lookup(zap: &Zap, name: &str) -> Option<Value> {
    zap.lookup(name.as_bytes()).ok().flatten()
}

fn top_zap(pool: &Pool, config: &NvList) -> Option<Zap> {
    let number = config.u64("com.delphix:vdev_zap_top").filter(|number| *number != 0)?;
    Zap::open(&pool.mos.object(number).ok()?).ok()
}

/// Spares or cache devices, from their own object; a damaged one only leaves a section out.
fn aux_vdevs(pool: &Pool, directory: &Zap, name: &str) -> Vec<VdevNode> {
    let read = || {
        let number = directory.u64(name).ok().flatten().filter(|number| *number != 0)?;
        packed_nvlist(&pool.mos.object(number).ok()?).ok()
    };
    let list = read().unwrap_or_default();
    list.nvlist_array(name).unwrap_or_default().iter().filter_map(VdevNode::from_config).collect()
}

fn is_enabled(pool: &Pool, feature: Feature) -> bool {
    pool.features.count(feature.info().guid).is_some()
}

fn features_disabled(pool: &Pool) -> bool {
    let mut wanted = FEATURES.iter().filter(|feature| !NOT_MISSED.contains(feature));
    pool.version() == SPA_VERSION_FEATURES && wanted.any(|feature| !is_enabled(pool, *feature))
}

fn errata(pool: &Pool) -> u64 {
    let old = is_enabled(pool, Feature::Encryption) && !is_enabled(pool, Feature::BookmarkV2);
    if old { ERRATA_ZOL_8308_ENCRYPTION } else { 0 }
}
