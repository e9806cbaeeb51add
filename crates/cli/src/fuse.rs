//! How the daemon mounts file systems: over FUSE, as their properties and the command's options say.

use std::path::Path;
use std::sync::Arc;

use daemon::Imported;
use daemon::mounts::{Mount, Mounter};
use engine::dsl::{Dataset, DatasetKind};
use engine::{Error, Kind, Result};
use zcommon::props::ZfsProp;
use zfuse::{LiveOptions, MountOptions, Mounted, detach, mount_live};
use zpl::write::{FsWriter, Overrides};

use crate::zfs::prop::{Node, Props};

/// Mounts over FUSE.
#[derive(Debug)]
pub struct Fuse;

/// One mount.
#[derive(Debug)]
struct Standing {
    mounted: Mounted,
    /// `None` for a pool that was imported read-only.
    files: Option<Arc<FsWriter>>,
}

impl Mount for Standing {
    fn unmount(&self, force: bool) -> Result<()> {
        self.mounted.try_unmount(force).map_err(|e| match e.kind() {
            std::io::ErrorKind::ResourceBusy => Error::new(Kind::Busy, "pool or dataset is busy"),
            _ => e.into(),
        })?;
        self.files.as_ref().map_or(Ok(()), |files| files.unmount())
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
        let view = pool.view()?;
        let head = view.dsl.dataset(dataset)?;
        let wanted = Wanted::of(&head, options)?;
        prepare(at, wanted.overlay)?;
        if pool.is_read_only() {
            let mounted = zfuse::mount(&view, head, at, MountOptions { allow_other: is_root(), threads: 0 })?;
            return Ok(Box::new(Standing { mounted, files: None }));
        }
        let spa = pool.spa()?;
        let files = zpl::write::mount(spa, dataset, wanted.overrides)?;
        match mount_live(&spa.pool, head, Arc::clone(&files), at, wanted.live) {
            Ok(mounted) => Ok(Box::new(Standing { mounted, files: Some(files) })),
            Err(e) => {
                files.unmount()?;
                Err(e.into())
            }
        }
    }
}

/// Root mounts for everybody.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What properties and options come to.
struct Wanted {
    live: LiveOptions,
    overrides: Overrides,
    overlay: bool,
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
                show_ctl: value(ZfsProp::Snapdir) == "visible",
                posix_acl: value(ZfsProp::Acltype) == "posix",
                xattr: value(ZfsProp::Xattr) != "off",
                allow_other: is_root(),
            },
            overrides: Overrides::default(),
            overlay: on(ZfsProp::Overlay),
        };
        options.iter().try_for_each(|option| wanted.apply(option))?;
        Ok(wanted)
    }

    /// A temporary mount option hides a property.
    fn apply(&mut self, option: &str) -> Result<()> {
        let live = &mut self.live;
        match option {
            "ro" => live.read_only = true,
            "rw" => live.read_only = false,
            "suid" | "setuid" => live.setuid = is_root(),
            "nosuid" | "nosetuid" => live.setuid = false,
            "dev" | "devices" => live.devices = is_root(),
            "nodev" | "nodevices" => live.devices = false,
            "exec" => live.exec = true,
            "noexec" => live.exec = false,
            "xattr" => live.xattr = true,
            "noxattr" => live.xattr = false,
            "atime" => self.overrides.atime = Some(true),
            "noatime" => self.overrides.atime = Some(false),
            "relatime" => self.overrides.relatime = Some(true),
            "norelatime" | "strictatime" => self.overrides.relatime = Some(false),
            "defaults" | "zfsutil" => {}
            other => return Err(Error::new(Kind::Invalid, format!("invalid mount option '{other}'"))),
        }
        Ok(())
    }
}

/// Makes the place ready: what a dead daemon left there goes, a missing directory is made.
fn prepare(at: &Path, overlay: bool) -> Result<()> {
    const NOT_CONNECTED: i32 = 107;
    if let Err(e) = std::fs::metadata(at)
        && e.raw_os_error() == Some(NOT_CONNECTED)
    {
        detach(at, true)?;
    }
    std::fs::create_dir_all(at)?;
    let empty = std::fs::read_dir(at)?.next().is_none();
    match empty || overlay {
        true => Ok(()),
        false => Err(Error::new(Kind::NotEmpty, "directory is not empty")),
    }
}
