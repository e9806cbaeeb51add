//! `zpool import POOL`: takes pools into the daemon.
//!
//! Differs from OpenZFS: a pool that this build can't write correctly is refused with the reason, and can be
//! imported with `-o readonly=on`.

use std::io::Write;
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::output::time;
use clikit::settings::{self, PoolSetting, When, of_pool};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::imported::{Imported, Manner};
use daemon::ops::ImportPool;
use engine::Kind;
use engine::dsl::due_log::damaged_logs;
use engine::dsl::props::PropValue;
use engine::spa::rebuild::Derived;
use engine::spa::{FoundUberblock, OpenOptions, OpenPurpose, PoolBase, Reach};
use zcommon::names::check_new_pool;
use zcommon::vdev::PoolState;
use zfs::keys::LoadKey;
use zutil::PoolCandidate;
use zutil::import_status::system_hostid;
use zutil::names::vdev_name;
use zutil::tree::VdevNode;

use super::import::{Import, REWINDS};

/// Pools that `-a` opens at once.
const AT_ONCE: usize = 4;

/// The result of opening a pool.
type Opened = engine::Result<Arc<Imported>>;

/// Settings from the options.
#[derive(Debug, Clone)]
struct Wishes {
    manner: Manner,
    read_only: bool,
    /// Properties that it gets.
    stored: Vec<(String, PropValue)>,
    /// Of its mounts.
    options: Vec<String>,
}

impl Import {
    /// Imports the pool named, or all that are found.
    pub(super) fn import(&self, ctx: &mut Ctx) -> Outcome {
        if (self.dry && !self.rebuild || self.extreme) && !self.rewind {
            return Err(Failure::usage(REWINDS));
        }
        if self.load_keys && self.no_mount {
            return Err(Failure::usage("-l is incompatible with -N"));
        }
        let wishes = self.wishes().map_err(|e| Failure::failed(format!("property error: {e}")))?;
        let registry = ctx.registry()?;
        let mut found = self.found(ctx)?;
        found.retain(|pool| pool.is_destroyed() == self.destroyed);
        // Pools that are imported already are skipped.
        let known: Vec<u64> = registry.all().iter().map(|pool| pool.guid()).collect();
        let Some(wanted) = &self.pool else {
            let is_coming = ctx.tell_coming();
            found.retain(|pool| !known.contains(&pool.guid) && !ctx.is_coming(&pool.name));
            return if found.is_empty() && is_coming { Ok(Exit::OK) } else { self.all(found, &wishes, ctx) };
        };
        let matching: Vec<&PoolCandidate> =
            found.iter().filter(|pool| pool.name == *wanted || wanted.parse() == Ok(pool.guid)).collect();
        let fresh: Vec<&&PoolCandidate> =
            matching.iter().filter(|pool| !known.contains(&pool.guid)).collect();
        match (fresh.as_slice(), matching.is_empty()) {
            ([], missing) if !missing || registry.get(wanted).is_some() => {
                let what = "a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name";
                Err(Failure::cannot("import", wanted, what))
            }
            ([], _) => {
                let why = ctx.why_no_pool_of(wanted, "no such pool available");
                Err(Failure::cannot("import", wanted, why))
            }
            ([one], _) => self.one(one, self.new_name.clone(), None, &wishes, ctx),
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
        // Pools are opened side by side; the rest follows one after the other, as it prints and mounts.
        let mut opened = match self.dry || found.len() < 2 {
            true => Vec::new(),
            false => self.open_all(&found, wishes, ctx)?,
        }
        .into_iter();
        let mut exit = Exit::OK;
        for candidate in &found {
            let opened = opened.next().flatten();
            match self.one(candidate, None, opened, wishes, ctx) {
                Ok(done) => exit = exit.worse(done),
                Err(failure) => {
                    ctx.warn(failure.message().unwrap_or_default());
                    exit = Exit::FAILED;
                }
            }
        }
        Ok(exit)
    }

    /// Opens pools, several at once. `None` where [`Import::one`] is to refuse it, or to say why it fails.
    fn open_all(
        &self,
        found: &[PoolCandidate],
        wishes: &Wishes,
        ctx: &mut Ctx,
    ) -> Result<Vec<Option<Opened>>, Failure> {
        let registry = ctx.registry()?;
        let open = |candidate: &PoolCandidate| {
            let is_free = registry.get(&candidate.name).is_none();
            if !is_free || (!self.force && check_host(candidate).is_err()) {
                return None;
            }
            Some(registry.import(self.asked_for(candidate, None, wishes, None)))
        };
        Ok(daemon::parallel::map(found, AT_ONCE, open))
    }

    /// Imports a pool, or takes over the result where that has been tried already.
    fn one(
        &self,
        candidate: &PoolCandidate,
        rename: Option<String>,
        opened: Option<Opened>,
        wishes: &Wishes,
        ctx: &mut Ctx,
    ) -> Outcome {
        let name = rename.clone().unwrap_or_else(|| candidate.name.clone());
        let cannot = |what: &str| Failure::cannot("import", &candidate.name, what);
        if let Some(new) = &rename {
            check_new_pool(new).map_err(|e| cannot(&e.to_string()))?;
        }
        if !self.force {
            check_host(candidate)?;
        }
        let registry = ctx.registry()?;
        if opened.is_none() && registry.get(&name).is_some() {
            let what = "a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name";
            return Err(Failure::cannot("import", &name, what));
        }
        if self.rebuild && wishes.read_only {
            return Err(Failure::usage("--rebuild writes: it is incompatible with readonly=on"));
        }
        let derived = if self.rebuild { self.derive(candidate, ctx)? } else { None };
        if self.dry {
            return if self.rebuild { Ok(Exit::OK) } else { self.try_rewind(candidate, wishes, ctx) };
        }
        // The import itself writes newer ones.
        let states = match self.rewind || self.txg.is_some() {
            true => zutil::import::source(candidate).uberblocks,
            false => Vec::new(),
        };
        let is_rebuilt = derived.is_some();
        let imported =
            opened.unwrap_or_else(|| registry.import(self.asked_for(candidate, rename, wishes, derived)));
        if matches!(&imported, Err(e) if e.kind() == Kind::NoDevice) && !self.missing_log {
            self.name_missing_logs(candidate, ctx)?;
        }
        if matches!(&imported, Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Checksum | Kind::Io))
            && !self.rewind
        {
            let purpose = if wishes.read_only { OpenPurpose::Read } else { OpenPurpose::Rebuild };
            super::import_older::say(candidate, &registry.env()?, purpose, ctx)?;
        }
        let pool = imported.map_err(|e| match e.kind() {
            Kind::NoDevice | Kind::Busy | Kind::ReadOnly => cannot(e.what()),
            Kind::Invalid if self.rewind_to_checkpoint => cannot(e.what()),
            Kind::Exists => cannot("a pool with that name already exists"),
            _ => cannot(&e.to_string()),
        })?;
        if is_rebuilt {
            writeln!(ctx.out, "The space maps of {name}, and its damaged tables, were written anew.")?;
        }
        if self.rewind || self.txg.is_some() {
            let reached = match pool.spa() {
                Ok(spa) => reached(&spa.pool),
                Err(_) => reached(&*pool.view()?),
            };
            say_rewind(&states, reached, &name, false, ctx)?;
        }
        if pool.is_read_only() {
            for log in damaged_logs(&pool.view()?.dsl, &ctx.interrupt.flag()) {
                ctx.warn(format!(
                    "{}: its intent log cannot be read whole, and its last synchronous writes may be missing: {}",
                    log.dataset, log.why
                ));
            }
        } else {
            let stored = wishes.stored.clone();
            pool.task(move |tasks, spa| spa.props().set(&stored, tasks.at.tx))?;
            ctx.log(&pool)?;
        }
        drop(pool);
        let keys = if self.load_keys { LoadKey::all_of(&name).run(ctx)? } else { Exit::OK };
        let keys = if keys == Exit::OK { keys } else { Exit::FAILED };
        if !self.no_mount {
            let mounted = zfs::mount::mount_pool(&name, &wishes.options, ctx)?;
            if mounted != Exit::OK {
                ctx.warn("Import was successful, but unable to mount some datasets");
            }
        }
        Ok(keys)
    }

    fn asked_for(
        &self,
        candidate: &PoolCandidate,
        rename: Option<String>,
        wishes: &Wishes,
        derived: Option<Derived>,
    ) -> ImportPool {
        ImportPool {
            candidate: candidate.clone(),
            temporary: self.temporary && rename.is_some(),
            rename,
            read_only: wishes.read_only,
            force: self.force,
            missing_log: self.missing_log,
            open: self.state(),
            manner: wishes.manner.clone(),
            derived,
        }
    }

    /// Names log devices that the pool can't be imported without.
    #[doc(alias = "print_vdev_tree")]
    fn name_missing_logs(&self, candidate: &PoolCandidate, ctx: &mut Ctx) -> Result<(), Failure> {
        let env = ctx.registry()?.env()?;
        let Ok(pool) = engine::spa::open(&env, zutil::import::source(candidate), self.state()) else {
            return Ok(());
        };
        let missing = engine::spa::missing_logs(&pool);
        let tree = pool.config.nvlist("vdev_tree").and_then(VdevNode::from_config);
        let tops = tree.iter().flat_map(|tree| &tree.children).filter(|top| missing.contains(&top.id));
        let names = self.names.style();
        let mut lines = Vec::new();
        for top in tops {
            lines.push(format!("\t    {} [log]", vdev_name(top, names, true)));
            lines.extend(top.children.iter().map(|leaf| format!("\t      {}", vdev_name(leaf, names, true))));
        }
        if !lines.is_empty() {
            let lead = "The devices below are missing or corrupted, use '-m' to import the pool anyway:";
            writeln!(ctx.out, "{lead}\n{}\n", lines.join("\n"))?;
        }
        Ok(())
    }

    /// Which of the pool's states is wanted.
    pub(super) fn state(&self) -> OpenOptions {
        OpenOptions {
            txg: self.txg,
            reach: match (self.extreme || self.txg.is_some(), self.rewind) {
                (true, _) => Reach::Extreme,
                (false, true) => Reach::Safe,
                (false, false) => Reach::Newest,
            },
            checkpoint: self.rewind_to_checkpoint,
            ..OpenOptions::default()
        }
    }

    /// Reports whether an older state would open, where the newest does not.
    fn try_rewind(&self, candidate: &PoolCandidate, wishes: &Wishes, ctx: &mut Ctx) -> Outcome {
        let env = ctx.registry()?.env()?;
        let source = zutil::import::source(candidate);
        let states = source.uberblocks.clone();
        let purpose = if wishes.read_only { OpenPurpose::Read } else { OpenPurpose::Write };
        let pool = engine::spa::open(&env, source, OpenOptions { purpose, ..self.state() })
            .map_err(|e| Failure::cannot("import", &candidate.name, e))?;
        say_rewind(&states, reached(&pool), &candidate.name, true, ctx)?;
        Ok(if pool.rewind.is_some() { Exit::FAILED } else { Exit::OK })
    }

    fn wishes(&self) -> Result<Wishes, String> {
        let manner = Manner {
            altroot: self.root.clone(),
            // A pool with a name of its own would come back with it.
            cached: self.root.is_none() && !self.temporary,
            cachefile: None,
            no_mount: self.no_mount,
        };
        let (props, options) = props_and_mount_options(&self.options);
        let mut wishes = Wishes { manner, read_only: false, stored: Vec::new(), options };
        let props = settings::split_beside_root(&props, self.root.as_deref())?;
        let has_cachefile = props.iter().any(|(name, _)| name == "cachefile");
        for (name, value) in props {
            match of_pool(&name, &value, When::Import)? {
                PoolSetting::Readonly(on) => wishes.read_only = on,
                PoolSetting::Altroot(root) => {
                    wishes.manner.altroot = Some(root);
                    // A cache file that is asked for is kept.
                    wishes.manner.cached &= has_cachefile;
                }
                PoolSetting::Stored(name, value) => wishes.stored.push((name, value)),
                PoolSetting::Cachefile(path) => wishes.manner.set_cachefile(&path),
                PoolSetting::NoEffect => {}
                _ => return Err(format!("property '{name}' can't be set at import time by this build")),
            }
        }
        Ok(wishes)
    }
}

/// Parts the words of `-o` into properties and mount options; a word may hold several mount options with commas between them.
pub(super) fn props_and_mount_options(words: &[String]) -> (Vec<String>, Vec<String>) {
    let (props, options): (Vec<_>, Vec<_>) = words.iter().cloned().partition(|word| word.contains('='));
    (props, options.iter().flat_map(|word| word.split(',')).map(str::to_owned).collect())
}

/// The result of a rewind.
#[derive(Debug, Clone, Copy)]
struct Reached {
    /// The txg that a pool was opened at.
    opened: u64,
    /// The newest one that is known to have been there.
    newest: u64,
    /// Blocks of data that cannot be read in the state that was opened.
    lost_data: u64,
}

fn reached(pool: &PoolBase) -> Reached {
    let (opened, rewind) = (pool.opened, pool.rewind.as_ref());
    let newest = rewind.map_or(opened, |rewind| rewind.newest);
    Reached { opened, newest, lost_data: rewind.map_or(0, |rewind| rewind.lost_data) }
}

/// Reports the cost of a rewind to a txg, if there is one.
#[doc(alias = "zpool_rewind_exclaim")]
fn say_rewind(
    all: &[FoundUberblock],
    Reached { opened, newest, lost_data }: Reached,
    name: &str,
    dry: bool,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let found = all.iter().map(|u| u.uberblock.txg).max().unwrap_or(0);
    if opened >= newest.max(found) {
        return Ok(());
    }
    let at = |txg: u64| all.iter().find(|u| u.uberblock.txg == txg).map_or(0, |u| u.uberblock.timestamp);
    let (then, lost) = (at(opened), at(newest.max(found)).saturating_sub(at(opened)));
    let when = time::clock(then);
    let verb = match dry {
        true => {
            writeln!(ctx.out, "Would be able to return {name} to its state as of {when}.")?;
            "Would discard"
        }
        false => {
            writeln!(ctx.out, "Pool {name} returned to its state as of {when}.")?;
            "Discarded"
        }
    };
    match lost {
        _ if newest > found => writeln!(
            ctx.out,
            "{verb} up to {} transaction groups; the uberblocks of the newest ones are gone.",
            newest - opened
        )?,
        0 => {}
        1..=120 => writeln!(ctx.out, "{verb} approximately {lost} seconds of transactions.")?,
        _ => writeln!(ctx.out, "{verb} approximately {} minutes of transactions.", (lost + 30) / 60)?,
    }
    match lost_data {
        0 => {}
        1 => writeln!(ctx.out, "One block of data cannot be read in that state.")?,
        many => writeln!(ctx.out, "{many} blocks of data cannot be read in that state.")?,
    }
    Ok(())
}

/// Refuses a pool that another machine may be using.
#[doc(alias = "zfs_force_import_required")]
fn check_host(candidate: &PoolCandidate) -> Result<(), Failure> {
    if candidate.state == PoolState::Exported || candidate.hostid == system_hostid() {
        return Ok(());
    }
    let host = if candidate.hostname.is_empty() { "<unknown>" } else { &candidate.hostname };
    let newest = zutil::import::source(candidate).uberblocks.into_iter().next();
    let seen = newest.map(|found| time::clock(found.uberblock.timestamp)).unwrap_or_default();
    let what = format!(
        "pool was previously in use from another system.\nLast accessed by {host} (hostid={:x}){}{seen}\nThe pool can be imported, use 'zpool import -f' to import the pool.",
        candidate.hostid,
        if seen.is_empty() { "" } else { " at " },
    );
    Err(Failure::cannot("import", &candidate.name, what))
}
