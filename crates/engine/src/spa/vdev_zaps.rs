//! The ZAPs of vdevs (feature `vdev_zaps_v2`, and the older ones of top-level vdevs and leaves).

use std::sync::Arc;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use parking_lot::Mutex;

use super::config::PoolConfig;
use super::feature_set::ZAP_METADATA;
use super::layout::ALLOCATION_BIAS;
use super::layout::config::{LEAF_ZAP, ROOT_ZAP, TOP_ZAP};
use super::space_store::set;
use crate::dmu::{LiveObjset, NewObject, Tx};
use crate::env::Env;
use crate::error::Result;
use crate::zap::{NewZap, Zap, ZapEdit};

/// The list of all ZAPs of vdevs.
pub(super) fn all_vdev_zaps(env: &Env, mos: &Arc<LiveObjset>, tx: &Tx) -> Result<()> {
    let object = mos.create_object(tx, NewObject::plain(ZAP_METADATA, 512))?;
    ZapEdit::create(&mut object.edit(tx), &new_zap(env))?;
    let directory = mos.handle(MOS_DIRECTORY_OBJECT)?;
    ZapEdit::open(&mut directory.edit(tx))?.insert(mos::VDEV_ZAP_MAP, object.number)
}

/// A ZAP for the root (`of_root`: if the pool has such), each top-level vdev and each leaf that has none; vdevs
/// that were removed need none. `class` returns the allocation class of a top-level vdev.
#[doc(alias = "vdev_construct_zaps")]
pub(super) fn vdev_zaps(
    env: &Env,
    mos: &Arc<LiveObjset>,
    config: &Mutex<PoolConfig>,
    (class, of_root): (&dyn Fn(u64) -> Option<&'static str>, bool),
    tx: &Tx,
) -> Result<()> {
    let view = mos.view();
    let Some(all) = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(mos::VDEV_ZAP_MAP)? else {
        return Ok(());
    };
    let all = mos.handle(all)?;
    config.lock().change_all(&mut |vdev, depth| {
        // A removed vdev is only a place in the tree.
        if matches!(vdev.str("type"), Some("indirect" | "hole" | "missing")) {
            return Ok(());
        }
        let is_leaf = !vdev.contains("children");
        let named =
            [(depth == 0 && of_root, ROOT_ZAP), (depth > 0 && is_leaf, LEAF_ZAP), (depth == 1, TOP_ZAP)];
        for (_, name) in named.into_iter().filter(|(wanted, _)| *wanted) {
            if vdev.contains(name) {
                continue;
            }
            let object = mos.create_object(tx, NewObject::plain(ZAP_METADATA, 512))?;
            ZapEdit::create(&mut object.edit(tx), &new_zap(env))?;
            ZapEdit::open(&mut all.edit(tx))?.add_int(object.number)?;
            set(vdev, name, object.number);
            let bias = class(vdev.u64("id").unwrap_or(u64::MAX)).filter(|_| name == TOP_ZAP);
            if let Some(bias) = bias {
                ZapEdit::open(&mut object.edit(tx))?.insert(ALLOCATION_BIAS, bias)?;
            }
        }
        Ok(())
    })
}

/// A ZAP with a salt of its own.
pub(super) fn new_zap(env: &Env) -> NewZap {
    NewZap { salt: env.guid(), ..NewZap::default() }
}
