//! Operations on whole pools: create, import, export, destroy.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::dsl::write::{Encryption, Tasks};
use engine::spa::history_log::{HistoryEvent, HistoryOrigin};
use engine::spa::layout::PoolSpec;
use engine::spa::rebuild::Derived;
use engine::spa::suspension::Suspension;
use engine::spa::{ImportOptions, NewPool, OpenOptions, Spa};
use engine::vdev::leaf::Leaf;
use engine::{Error, Kind, Result};
use nvpair::NvList;
use ondisk::names::{DEFAULT_QUOTAS, master_node};
use zcommon::features::Feature;
use zpl::Time;
use zpl::write::{NewFs, create_fs};
use zutil::PoolCandidate;
use zutil::import_status::system_hostid;
use zutil::tree::VdevNode;

use crate::cache::Cache;
use crate::devices::{self, candidate_at};
use crate::imported::{Imported, Manner, leaf_paths};
use crate::pool_delays::PoolCommand;
use crate::recorded;
use crate::registry::{Registry, Reservation};
use crate::server::Caller;

/// Maximum wait of an export for requests to the pool's devices: one that takes longer may never end.
const LAST_REQUEST: Duration = Duration::from_secs(30);

/// A pool to be created.
#[derive(Debug)]
pub struct CreatePool {
    /// Its name.
    pub name: String,
    /// The name in the labels, if `name` is only for this import.
    pub label_name: Option<String>,
    /// Its devices, open.
    pub spec: PoolSpec,
    /// 1 to 28, or 5000.
    pub version: u64,
    /// Features to enable.
    pub features: Vec<Feature>,
    /// Properties of the pool.
    pub pool_props: Vec<(String, PropValue)>,
    /// Properties of its root file system.
    pub fs_props: Vec<(String, PropValue)>,
    /// The create-time properties of the root file system.
    pub fs: FsShape,
    /// The encryption of the root file system.
    pub encryption: Encryption,
    /// The manner of its import.
    pub manner: Manner,
    /// The caller.
    pub caller: Caller,
    /// The command, for the history.
    pub command: String,
}

/// The properties in the master node of a new file system; without one it is that of the file system above, or the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct FsShape {
    /// Normal form of names.
    pub normalization: Option<u64>,
    /// Case sensitivity of names.
    pub case: Option<zpl::CaseSensitivity>,
    /// Names in UTF-8 only; the default if they have a normal form.
    pub utf8only: Option<bool>,
    /// Quotas of those without one of their own, in the order of [`DEFAULT_QUOTAS`].
    pub default_quotas: [Option<u64>; 6],
    /// Version of the POSIX layer; by default the newest that the pool supports.
    pub version: Option<u64>,
}

impl FsShape {
    /// With the properties of the file system above where there are none.
    #[doc(alias = "zfs_fill_zplprops_impl")]
    pub fn below(self, above: &BTreeMap<&'static str, u64>) -> Self {
        let of = |name: &str| above.get(name).copied();
        let case = of(master_node::CASESENSITIVITY).map(zpl::CaseSensitivity::from_number);
        let mut quotas =
            self.default_quotas.into_iter().zip(DEFAULT_QUOTAS).map(|(own, name)| own.or(of(name)));
        let normalization = self.normalization.or(of(master_node::NORMALIZATION));
        let utf8only = self.utf8only.or(of(master_node::UTF8ONLY).map(|number| number != 0));
        Self {
            normalization,
            case: self.case.or(case),
            utf8only: utf8only.map(|only| only || normalization.is_some_and(|form| form != 0)),
            default_quotas: std::array::from_fn(|_| quotas.next().flatten()),
            ..self
        }
    }

    /// A new file system with these properties in a pool of version `pool`, owned by `caller`.
    pub fn new_fs(self, caller: Caller, (sec, nsec): (i64, u32), seed: u64, pool: u64) -> NewFs {
        NewFs {
            version: self.version.unwrap_or_else(|| zpl::version_for(pool)),
            normalization: self.normalization.unwrap_or(0),
            case: self.case.unwrap_or(zpl::CaseSensitivity::Sensitive),
            utf8only: self.utf8only.unwrap_or(self.normalization.is_some_and(|form| form != 0)),
            default_quotas: self.default_quotas.map(|limit| limit.unwrap_or(0)),
            owner: (caller.uid.into(), caller.gid.into()),
            ..NewFs::new(Time { sec, nsec }, seed)
        }
    }
}

/// A pool to be imported.
#[derive(Debug)]
pub struct ImportPool {
    /// Its devices and configuration as found.
    pub candidate: PoolCandidate,
    /// A new name.
    pub rename: Option<String>,
    /// The new name is for this import only.
    pub temporary: bool,
    /// Import read-only.
    pub read_only: bool,
    /// Import even if another machine seems to use it.
    pub force: bool,
    /// Import even if log devices are missing, and with them the last writes.
    pub missing_log: bool,
    /// The state to open.
    pub open: OpenOptions,
    /// The manner of the import.
    pub manner: Manner,
    /// Result of a walk over the pool, which replaces space maps and tables.
    pub derived: Option<Derived>,
}

/// The machine's host name.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Adds a command to the history.
pub fn log_command(spa: &Spa, tasks: &Tasks<'_>, command: &str, caller: Caller) -> Result<()> {
    let origin = HistoryOrigin { who: caller.uid.into(), host: hostname() };
    spa.reports().log_history(&HistoryEvent::Command(command.to_owned()), &origin, tasks.at.tx)
}

/// Starts the work of an imported pool.
fn begin(spa: &Arc<Spa>) -> Result<()> {
    spa.start_thread()?;
    // From now on the labels mark it as in use.
    spa.sync_task(|_, _| Ok(())).map_err(|why| match spa.suspending().state() {
        // The advice on suspended pools does not apply: the pool is not imported.
        Some(suspension) => Error::new(Kind::Io, no_writes(&suspension)),
        None => why,
    })?;
    // The logs of file systems are replayed when those are mounted. A log that cannot be replayed waits.
    for (volume, why) in zvol::replay_all(spa)? {
        eprintln!("{volume}: {why}");
    }
    Ok(())
}

/// Why the first txg of a pool was not written.
fn no_writes(why: &Suspension) -> String {
    let what = match why {
        Suspension { is_ours: true, .. } => "it was not written because of an error of this program",
        Suspension { is_damage: true, .. } => {
            "metadata that is needed to write it is damaged; it can be read with 'zpool import -o readonly=on'"
        }
        _ => "its devices take no writes",
    };
    format!("{what}: {}", why.cause)
}

/// The cache file in which a pool stays that is let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// None.
    Nothing,
    /// The daemon's: the next daemon imports it again.
    Own,
    /// The one that its property names.
    Named,
}

impl Registry {
    /// Creates a pool and keeps it imported.
    ///
    /// # Errors
    /// `Exists` for the name; otherwise the reason why a device cannot be used.
    pub fn create(self: &Arc<Self>, new: CreatePool) -> Result<Arc<Imported>> {
        let place = self.reserve(&new.name)?;
        let env = self.env()?;
        let aux =
            new.spec.spares.iter().chain(&new.spec.cache).map(|leaf| Arc::clone(&leaf.device)).collect();
        let layout = new.spec.lay_out(0, engine::txg::INITIAL, &mut || env.guid())?;
        let (wall, seed) = (env.clock.wall(), env.guid());
        let mut fs = new.fs.new_fs(new.caller, wall, seed, new.version);
        // No feature is enabled yet at this point of the creation.
        (fs.projects, fs.count_objects) = (false, false);
        let pool = NewPool {
            name: new.name.clone(),
            label_name: new.label_name,
            version: new.version,
            features: new.features,
            layout,
            hostid: system_hostid(),
            hostname: hostname(),
            command: new.command,
        };
        let spa = engine::spa::create_encrypted(&env, pool, new.encryption, &|objset, tx| {
            create_fs(objset, tx, &fs)
        })?;
        spa.start_thread()?;
        let guid = spa.config.lock().root().u64("guid").unwrap_or(0);
        let paths = leaf_paths(&config_of(&spa));
        let missing = || Error::new(Kind::Io, "the new labels cannot be read back");
        let candidate = candidate_at(&paths, guid).ok_or_else(missing)?;
        let pool = Arc::new(Imported::live(spa, candidate, new.manner));
        pool.hold(aux);
        let (pool_props, fs_props, name) = (new.pool_props, new.fs_props, new.name);
        if !pool_props.is_empty() || !fs_props.is_empty() {
            let set = pool.task(move |tasks, spa| {
                spa.props().set(&pool_props, tasks.at.tx)?;
                let settings: Vec<_> =
                    fs_props.iter().map(|(name, value)| (name.as_str(), Some(value.clone()))).collect();
                tasks.set(&name, &settings, SettingSource::Local)
            });
            if let Err(e) = set {
                // A pool without them was not requested, and its labels would block the devices.
                pool.spa()?.destroy()?;
                return Err(e);
            }
        }
        place.fill(Arc::clone(&pool));
        self.lend_spares(&pool);
        self.note(&pool);
        Ok(pool)
    }

    /// Imports a pool.
    ///
    /// # Errors
    /// `Exists` for the name, `Busy` for a device, and any error of opening the pool. Nothing has been changed
    /// then.
    pub fn import(self: &Arc<Self>, new: ImportPool) -> Result<Arc<Imported>> {
        let name = new.rename.clone().unwrap_or_else(|| new.candidate.name.clone());
        self.import_at(self.reserve_for_import(&name)?, new)
    }

    pub(crate) fn import_at(
        self: &Arc<Self>,
        place: Reservation,
        mut new: ImportPool,
    ) -> Result<Arc<Imported>> {
        let began = Instant::now();
        let env = self.env()?;
        if new.open.txg.is_some() {
            new.candidate.readmit();
        }
        let held = match new.read_only {
            true => {
                let opened = devices::open_all_read_only(&new.candidate)?;
                let mut source = zutil::import::gathered(&new.candidate, opened);
                source.name = new.rename.unwrap_or(source.name);
                let pool = engine::spa::import_read_only(&env, source, new.open, system_hostid(), new.force)?;
                if !new.missing_log {
                    engine::spa::check_logs(&pool)?;
                }
                Imported::read_only(pool, new.candidate, new.manner)
            }
            false => {
                let opened = devices::open_all(&new.candidate)?;
                let members = new.candidate.members.values();
                let paths =
                    members.map(|leaf| (leaf.guid, leaf.path.to_string_lossy().into_owned())).collect();
                let source = zutil::import::gathered(&new.candidate, opened);
                let options = ImportOptions {
                    open: new.open,
                    hostid: system_hostid(),
                    hostname: hostname(),
                    rename: new.rename,
                    temporary: new.temporary,
                    force: new.force,
                    paths,
                    needs_logs: !new.missing_log,
                };
                let spa = match new.derived {
                    Some(derived) => engine::spa::import_rebuilt(&env, source, &options, derived)?,
                    None => engine::spa::import(&env, source, &options)?,
                };
                // Its thread waits for ever for devices that take no write, and nothing could resume it.
                begin(&spa).inspect_err(|_| spa.suspending().give_up())?;
                Imported::live(spa, new.candidate, new.manner)
            }
        };
        self.delays.serve(place.name(), PoolCommand::Import, began);
        let pool = Arc::new(held);
        place.fill(Arc::clone(&pool));
        self.open_aux(&pool);
        self.lend_spares(&pool);
        self.note(&pool);
        Ok(pool)
    }

    /// Opens the spares and cache devices of a pool that are there and not open yet, and takes the cache devices into use. Pools
    /// may share a spare. A device with another label than the list says is left alone.
    #[doc(alias("vdev_validate_aux", "l2arc_rebuild_vdev"))]
    pub fn open_aux(&self, pool: &Imported) {
        let Some(facts) = pool.view().ok().and_then(|view| zutil::load::facts(&view)) else { return };
        let path = |aux: &VdevNode| {
            let path = PathBuf::from(std::ffi::OsString::from_vec(aux.path.clone()?));
            Some((aux.guid, path))
        };
        for (guid, path) in facts.spares.iter().chain(&facts.l2cache).filter_map(path) {
            let is_held = devices::identity(&path).is_ok_and(|wanted| pool.holds(&wanted).is_some());
            if !is_held
                && devices::label_of(&path).and_then(|label| label.u64("guid")) == Some(guid)
                && let Some(device) = self.held(&path).or_else(|| devices::open(&path).ok())
                && devices::is_of(&*device, guid)
            {
                pool.hold(vec![device]);
            }
        }
        let Ok(spa) = pool.spa() else { return };
        for vdev in facts.l2cache.iter().filter(|vdev| !vdev.offline && !vdev.faulted) {
            let Some((guid, path)) = path(vdev) else { continue };
            if spa.caches().devices().iter().all(|used| used.leaf.guid != guid || used.failed)
                && devices::in_use(&path) == Some(devices::InUse::Cache(guid))
                && let Some(device) = self.held(&path)
            {
                spa.caches().use_device(guid, &path.to_string_lossy(), device);
            }
        }
    }

    /// Notices on cache files for the user, each once.
    pub fn cache_notes(&self) -> Vec<String> {
        let replaced = self.cache.take_note().inspect(|_| self.damage_is_over());
        let notes: Vec<String> = replaced.into_iter().chain(self.take_unwritten()).collect();
        notes.iter().for_each(|note| eprintln!("{note}"));
        notes
    }

    /// Writes the pool into the cache file, or removes it, according to its manner.
    ///
    /// A failure does not undo what the command did to the pool, so it is no error of the command but a note for
    /// [`Registry::cache_notes`] and an event. The next change of the pool writes the file again.
    #[doc(alias = "spa_write_cachefile")]
    pub fn note(&self, pool: &Imported) {
        let (name, manner) = (pool.name(), pool.manner.read().clone());
        let own = match manner.cached && !pool.is_read_only() {
            true => self.cache.put(&name, recorded::config(pool)),
            false => self.cache.remove(&name),
        };
        let other = manner.cachefile.map_or(Ok(()), |path| Cache::at(path).put(&name, pool.config()));
        for e in [own, other].into_iter().filter_map(std::io::Result::err) {
            if let Ok(spa) = pool.spa() {
                spa.reports().report_pool("ereport.fs.zfs.config_cache_write", &e.to_string());
            }
            self.note_unwritten(format!(
                "the configuration of pool '{name}' was not saved, so the next start may not import it: {e}"
            ));
        }
    }

    /// Sets the property `cachefile` of a pool, which leaves its old file.
    pub fn set_cachefile(&self, pool: &Imported, value: &str) {
        let old = pool.manner.read().cachefile.clone();
        pool.manner.write().set_cachefile(value);
        self.note(pool);
        if let Some(old) = old.filter(|old| pool.manner.read().cachefile.as_ref() != Some(old)) {
            self.forget_in(&Cache::at(old), &pool.name());
        }
    }

    /// Removes a pool from a cache file. A failure is a note for [`Registry::cache_notes`].
    fn forget_in(&self, cache: &Cache, name: &str) {
        if let Err(e) = cache.remove(name) {
            self.note_unwritten(format!(
                "pool '{name}' was not removed from its cache file, so the next start imports it: {e}"
            ));
        }
    }

    /// Exports a pool: everything is written, and other systems may import it.
    pub fn export(self: &Arc<Self>, name: &str, force: bool) -> Result<()> {
        let began = Instant::now();
        self.let_go(name, force, Keep::Nothing, |spa| {
            match spa.export() {
                // Nothing can be written any more; all synced data is on the disks.
                Err(e) if force && e.kind() == Kind::Suspended => spa.suspending().abandon(),
                done => done?,
            }
            self.delays.serve(name, PoolCommand::Export, began);
            Ok(())
        })
    }

    /// Like [`Registry::export`], but the pool's labels and the cache file that its property names still say that it is in use.
    #[doc(alias = "hardforce")]
    pub fn leave(self: &Arc<Self>, name: &str, force: bool) -> Result<()> {
        let began = Instant::now();
        self.let_go(name, force, Keep::Named, |spa| {
            spa.leave()?;
            self.delays.serve(name, PoolCommand::Export, began);
            Ok(())
        })
    }

    /// Destroys a pool: its labels are marked, and searches no longer find it.
    pub fn destroy(self: &Arc<Self>, name: &str, force: bool) -> Result<()> {
        self.let_go(name, force, Keep::Nothing, Spa::destroy)
    }

    fn let_go(
        self: &Arc<Self>,
        name: &str,
        force: bool,
        keep: Keep,
        close: impl FnOnce(&Spa) -> Result<()>,
    ) -> Result<()> {
        if let Some(pool) = self.get(name) {
            // Mounts work on the pool, too, and must go first. A mount in use stays, forced or not, as on Linux;
            // but from a suspended pool everything is unmounted, and when the daemon exits.
            let suspended = || pool.spa().is_ok_and(|spa| spa.is_suspended());
            pool.mounts.unmount_all(force && (keep == Keep::Own || suspended()))?;
        }
        let (pool, place) = self.take(name)?;
        // A pool that was only read needs no final sync.
        let closed = pool.spa().map_or(Ok(()), |spa| close(spa));
        if let Err(e) = closed {
            place.fill(pool);
            return Err(e);
        }
        let (cachefile, is_cached) = {
            let manner = pool.manner.read();
            (manner.cachefile.clone(), manner.cached && !pool.is_read_only())
        };
        let config = recorded::config(&pool);
        // Devices are closed before the name becomes free.
        let leaves = leaves_of(&pool);
        drop(pool);
        if keep != Keep::Own {
            wait_for_last_request(&leaves);
        }
        if let Some(path) = cachefile.filter(|_| keep != Keep::Named) {
            self.forget_in(&Cache::at(path), name);
        }
        match keep {
            // The next daemon takes it only in the state in which it was left.
            Keep::Own if is_cached => {
                if let Err(e) = self.cache.put(name, config) {
                    eprintln!(
                        "the state of pool {name} was not saved, so the next start does not import it: {e}"
                    );
                }
            }
            Keep::Own => {}
            Keep::Nothing | Keep::Named => self.forget_in(&self.cache, name),
        }
        drop(place);
        Ok(())
    }

    /// Exports everything and leaves the cache file unchanged. Failures are logged.
    ///
    /// A pool may lie on files in a mount of another one, which is in use while it is imported: a pool in use waits
    /// until no other can be exported, and is forced then.
    pub fn close_all(self: &Arc<Self>) {
        let names = |pools: Vec<Arc<Imported>>| pools.iter().map(|pool| pool.name()).collect::<Vec<_>>();
        let is_well = |pool: &Arc<Imported>| !pool.spa().is_ok_and(|spa| spa.is_suspended());
        let well = || names(self.all().into_iter().filter(is_well).collect());
        let close = |name: &String| self.let_go(name, false, Keep::Own, Spa::export).is_ok();
        while well().iter().filter(|name| close(name)).count() > 0 {}
        for name in names(self.all()) {
            if let Err(e) = self.let_go(&name, true, Keep::Own, Spa::export) {
                eprintln!("pool {name} cannot be exported: {e}");
            }
        }
    }
}

/// The leaves of a pool that is about to end.
fn leaves_of(pool: &Imported) -> Vec<Weak<Leaf>> {
    pool.spa().map_or_else(|_| Vec::new(), |spa| spa.pool.tree().leaves().map(Arc::downgrade).collect())
}

/// Requests that nothing waits for, such as reads ahead, keep their device open until they end, and nothing else can use it.
#[doc(alias = "spa_unload")]
fn wait_for_last_request(leaves: &[Weak<Leaf>]) {
    let until = Instant::now() + LAST_REQUEST;
    while leaves.iter().any(|leaf| leaf.strong_count() > 0) && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
}

fn config_of(spa: &Spa) -> NvList {
    let config = spa.config.lock();
    config.facts_of(0, &[]).mos_config(config.root())
}
