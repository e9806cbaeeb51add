//! Opening a pool for reading, step by step.

use std::sync::Arc;

use nvpair::NvList;
use ondisk::{Blkptr, Uberblock, names};

use super::features::PoolFeatures;
use super::freed_lists;
use super::load_verify;
use super::mapping;
use super::overtaken::overtaken;
use super::pool::{Pool, PoolBase, Rewind};
use super::source::{ImportSource, OpenOptions, OpenPurpose, Reach, is_kept};
use super::writable::{advise, check_devices, check_writable};
use crate::arc::ArcCache;
use crate::dmu::{Object, Objset};
use crate::dsl::Dsl;
use crate::env::Env;
use crate::error::{Error, Kind, Result};
use crate::metaslab;
use crate::vdev::config::VdevConfig;
use crate::vdev::tree::{Tree, TreeChange};
use crate::zap::Zap;
use crate::zio::{Form, Zio};

/// Older states that a rewind tries at most; the ring holds no more.
const MAX_TRIES: usize = 256;
/// Longest packed nvlist that is read whole.
const MAX_NVLIST: u64 = 64 << 20;

/// Opens the pool that `source` describes.
pub fn open(env: &Env, source: ImportSource, options: OpenOptions) -> Result<Arc<Pool>> {
    let name = source.name.clone();
    open_owned(env, source, options).map(Arc::new).map_err(|e| e.in_pool(&name))
}

/// As [`open`], for a caller that continues with the pool.
#[doc(alias = "spa_load_best")]
pub(super) fn open_owned(env: &Env, source: ImportSource, options: OpenOptions) -> Result<Pool> {
    let candidates = candidates(&source, options)?;
    let newest = candidates.first().map_or(0, |u| u.txg);
    let rewinds = options.reach != Reach::Newest;
    let (mut failed, mut left): (Vec<(u64, Error)>, usize) = (Vec::new(), candidates.len());
    for uberblock in candidates.iter().take(MAX_TRIES) {
        if failed.last().is_some_and(|(tried, _)| !options.reach.goes_below(*tried, newest)) {
            break;
        }
        left -= 1;
        match open_at(env, &source, uberblock, options) {
            Ok(mut pool) => {
                match check_for(&pool, options.purpose) {
                    // An older state may be whole.
                    Err(e) if rewinds && is_damage(&e) => {
                        failed.push((uberblock.txg, e));
                        continue;
                    }
                    done => done?,
                }
                if options.purpose == OpenPurpose::Write {
                    // Going back would not help, and lose what a rebuild keeps.
                    metaslab::check::maps(&pool.mos, &pool.tree().config).map_err(advise)?;
                    freed_lists::check(&pool).map_err(advise)?;
                }
                if options.purpose != OpenPurpose::Read
                    && options.txg.is_some()
                    && !options.checkpoint
                    && let Some(why) = overtaken(&source, &pool)
                {
                    return Err(why);
                }
                let mut lost_data = 0;
                if rewinds && options.purpose == OpenPurpose::Write && !options.checkpoint {
                    let all = options.txg.is_some() || !is_kept(uberblock.txg, newest);
                    let found = load_verify::verify(&pool, all);
                    lost_data = found.data;
                    if found.metadata > 0 {
                        failed.push((uberblock.txg, lacks_metadata(found)));
                        continue;
                    }
                }
                let lost = source.lost_state(&pool.tree(), newest).filter(|_| options.txg.is_none());
                if let Some(txg) = lost {
                    let why = uberblocks_are_gone(txg, newest);
                    if !rewinds {
                        return Err(why);
                    }
                    failed.insert(0, (txg, why));
                }
                let found = source.uberblocks.iter().map(|found| found.uberblock.txg).max();
                if options.checkpoint || lost.is_some() || found.is_some_and(|found| found > uberblock.txg) {
                    pool.dsl.set_rewound();
                }
                if !failed.is_empty() {
                    let newest = lost.unwrap_or(newest);
                    let rewind = Rewind { newest, opened: uberblock.txg, failed, lost_data };
                    Arc::make_mut(&mut pool.base).rewind = Some(rewind);
                }
                return Ok(pool);
            }
            // An older state may have a checkpoint, but the pool has none.
            Err(e) if e.kind() == Kind::Invalid && options.checkpoint => return Err(e),
            // Devices do not come back in an older state.
            Err(e) if e.kind() == Kind::NoDevice && options.purpose != OpenPurpose::Read => return Err(e),
            Err(e) => failed.push((uberblock.txg, e)),
        }
    }
    let (txg, error) =
        failed.into_iter().next().ok_or_else(|| Error::new(Kind::Corrupt, "no valid uberblock was found"))?;
    Err(match options.reach {
        _ if error.kind() == Kind::Unsupported => error,
        Reach::Newest => {
            Error::new(error.kind(), format!("the pool can't be opened at txg {txg}")).because(error)
        }
        Reach::Safe if left > 0 => {
            let what = "none of the states with all blocks retained can be opened; -FX tries older ones";
            Error::new(error.kind(), what).because(error)
        }
        _ => error,
    })
}

fn lacks_metadata(found: load_verify::UnreadBlocks) -> Error {
    let what = format!("{} blocks of metadata cannot be read (see spa_load_verify_metadata)", found.metadata);
    let why = Error::corrupt(what);
    match found.first {
        Some(first) => why.because(first),
        None => why,
    }
}

fn check_for(pool: &Pool, purpose: OpenPurpose) -> Result<()> {
    if purpose == OpenPurpose::Read { Ok(()) } else { check_writable(pool) }
}

fn uberblocks_are_gone(txg: u64, newest: u64) -> Error {
    Error::corrupt(format!(
        "the newest uberblocks are gone: the labels are of txg {txg}, the newest uberblock is of txg {newest}"
    ))
}

fn is_damage(why: &Error) -> bool {
    matches!(why.kind(), Kind::Corrupt | Kind::Checksum | Kind::Io | Kind::NotFound | Kind::Loop)
}

/// Uberblocks that may be tried, best first.
fn candidates(source: &ImportSource, options: OpenOptions) -> Result<Vec<Uberblock>> {
    let mut all: Vec<Uberblock> = source.uberblocks.iter().map(|f| f.uberblock).collect();
    if let Some(txg) = options.txg {
        all.retain(|u| u.txg <= txg);
        if all.is_empty() {
            let what = format!("no uberblock at or before txg {txg} is left on the devices");
            return Err(Error::new(Kind::NotFound, what));
        }
    }
    all.sort_by(|a, b| b.preference(a));
    all.dedup_by_key(|u| u.txg);
    Ok(all)
}

fn open_at(env: &Env, source: &ImportSource, uberblock: &Uberblock, options: OpenOptions) -> Result<Pool> {
    let pool = assemble(env, source, uberblock, options)?;
    if !options.checkpoint {
        return Ok(pool);
    }
    let none = || Error::new(Kind::Invalid, "checkpoint does not exist");
    let checkpoint = pool.checkpoint_uberblock()?.ok_or_else(none)?;
    assemble(env, source, &checkpoint, options)
}

/// Whether the labels name a feature that is needed to read the MOS.
fn is_in_label(source: &ImportSource, guid: &str) -> bool {
    source.config.nvlist("features_for_read").is_some_and(|features| features.contains(guid))
}

fn assemble(env: &Env, source: &ImportSource, uberblock: &Uberblock, options: OpenOptions) -> Result<Pool> {
    check_version(uberblock.version)?;
    let vdevs =
        source.config.nvlist("vdev_tree").ok_or_else(|| Error::corrupt("the labels have no vdev tree"))?;
    let reflow = Some(uberblock.raidz_reflow_info);
    let untrusted = Tree::build(VdevConfig::parse(vdevs)?, None, &source.devices, reflow)?;
    let zio = Zio::new(Arc::new(untrusted), env);
    let arc = ArcCache::new(Arc::clone(&zio), Arc::clone(&env.memory));
    // The labels name the feature that headers of gangs of the MOS may depend on.
    let wide_gangs = zcommon::features::Feature::DynamicGangHeader.info().guid;
    zio.set_wide_gangs(is_in_label(source, wide_gangs));
    let mos = open_mos(&arc, &uberblock.rootbp)?;
    let directory = Zap::open(&mos.object(names::MOS_DIRECTORY_OBJECT)?)?;
    let mut notes = Vec::new();
    let deflates = Some(directory.lookup(names::mos::DEFLATE.as_bytes())?.is_some());
    let config = match trusted_config(&mos, &directory) {
        _ if options.split => source.config.clone(),
        Ok(config) => {
            let refuse_short = options.purpose != OpenPurpose::Read;
            trust(
                &zio,
                source,
                &config,
                TreeChange { deflates, reflow, refuse_short, ..TreeChange::default() },
            )?;
            if refuse_short {
                check_devices(&zio.tree())?;
            }
            config
        }
        Err(e) => {
            notes.push(e.because(Error::corrupt("the labels' config is used instead of the MOS's")));
            source.config.clone()
        }
    };
    let early = PoolFeatures::load(&mos, &directory).ok();
    zio.set_wide_gangs(early.is_some_and(|features| features.is_active(wide_gangs)));
    // Other objects of the MOS may have been moved by a removal, the features too.
    mapping::load_all(&zio.tree(), &mos, &mut notes);
    let features = PoolFeatures::load(&mos, &directory)?;
    if !options.force {
        features.check()?;
    }
    zio.set_wide_gangs(features.is_active(wide_gangs));
    if let Some(salt) = directory.lookup(names::mos::CHECKSUM_SALT.as_bytes())? {
        let bytes = salt.bytes();
        if let Some(salt) = bytes.first_chunk::<32>() {
            zio.set_salt(salt);
        }
    }
    let base = PoolBase {
        env: env.clone(),
        name: source.name.clone(),
        zio,
        arc,
        dsl: Dsl::open(&source.name, &mos, &directory)?,
        opened: uberblock.txg,
        rewind: None,
        notes,
    };
    let base = Arc::new(base);
    Ok(Pool { base, guid: source.guid, uberblock: *uberblock, config, features, mos })
}

fn check_version(version: u64) -> Result<()> {
    if (1..=28).contains(&version) || version == 5000 {
        return Ok(());
    }
    Err(Error::unsupported(format!("pool version {version} is not known to this build")))
}

fn open_mos(arc: &Arc<ArcCache>, rootbp: &Blkptr) -> Result<Arc<Objset>> {
    let mos = Objset::open(arc, 0, rootbp, Form::Logical)?;
    if mos.phys.objset_type != ondisk::ObjsetType::Meta {
        return Err(Error::corrupt("the uberblock does not point at a meta object set"));
    }
    Ok(mos)
}

/// The config that the pool keeps in its MOS.
fn trusted_config(mos: &Arc<Objset>, directory: &Zap) -> Result<NvList> {
    let number = directory.need(names::mos::CONFIG)?;
    packed_nvlist(&mos.object(number)?)
}

/// Puts the MOS config's tree in the place of the labels'.
fn trust(zio: &Arc<Zio>, source: &ImportSource, config: &NvList, change: TreeChange) -> Result<()> {
    let vdevs =
        config.nvlist("vdev_tree").ok_or_else(|| Error::corrupt("the MOS config has no vdev tree"))?;
    let known = zio.tree();
    let change = TreeChange { devices: source.devices.clone(), ..change };
    let tree = Tree::changed(VdevConfig::parse(vdevs)?, Some(&known), &change)?;
    zio.set_tree(Arc::new(tree));
    Ok(())
}

/// Decodes an object that holds a packed nvlist; its bonus has the length.
pub fn packed_nvlist(object: &Object) -> Result<NvList> {
    let size = object.dnode.bonus().first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
    let size = size.filter(|&n| n <= MAX_NVLIST.min(object.max_offset()));
    let size = size
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| Error::corrupt("packed nvlist has no sane size"))?;
    let bytes = object.read_vec(0, size)?;
    NvList::decode(&bytes).map_err(|e| Error::corrupt(format!("object {}: {e}", object.number)))
}
