//! Mounts the daemon's file systems over FUSE, according to their properties and the command's options.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use clikit::output::row::Source;
use daemon::Imported;
use daemon::access::{DelegatedUser, permissions};
use daemon::mounts::{Hidden, Mount, Mounter, Work};
use engine::dsl::write::Limited;
use engine::dsl::{Dataset, DatasetKind};
use engine::{Error, Kind, Result};
use parking_lot::Mutex;
use rustix::io::Errno;
use zcommon::names::{check_component, check_snapshot};
use zcommon::props::ZfsProp;
use zfuse::{Asker, LiveOptions, MountOptions, Mounted, Ready, Snapdir, SnapshotAdmin, Spot, mount_live};
use zpl::Filesystem;
use zpl::differences::{Differences, differences};
use zpl::write::{FsWriter, Overrides};

use crate::prop::{Node, Props};
use crate::snapshot::of_its_own_group;

/// Mounts file systems over FUSE.
#[derive(Debug)]
pub struct Fuse;

/// One mount.
#[derive(Debug)]
struct Standing {
    mounted: Mounted,
    /// `None` for a pool that was imported read-only. A rollback replaces it.
    files: Mutex<Option<Arc<FsWriter>>>,
    dataset: Arc<Named>,
    /// The options that commands requested, in order.
    options: Mutex<Vec<String>>,
}

impl Standing {
    fn files(&self) -> Option<Arc<FsWriter>> {
        self.files.lock().clone()
    }

    /// The differences between the on-disk file system and a snapshot of it.
    fn differences(&self, snapshot: &str) -> Result<Differences> {
        let (pool, name) = (self.dataset.pool()?, self.dataset.name.lock().clone());
        let (now, then) = {
            let _quiet = pool.quiet();
            let view = pool.view()?;
            let open = |name: &str| Filesystem::open_committed(&view.dsl.dataset(name)?);
            (open(&name)?, open(snapshot)?)
        };
        differences(&now, &then)
    }

    fn wanted(&self, options: &[String]) -> Result<Wanted> {
        let head = self.dataset.pool()?.view()?.dsl.dataset(&self.dataset.name.lock())?;
        Wanted::of(&head, options)
    }
}

/// A dataset of a pool, under its current name.
#[derive(Debug)]
struct Named {
    pool: Weak<Imported>,
    name: Mutex<String>,
}

impl Named {
    fn pool(&self) -> Result<Arc<Imported>> {
        self.pool.upgrade().ok_or_else(|| Error::not_found("the pool is exported"))
    }

    fn snapshot(&self, name: &str) -> Result<String> {
        check_component(name).map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
        let whole = format!("{}@{name}", self.name.lock());
        check_snapshot(&whole).map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
        Ok(whole)
    }
}

impl Named {
    /// Refuses users other than the pools' owner, unless all the needed permissions are granted. Returns such a user.
    fn allow(&self, who: Asker, needs: &[&str]) -> Result<Option<DelegatedUser>> {
        if who.uid == rustix::process::geteuid().as_raw() {
            return Ok(None);
        }
        let delegated = DelegatedUser::of_machine(who.uid, who.gid);
        let pool = self.pool()?;
        let have = {
            let _quiet = pool.quiet();
            let (view, name) = (pool.view()?, self.name.lock().clone());
            permissions(&view, &name, &delegated)?
        };
        match needs.iter().find(|need| !have.contains(**need)) {
            Some(need) => Err(Error::new(Kind::NotPermitted, format!("'{need}' is not allowed"))),
            None => Ok(Some(delegated)),
        }
    }
}

impl SnapshotAdmin for Named {
    fn create(&self, name: &str, who: Asker) -> Result<()> {
        let delegated = self.allow(who, &["snapshot"])?;
        let whole = self.snapshot(name)?;
        let pool = self.pool()?;
        of_its_own_group(|| {
            let (whole, delegated) = (whole.clone(), delegated.clone());
            pool.task(move |tasks, _| {
                let user = delegated.as_ref().map(|delegated| delegated as &dyn Limited);
                tasks.limiting(user).snapshot(&[&whole], &[])
            })
        })
    }

    fn destroy(&self, name: &str, who: Asker) -> Result<()> {
        self.allow(who, &["destroy", "mount"])?;
        let (whole, pool) = (self.snapshot(name)?, self.pool()?);
        let guid = {
            let _quiet = pool.quiet();
            pool.view()?.dsl.dataset(&whole)?.phys.guid
        };
        if pool.mounts.uses_snapshot(&whole, guid) {
            return Err(Error::new(Kind::Busy, "dataset is busy"));
        }
        pool.task(move |tasks, _| tasks.destroy(&whole, false))
    }

    fn rename(&self, old: &str, new: &str, who: Asker) -> Result<()> {
        self.allow(who, &["rename", "mount", "create"])?;
        let (whole, new) = (self.snapshot(old)?, new.to_owned());
        check_component(&new).map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
        self.pool()?.task(move |tasks, _| tasks.rename_snapshot(&whole, &new))
    }
}

impl Mount for Standing {
    fn settings_changed(&self) -> Result<()> {
        // A destroyed dataset has no settings.
        let Ok(wanted) = self.wanted(&self.options.lock()) else { return Ok(()) };
        told(self.mounted.change(wanted.live))
    }

    fn forget_flags(&self) {
        self.mounted.forget_flags();
    }

    fn is_over(&self) -> bool {
        self.mounted.is_over()
    }

    fn is_detached(&self) -> bool {
        self.mounted.is_detached()
    }

    fn remount(&self, options: &[String]) -> Result<()> {
        let all: Vec<String> = self.options.lock().iter().chain(options).cloned().collect();
        let wanted = self.wanted(&all)?;
        self.mounted.forget_flags();
        told(self.mounted.change(wanted.live))?;
        self.files().map_or(Ok(()), |files| files.set_overrides(wanted.overrides))?;
        *self.options.lock() = all;
        Ok(())
    }

    fn again(&self, at: &Path, options: &[String]) -> Result<()> {
        let all: Vec<String> = self.options.lock().iter().chain(options).cloned().collect();
        Ok(self.mounted.show_at(at, &self.wanted(&all)?.live)?)
    }

    fn connection(&self, listed: &[u8]) -> Option<u32> {
        self.mounted.connection(listed)
    }

    fn also_at(&self) -> Vec<PathBuf> {
        self.mounted.also_at()
    }

    fn place(&self) -> Option<PathBuf> {
        Some(self.mounted.at().to_owned())
    }

    fn uses_snapshot(&self, guid: u64) -> bool {
        self.mounted.uses_snapshot(guid)
    }

    fn hidden(&self) -> Hidden {
        self.options.lock().iter().filter_map(|option| hides(option)).collect()
    }

    fn renamed(&self, name: &str) {
        name.clone_into(&mut self.dataset.name.lock());
    }

    fn rollback(&self, to: &str, work: Work<'_>) -> Result<()> {
        let spa = Arc::clone(self.dataset.pool()?.spa()?);
        let done = self.mounted.exchange(
            || {
                // Differences that cannot be computed cannot be reported to the kernel either.
                let found = self.differences(to).map_err(|e| Error::unsupported(e.to_string()))?;
                work().map(|()| found)
            },
            |before| {
                let name = self.dataset.name.lock().clone();
                let files = zpl::write::mount_after(&spa, &name, before)?;
                *self.files.lock() = Some(Arc::clone(&files));
                Ok(files)
            },
        );
        // An unmount in between has already closed the old file system.
        if self.mounted.is_over() {
            self.files().map_or(Ok(()), |files| files.unmount())?;
        }
        done
    }

    fn detach(&self, force: bool) -> Result<()> {
        self.mounted.try_unmount(force).map_err(|e| match e.kind() {
            std::io::ErrorKind::ResourceBusy => {
                let why = e.get_ref().map(|why| format!(": {why}")).unwrap_or_default();
                Error::new(Kind::Busy, format!("pool or dataset is busy{why}"))
            }
            _ => e.into(),
        })?;
        // A failure to begin the close is reported by the close itself.
        let _ = self.files().map(|files| files.begin_unmount());
        Ok(())
    }

    fn unmount(&self, force: bool) -> Result<()> {
        self.detach(force)?;
        let closed = self.files().map_or(Ok(()), |files| files.unmount());
        // Changes in the memory of a suspended pool cannot be written.
        closed.or_else(|e| if force && e.kind() == Kind::Suspended { Ok(()) } else { Err(e) })
    }
}

impl Mounter for Fuse {
    fn mount(
        &self,
        pool: &Arc<Imported>,
        dataset: &str,
        at: &Path,
        options: &[String],
    ) -> Result<Box<dyn Mount>> {
        pool.mounts.settle();
        let view = pool.view()?;
        let head = view.dsl.dataset(dataset)?;
        let wanted = Wanted::of(&head, options)?;
        let ready = if wanted.overlay { Ready::Overlay } else { Ready::Empty };
        let inherited = inherited(&head, at);
        let spot = Spot { at, ready, inherited };
        let named = Arc::new(Named { pool: Arc::downgrade(pool), name: Mutex::new(dataset.to_owned()) });
        let standing = |mounted, files, options: &[String]| {
            let (dataset, options) = (Arc::clone(&named), Mutex::new(options.to_vec()));
            let files = Mutex::new(files);
            Box::new(Standing { mounted, files, dataset, options })
        };
        let only_read = |head, options: &[String]| {
            let how = MountOptions { allow_other: is_root(), ready, inherited, alone: true };
            let mounted = zfuse::mount(&view, head, at, how).map_err(cause)?;
            Ok::<Box<dyn Mount>, Error>(standing(mounted, None, options))
        };
        let as_read_only = || options.iter().cloned().chain(["ro".to_owned()]).collect::<Vec<String>>();
        if head.is_snapshot() {
            return only_read(head, options);
        }
        if pool.is_read_only() {
            return only_read(head, &as_read_only());
        }
        let spa = pool.spa()?;
        let files = match zpl::write::mount(spa, dataset, wanted.overrides) {
            // A file system that can only be read, e.g. of an old version, is mounted as if read-only were
            // requested.
            Err(e) if e.kind() == Kind::Unsupported => return only_read(head, &as_read_only()),
            // A read-only mount of a log that cannot be replayed shows the replayable part. Without the right key there is
            // nothing to show.
            Err(e) if wanted.live.read_only && !matches!(e.kind(), Kind::Busy | Kind::KeyWrong) => {
                eprintln!("{dataset}: {e}");
                return only_read(head, options);
            }
            files => files?,
        };
        let admin = Arc::clone(&named) as Arc<dyn SnapshotAdmin>;
        match mount_live(&spa.view()?, head, Arc::clone(&files), spot, wanted.live, Some(admin)) {
            Ok(mounted) => Ok(standing(mounted, Some(files), options)),
            Err(e) => {
                files.unmount()?;
                Err(cause(e))
            }
        }
    }
}

/// The number of trailing path components that are dataset names below the dataset from which the mountpoint is
/// inherited, see [`Spot`].
pub fn inherited(dataset: &Dataset, at: &Path) -> usize {
    let node = Node::Dataset(dataset.clone(), DatasetKind::Filesystem);
    let Some(found) = Props::new(&node, 0).native(ZfsProp::Mountpoint) else { return 0 };
    let depth = |name: &str| name.matches('/').count();
    match &found.source {
        _ if Path::new(found.value(true)) != at => 0,
        Source::Inherited(from) => depth(&dataset.name).saturating_sub(depth(from)),
        Source::Default => depth(&dataset.name),
        _ => 0,
    }
}

/// The error that a caller shall get when flags of a mount were changed. Those that only root may change, and those of a mount
/// below another one, apply in the mount itself; the kernel is told of them with the next change.
fn told(done: std::io::Result<()>) -> Result<()> {
    match done.map_err(|e| (Errno::from_io_error(&e), e)) {
        Err((Some(Errno::BUSY), _)) => Err(Error::new(Kind::Busy, "mountpoint or dataset is busy")),
        Err((Some(Errno::PERM | Errno::INVAL), _)) | Ok(()) => Ok(()),
        Err((_, e)) => Err(e.into()),
    }
}

/// The reason why a mount failed.
fn cause(e: std::io::Error) -> Error {
    const LINK: &str = "the way to its mountpoint has a symbolic link that another user may have put there";
    match e.kind() {
        std::io::ErrorKind::DirectoryNotEmpty => Error::new(Kind::NotEmpty, "directory is not empty"),
        _ if Errno::from_io_error(&e) == Some(Errno::LOOP) => Error::new(Kind::NotPermitted, LINK),
        // Nothing else of a mount writes.
        std::io::ErrorKind::ReadOnlyFilesystem => {
            Error::new(Kind::Io, "failed to create mountpoint: Read-only file system")
        }
        _ => e.into(),
    }
}

/// Whether the daemon runs as root, which mounts for every user.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The combined effect of properties and options.
struct Wanted {
    live: LiveOptions,
    overrides: Overrides,
    overlay: bool,
    /// Unknown options are passed over.
    is_sloppy: bool,
}

impl Wanted {
    fn of(dataset: &Dataset, options: &[String]) -> Result<Self> {
        let node = Node::Dataset(dataset.clone(), DatasetKind::Filesystem);
        let props = Props::new(&node, 0);
        let value = |prop: ZfsProp| props.native(prop).map(|p| p.value(true).to_owned()).unwrap_or_default();
        let on = |prop: ZfsProp| value(prop) == "on";
        let mut wanted = Self {
            live: LiveOptions {
                read_only: on(ZfsProp::Readonly),
                setuid: on(ZfsProp::Setuid) && is_root(),
                devices: on(ZfsProp::Devices) && is_root(),
                exec: on(ZfsProp::Exec),
                snapdir: match value(ZfsProp::Snapdir).as_str() {
                    "visible" => Snapdir::Visible,
                    "disabled" => Snapdir::Disabled,
                    _ => Snapdir::Hidden,
                },
                atime: on(ZfsProp::Atime),
                relatime: on(ZfsProp::Relatime),
                posix_acl: value(ZfsProp::Acltype) == "posix",
                xattr: value(ZfsProp::Xattr) != "off",
                allow_other: is_root(),
                ..LiveOptions::default()
            },
            overrides: Overrides::default(),
            overlay: on(ZfsProp::Overlay),
            is_sloppy: options.iter().any(|option| option == SLOPPY),
        };
        options.iter().try_for_each(|option| wanted.apply(option))?;
        Ok(wanted)
    }

    /// Applies a temporary mount option, which overrides its property.
    fn apply(&mut self, option: &str) -> Result<()> {
        let live = &mut self.live;
        match option {
            "ro" | "rw" => {
                live.read_only = option == "ro";
                self.overrides.read_only = Some(live.read_only);
            }
            "suid" | "setuid" => live.setuid = is_root(),
            "nosuid" | "nosetuid" => live.setuid = false,
            "dev" | "devices" => live.devices = is_root(),
            "nodev" | "nodevices" => live.devices = false,
            "exec" => live.exec = true,
            "noexec" => live.exec = false,
            "xattr" => live.xattr = true,
            "noxattr" => live.xattr = false,
            "atime" | "noatime" => {
                live.atime = option == "atime";
                self.overrides.atime = Some(live.atime);
            }
            "relatime" | "norelatime" | "strictatime" => {
                live.relatime = option == "relatime";
                self.overrides.relatime = Some(live.relatime);
            }
            "diratime" | "nodiratime" => live.dir_atime = option == "diratime",
            "sync" | "async" => live.sync = option == "sync",
            "lazytime" | "nolazytime" => live.lazytime = option == "lazytime",
            "overlay" => self.overlay = true,
            other if is_label(other) => {
                // Without SELinux these have no meaning, and OpenZFS ignores them, too.
                if Path::new(SELINUX).exists() {
                    let what = format!("'{other}': SELinux labels cannot be set on a FUSE mount of Aquifer");
                    return Err(Error::new(Kind::Unsupported, what));
                }
            }
            other if PASSED_OVER.contains(&other) || other == SLOPPY || self.is_sloppy => {}
            other => return Err(Error::new(Kind::Invalid, format!("invalid mount option '{other}'"))),
        }
        Ok(())
    }
}

/// Has unknown options passed over: `mount -s`.
pub const SLOPPY: &str = "sloppy";
/// This file exists where SELinux is enabled.
const SELINUX: &str = "/sys/fs/selinux/enforce";
/// Options without a meaning here; OpenZFS accepts them, too.
const PASSED_OVER: [&str; 10] =
    ["defaults", "zfsutil", "mand", "nomand", "iversion", "noiversion", "quiet", "loud", "nosub", "sub"];

/// Whether an option sets SELinux labels.
fn is_label(option: &str) -> bool {
    let labels = ["context=", "fscontext=", "defcontext=", "rootcontext="];
    labels.iter().any(|label| option.starts_with(label))
}

/// The property that an option overrides, and its new value.
#[doc(alias = "get_numeric_property")]
fn hides(option: &str) -> Option<(ZfsProp, bool)> {
    let (word, on) = option.strip_prefix("no").map_or((option, true), |word| (word, false));
    Some(match word {
        "ro" => (ZfsProp::Readonly, on),
        "rw" => (ZfsProp::Readonly, !on),
        "suid" | "setuid" => (ZfsProp::Setuid, on),
        "dev" | "devices" => (ZfsProp::Devices, on),
        "exec" => (ZfsProp::Exec, on),
        "xattr" => (ZfsProp::Xattr, on),
        "atime" => (ZfsProp::Atime, on),
        "relatime" => (ZfsProp::Relatime, on),
        "strictatime" => (ZfsProp::Relatime, false),
        _ => return None,
    })
}
