//! `mount.zfs`: what `mount -t zfs` and lines of fstab call.

use std::path::PathBuf;

use clap::Args;

use super::mount::{mounter, place_of};
use super::target::Target;
use crate::ctx::Ctx;
use crate::verb::{Exit, Failure, Outcome, Verb};

/// Set when `zfs mount` is what calls: then the file system's own mount point is meant.
const ASKED_BY_ZFS: &str = "zfsutil";
/// Options that are for programs around mounts.
const FOR_OTHERS: [&str; 7] = ["auto", "noauto", "nofail", "_netdev", "user", "nouser", "owner"];

/// Mount a file system whose mount point is `legacy`, or a snapshot, where it is asked for.
#[derive(Debug, Args)]
pub struct MountHelper {
    /// Options that are not known are passed over.
    #[arg(short = 's')]
    pub sloppy: bool,
    /// Mount nothing.
    #[arg(short = 'f')]
    pub fake: bool,
    /// Do not note the mount.
    #[arg(short = 'n')]
    pub unnoted: bool,
    /// Say what is done.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Options, comma separated.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// The file system or snapshot.
    pub dataset: String,
    /// The folder.
    pub mountpoint: PathBuf,
}

impl Verb for MountHelper {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let name = &self.dataset;
        let failed = |what: String| Failure::failed(format!("filesystem '{name}' {what}"));
        let target = Target::of(name, ctx)?;
        let dataset = target.dataset()?;
        let util = self.options.iter().any(|option| option == ASKED_BY_ZFS);
        if !util && !dataset.is_snapshot() && !is_legacy(place_of(&dataset, true)) {
            return Err(failed(format!(
                "cannot be mounted using 'mount'.\nUse 'zfs set mountpoint=legacy' or 'zfs mount {name}'.\nSee zfs(8) for more information."
            )));
        }
        let at = ctx.session()?.path(&*self.mountpoint.to_string_lossy());
        if zfuse::hands::is_folder(&at).is_err() {
            return Err(failed(format!("cannot be mounted at '{}': no such folder", at.display())));
        }
        if target.pool.mounts.at(name).is_some() {
            return Err(failed("is already mounted".to_owned()));
        }
        if self.fake {
            return Ok(Exit::OK);
        }
        let known = |option: &&String| !FOR_OTHERS.contains(&option.as_str());
        let options: Vec<String> = self.options.iter().filter(known).cloned().collect();
        let options = [options, vec!["overlay".to_owned()]].concat();
        let mount = mounter(ctx)?.mount(&target.pool, name, &at, &options);
        let mount = mount.map_err(|e| failed(format!("can not be mounted: {}", e.what())))?;
        target.pool.mounts.note(name, at, mount);
        Ok(Exit::OK)
    }
}

fn is_legacy(place: Result<Option<String>, String>) -> bool {
    place.is_err_and(|what| what.starts_with("legacy"))
}
