//! Making a pool.
//!
//! Labels come first, with txg 0, so that they are ignored. The first txg (4) writes the MOS and, last,
//! labels and uberblock that count. A crash before that leaves devices that belong to no pool.
//!
//! Source: `spa_create`, `dsl_pool_create`, OpenZFS 2.3; the content of the MOS directory as its pools have it.

use std::sync::Arc;

use nvpair::NvList;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::uberblock::MMP_MAGIC;
use ondisk::{Blkptr, Endian, ObjectType, ObjsetType, Uberblock};
use parking_lot::Mutex;
use zcommon::features::Feature;
use zcommon::vdev::PoolState;
use zcommon::version::SPA_VERSION_RAIDZ_DEFLATE;

use super::Spa;
use super::config::PoolConfig;
use super::feature_set::{FeatureSet, space_map_features};
use super::history_log::{HistoryEvent, HistoryOrigin};
use super::hooks::Unborn;
use super::import::mos_policy;
use super::layout::TreeLayout;
use super::layout::config::PoolFacts;
use super::pool::PoolBase;
use super::shared::Shared;
use super::spares;
use super::vdev_zaps::{all_vdev_zaps, new_zap, vdev_zaps};
use crate::arc::ArcCache;
use crate::dmu::tx::DirtyData;
use crate::dmu::{LiveObjset, NewObject, Tx};
use crate::dsl::write::pool::Created;
use crate::dsl::write::{Encryption, MosTx, crypto, lists};
use crate::dsl::{self, Dsl};
use crate::env::Env;
use crate::error::Result;
use crate::metaslab::{SpaceAllocator, SpaceMapSource, TopRecord};
use crate::txg::{self, Txgs};
use crate::vdev::config::VdevConfig;
use crate::vdev::label;
use crate::vdev::leaf::Leaf;
use crate::vdev::tree::{Tree, TreeChange};
use crate::zap::{Value, Zap, ZapEdit};
use crate::zio::{Form, Zio};

/// Bytes of an object set's root block in pools of today.
const OBJSET_SIZE: usize = 4096;

/// A pool to be made.
#[derive(Debug)]
pub struct NewPool {
    /// Its name.
    pub name: String,
    /// The name that labels have, when `name` is only for this import.
    pub label_name: Option<String>,
    /// 1 to 28, or 5000.
    pub version: u64,
    /// Features to enable (version 5000 only).
    pub features: Vec<Feature>,
    /// Its vdevs and their devices.
    pub layout: TreeLayout,
    /// This machine's number.
    pub hostid: u64,
    /// This machine's name.
    pub hostname: String,
    /// The command that made it, for the history.
    pub command: String,
}

/// Fills the root dataset's object set: the file system stands above the engine.
pub type FillRoot<'a> = &'a dyn Fn(&Arc<LiveObjset>, &Tx) -> Result<()>;

/// Makes the pool and leaves it open for writing, without a sync thread.
///
/// # Errors
/// When a device can't be labelled or written; devices are then left without a pool.
pub fn create(env: &Env, new: NewPool, fill_root: FillRoot<'_>) -> Result<Arc<Spa>> {
    create_encrypted(env, new, Encryption::default(), fill_root)
}

/// Creates the pool, with the given encryption of its root file system, and leaves it open for writing,
/// without a sync thread.
///
/// # Errors
/// As [`create`]; `Invalid` for encryption without a key and the other way round.
pub fn create_encrypted(
    env: &Env,
    new: NewPool,
    encryption: Encryption,
    fill_root: FillRoot<'_>,
) -> Result<Arc<Spa>> {
    let name = new.name.clone();
    create_some(env, new, encryption, fill_root).map_err(|e| e.in_pool(&name))
}

fn create_some(env: &Env, new: NewPool, encryption: Encryption, fill_root: FillRoot<'_>) -> Result<Arc<Spa>> {
    new.layout.check_supported(new.version, |feature| new.features.contains(&feature))?;
    let root = new.layout.root(env.guid(), txg::INITIAL);
    let facts = facts(&new);
    let deflates = Some(new.version >= SPA_VERSION_RAIDZ_DEFLATE);
    let change = TreeChange { devices: new.layout.devices.clone(), deflates, ..TreeChange::default() };
    let tree = Tree::changed(VdevConfig::parse(&root)?, None, &change)?;
    label_all(env, &tree, &facts, &root)?;
    spares::label_all(&new.layout, &facts, root.u64("guid").unwrap_or(0), env)?;
    let zio = Zio::new(Arc::new(tree), env);
    zio.learn_units();
    let arc = ArcCache::new(Arc::clone(&zio), Arc::clone(&env.memory));
    let policy = mos_policy(|feature| new.features.contains(&feature));
    let mos = LiveObjset::create(&arc, 0, ObjsetType::Meta, OBJSET_SIZE, Form::Logical, policy);
    let source: Arc<dyn SpaceMapSource> = Arc::new(mos.view());
    let space = Arc::new(SpaceAllocator::new(space_map_features(&new.features), Some(source)));
    space.obey(&env.memory);
    let (tree, biases) = (zio.tree(), &new.layout.classes);
    for (config, bias) in tree.config.children.iter().zip(biases) {
        if let Some(top) = tree.top(config.id) {
            let record = TopRecord::fresh(top, config)?;
            space.add_top(TopRecord { bias: *bias, ..record })?;
        }
    }
    zio.set_allocator(Arc::clone(&space) as _);
    let txgs = Txgs::new(txg::INITIAL - 1);
    let dirty = Arc::new(DirtyData::default());
    let tx = Tx::syncing(txg::INITIAL, &dirty);
    let config = Mutex::new(PoolConfig::new(facts, root));
    let (features, created) =
        fill_mos(env, &new, &mos, &config, &zio, &tx).inspect_err(|_| zio.clear_allocator())?;
    let spa = assemble(env, &new, (zio, arc, mos, space), (txgs, dirty, features, config))?;
    let origin = HistoryOrigin { who: 0, host: new.hostname.clone() };
    spa.reports().log_history(&HistoryEvent::Command(new.command.clone()), &origin, &tx)?;
    let software = concat!("aquifer-", env!("CARGO_PKG_VERSION"));
    let text = format!("pool version {}; software version {software}", new.version);
    spa.reports().log_history(
        &HistoryEvent::Internal { name: "create".into(), dataset: None, text },
        &origin,
        &tx,
    )?;
    spa.spares().list(&new.layout, &tx)?;
    make_root(&spa, &created, &tx, encryption, fill_root)?;
    spa.txgs.close();
    spa.wait_synced(txg::INITIAL)?;
    spa.reports().notify("pool_create");
    Ok(spa)
}

/// The root dataset's object set.
fn make_root(
    spa: &Arc<Spa>,
    created: &Created,
    tx: &Tx,
    encryption: Encryption,
    fill: FillRoot<'_>,
) -> Result<()> {
    let (at, number) = (spa.datasets.at(tx, &**spa), created.root_dataset);
    if let Some(plan) = crypto::plan(&at, &spa.datasets.keys, None, encryption)? {
        crypto::apply(&at, &spa.datasets.keys, (created.root_dir, number), plan)?;
    }
    let root = spa.datasets.create_objset(&at, number, ObjsetType::Zfs)?;
    fill(&root.objset, tx)?;
    spa.datasets.sync_dataset(&at, &root)
}

fn facts(new: &NewPool) -> PoolFacts {
    PoolFacts {
        version: new.version,
        name: new.label_name.as_ref().unwrap_or(&new.name).clone(),
        state: PoolState::Active,
        txg: 0,
        errata: 0,
        comment: None,
        compatibility: None,
        hostid: new.hostid,
        hostname: new.hostname.clone(),
        features_for_read: Vec::new(),
        split: None,
    }
}

/// Labels that count for nothing yet.
fn label_all(env: &Env, tree: &Tree, facts: &PoolFacts, root: &NvList) -> Result<()> {
    label_leaves(env, tree.leaves().cloned().collect(), facts, root, txg::INITIAL)
}

/// Labels new leaves: with txg 0, so that they count for nothing until `txg` is written.
pub(super) fn label_leaves(
    env: &Env,
    mut leaves: Vec<Arc<Leaf>>,
    facts: &PoolFacts,
    root: &NvList,
    txg: u64,
) -> Result<()> {
    leaves.sort_by_key(|leaf| leaf.guid);
    for leaf in leaves.iter().filter(|leaf| leaf.device().is_some()) {
        let list = facts.first_label(root, leaf.guid, txg)?;
        label::init_leaf(leaf, &list, &*env.executor)?;
    }
    Ok(())
}

/// Everything in the MOS of a new pool but the space maps.
fn fill_mos(
    env: &Env,
    new: &NewPool,
    mos: &Arc<LiveObjset>,
    config: &Mutex<PoolConfig>,
    zio: &Arc<Zio>,
    tx: &Tx,
) -> Result<(FeatureSet, Created)> {
    let directory =
        mos.create_object_at(tx, MOS_DIRECTORY_OBJECT, NewObject::plain(ObjectType::OBJECT_DIRECTORY, 512))?;
    ZapEdit::create(&mut directory.edit(tx), &new_zap(env))?;
    let features = FeatureSet::none(mos);
    let hooks = Unborn { env, version: new.version, features: &features };
    let at = MosTx::new(mos, tx, &hooks);
    let created = dsl::write::pool::create(&at, &mut || features.create(&new.features, env.guid(), tx))?;
    let note = |name: &str, value: Value| ZapEdit::open(&mut directory.edit(tx))?.insert(name, value);
    note(mos::CREATION_VERSION, Value::from(new.version))?;
    if zio.tree().deflates() {
        note(mos::DEFLATE, Value::from(1))?;
    }
    note(mos::SYNC_BPOBJ, Value::from(lists::alloc_deferred(&at)?))?;
    note(mos::CHECKSUM_SALT, salt(env, zio))?;
    all_vdev_zaps(env, mos, tx)?;
    let class = |id: u64| {
        let index = usize::try_from(id).ok()?;
        new.layout.classes.get(index).and_then(|class| class.word())
    };
    let of_root = features.is_enabled(Feature::VdevZapsV2);
    vdev_zaps(env, mos, config, (&class, of_root), tx)?;
    if of_root {
        features.increment(Feature::VdevZapsV2, tx)?;
    }
    for (feature, uses) in new.layout.features() {
        if uses > 0 && features.is_enabled(feature) {
            features.count_by(feature, uses, tx)?;
        }
    }
    Ok((features, created))
}

/// The key of the salted checksums.
pub(super) fn salt(env: &Env, zio: &Arc<Zio>) -> Value {
    let mut salt = [0; 32];
    env.random.lock().fill(&mut salt);
    zio.set_salt(&salt);
    Value { width: 1, ints: salt.iter().map(|&b| u64::from(b)).collect() }
}

type Storage = (Arc<Zio>, Arc<ArcCache>, Arc<LiveObjset>, Arc<SpaceAllocator>);
type Keeping = (Arc<Txgs>, Arc<DirtyData>, FeatureSet, Mutex<PoolConfig>);

fn assemble(env: &Env, new: &NewPool, storage: Storage, keeping: Keeping) -> Result<Arc<Spa>> {
    let (zio, arc, mos, space) = storage;
    let (txgs, dirty, features, config) = keeping;
    let view = mos.view();
    let directory = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?;
    let uberblock = Uberblock {
        endian: Endian::Little,
        version: new.version,
        txg: 0,
        guid_sum: 0,
        timestamp: 0,
        rootbp: Blkptr::default(),
        software_version: 5000,
        mmp_magic: MMP_MAGIC,
        mmp_delay: 0,
        mmp_config: 0,
        checkpoint_txg: 0,
        raidz_reflow_info: 0,
    };
    let list = {
        let config = config.lock();
        config.facts_of(0, &[]).mos_config(config.root())
    };
    let base = PoolBase {
        env: env.clone(),
        name: new.name.clone(),
        zio,
        arc,
        dsl: Dsl::open(&new.name, &view, &directory)?,
        opened: uberblock.txg,
        rewind: None,
        notes: Vec::new(),
    };
    let guid = list.u64("pool_guid").unwrap_or(0);
    Ok(Spa::new(
        (Arc::new(base), guid),
        mos,
        space,
        (txgs, dirty),
        (features, config, Shared::default()),
        uberblock,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vdev::tree::Devices;
    use crate::zio::AllocUnits;

    #[test]
    fn only_vdevs_of_ordinary_data_count_for_the_sizes_of_allocations() {
        let vdev = |kind: &str, id: u64, ashift: u64| {
            let mut list = NvList::new();
            list.add("type", kind).add("id", id).add("guid", 7 + id).add("ashift", ashift);
            list
        };
        let smallest = |children: Vec<NvList>| {
            let mut root = NvList::new();
            root.add("type", "root").add("guid", 1u64).add("children", children);
            let config = VdevConfig::parse(&root).unwrap();
            let units = AllocUnits::of(&Tree::build(config, None, &Devices::default(), None).unwrap());
            (units.least, units.step)
        };
        assert_eq!(smallest(vec![vdev("file", 0, 12), vdev("hole", 1, 0)]), (4096, 4096));
        assert_eq!(smallest(vec![vdev("hole", 0, 0)]), (512, 512));
        let mut log = vdev("file", 1, 9);
        log.add("is_log", 1u64);
        let mut special = vdev("file", 2, 9);
        special.add("alloc_bias", "special");
        assert_eq!(smallest(vec![vdev("file", 0, 12), log, special]), (4096, 4096));
        assert_eq!(smallest(vec![vdev("file", 0, 13), vdev("file", 1, 12)]), (4096, 4096));
        let mut draid = vdev("draid", 0, 12);
        let children: Vec<NvList> = (10..16).map(|id| vdev("file", id, 12)).collect();
        draid
            .add("nparity", 1u64)
            .add("draid_ndata", 4u64)
            .add("draid_nspares", 0u64)
            .add("draid_ngroups", 6u64);
        draid.add("children", children).add("asize", 1u64 << 30);
        assert_eq!(smallest(vec![draid]), (16384, 16384));
    }
}
