//! Devices for pools: opens them exclusively and checks them before use.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use blkdev::{BlockDevice, Device, FileDevice, Identity, OpenMode, OpenOptions};
use engine::spa::devices::Reopened;
use engine::{Error, Kind, Result};
use nvpair::NvList;
use ondisk::Uberblock;
use zcommon::health::Health;
use zcommon::vdev::{PoolState, VdevAux};
use zutil::assess::{Presence, assess};
use zutil::discover::probe;
use zutil::label::{DeviceLabels, LabelCopy, LabelFault};
use zutil::open::OpenedPool;
use zutil::tree::VdevNode;
use zutil::{PoolCandidate, Trust};

/// The open options of a pool's own devices.
pub const OWNED: OpenOptions =
    OpenOptions { mode: OpenMode::Exclusive, cache: blkdev::CacheMode::Auto, threads: 4 };

/// The open options of the devices of a pool that is imported read-only: its owner must not lose them to a new pool.
const READ_ONLY: OpenOptions = OpenOptions { mode: OpenMode::ReadShared, ..OWNED };

/// Maximum wait for a device that is being released: after an export the last completion of a device may still be
/// pending.
const LETTING_GO: Duration = Duration::from_secs(2);

/// Retries until the device is no longer held, or the wait times out.
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

/// Opens a device for a pool: `WouldBlock` or `ResourceBusy` if another process keeps it open.
pub fn open(path: &Path) -> io::Result<Device> {
    let held = |e: &io::Error| matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy);
    Ok(Arc::new(patiently(|| FileDevice::open(path, OWNED), held)?))
}

/// Reopens the device of a leaf; without a matching device, returns the leaf's state.
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

/// The pool of this guid on the devices at `paths`.
pub(crate) fn candidate_at(paths: &[PathBuf], guid: u64) -> Option<PoolCandidate> {
    if paths.is_empty() {
        return None;
    }
    zutil::import::candidates(paths).into_iter().find(|found| found.guid == guid)
}

/// Whether a device has a later state of the pool than the present one, so that another system wrote it. `present` is asked after
/// the device was read, because the pool may go on meanwhile.
#[doc(alias = "vdev_label_read_config")]
pub fn is_ahead(device: &dyn BlockDevice, pool_guid: u64, present: impl FnOnce() -> Uberblock) -> bool {
    let slots = zutil::ring::read_uberblocks(device, None);
    let label = label_txg(device, pool_guid).unwrap_or(0);
    let last = present();
    // An earlier pool left its uberblocks.
    let ours = slots.iter().filter(|slot| slot.uberblock.guid_sum == last.guid_sum);
    let mut txgs = ours.filter(|slot| slot.trust == Trust::Verified).map(|slot| slot.uberblock.txg);
    // Vdevs that left or joined the pool there changed the sum of the guids, but then the label was written, too.
    txgs.any(|txg| txg > last.txg + 1) || label > last.txg + 1
}

/// The newest txg in the labels that a device has of this pool.
pub(crate) fn label_txg(device: &dyn BlockDevice, pool_guid: u64) -> Option<u64> {
    let labels = DeviceLabels::read(device);
    let ours = labels
        .usable()
        .filter(|(copy, label)| copy.trust == Trust::Verified && label.u64("pool_guid") == Some(pool_guid));
    ours.filter_map(|(_, label)| label.u64("txg")).max()
}

/// Whether a device has the label of this vdev.
#[doc(alias = "vdev_validate_aux")]
pub(crate) fn is_of(device: &dyn BlockDevice, guid: u64) -> bool {
    DeviceLabels::read(device).best().and_then(|label| label.u64("guid")) == Some(guid)
}

/// Whether a device can be read, and none of its labels is of the leaf.
pub(crate) fn is_foreign(device: &dyn BlockDevice, leaf: u64) -> bool {
    let labels = DeviceLabels::read(device);
    let unreadable = |copy: &LabelCopy| matches!(copy.config, Err(LabelFault::Unreadable(_)));
    !labels.copies.iter().any(unreadable)
        && !labels.usable().any(|(_, config)| config.u64("guid") == Some(leaf))
}

/// Ignores that the leaf is out of use.
fn allow(vdev: &mut VdevNode, leaf: u64) {
    if vdev.guid == leaf {
        (vdev.offline, vdev.faulted) = (false, false);
    }
    vdev.children.iter_mut().for_each(|child| allow(child, leaf));
}

/// The identity of the device at a path.
pub fn identity(path: &Path) -> io::Result<Identity> {
    let options = OpenOptions { threads: 1, ..OpenOptions::default() };
    Ok(FileDevice::open(path, options)?.identity())
}

/// The content of a device that a new pool would destroy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InUse {
    /// A spare of this guid.
    Spare(u64),
    /// A cache device of this guid.
    Cache(u64),
    /// Part of an active pool, here or elsewhere.
    Active(String),
    /// Part of a pool that was exported.
    Exported(String),
}

/// The use of a device according to its labels; `None` if it is free.
#[doc(alias = "zpool_in_use")]
pub fn in_use(path: &Path) -> Option<InUse> {
    in_use_by(&probe(path).ok().flatten()?.labels)
}

/// The content of a device's best label.
pub fn label_of(path: &Path) -> Option<NvList> {
    probe(path).ok().flatten()?.labels.best().cloned()
}

/// The use that labels tell; `None` if they leave the device free.
pub(crate) fn in_use_by(labels: &DeviceLabels) -> Option<InUse> {
    let label = labels.best()?;
    let guid = label.u64("guid").unwrap_or(0);
    let name = label.str("name").unwrap_or_default().to_owned();
    match label.u64("state").and_then(PoolState::from_number)? {
        PoolState::Spare => Some(InUse::Spare(guid)),
        PoolState::L2cache => Some(InUse::Cache(guid)),
        PoolState::Exported => Some(InUse::Exported(name)),
        PoolState::Destroyed => None,
        // A label with txg 0 belongs to a pool that was never completed.
        _ if label.u64("txg") == Some(0) => None,
        _ => Some(InUse::Active(name)),
    }
}

/// Opens all devices of a pool as its owner.
///
/// # Errors
/// `Busy` if another process keeps one of them open, `ReadOnly` if one can only be read; none is kept then.
pub fn open_all(candidate: &PoolCandidate) -> Result<OpenedPool> {
    patiently(|| try_open_all(candidate, OWNED), |e| e.kind() == Kind::Busy)
}

/// As [`open_all`], for reading.
///
/// # Errors
/// `Busy` if another process keeps one of them open for writing.
pub fn open_all_read_only(candidate: &PoolCandidate) -> Result<OpenedPool> {
    patiently(|| try_open_all(candidate, READ_ONLY), |e| e.kind() == Kind::Busy)
}

fn try_open_all(candidate: &PoolCandidate, options: OpenOptions) -> Result<OpenedPool> {
    let opened = candidate.open(options);
    let tree = candidate.config.nvlist("vdev_tree").and_then(VdevNode::from_config);
    let leaves: HashSet<u64> = tree.iter().flat_map(VdevNode::walk).map(|vdev| vdev.guid).collect();
    // Spares and cache devices name no pool in their labels, or the one that used them last: one that is in use is another
    // pool's.
    let is_own = |path: &Path| {
        let mut own =
            candidate.members.values().filter(|member| member.txg != 0 && leaves.contains(&member.guid));
        own.any(|member| member.path == path)
    };
    // An unreadable device is missing.
    let refused = opened.failed.iter().find(|(path, _)| is_own(path) && identity(path).is_ok());
    match refused {
        None => Ok(opened),
        Some((path, why)) => Err(refusal(why).on_vdev(&path.to_string_lossy())),
    }
}

/// Why a device that can be read is not opened by its owner: its medium takes no writes, or it is in use.
fn refusal(why: &io::Error) -> Error {
    let (kind, what) = match why.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            (Kind::ReadOnly, "one or more devices is read only\nimport the pool with '-o readonly=on'")
        }
        _ => (Kind::Busy, "one or more devices are already in use"),
    };
    Error::new(kind, what).because(Error::new(kind, why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_that_takes_no_writes_is_not_in_use() {
        let of = |errno: i32| refusal(&io::Error::from_raw_os_error(errno));
        let (access, busy, read_only) = (13, 16, 30);
        for errno in [access, read_only] {
            let why = of(errno);
            assert!(why.kind() == Kind::ReadOnly && why.what().contains("readonly=on"), "{why}");
        }
        assert_eq!(of(busy).kind(), Kind::Busy);
    }
}
