//! Which imported pools have a device.

use std::path::Path;
use std::sync::Arc;

use crate::ctx::Ctx;
use daemon::devices;

/// The imported pool that has a spare or cache device of this guid.
#[doc(alias = "find_aux")]
pub fn aux_of(guid: u64, ctx: &Ctx) -> Option<String> {
    let has = |pool: &Arc<daemon::Imported>| {
        let _quiet = pool.quiet();
        let facts = pool.view().ok().and_then(|view| zutil::load::facts(&view));
        facts.is_some_and(|facts| facts.spares.iter().chain(&facts.l2cache).any(|aux| aux.guid == guid))
    };
    ctx.registry().ok()?.all().iter().find(|pool| has(pool)).map(|pool| pool.name())
}

/// The guid of a hot spare of an imported pool, free or in use: its label has that guid in either case.
#[doc(alias = "spa_spare_exists")]
pub fn spare_at(path: &Path, ctx: &Ctx) -> Option<u64> {
    let guid = devices::label_of(path)?.u64("guid")?;
    let has = |pool: &Arc<daemon::Imported>| pool.spares().contains(&guid);
    ctx.registry().ok()?.all().iter().any(has).then_some(guid)
}

/// The pool that was imported read-only and has the device. Its label may say that the pool is exported or destroyed.
#[doc(alias = "zpool_in_use")]
pub fn read_only_pool_of(path: &Path, ctx: &Ctx) -> Option<String> {
    pools_of(path, ctx).into_iter().find(|pool| pool.is_read_only()).map(|pool| pool.name())
}

/// Our pools that have the device.
pub fn pools_of(path: &Path, ctx: &Ctx) -> Vec<Arc<daemon::Imported>> {
    let Ok(registry) = ctx.registry() else { return Vec::new() };
    let Ok(wanted) = devices::identity(path) else { return Vec::new() };
    let has = |pool: &Arc<daemon::Imported>| {
        pool.candidate().members.values().any(|member| member.device.identity == wanted)
    };
    registry.all().into_iter().filter(has).collect()
}
