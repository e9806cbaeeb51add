//! `zpool import POOL`: takes pools into the daemon.
//!
//! Differs from OpenZFS: what can't be kept right by this build is refused by name, and can be imported with
//! `-o readonly=on`.

use daemon::ops::ImportPool;
use daemon::registry::Manner;
use engine::Kind;
use engine::spa::OpenOptions;
use zcommon::names::check_new_pool;
use zcommon::vdev::PoolState;
use zutil::PoolCandidate;
use zutil::import_status::system_hostid;

use super::import::Import;
use crate::ctx::Ctx;
use crate::output::time;
use crate::settings::{self, PoolSetting, When, of_pool};
use crate::verb::{Exit, Failure, Outcome};

/// What the options ask for.
#[derive(Debug, Clone)]
struct Wishes {
    manner: Manner,
    read_only: bool,
}

impl Import {
    /// Imports the pool named, or all that are found.
    pub(super) fn import(&self, ctx: &mut Ctx) -> Outcome {
        let wishes = self.wishes().map_err(|e| Failure::failed(format!("property error: {e}")))?;
        let registry = ctx.registry()?;
        let mut found = self.found(ctx)?;
        found.retain(|pool| pool.is_destroyed() == self.destroyed);
        // What is imported here is not to be imported.
        let known: Vec<u64> = registry.all().iter().map(|pool| pool.guid()).collect();
        let Some(wanted) = &self.pool else {
            found.retain(|pool| !known.contains(&pool.guid));
            return self.all(found, &wishes, ctx);
        };
        let matching: Vec<&PoolCandidate> =
            found.iter().filter(|pool| pool.name == *wanted || wanted.parse() == Ok(pool.guid)).collect();
        let fresh: Vec<&&PoolCandidate> =
            matching.iter().filter(|pool| !known.contains(&pool.guid)).collect();
        match (fresh.as_slice(), matching.is_empty()) {
            ([], false) => {
                let what = "a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name";
                Err(Failure::cannot("import", wanted, what))
            }
            ([], true) => Err(Failure::cannot("import", wanted, "no such pool available")),
            ([one], _) => {
                self.one(one, self.new_name.clone(), &wishes, ctx)?;
                Ok(Exit::OK)
            }
            _ => {
                let what = "more than one matching pool\nimport by numeric ID instead";
                Err(Failure::cannot("import", wanted, what))
            }
        }
    }

    fn all(&self, found: Vec<PoolCandidate>, wishes: &Wishes, ctx: &mut Ctx) -> Outcome {
        if found.is_empty() {
            ctx.warn("no pools available to import");
            return Ok(Exit::OK);
        }
        let mut exit = Exit::OK;
        for candidate in &found {
            if let Err(failure) = self.one(candidate, None, wishes, ctx) {
                ctx.warn(failure.message().unwrap_or_default());
                exit = Exit::FAILED;
            }
        }
        Ok(exit)
    }

    fn one(
        &self,
        candidate: &PoolCandidate,
        rename: Option<String>,
        wishes: &Wishes,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        let name = rename.clone().unwrap_or_else(|| candidate.name.clone());
        let cannot = |what: &str| Failure::cannot("import", &candidate.name, what);
        if let Some(new) = &rename {
            check_new_pool(new).map_err(|e| cannot(&e.to_string()))?;
        }
        if !self.force && !wishes.read_only {
            check_host(candidate)?;
        }
        let registry = ctx.registry()?;
        if registry.get(&name).is_some() {
            let what = "a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name";
            return Err(Failure::cannot("import", &name, what));
        }
        let new = ImportPool {
            candidate: candidate.clone(),
            temporary: self.temporary && rename.is_some(),
            rename,
            read_only: wishes.read_only,
            force: self.force || self.destroyed,
            open: OpenOptions { rewind: self.rewind, ..OpenOptions::default() },
            manner: wishes.manner.clone(),
        };
        let pool = registry.import(new).map_err(|e| match e.kind() {
            Kind::Busy => cannot("one or more devices are already in use"),
            Kind::Exists => cannot("a pool with that name already exists"),
            _ => cannot(&e.to_string()),
        })?;
        if !pool.is_read_only() {
            ctx.log(&pool)?;
        }
        drop(pool);
        if self.no_mount { Ok(()) } else { crate::zfs::mount::mount_pool(&name, ctx).map(drop) }
    }

    fn wishes(&self) -> Result<Wishes, String> {
        let manner = Manner {
            altroot: self.root.clone(),
            // A pool with a name of its own would come back with it.
            cached: self.root.is_none() && !self.temporary,
            cachefile: None,
            no_mount: self.no_mount,
        };
        let mut wishes = Wishes { manner, read_only: false };
        let (props, _mount_options): (Vec<String>, Vec<String>) =
            self.options.iter().cloned().partition(|word| word.contains('='));
        for (name, value) in settings::split(&props)? {
            match of_pool(&name, &value, When::New)? {
                PoolSetting::Readonly(on) => wishes.read_only = on,
                PoolSetting::Altroot(root) => {
                    wishes.manner.altroot = Some(root);
                    wishes.manner.cached = false;
                }
                PoolSetting::Cachefile(path) => wishes.manner.set_cachefile(&path),
                _ => return Err(format!("property '{name}' can't be set at import time by this build")),
            }
        }
        Ok(wishes)
    }
}

/// Refuses a pool that another machine may be using.
#[doc(alias = "zfs_force_import_required")]
fn check_host(candidate: &PoolCandidate) -> Result<(), Failure> {
    let active = candidate.state == PoolState::Active;
    if !active || candidate.hostid == 0 || candidate.hostid == system_hostid() {
        return Ok(());
    }
    let host = if candidate.hostname.is_empty() { "<unknown>" } else { &candidate.hostname };
    let seen = candidate.config.u64("timestamp").map(time::clock).unwrap_or_default();
    let what = format!(
        "pool was previously in use from another system.\nLast accessed by {host} (hostid={:x}){}{seen}\nThe pool can be imported, use 'zpool import -f' to import the pool.",
        candidate.hostid,
        if seen.is_empty() { "" } else { " at " },
    );
    Err(Failure::cannot("import", &candidate.name, what))
}
