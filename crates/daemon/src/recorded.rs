//! The record of a pool in the cache file, compared with its devices before a daemon that starts takes the pool.
//!
//! While the daemon had no control, another system may have imported, exported, renamed or destroyed the pool, and the devices
//! that are there now may be those that had left it. Such a pool waits for `zpool import`, where its administrator sees its
//! state.
//!
//! Differs from OpenZFS, which compares the labels' state with the cached configuration only: a daemon that stops exports its
//! pools, so the file records that state and its txg; and a set of devices whose newest state is older than the recorded
//! one is refused, where OpenZFS takes the devices that the file marks as offline for absent.

use engine::{Error, Kind, Result};
use nvpair::NvList;
use zcommon::vdev::PoolState;
use zutil::PoolCandidate;

use crate::devices;
use crate::imported::Imported;

/// Entry of a configuration in the cache file of a daemon that records the state in which it left the pool. Files of earlier
/// versions say that each pool is active.
const RECORDS_STATE: &str = "aquifer:records_state";

/// The configuration of an imported pool, or of one that was just exported, for the daemon's cache file.
pub fn config(pool: &Imported) -> NvList {
    let mut config = pool.config();
    config.add(RECORDS_STATE, 1u64);
    config
}

/// Refuses a pool that is not in the state that the daemon left it in.
///
/// # Errors
/// `NoDevice` if the state on its devices is older than the recorded one: devices may be missing. `NotPermitted` if another
/// system has changed it. Any error of opening the devices.
#[doc(alias = "vdev_validate")]
pub fn check(config: &NvList, candidate: &PoolCandidate) -> Result<()> {
    let state = config.u64("state").filter(|_| config.u64(RECORDS_STATE).is_some());
    let changed = |what: &str| {
        let what =
            format!("{what} since this system had it: look at it with 'zpool import', and import it there");
        Err(Error::new(Kind::NotPermitted, what))
    };
    let was_exported = state == Some(PoolState::Exported as u64);
    match candidate.state {
        PoolState::Destroyed => return changed("it was destroyed"),
        PoolState::Exported if state == Some(PoolState::Active as u64) => return changed("it was exported"),
        PoolState::Active if was_exported => return changed("another system imported it"),
        _ => {}
    }
    if let Some(old) = config.str("name").filter(|old| *old != candidate.name) {
        return changed(&format!("it was renamed from '{old}' to '{}'", candidate.name));
    }
    let txg = config.u64("txg").unwrap_or(0);
    match newest(candidate)? {
        found if found < txg => {
            let what = format!(
                "its devices that are here have a state of txg {found}, and this system wrote txg {txg}: connect the others, or \
                 import the older state with 'zpool import'"
            );
            Err(Error::new(Kind::NoDevice, what))
        }
        found if was_exported && found > txg => changed("another system used and exported it"),
        _ => Ok(()),
    }
}

/// The txg of the newest state on its devices; 0: there is none.
fn newest(candidate: &PoolCandidate) -> Result<u64> {
    let opened = devices::open_all_read_only(candidate)?;
    let source = zutil::import::gathered(candidate, opened);
    Ok(source.uberblocks.iter().map(|found| found.uberblock.txg).max().unwrap_or(0))
}
