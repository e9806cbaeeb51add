//! A pool of which no device is there, as a cached configuration describes it.

use nvpair::NvList;
use zcommon::vdev::PoolState;

use crate::search::PoolCandidate;

impl PoolCandidate {
    /// The pool of a configuration of a cache file, without devices.
    pub fn absent(config: &NvList) -> Self {
        let text = |name: &str| config.str(name).map(str::to_owned);
        let number = |name: &str| config.u64(name).unwrap_or(0);
        Self {
            name: text("name").unwrap_or_default(),
            guid: number("pool_guid"),
            state: PoolState::from_number(number("state")).unwrap_or(PoolState::Active),
            txg: number("txg"),
            version: number("version"),
            hostid: number("hostid"),
            hostname: text("hostname").unwrap_or_default(),
            comment: text("comment"),
            features_for_read: Vec::new(),
            config: config.clone(),
            members: std::collections::BTreeMap::new(),
            notes: Vec::new(),
            left: Vec::new(),
        }
    }
}
