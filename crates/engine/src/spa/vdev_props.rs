//! Properties of vdevs.
//!
//! Each vdev's are kept in a ZAP of its own in the MOS, which its configuration names: the root's, a top-level vdev's,
//! or a leaf's; a leaf that is a top-level vdev uses the latter's. Properties that affect the vdev's use are
//! also in the configuration: `allocating=off` is there as `non_allocating`, `path` as itself.
//!
//! Source: `vdev_prop_set`, `vdev_props_set_sync`, vdev.c; `spa_vdev_noalloc`, spa.c; OpenZFS 2.3.

use nvpair::NvList;

use super::Spa;
use super::config::PoolConfig;
use super::layout::config::{LEAF_ZAP, ROOT_ZAP, TOP_ZAP, edit, find, line};
use super::space_store::set;
use super::subjects::Disks;
use crate::dmu::Tx;
use crate::dsl::props::PropValue;
use crate::dsl::write::Hooks as _;
use crate::error::{Error, Kind, Result};
use crate::vdev::config::AllocBias;
use crate::vdev::top::Top;
use crate::zap::{Value, Zap, ZapEdit};

/// In a top-level vdev's configuration: nothing is to be allocated on it.
#[doc(alias = "ZPOOL_CONFIG_NONALLOCATING")]
pub(super) const NON_ALLOCATING: &str = "non_allocating";

/// The ZAP with a vdev's properties, from its configuration; `None`: it has none.
#[doc(alias = "vdev_prop_get_objid")]
pub fn object(vdev: &NvList) -> Option<u64> {
    [ROOT_ZAP, TOP_ZAP, LEAF_ZAP].into_iter().find_map(|name| vdev.u64(name).filter(|number| *number != 0))
}

/// Whether nothing is to be allocated on a top-level vdev.
pub(super) fn is_closed(top: &Top, config: &PoolConfig) -> bool {
    let forbidden = config.top(top.id).and_then(|list| list.u64(NON_ALLOCATING));
    forbidden.is_some_and(|word| word != 0)
        || config.is_passive(top.id)
        || !top.leaves().any(|leaf| leaf.is_writable())
}

impl Disks<'_> {
    /// Numbers that are set, each for the vdev itself or the nearest ancestor: `None` where none is set, or
    /// where it can't be read. `u64::MAX` counts as not set.
    #[doc(alias = "vdev_prop_get_inherited")]
    pub(super) fn set_numbers<const N: usize>(self, vdev: u64, names: [&str; N]) -> [Option<u64>; N] {
        let objects: Vec<u64> = {
            let config = self.spa.config.lock();
            line(config.root(), vdev).into_iter().filter_map(object).collect()
        };
        let view = self.spa.mos.view();
        let zaps = objects.into_iter().filter_map(|number| Zap::open(&view.object(number).ok()?).ok());
        let zaps: Vec<Zap> = zaps.collect();
        let set = |zap: &Zap, name: &str| zap.u64(name).ok().flatten().filter(|n| *n != u64::MAX);
        names.map(|name| zaps.iter().find_map(|zap| set(zap, name)))
    }

    /// Sets properties of the vdev of this guid (syncing context). The caller checks the values.
    /// A user's property with an empty text goes.
    ///
    /// # Errors
    /// `NotFound` for the vdev; `Unsupported` where vdevs have no properties, or not these; `Invalid` when nothing could
    /// be allocated any more; `Busy` when too many disks sit out. Nothing has changed then.
    #[doc(alias("vdev_prop_set", "vdev_props_set_sync"))]
    pub fn set_props(self, vdev: u64, settings: &[(String, PropValue)], tx: &Tx) -> Result<()> {
        let number = {
            let config = self.spa.config.lock();
            let list = find(config.root(), vdev).ok_or_else(|| Error::not_found("no such vdev"))?;
            object(list)
        };
        let what = "the pool keeps no properties of this vdev: feature vdev_zaps_v2 is not active";
        let number = number.ok_or_else(|| Error::unsupported(what))?;
        for (name, value) in settings {
            match (name.as_str(), value) {
                ("allocating", PropValue::Number(n)) => set_allocating(self.spa, vdev, *n != 0)?,
                ("path", PropValue::Text(path)) => set_path(self.spa, vdev, path)?,
                ("sit_out", PropValue::Number(n)) => self.set_sit_out(vdev, *n != 0)?,
                ("autosit", PropValue::Number(n)) => self.set_autosit(vdev, *n != 0)?,
                _ => {}
            }
            let zap = self.spa.mos.handle(number)?;
            let mut editor = zap.edit(tx);
            let mut zap = ZapEdit::open(&mut editor)?;
            match value {
                PropValue::Text(text) if text.is_empty() && name.contains(':') => {
                    if zap.lookup(name.as_str())?.is_some() {
                        zap.remove(name.as_str())?;
                    }
                }
                PropValue::Text(text) => zap.update(name.as_str(), text.as_str())?,
                PropValue::Number(n) => zap.update(name.as_str(), Value::from(*n))?,
            }
            let shown = match value {
                PropValue::Number(n) => n.cast_signed().to_string(),
                PropValue::Text(text) => text.clone(),
            };
            self.spa.log("vdev set", "", 0, &format!("vdev_guid={vdev}: {name}={shown}"), tx)?;
        }
        Ok(())
    }
}

/// Allows or forbids to allocate on a top-level vdev. Existing blocks stay, and can be freed.
#[doc(alias("spa_vdev_alloc", "spa_vdev_noalloc"))]
fn set_allocating(spa: &Spa, vdev: u64, allowed: bool) -> Result<()> {
    let tree = spa.pool.tree();
    let root = tree.config.children.iter().find(|top| top.guid == vdev);
    let top = root.and_then(|config| tree.top(config.id));
    let top = top.ok_or_else(|| Error::unsupported("the property exists for top-level vdevs only"))?;
    let mut config = spa.config.lock();
    let forbidden = |config: &PoolConfig, id: u64| {
        config.top(id).and_then(|list| list.u64(NON_ALLOCATING)).unwrap_or(0) != 0
    };
    if !allowed && !forbidden(&config, top.id) && spa.vdevs().bias_of(&top) == AllocBias::Normal {
        let mut others = tree.tops().filter(|other| {
            other.id != top.id
                && spa.vdevs().bias_of(other) == AllocBias::Normal
                && !is_closed(other, &config)
        });
        if others.next().is_none() {
            return Err(Error::new(Kind::Invalid, "it is the only vdev on which data can be allocated"));
        }
    }
    config.change_root(|root| {
        edit(root, vdev, &mut |list| {
            list.remove(NON_ALLOCATING);
            if !allowed {
                set(list, NON_ALLOCATING, 1);
            }
        });
    });
    spa.space.set_closed(top.id, is_closed(&top, &config));
    Ok(())
}

#[doc(alias = "spa_vdev_setpath")]
fn set_path(spa: &Spa, vdev: u64, path: &str) -> Result<()> {
    let mut config = spa.config.lock();
    if find(config.root(), vdev).is_none_or(|list| !list.contains("path")) {
        return Err(Error::new(Kind::ReadOnly, "only devices have paths"));
    }
    if !path.starts_with("/dev/") {
        return Err(Error::new(Kind::Invalid, "the path must be that of a device"));
    }
    config.change_root(|root| {
        edit(root, vdev, &mut |list| {
            list.remove("path");
            list.add("path", path);
        });
    });
    Ok(())
}
