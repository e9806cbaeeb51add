//! Opens the devices of a pool, and collects the uberblocks that they hold.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use blkdev::{Device, FileDevice, OpenOptions};
use ondisk::Uberblock;

use crate::label::Trust;
use crate::ring::{Slot, read_uberblocks};
use crate::search::{Member, PoolCandidate};

/// Number of members with concurrent reads of their uberblock rings.
const WORKERS: usize = 8;

/// An uberblock, and how often it was found.
#[derive(Debug, Clone)]
pub struct FoundUberblock {
    /// The uberblock; its checksum was right everywhere it is counted.
    pub uberblock: Uberblock,
    /// Slots that hold it, over all devices and labels.
    pub copies: u32,
    /// Devices that hold it, by leaf guid.
    pub holders: Vec<u64>,
}

/// The open devices of a pool.
#[derive(Debug, Default)]
pub struct OpenedPool {
    /// Devices by leaf guid.
    pub devices: HashMap<u64, Device>,
    /// Devices that could be read a moment ago and can't be opened now.
    pub failed: Vec<(PathBuf, io::Error)>,
    /// Every verified uberblock, best first.
    pub uberblocks: Vec<FoundUberblock>,
}

impl PoolCandidate {
    /// Opens every device of the pool and reads its uberblocks.
    pub fn open(&self, options: OpenOptions) -> OpenedPool {
        let mut opened = OpenedPool::default();
        for (guid, member) in &self.members {
            match FileDevice::open(&member.path, options) {
                Ok(device) => {
                    opened.devices.insert(*guid, Arc::new(device));
                }
                Err(err) => {
                    opened.failed.push((member.path.clone(), err));
                }
            }
        }
        opened.uberblocks = self.uberblocks(&opened.devices);
        opened
    }

    /// As [`PoolCandidate::open`], with devices that are open already, by leaf guid.
    pub fn with_devices(&self, devices: HashMap<u64, Device>) -> OpenedPool {
        let uberblocks = self.uberblocks(&devices);
        OpenedPool { devices, failed: Vec::new(), uberblocks }
    }

    /// The verified uberblocks of this pool on its devices, best first.
    pub(crate) fn uberblocks(&self, devices: &HashMap<u64, Device>) -> Vec<FoundUberblock> {
        // Spares and cache devices have rings too, but never of this pool.
        let holders = self.members.values().filter(|member| member.txg != 0);
        let work: Vec<(&Member, &Device)> =
            holders.filter_map(|member| Some((member, devices.get(&member.guid)?))).collect();
        let found: Mutex<Vec<(u64, Slot)>> = Mutex::new(Vec::new());
        let share = work.len().div_ceil(WORKERS).max(1);
        thread::scope(|scope| {
            for part in work.chunks(share) {
                let found = &found;
                scope.spawn(move || {
                    for (member, device) in part {
                        let slots = read_uberblocks(&***device, member.device.labels.ashift());
                        let good = slots.into_iter().filter(|slot| {
                            slot.trust == Trust::Verified && !member.is_of_other_pool(slot.label, self.guid)
                        });
                        let mut all = found.lock().unwrap_or_else(PoisonError::into_inner);
                        all.extend(good.map(|slot| (member.guid, slot)));
                    }
                });
            }
        });
        merge(found.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Member {
    /// Whether one of its labels speaks of another pool than `pool`: a device that had another size before may carry labels
    /// of an earlier pool, with uberblocks.
    fn is_of_other_pool(&self, label: u32, pool: u64) -> bool {
        let named = self.device.labels.usable().find(|(copy, _)| copy.index == label);
        named.and_then(|(_, config)| config.u64("pool_guid")).is_some_and(|guid| guid != pool)
    }
}

/// Equal uberblocks become one; best first.
fn merge(slots: Vec<(u64, Slot)>) -> Vec<FoundUberblock> {
    let mut merged: BTreeMap<[u8; Uberblock::SIZE], FoundUberblock> = BTreeMap::new();
    for (guid, slot) in slots {
        let uberblock = slot.uberblock;
        let found = merged.entry(uberblock.to_bytes()).or_insert_with(|| FoundUberblock {
            uberblock,
            copies: 0,
            holders: Vec::new(),
        });
        found.copies = found.copies.saturating_add(1);
        found.holders.push(guid);
    }
    let mut all: Vec<_> = merged.into_values().collect();
    for found in &mut all {
        found.holders.sort_unstable();
        found.holders.dedup();
    }
    all.sort_by(|a, b| b.uberblock.preference(&a.uberblock).then(Reverse(a.copies).cmp(&Reverse(b.copies))));
    all
}
