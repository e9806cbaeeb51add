//! Devices for pools: opened so that nobody else can have them, and looked at before they are taken.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use blkdev::{Device, FileDevice, Identity, OpenMode, OpenOptions};
use engine::spa::devices::Reopened;
use engine::{Error, Kind, Result};
use nvpair::NvList;
use ondisk::Uberblock;
use zcommon::health::Health;
use zcommon::vdev::{PoolState, VdevAux};
use zutil::assess::{Presence, assess};
use zutil::discover::probe;
use zutil::open::OpenedPool;
use zutil::tree::VdevNode;
use zutil::{PoolCandidate, Trust};

/// What a pool's own devices are opened with.
pub const OWNED: OpenOptions =
    OpenOptions { mode: OpenMode::Exclusive, cache: blkdev::CacheMode::Auto, threads: 4 };

/// How long a device may be held by somebody who is letting it go: of a pool that was just exported, the last answer
/// of a device may be on its way still.
const LETTING_GO: Duration = Duration::from_secs(2);

/// Tries until it is no longer a device being held that stops it, or that has taken too long.
fn patiently<T, E>(
    mut attempt: impl FnMut() -> std::result::Result<T, E>,
    held: impl Fn(&E) -> bool,
) -> std::result::Result<T, E> {
    let until = Instant::now() + LETTING_GO;
    loop {
        match attempt() {
            Err(e) if held(&e) && Instant::now() < until => thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}

/// Opens a device for a pool: `WouldBlock` or `ResourceBusy` when somebody has it, and goes on having it.
pub fn open(path: &Path) -> io::Result<Device> {
    let held = |e: &io::Error| matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy);
    Ok(Arc::new(patiently(|| FileDevice::open(path, OWNED), held)?))
}

/// Opens the device of a leaf anew; without one that belongs there, how the leaf is.
#[doc(alias("vdev_open", "vdev_validate"))]
pub fn reopen(pool: &PoolCandidate, config: &NvList, leaf: u64) -> Reopened {
    let absent = Health::cant_open(VdevAux::OpenFailed);
    let tree = config.nvlist("vdev_tree").and_then(VdevNode::from_config);
    let mut tree = tree.ok_or(absent)?;
    let own = |node: &VdevNode| if node.guid == leaf { pool.look(node) } else { Presence::Absent };
    allow(&mut tree, leaf);
    assess(&mut tree, &own);
    let node = tree.walk().find(|node| node.guid == leaf).ok_or(absent)?;
    if !node.health.is_readable() {
        return Err(node.health);
    }
    let path = OsStr::from_bytes(node.path.as_deref().unwrap_or_default());
    open(Path::new(path)).map_err(|_| absent)
}

/// Whether a device knows of a later state of the pool than the one after `last`: somebody else wrote it.
pub fn is_ahead(device: &Device, last: &Uberblock) -> bool {
    let slots = zutil::ring::read_uberblocks(&**device, None);
    // A pool that was there before has left its own.
    let ours = slots.iter().filter(|slot| slot.uberblock.guid_sum == last.guid_sum);
    ours.filter(|slot| slot.trust == Trust::Verified).any(|slot| slot.uberblock.txg > last.txg + 1)
}

/// That it is out of use does not count.
fn allow(vdev: &mut VdevNode, leaf: u64) {
    if vdev.guid == leaf {
        (vdev.offline, vdev.faulted) = (false, false);
    }
    vdev.children.iter_mut().for_each(|child| allow(child, leaf));
}

/// Which device a path leads to.
pub fn identity(path: &Path) -> io::Result<Identity> {
    let options = OpenOptions { threads: 1, ..OpenOptions::default() };
    Ok(FileDevice::open(path, options)?.identity())
}

/// What a device holds that a new pool would destroy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InUse {
    /// A spare of this guid.
    Spare(u64),
    /// A cache device of this guid.
    Cache(u64),
    /// Part of a pool that is in use, here or elsewhere.
    Active(String),
    /// Part of a pool that was exported.
    Exported(String),
}

/// What the labels of a device say of its use; `None` when it may be taken.
#[doc(alias = "zpool_in_use")]
pub fn in_use(path: &Path) -> Option<InUse> {
    let found = probe(path).ok().flatten()?;
    let label = found.labels.best()?;
    let guid = label.u64("guid").unwrap_or(0);
    let name = label.str("name").unwrap_or_default().to_owned();
    match label.u64("state").and_then(PoolState::from_number)? {
        PoolState::Spare => Some(InUse::Spare(guid)),
        PoolState::L2cache => Some(InUse::Cache(guid)),
        PoolState::Exported => Some(InUse::Exported(name)),
        PoolState::Destroyed => None,
        // A label with txg 0 was written for a pool that never came to be.
        _ if label.u64("txg") == Some(0) => None,
        _ => Some(InUse::Active(name)),
    }
}

/// Opens all devices of a pool as its owner.
///
/// # Errors
/// `Busy` when somebody else has one of them, and goes on having it; none is kept then.
pub fn open_all(candidate: &PoolCandidate) -> Result<OpenedPool> {
    patiently(|| try_open_all(candidate), |e| e.kind() == Kind::Busy)
}

fn try_open_all(candidate: &PoolCandidate) -> Result<OpenedPool> {
    let opened = candidate.open(OWNED);
    // A device that can be read but not had is held by someone; one that can't be read is just missing.
    let held = opened.failed.iter().find(|skipped| identity(&skipped.path).is_ok());
    match held {
        None => Ok(opened),
        Some(skipped) => {
            let what = "one or more devices are already in use";
            Err(Error::new(Kind::Busy, what)
                .on_vdev(&skipped.path.to_string_lossy())
                .because(Error::new(Kind::Busy, skipped.why.clone())))
        }
    }
}
