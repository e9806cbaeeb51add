//! Disks of the workload misbehave, are taken out of use, and recover.

use std::sync::Arc;

use blkdev::{BlockDevice, Device, Fault, FaultyDevice};
use engine::Kind;
use engine::spa::Spa;

use super::scans::scanned;
use super::{Run, guid_of, halves};
use crate::world::DISK_SIZE;

/// Brings a disk that is well again back into its pool.
fn bring_back(spa: &Arc<Spa>, disk: &Arc<FaultyDevice>) -> Result<(), String> {
    if halves::leave_cut_split(spa, disk) {
        return Ok(());
    }
    let Some(guid) = guid_of(spa, disk) else { return Ok(()) };
    let device = || Ok(Arc::clone(disk) as Device);
    let back = spa.disks().online(guid, Some(device()), false);
    match back.and_then(|_| spa.disks().clear(vec![(guid, Some(device()))])) {
        done @ Err(_) => match guid_of(spa, disk) {
            // A resilver that ended meanwhile detached the disk: another one has replaced it.
            None => Ok(()),
            // It detached the other side of a mirror: the disk has the mirror's guid now.
            Some(now) if now != guid => bring_back(spa, disk),
            Some(_) => done.map_err(|e| e.to_string()),
        },
        Ok(()) => Ok(()),
    }
}

impl Run {
    /// Makes one of the allowed disks misbehave.
    pub(super) fn misbehave(&mut self) -> Result<(), String> {
        let victims = self.victims.clone();
        let Some(disk) = self.actor.pick(&victims).and_then(|n| self.faulty.get(n)) else { return Ok(()) };
        if self.random.below(6) == 0 {
            return self.take_out(&Arc::clone(disk));
        }
        let start = self.random.below(DISK_SIZE);
        let range = match self.random.below(3) {
            0 => 0..DISK_SIZE,
            _ => start..start + self.random.below(8 << 20),
        };
        let every = 1 << self.random.below(20);
        let fault = match self.random.below(11) {
            0 => Fault::ReadError(range),
            1 => Fault::WriteError(range),
            2 | 3 => Fault::BitRot { range, every },
            4 => Fault::Missing(range),
            5 => Fault::Torn(range),
            6 => Fault::LostWrites(range),
            7 => Fault::LyingFlush,
            8 | 9 => {
                let count = 1 + u32::try_from(self.random.below(3)).unwrap_or(0);
                Fault::FlushErrors { count, lost: u32::try_from(self.random.below(1001)).unwrap_or(0) }
            }
            10 => Fault::Flaky(u32::try_from(self.random.below(300)).unwrap_or(0)),
            _ => Fault::Dead,
        };
        self.actor.tell(format!("{} does {fault:?}", disk.name()));
        disk.inject(fault);
        self.course.faults += 1;
        Ok(())
    }

    /// Makes one of them recover; missing and wrong data stays so.
    pub(super) fn behave(&mut self) -> Result<(), String> {
        let victims = self.victims.clone();
        if let Some(disk) = self.actor.pick(&victims).and_then(|n| self.faulty.get(n)) {
            self.actor.tell(format!("{} is well", disk.name()));
            disk.clear();
            bring_back(&self.actor.spa, disk)?;
        }
        Ok(())
    }

    /// All disks recover, their errors are cleared, and they are resilvered.
    pub(super) fn bring_all_back(&self) -> Result<(), String> {
        let spa = &self.actor.spa;
        for disk in &self.faulty {
            disk.clear();
            bring_back(spa, disk)?;
        }
        scanned(spa)
    }

    /// Takes a disk out of use like an administrator, unless it is needed.
    fn take_out(&mut self, disk: &Arc<FaultyDevice>) -> Result<(), String> {
        let spa = Arc::clone(&self.actor.spa);
        let Some(guid) = guid_of(&spa, disk) else { return Ok(()) };
        self.actor.tell(format!("{} is taken out of use", disk.name()));
        self.course.faults += 1;
        let temporary = self.random.below(2) == 0;
        let done = match self.random.below(2) {
            0 => spa.disks().offline(guid, temporary),
            _ => spa.disks().fault(guid, temporary),
        };
        match done {
            // A resilver that ended meanwhile detached it.
            Err(e) if e.kind() != Kind::Busy && guid_of(&spa, disk).is_some() => Err(e.to_string()),
            _ => Ok(()),
        }
    }
}
