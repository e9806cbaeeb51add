//! `mount.zfs`: the helper that `mount -t zfs` and lines of fstab call; and `mount.fuse.zfs`, which `mount -o remount` calls
//! with the type that the kernel shows for our mounts.

use std::path::PathBuf;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::members::pools_of;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::DatasetKind;

use super::mount::{LEGACY, mounter, mountpoint};
use crate::fuse::SLOPPY;

/// Set when `zfs mount` is the caller: then the file system's own mount point is meant.
const ASKED_BY_ZFS: &str = "zfsutil";
/// Options that are for programs around mounts.
const FOR_OTHERS: [&str; 7] = ["auto", "noauto", "nofail", "_netdev", "user", "nouser", "owner"];

/// Options by which the kernel describes a FUSE mount, and which mount(8) repeats when it changes others.
const OF_FUSE: [&str; 8] = [
    "user_id=",
    "group_id=",
    "default_permissions",
    "allow_other",
    "max_read=",
    "blksize=",
    "fsname=",
    "subtype=",
];

/// Asks for other options of a mount that stands.
const REMOUNT: &str = "remount";

/// Mount a file system with mountpoint=legacy, or a snapshot, on a given directory.
#[derive(Debug, Args)]
pub struct MountHelper {
    /// Ignore unknown options.
    #[arg(short = 's')]
    pub sloppy: bool,
    /// Mount nothing.
    #[arg(short = 'f')]
    pub fake: bool,
    /// Do not record the mount in /etc/mtab.
    #[arg(short = 'n')]
    pub unnoted: bool,
    /// Print the progress.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// The type of the file system, with that of FUSE in front.
    #[arg(short = 't', value_name = "TYPE")]
    pub fs_type: Option<String>,
    /// The namespace.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Options, comma separated.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// The file system or snapshot, or a device of a pool, which means its root file system.
    pub dataset: String,
    /// The directory.
    pub mountpoint: PathBuf,
}

impl Verb for MountHelper {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let of_device = self.pool_of_device(ctx)?;
        let name = of_device.as_ref().unwrap_or(&self.dataset);
        let failed = |what: String| Failure::failed(format!("filesystem '{name}' {what}"));
        let target = Target::of(name, ctx)?;
        let dataset = target.dataset()?;
        let asks = |wanted: &str| self.options.iter().any(|option| option == wanted);
        let (util, remounts) = (asks(ASKED_BY_ZFS), asks(REMOUNT));
        let is_legacy =
            matches!(dataset.kind(), Ok(DatasetKind::Filesystem)) && mountpoint(&target)? == LEGACY;
        // Boot scripts change the options of any mount.
        if !util && !remounts && !dataset.is_snapshot() && !is_legacy {
            return Err(failed(format!(
                "cannot be mounted using 'mount'.\nUse 'zfs set mountpoint=legacy' or 'zfs mount {name}'.\nSee zfs(8) for more information."
            )));
        }
        let at = ctx.session()?.path(&*self.mountpoint.to_string_lossy());
        if zfuse::mount_helper::is_folder(&at).is_err() {
            return Err(failed(format!("cannot be mounted at '{}': no such folder", at.display())));
        }
        if self.fake {
            return Ok(Exit::OK);
        }
        let options = self.options();
        let cannot = |e: engine::Error| failed(format!("can not be mounted: {}", e.what()));
        if remounts {
            let writable = options.iter().rfind(|option| matches!(option.as_str(), "ro" | "rw"));
            if dataset.is_snapshot() && writable.is_some_and(|option| option == "rw") {
                return Err(failed("can not be mounted: a snapshot is read-only".to_owned()));
            }
            target.pool.mounts.remount(name, &options).map_err(cannot)?;
            return Ok(Exit::OK);
        }
        if let Some(there) = target.pool.mounts.at(name) {
            if target.pool.mounts.mounted_at(&at).is_some_and(|here| here == *name) || there == at {
                return Err(failed(format!("is already mounted at '{}'", at.display())));
            }
            target.pool.mounts.again(name, &at, &options).map_err(cannot)?;
            return Ok(Exit::OK);
        }
        let options = [options, vec!["overlay".to_owned()]].concat();
        let mount = mounter(ctx)?.mount(&target.pool, name, &at, &options);
        let mount = mount.map_err(cannot)?;
        target.pool.mounts.note(name, at, mount);
        Ok(Exit::OK)
    }
}

impl MountHelper {
    /// The pool whose root file system is meant, if a device of one is named instead of a dataset.
    #[doc(alias = "parse_dataset")]
    fn pool_of_device(&self, ctx: &Ctx) -> Result<Option<String>, Failure> {
        if !self.dataset.starts_with('/') {
            return Ok(None);
        }
        let device = ctx.session()?.path(&self.dataset);
        Ok(pools_of(&device, ctx).first().map(|pool| pool.name()))
    }

    /// The options for the file system.
    fn options(&self) -> Vec<String> {
        let ours = |option: &&String| {
            let word = option.as_str();
            !FOR_OTHERS.contains(&word)
                && word != REMOUNT
                && !OF_FUSE.iter().any(|name| word.starts_with(name))
                && !word.starts_with("x-")
                && !word.starts_with("comment=")
        };
        let sloppy = self.sloppy.then(|| SLOPPY.to_owned());
        self.options.iter().filter(ours).cloned().chain(sloppy).collect()
    }
}
