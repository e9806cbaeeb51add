//! Opening a pool for writing.
//!
//! The pool is first opened as for reading; only a pool that can be read completely is opened for writing.
//! Then its MOS becomes writable, space maps are loaded, and the first txg writes labels that name the
//! importing host.
//!
//! The last txg of a process that was killed may be only in the system's page cache. All devices are flushed
//! before anything is written: the first txg uses space that only the txgs before that one refer to.
//!
//! Nothing on disk changes before the first txg: a refused pool is unchanged. When intent logs wait for their
//! replay, that txg claims them; else the first write opens it.

use std::sync::Arc;

use nvpair::NvList;
use ondisk::CompressType;
use ondisk::dsl::DslDataset;
use ondisk::names::mos;
use ondisk::objset::ZilHeader;
use ondisk::zil::LogBlock;
use parking_lot::Mutex;
use zcommon::features::Feature;
use zcommon::vdev::{PoolState, VdevState};

use super::Spa;
use super::config::PoolConfig;
use super::feature_set::{FeatureSet, space_map_features};
use super::layout::config::edit;
use super::load::{open, open_owned};
use super::pool::{Pool, PoolBase};
use super::rebuild::{self, Derived};
use super::remote::check_activity;
use super::removal;
use super::shared::Shared;
use super::source::{ImportSource, OpenOptions, OpenPurpose, Reach};
use super::vdev_props;
use super::vdev_zaps::{all_vdev_zaps, vdev_zaps};
use super::writable::{advise, is_lost};
use crate::dmu::dirty::policy::Policy;
use crate::dmu::tx::DirtyData;
use crate::dmu::{LiveObjset, Objset, Tx};
use crate::dsl::write::{Hooks as _, MosTx};
use crate::dsl::{self, Dsl};
use crate::env::Env;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::metaslab::{SpaceAllocator, SpaceMapSource};
use crate::txg::Txgs;
use crate::vdev::config::AllocBias;
use crate::vdev::label::settle_found;
use crate::vdev::top::Top;
use crate::vdev::tree::Devices;
use crate::zil::{self, claim};
use crate::zio::Form;

/// How a pool is to be imported.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Which state.
    pub open: OpenOptions,
    /// This machine's number.
    pub hostid: u64,
    /// This machine's name.
    pub hostname: String,
    /// A new name for the pool.
    pub rename: Option<String>,
    /// The new name is for this import only: labels keep the old one.
    pub temporary: bool,
    /// Even when another machine seems to use it.
    pub force: bool,
    /// Where leaves, spares and cache devices are now, by guid: the configuration follows.
    pub paths: Vec<(u64, String)>,
    /// Refuse the import when devices of intent logs are missing: records that are only in a log would be
    /// lost.
    pub needs_logs: bool,
}

/// Returns the numbers of log vdevs that can't be read because devices are absent. Devices taken out of use
/// by the administrator do not count as missing.
#[doc(alias = "spa_check_for_missing_logs")]
pub fn missing_logs(pool: &PoolBase) -> Vec<u64> {
    let tree = pool.tree();
    let is_gone = |top: &&Arc<Top>| {
        let absent = top.leaves().any(|leaf| leaf.health().state == VdevState::CantOpen);
        top.bias == AllocBias::Log && absent && !top.is_usable()
    };
    tree.tops().filter(is_gone).map(|top| top.id).collect()
}

/// Opens the pool that `source` describes for writing, without a sync thread.
///
/// # Errors
/// `Unsupported` with the reason when this build can read the pool but not write it; nothing has been changed then.
pub fn import(env: &Env, source: ImportSource, options: &ImportOptions) -> Result<Arc<Spa>> {
    let name = source.name.clone();
    import_some(env, source, options, None, None).map_err(|e| e.in_pool(&name))
}

/// As [`import()`]; space maps and tables are replaced by those that a walk over the pool derived.
///
/// # Errors
/// As [`import()`]; `Busy` when the state on the devices is not the one that was walked.
pub fn import_rebuilt(
    env: &Env,
    source: ImportSource,
    options: &ImportOptions,
    derived: Derived,
) -> Result<Arc<Spa>> {
    let name = source.name.clone();
    import_some(env, source, options, Some(derived), None).map_err(|e| e.in_pool(&name))
}

/// Opens a pool that is being split off; `first` makes its first txg, and nothing is continued that the other pool had
/// begun.
///
/// # Errors
/// As [`import()`], and those of `first`.
pub(super) fn import_split(
    env: &Env,
    source: ImportSource,
    options: &ImportOptions,
    first: First<'_>,
) -> Result<Arc<Spa>> {
    let name = source.name.clone();
    import_some(env, source, options, None, Some(first)).map_err(|e| e.in_pool(&name))
}

/// Makes the first txg of a pool.
pub(super) type First<'a> = &'a dyn Fn(&Spa) -> Result<()>;

/// Opens the pool that `source` describes for an import that only reads. As for writing, a pool that another machine did not let
/// go is refused without `force`, and one with multihost protection is watched first.
///
/// # Errors
/// `Busy` for a pool that another machine has or may have; those of [`super::open`].
pub fn import_read_only(
    env: &Env,
    source: ImportSource,
    options: OpenOptions,
    hostid: u64,
    force: bool,
) -> Result<Arc<Pool>> {
    let name = source.name.clone();
    let refuse = |e: Error| e.in_pool(&name);
    check_activity(env, &source, hostid).map_err(refuse)?;
    check_host(&source.config, force, hostid).map_err(refuse)?;
    let pool = open(env, source, options)?;
    let missing = pool.tree().tops().filter(|top| is_lost(top)).count();
    match env.memory.limits.get(Limit::MaxMissingTops) {
        most if most > 0 && u64::try_from(missing).unwrap_or(u64::MAX) > most => {
            let what =
                format!("{missing} top-level vdevs are missing, more than zfs_max_missing_tvds allows");
            Err(refuse(Error::new(Kind::NoDevice, what)))
        }
        _ => Ok(pool),
    }
}

fn import_some(
    env: &Env,
    source: ImportSource,
    options: &ImportOptions,
    mut derived: Option<Derived>,
    first: Option<First<'_>>,
) -> Result<Arc<Spa>> {
    let newest = source.uberblocks.iter().map(|found| found.uberblock.txg).max().unwrap_or(0);
    let unclaimed = check_activity(env, &source, options.hostid)?;
    let labels = ImportSource { devices: Devices::new(), newest: None, ..source.clone() };
    let purpose = if derived.is_some() { OpenPurpose::Rebuild } else { OpenPurpose::Write };
    let mut pool = open_owned(env, source, OpenOptions { purpose, ..options.open })?;
    derived.as_ref().map_or(Ok(()), |derived| rebuild::check(derived, &pool))?;
    if options.needs_logs {
        check_logs(&pool)?;
    }
    // Also when the uberblocks of newer states are gone.
    let newest = labels.lost_state(&pool.tree(), newest).unwrap_or(newest);
    // An older state names the host that used the pool then.
    let is_newest = pool.uberblock.txg >= newest;
    check_host(if is_newest { &pool.config } else { &labels.config }, options.force, options.hostid)?;
    if let Some(unclaimed) = unclaimed.filter(|_| options.open.reach != Reach::Extreme) {
        unclaimed.claim(env, &pool.tree())?;
    }
    let policy = mos_policy(|f| pool.features.is_active(f.info().guid));
    let mos = LiveObjset::open(&pool.arc, 0, &pool.uberblock.rootbp, Form::Logical, policy)?;
    let features = FeatureSet::load(&mos)?;
    let space = allocator(&pool, &mos, &features, derived.as_mut())?;
    pool.zio.learn_units();
    pool.zio.set_allocator(Arc::clone(&space) as _);
    let mut config = config_here(&pool, options)?;
    pool.mos = mos.view();
    let name = options.rename.as_ref().unwrap_or(&config.facts().name).clone();
    let dsl = Dsl::open(&name, &pool.mos, &pool.directory()?)?;
    let base = Arc::make_mut(&mut pool.base);
    (base.name, base.dsl) = (name, dsl);
    // Blocks that the checkpoint refers to are kept when they are freed.
    space.set_checkpoint(pool.checkpoint_uberblock()?.map_or(0, |checkpoint| checkpoint.txg));
    // From a log that is out of use, and where `allocating` is off, nothing is allocated.
    removal::settle_interrupted(&pool, &mut config)?;
    for top in pool.tree().tops() {
        space.set_closed(top.id, vdev_props::is_closed(top, &config));
    }
    let shared = match &derived {
        Some(derived) => rebuild::shared(&pool, derived.replaced.which)?,
        None => Shared::load(&pool).map_err(advise)?,
    };
    let uberblock = pool.uberblock;
    let to_checkpoint = options.open.checkpoint;
    if to_checkpoint && derived.is_some() {
        let why = "a pool that goes back to its checkpoint can't be rebuilt at once";
        return Err(Error::new(Kind::Invalid, why));
    }
    // Newer states that were discarded must not come back: the first txg is newer than all of them.
    let back = to_checkpoint || uberblock.txg < newest;
    let synced = uberblock.txg.max(newest) + u64::from(back);
    settle_found(&pool.tree(), &*env.executor, synced + 1);
    let (txgs, dirty) = (Txgs::new(synced), Arc::new(DirtyData::default()));
    let config = Mutex::new(config);
    let identity = (Arc::clone(&pool.base), pool.guid);
    let spa = Spa::new(identity, mos, space, (txgs, dirty), (features, config, shared), uberblock);
    if let Some(first) = first {
        first(&spa)?;
        return Ok(spa);
    }
    // Until they are replaced.
    spa.freeing.stop(derived.as_ref().is_some_and(|derived| derived.replaced.which.freeing));
    if back {
        spa.go_back(synced)?;
    }
    if to_checkpoint {
        note_rewind(&spa, uberblock.txg)?;
    } else {
        claim_logs(&spa, options.needs_logs, derived, back.then_some(uberblock.txg))?;
    }
    make_vdev_zaps(&spa)?;
    carry_on(&spa, options)?;
    spa.reports().notify("pool_import");
    Ok(spa)
}

/// The allocator of a pool that is being imported: from its space maps, or from `derived` ones.
fn allocator(
    pool: &Pool,
    mos: &LiveObjset,
    features: &FeatureSet,
    derived: Option<&mut Derived>,
) -> Result<Arc<SpaceAllocator>> {
    let enabled: Vec<Feature> =
        zcommon::features::FEATURES.iter().copied().filter(|f| features.is_enabled(*f)).collect();
    let source: Arc<dyn SpaceMapSource> = Arc::new(mos.view());
    let (tree, forms) = (pool.tree(), space_map_features(&enabled));
    let space = match derived {
        Some(derived) => {
            let found = std::mem::take(&mut derived.found);
            SpaceAllocator::rebuilt(&pool.mos, &tree, forms, source, found)?
        }
        None => SpaceAllocator::open(&pool.mos, &tree, forms, source).map_err(advise)?,
    };
    Ok(Arc::new(space))
}

/// The configuration of a pool that is being imported: in use by this host, under its new name and paths.
fn config_here(pool: &Pool, options: &ImportOptions) -> Result<PoolConfig> {
    let mut config = PoolConfig::from_mos(&pool.config)?;
    config.change_facts(|facts| {
        facts.state = PoolState::Active;
        (facts.hostid, facts.hostname) = (options.hostid, options.hostname.clone());
        if let Some(name) = options.rename.as_ref().filter(|_| !options.temporary) {
            facts.name.clone_from(name);
        }
    });
    config.change_root(|root| {
        for (guid, path) in &options.paths {
            edit(root, *guid, &mut |leaf| {
                if leaf.remove("path").is_some() {
                    leaf.add("path", path.as_str());
                }
            });
        }
    });
    Ok(config)
}

/// Activities that were under way when the pool was last in use go on; a change that was left in the middle is ended.
fn carry_on(spa: &Spa, options: &ImportOptions) -> Result<()> {
    spa.checkpoint().load()?;
    spa.removal().load()?;
    spa.expansion().load();
    spa.free_space().load()?;
    spa.free_space().load_autotrim()?;
    spa.index_at_import();
    spa.scans().load()?;
    spa.vdevs().expand_at_import()?;
    spa.spares().move_spares(&options.paths)?;
    release_temporary(spa)?;
    spa.dsl().destroy_inconsistent()
}

/// How the MOS's blocks are written in a pool with these features: a pool of a version without features, or without
/// these, has neither lz4 nor data in block pointers nor births of holes.
pub(super) fn mos_policy(is_active: impl Fn(Feature) -> bool) -> Policy {
    let compress = if is_active(Feature::Lz4Compress) { CompressType::Lz4 } else { CompressType::Lzjb };
    Policy {
        meta_compress: compress,
        compress,
        embed: is_active(Feature::EmbeddedData),
        hole_birth: is_active(Feature::HoleBirth),
        ..Policy::meta()
    }
}

/// Refuses a pool that another machine did not let go.
#[doc(alias = "zfs_force_import_required")]
fn check_host(config: &NvList, force: bool, hostid: u64) -> Result<()> {
    let number = |name: &str| config.u64(name).unwrap_or(0);
    let (host, state) = (number("hostid"), number("state"));
    if force || state == PoolState::Exported as u64 || host == 0 || host == hostid {
        return Ok(());
    }
    let name = config.str("hostname").unwrap_or("another machine");
    let what =
        format!("the pool was last used by {name} (hostid {host:x}) and not exported; import it with -f");
    Err(Error::new(Kind::Busy, what))
}

/// Refuses a pool that lacks a log.
///
/// # Errors
/// `NoDevice`.
pub fn check_logs(pool: &Pool) -> Result<()> {
    if missing_logs(pool).is_empty() {
        return Ok(());
    }
    Err(Error::new(Kind::NoDevice, "one or more devices is currently unavailable"))
}

/// Object sets of file systems and volumes whose intent log was never claimed.
fn unclaimed_logs(spa: &Spa) -> Result<Vec<Arc<Objset>>> {
    Ok(all_logs(spa)?.into_iter().filter(|log| claim::is_due(&log.phys.zil_header)).collect())
}

/// Object sets of file systems and volumes that name an intent log of their own.
fn all_logs(spa: &Spa) -> Result<Vec<Arc<Objset>>> {
    let mos = spa.mos.view();
    let mut found = Vec::new();
    for (number, phys) in spa.pool.dsl.heads(&mos)? {
        // Datasets that were being received or destroyed have no log.
        if phys.bp.is_hole() || phys.flags & DslDataset::FLAG_INCONSISTENT != 0 {
            continue;
        }
        // A dataset whose root block is lost has no log that could be found, and must not keep the others from being used.
        let Ok(objset) = Objset::open(mos.arc(), number, &phys.bp, Form::NoKey) else { continue };
        let header = &objset.phys.zil_header;
        if !header.log.is_hole() && LogBlock::objset(&header.log) == number {
            found.push(objset);
        }
    }
    Ok(found)
}

/// Claims all intent logs, in the first txg, before it allocates anything; in the same txg, `derived`
/// replaces space maps and tables. `back_to`: the pool returns to the state of that txg. Logs that were not claimed then belong
/// to the discarded states, and are dropped: their newer blocks are not allocated in that state.
#[doc(alias("spa_ld_claim_log_blocks", "SPA_LOG_CLEAR"))]
fn claim_logs(spa: &Spa, needs_logs: bool, derived: Option<Derived>, back_to: Option<u64>) -> Result<()> {
    // A chain that begins on a missing log vdev is dropped, claimed or not: it can be neither read nor written.
    let gone = missing_logs(&spa.pool);
    let is_lost = |log: &Arc<Objset>| {
        let header = &log.phys.zil_header;
        let is_gone = header.log.dvas().next().is_some_and(|dva| gone.contains(&u64::from(dva.vdev)));
        is_gone || (back_to.is_some() && claim::is_due(header))
    };
    let (lost, logs): (Vec<_>, Vec<_>) = all_logs(spa)?.into_iter().partition(is_lost);
    let logs: Vec<_> = logs.into_iter().filter(|log| claim::is_due(&log.phys.zil_header)).collect();
    if needs_logs {
        logs.iter().try_for_each(|log| check_chain(spa, log))?;
    }
    if logs.is_empty() && lost.is_empty() && derived.is_none() {
        return Ok(());
    }
    let allocated = back_to.unwrap_or_else(|| spa.txgs.synced());
    let newest = spa.sync_task(move |spa, tx| {
        let allocator = spa.pool.zio.allocator()?;
        let claimed: Vec<_> =
            logs.iter().map(|log| (log.id, claim::claim(log, &*allocator, tx.txg()))).collect();
        derived.map_or(Ok(()), |derived| spa.replace_derived(derived, tx))?;
        let clones = claimed.iter().flat_map(|(_, claimed)| &claimed.clones).copied().collect();
        spa.sharing().add_references(clones, tx)?;
        let at = MosTx::new(&spa.mos, tx, spa);
        for (number, claimed) in &claimed {
            dsl::write::log::write_header(&at, *number, claimed.header)?;
        }
        lost.iter().try_for_each(|log| drop_log(spa, tx, log, allocated))?;
        Ok(claimed.iter().map(|(_, c)| c.newest).max().unwrap_or(0))
    })?;
    // No block may seem to come from the future.
    spa.wait_synced(newest)
}

/// Refuses a pool with a log whose blocks can't be read now: claiming its readable part would lose the rest.
fn check_chain(spa: &Spa, log: &Arc<Objset>) -> Result<()> {
    claim::check(log, spa.txgs.open()).map_err(|why| {
        let what = format!(
            "the intent log of dataset {} can't be read: bring its devices back, or import the pool with -m, which gives up \
             what can't be read of it",
            log.id
        );
        Error::new(Kind::Io, what).because(why)
    })
}

/// Records that the pool was rewound to its checkpoint of the txg `until`, and drops the intent logs, which postdate it. Of
/// their blocks, those up to that txg are recorded as allocated.
fn note_rewind(spa: &Spa, until: u64) -> Result<()> {
    let logs = unclaimed_logs(spa)?;
    spa.sync_task(move |spa, tx| {
        logs.iter().try_for_each(|log| drop_log(spa, tx, log, until))?;
        spa.log("checkpoint rewind", "", 0, &format!("rewound state to txg={until}"), tx)
    })
}

/// Drops a log, and frees those of its blocks that were born up to `until`.
#[doc(alias = "zil_clear_log_block")]
pub(super) fn drop_log(spa: &Spa, tx: &Tx, log: &Arc<Objset>, until: u64) -> Result<()> {
    let mut chain = zil::chain_as(log, Form::NoKey);
    while let Some(bp) = chain.peek().filter(|bp| bp.logical_birth() <= until) {
        spa.sharing().free_places(&bp, tx)?;
        if chain.next().is_none() {
            break;
        }
    }
    let at = MosTx::new(&spa.mos, tx, spa);
    dsl::write::log::write_header(&at, log.id, ZilHeader::default())
}

/// Snapshots of work that a crash ended go.
fn release_temporary(spa: &Spa) -> Result<()> {
    let directory = spa.directory()?;
    let Some(held) = directory.u64(mos::TMP_USERREFS)?.filter(|&held| held != 0) else { return Ok(()) };
    if spa.datasets.view().zap_entries(held)?.is_empty() {
        return Ok(());
    }
    spa.dsl_task(|tasks| tasks.release_temporary())
}

/// Vdevs of a pool that was made before they had ZAPs of their own get them.
#[doc(alias = "AVZ_ACTION_INITIALIZE")]
fn make_vdev_zaps(spa: &Spa) -> Result<()> {
    if spa.directory()?.u64(mos::VDEV_ZAP_MAP)?.is_some() {
        return Ok(());
    }
    spa.sync_task(|spa, tx| {
        let (env, of_root) = (&spa.pool.env, spa.features.is_active(Feature::VdevZapsV2));
        all_vdev_zaps(env, &spa.mos, tx)?;
        vdev_zaps(env, &spa.mos, &spa.config, (&|_| None, of_root), tx)
    })
}
