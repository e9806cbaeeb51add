//! Making a pool.
//!
//! Labels come first, with txg 0: they count for nothing. The first group (txg 4) writes the MOS and, last, labels
//! and uberblock that count. A crash before that leaves devices that belong to no pool.
//!
//! Source: `spa_create`, `dsl_pool_create`, OpenZFS 2.3; the content of the MOS directory as its pools have it.

use std::sync::Arc;

use nvpair::NvList;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::uberblock::MMP_MAGIC;
use ondisk::{Blkptr, CompressType, Endian, ObjectType, ObjsetType, Uberblock};
use parking_lot::Mutex;
use zcommon::features::Feature;

use super::config::{PoolConfig, PoolState};
use super::feature_set::{FeatureSet, ZAP_METADATA};
use super::features::PoolFeatures;
use super::live::Spa;
use super::pool::Pool;
use super::space_store::set;
use crate::arc::ArcCache;
use crate::dmu::live::policy::Policy;
use crate::dmu::tx::Dirty;
use crate::dmu::{LiveObjset, NewObject, Tx};
use crate::dsl::Dsl;
use crate::env::Env;
use crate::error::{Error, Kind, Result};
use crate::metaslab::{Forms, SpaceAllocator, SpaceMapSource, TopRecord};
use crate::txg::{self, Txgs};
use crate::vdev::config::VdevConfig;
use crate::vdev::label;
use crate::vdev::tree::{Devices, Tree};
use crate::zap::{NewZap, Value, Zap, ZapEdit};
use crate::zio::{Form, Zio};

/// Bytes of an object set's root block in pools of today.
const OBJSET_SIZE: usize = 4096;
/// Block of the list of frees that wait (`sync_bplist`).
const DEFERRED_BLOCK: u64 = 16 << 10;

/// A pool to be made.
#[derive(Debug, Clone)]
pub struct NewPool {
    /// Its name.
    pub name: String,
    /// 1 to 28, or 5000.
    pub version: u64,
    /// Features to enable (version 5000 only).
    pub features: Vec<Feature>,
    /// The vdev tree, guids and sizes included, as [`super::layout`] makes it. Its root's guid is the pool's.
    pub vdev_tree: NvList,
    /// Devices by leaf guid, open for writing.
    pub devices: Devices,
    /// This machine's number.
    pub hostid: u64,
    /// This machine's name.
    pub hostname: String,
    /// The command that made it, for the history.
    pub command: String,
}

/// Makes the pool and leaves it open for writing, without a sync thread.
///
/// # Errors
/// When a device can't be labelled or written; devices are then left without a pool.
pub fn create(env: &Env, new: NewPool) -> Result<Arc<Spa>> {
    let name = new.name.clone();
    create_some(env, new).map_err(|e| e.in_pool(&name))
}

fn create_some(env: &Env, new: NewPool) -> Result<Arc<Spa>> {
    let config = new_config(&new)?;
    let tree = Tree::build(VdevConfig::parse(&new.vdev_tree)?, None, &new.devices, None)?;
    label_all(env, &tree, &config)?;
    let zio = Zio::new(Arc::new(tree), Arc::clone(&env.executor));
    zio.set_min_alloc(min_alloc(&zio.tree()));
    let arc = ArcCache::new(Arc::clone(&zio), env.arc_max);
    let mos = LiveObjset::create(&arc, 0, ObjsetType::Meta, OBJSET_SIZE, Form::Logical, Policy::meta());
    let source: Arc<dyn SpaceMapSource> = Arc::new(mos.view());
    let forms = forms(&new.features);
    let space = Arc::new(SpaceAllocator::new(forms, Some(source)));
    for top in zio.tree().tops() {
        if let Some(config) = zio.tree().config.children.iter().find(|c| c.id == top.id) {
            space.add_top(TopRecord::fresh(Arc::clone(top), config)?)?;
        }
    }
    zio.set_allocator(Arc::clone(&space) as _);
    let txgs = Txgs::new(txg::INITIAL - 1);
    let dirty = Arc::new(Dirty::default());
    let tx = Tx::syncing(txg::INITIAL, &dirty);
    let config = Mutex::new(PoolConfig::new(config, true));
    let features = fill_mos(env, &new, &mos, &config, &zio, &tx)?;
    let spa = assemble(env, &new, (zio, arc, mos, space), (txgs, dirty, features, config))?;
    spa.txgs.close();
    spa.wait_synced(txg::INITIAL)?;
    Ok(spa)
}

fn new_config(new: &NewPool) -> Result<NvList> {
    let guid = new.vdev_tree.u64("guid").filter(|&guid| guid != 0);
    let guid = guid.ok_or_else(|| Error::new(Kind::Invalid, "the pool has no guid"))?;
    let tops = new.vdev_tree.nvlist_array("children").unwrap_or_default().len();
    let mut list = NvList::new();
    list.add("version", new.version).add("name", new.name.as_str());
    set(&mut list, "state", PoolState::Active as u64);
    set(&mut list, "txg", 0);
    set(&mut list, "pool_guid", guid);
    set(&mut list, "errata", 0);
    set(&mut list, "hostid", new.hostid);
    list.add("hostname", new.hostname.as_str());
    if new.version >= 5000 {
        list.add("com.delphix:has_per_vdev_zaps", nvpair::NvValue::Boolean);
    }
    set(&mut list, "vdev_children", u64::try_from(tops).unwrap_or(u64::MAX));
    list.add("vdev_tree", new.vdev_tree.clone());
    Ok(list)
}

/// Labels that count for nothing yet.
fn label_all(env: &Env, tree: &Tree, config: &NvList) -> Result<()> {
    let config = PoolConfig::new(config.clone(), false);
    let mut leaves: Vec<_> = tree.leaves().collect();
    leaves.sort_by_key(|leaf| leaf.guid);
    for leaf in leaves.into_iter().filter(|leaf| leaf.device().is_some()) {
        if let Some(list) = config.label(leaf.guid, 0, PoolState::Active, &[]) {
            label::init_leaf(leaf, &list, &*env.executor)?;
        }
    }
    Ok(())
}

fn min_alloc(tree: &Tree) -> u64 {
    1 << tree.tops().map(|top| top.ashift).min().unwrap_or(9)
}

/// What the space maps may use.
pub(super) fn forms(features: &[Feature]) -> Forms {
    let has = |feature| features.contains(&feature);
    Forms {
        log: has(Feature::LogSpacemap),
        two_words: has(Feature::SpacemapV2),
        histogram: has(Feature::SpacemapHistogram),
    }
}

/// Everything in the MOS of a new pool but the space maps.
fn fill_mos(
    env: &Env,
    new: &NewPool,
    mos: &Arc<LiveObjset>,
    config: &Mutex<PoolConfig>,
    zio: &Arc<Zio>,
    tx: &Tx,
) -> Result<FeatureSet> {
    let directory =
        mos.create_object_at(tx, MOS_DIRECTORY_OBJECT, NewObject::plain(ObjectType::OBJECT_DIRECTORY, 512))?;
    ZapEdit::create(&mut directory.edit(tx), &zap(env))?;
    let features = FeatureSet::create(mos, &new.features, env.guid(), tx)?;
    let note = |name: &str, value: Value| ZapEdit::open(&mut directory.edit(tx))?.insert(name, value);
    note(mos::CREATION_VERSION, Value::from(new.version))?;
    note(mos::DEFLATE, Value::from(1))?;
    note(mos::SYNC_BPOBJ, Value::from(deferred_list(mos, tx)?))?;
    note(mos::CHECKSUM_SALT, salt(env, zio))?;
    if new.version >= 5000 {
        vdev_zaps(env, mos, config, tx)?;
        if features.is_enabled(Feature::VdevZapsV2) {
            features.increment(Feature::VdevZapsV2, tx)?;
        }
    }
    Ok(features)
}

fn zap(env: &Env) -> NewZap {
    NewZap { salt: env.guid(), ..NewZap::default() }
}

fn deferred_list(mos: &LiveObjset, tx: &Tx) -> Result<u64> {
    let new = NewObject::with_bonus(ObjectType::BPOBJ, DEFERRED_BLOCK, ObjectType::BPOBJ_HDR, 48);
    let object = mos.create_object(tx, new)?;
    object.set_functions(tx, 0, CompressType::Off.raw())?;
    Ok(object.number)
}

/// The key of the salted checksums.
fn salt(env: &Env, zio: &Arc<Zio>) -> Value {
    let mut salt = [0; 32];
    env.random.lock().fill(&mut salt);
    zio.set_salt(&salt);
    Value { width: 1, ints: salt.iter().map(|&b| u64::from(b)).collect() }
}

/// A ZAP for the root, each top-level vdev and each leaf, and the list of them all.
#[doc(alias = "vdev_construct_zaps")]
fn vdev_zaps(env: &Env, mos: &Arc<LiveObjset>, config: &Mutex<PoolConfig>, tx: &Tx) -> Result<()> {
    let make = || -> Result<u64> {
        let object = mos.create_object(tx, NewObject::plain(ZAP_METADATA, 512))?;
        ZapEdit::create(&mut object.edit(tx), &zap(env))?;
        Ok(object.number)
    };
    let all = make()?;
    let directory = mos.handle(MOS_DIRECTORY_OBJECT)?;
    ZapEdit::open(&mut directory.edit(tx))?.insert(mos::VDEV_ZAP_MAP, all)?;
    let all = mos.handle(all)?;
    config.lock().change_all(&mut |vdev, depth| {
        let is_leaf = !vdev.contains("children");
        let named = [
            (depth == 0, "com.klarasystems:vdev_zap_root"),
            (depth > 0 && is_leaf, "com.delphix:vdev_zap_leaf"),
            (depth == 1, "com.delphix:vdev_zap_top"),
        ];
        for (_, name) in named.into_iter().filter(|(wanted, _)| *wanted) {
            let number = make()?;
            ZapEdit::open(&mut all.edit(tx))?.add_int(number)?;
            set(vdev, name, number);
        }
        Ok(())
    })
}

type Storage = (Arc<Zio>, Arc<ArcCache>, Arc<LiveObjset>, Arc<SpaceAllocator>);
type Keeping = (Arc<Txgs>, Arc<Dirty>, FeatureSet, Mutex<PoolConfig>);

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
    let pool = Pool {
        env: env.clone(),
        name: new.name.clone(),
        guid: new.vdev_tree.u64("guid").unwrap_or(0),
        uberblock,
        config: config.lock().list().clone(),
        features: PoolFeatures::load(&view, &directory)?,
        zio,
        arc,
        dsl: Dsl::open(&new.name, &view, &directory)?,
        mos: view,
        rewind: None,
        notes: Vec::new(),
    };
    Ok(Spa::new(Arc::new(pool), mos, space, (txgs, dirty), (features, config), uberblock))
}
