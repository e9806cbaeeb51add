//! `zpool labelclear`.
//!
//! Source: `zpool_do_labelclear`, zpool_main.c; `zpool_in_use`, libzfs_import.c; OpenZFS 2.4.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::members::{aux_of, read_only_pool_of, spare_at};
use clikit::verb::{Exit, Failure, Outcome, Verb, strerror};
use daemon::devices::{self, InUse};
use nvpair::NvList;
use ondisk::label::{LABEL_SIZE, LABELS, NVLIST_SIZE, PHYS_OFFSET, label_offset};

/// Clear the labels of a device that belongs to no pool.
#[derive(Debug, Args)]
pub struct Labelclear {
    /// Clear them even if the device was part of a pool, or is an offline device of one.
    #[arg(short = 'f')]
    pub force: bool,
    /// The device.
    pub device: PathBuf,
}

/// The relation of a device to a pool, as messages name it.
enum Member {
    /// A device of an imported pool: the word for its use, and the pool.
    Of(&'static str, String),
    /// A device of a pool that is not imported: the pool's presumed state, and the pool.
    Left(&'static str, String),
}

impl Member {
    #[doc(alias = "zpool_in_use")]
    fn find(path: &Path, ctx: &Ctx) -> Result<Option<Self>, Failure> {
        if let Some(pool) = read_only_pool_of(path, ctx) {
            return Ok(Some(Self::Of("ACTIVE", pool)));
        }
        let aux = |word, guid| aux_of(guid, ctx).map(|pool| Self::Of(word, pool));
        Ok(match devices::in_use(path) {
            Some(InUse::Exported(pool)) => Some(Self::Left("exported", pool)),
            Some(InUse::Active(pool)) => match spare_at(path, ctx) {
                Some(guid) => aux("SPARE", guid),
                None => Self::active(path, pool, ctx)?,
            },
            Some(InUse::Spare(guid)) => aux("SPARE", guid),
            Some(InUse::Cache(guid)) => aux("L2CACHE", guid),
            None => None,
        })
    }

    /// A device whose label names a pool in use. A disk that left an imported pool while it was offline is free.
    fn active(path: &Path, named: String, ctx: &Ctx) -> Result<Option<Self>, Failure> {
        let registry = ctx.registry()?;
        let label = devices::label_of(path).unwrap_or_default();
        let user = label.u64("guid").and_then(|guid| registry.user_of(guid));
        if let Some(user) = user {
            return Ok(Some(Self::Of("ACTIVE", user.name())));
        }
        let is_here = registry.all().iter().any(|pool| Some(pool.guid()) == label.u64("pool_guid"));
        Ok((!is_here).then_some(Self::Left("potentially active", named)))
    }
}

impl Verb for Labelclear {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let word = self.device.display().to_string();
        if self.device.is_absolute()
            && let Err(e) = std::fs::metadata(&self.device)
        {
            return Err(Failure::failed(format!("failed to open {word}: {}", strerror(&e))));
        }
        let known = super::vdevs::locate(&word, ctx);
        if known.is_none_or(|path| path.is_dir()) {
            return Err(Failure::failed(match self.device.is_absolute() {
                true => format!("failed to open {word}: Is a directory"),
                false => {
                    format!("failed to find device {word}, try specifying absolute path instead")
                }
            }));
        }
        let leaf = super::vdevs::find(&word, ctx)?;
        let shown = leaf.path.display();
        let member = Member::find(&leaf.path, ctx)?;
        match &member {
            Some(Member::Left(state, pool)) if !self.force => {
                return Err(Failure::failed(format!(
                    "use '-f' to override the following error:\n{shown} is a member of {state} pool \"{pool}\""
                )));
            }
            Some(Member::Of(state, pool)) if !self.force => {
                return Err(Failure::failed(format!("{shown} is a member ({state}) of pool \"{pool}\"")));
            }
            _ => {}
        }
        // A pool holds the devices that it uses, and has let go of those that are offline or faulted.
        let device = devices::open(&leaf.path).map_err(|e| match (e.kind(), &member) {
            (ErrorKind::WouldBlock | ErrorKind::ResourceBusy, Some(Member::Of(state, pool))) => {
                let advice = "Offline the disk first to clear its label.";
                Failure::failed(format!("{shown} is a member ({state}) of pool \"{pool}\". {advice}"))
            }
            (ErrorKind::WouldBlock | ErrorKind::ResourceBusy, _) => {
                Failure::failed(format!("{shown} is a member (ACTIVE) of an imported pool"))
            }
            _ => Failure::failed(format!("failed to open {shown}: {}", strerror(&e))),
        })?;
        let cleared = clear(&*device);
        match cleared.map_err(|e| Failure::failed(format!("failed to clear label for {shown}: {e}")))? {
            0 => Err(Failure::MinusOne(format!("failed to clear label for {shown}"))),
            _ => Ok(Exit::OK),
        }
    }
}

/// Writes zeros over the labels there are, and counts them. Areas that are no label are left alone.
#[doc(alias = "zpool_clear_label")]
fn clear(device: &dyn blkdev::BlockDevice) -> std::io::Result<u32> {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(0);
    let zeros = vec![0; size(LABEL_SIZE)];
    let mut cleared = 0;
    for at in (0..LABELS).filter_map(|index| label_offset(device.geometry().size, index)) {
        let packed = blkdev::read_at(device, at + PHYS_OFFSET, size(NVLIST_SIZE))?;
        let is_label = NvList::decode_prefix(&packed).is_ok_and(|(list, _, _)| list.u64("state").is_some());
        if is_label {
            blkdev::write_at(device, at, &zeros)?;
            cleared += 1;
        }
    }
    blkdev::flush(device).map(|()| cleared)
}
