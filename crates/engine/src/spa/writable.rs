//! Checks of an open pool before it is written.

use ondisk::dsl::DslDir;
use ondisk::names::{mos, special_dir};

use super::pool::Pool;
use crate::error::{Error, Kind, Result};
use crate::vdev::config::{self, AllocBias};
use crate::vdev::top::{Top, VdevLayout};
use crate::vdev::tree::Tree;
use crate::zap::Zap;

/// Refuses pools that writing would damage.
pub(super) fn check_writable(pool: &Pool) -> Result<()> {
    if let Some(why) = pool.notes.first() {
        let what = "metadata that writing needs is damaged; open the pool read-only";
        return Err(Error::new(Kind::Corrupt, what).because(why.clone()));
    }
    check_hidden(pool)?;
    let refuse = |why: String| {
        let what = format!("this build can't write the pool: {why}; open it read-only");
        Err(Error::unsupported(what))
    };
    if let Some(guid) = pool.features.unwritable().first() {
        return refuse(format!("it has the feature {guid}"));
    }
    for top in pool.tree().tops() {
        if matches!(top.layout, VdevLayout::Absent) && !is_hole(pool, top.id) {
            return Err(Error::new(Kind::NoDevice, "a top-level vdev is missing").on_vdev(&top.name));
        }
        if top.is_nested() {
            return refuse(format!("{} is a mirror of raidz or draid vdevs", top.name));
        }
    }
    check_devices(&pool.tree())
}

/// Refuses a pool whose txgs could not be accounted for: they find hidden directories by their names.
fn check_hidden(pool: &Pool) -> Result<()> {
    let root = pool.directory()?.need(mos::ROOT_DATASET)?;
    let root = pool.mos.object(root)?;
    let dir = DslDir::from_bytes(root.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
    let number = dir.child_dir_zapobj;
    let find = || {
        let children = Zap::open(&pool.mos.object(number)?)?;
        [special_dir::MOS, special_dir::FREE].iter().try_for_each(|name| children.u64(name).map(drop))
    };
    find().map_err(|why| {
        let what = format!(
            "the names of the pool's file systems (object {number} of its metadata) cannot be read, and nothing else has them; \
             what can still be found can be read with 'zpool import -o readonly=on'"
        );
        Error::new(why.kind(), what).because(why)
    })
}

/// Whether a top-level vdev lacks more devices than it can do without. A log can be done without.
pub(super) fn is_lost(top: &Top) -> bool {
    top.leaves().next().is_some() && top.bias != AllocBias::Log && !top.is_usable()
}

/// Refuses a pool that lacks more devices than it can do without.
pub(super) fn check_devices(tree: &Tree) -> Result<()> {
    match tree.tops().find(|top| is_lost(top)) {
        None => Ok(()),
        Some(top) => {
            let what = "one or more devices is currently unavailable";
            Err(Error::new(Kind::NoDevice, what).on_vdev(&top.name))
        }
    }
}

/// Adds advice to the error of a pool whose space maps or tables can't be read.
pub(super) fn advise(why: Error) -> Error {
    if !matches!(why.kind(), Kind::Corrupt | Kind::Checksum | Kind::NotFound | Kind::Loop) {
        return why;
    }
    let what = "space maps, tables or lists of blocks to be freed are damaged; the data of the pool can be read with \
                'zpool import -o readonly=on', and 'zpool import --rebuild' makes them anew from the blocks of the pool";
    Error::new(Kind::Corrupt, what).because(why)
}

fn is_hole(pool: &Pool, id: u64) -> bool {
    let tree = pool.tree();
    tree.config.children.iter().any(|c| c.id == id && c.kind == config::Kind::Hole)
}
