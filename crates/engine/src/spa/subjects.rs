//! What can be done with a pool, by subject: [`Spa`] itself begins transactions, waits for txgs and runs sync tasks; all
//! else is a method of a subject, which borrows the pool.
//!
//! A subject has no state. The methods stand with the code of their subject in the modules of [`crate::spa`]; helpers that
//! one file uses are functions of that file.

use super::Spa;

/// Single devices: attach and replace, detach, offline, online, fault and clear; their properties and health.
#[derive(Debug, Clone, Copy)]
pub struct Disks<'a> {
    pub(super) spa: &'a Spa,
}

/// Hot spares: the list in the MOS, and their use in place of faulted devices.
#[derive(Debug, Clone, Copy)]
pub struct Spares<'a> {
    pub(super) spa: &'a Spa,
}

/// Cache devices (L2ARC): their list in the MOS, and their use.
#[derive(Debug, Clone, Copy)]
pub struct Caches<'a> {
    pub(super) spa: &'a Spa,
}

/// Scrubs and resilvers of all blocks.
#[derive(Debug, Clone, Copy)]
pub struct Scans<'a> {
    pub(super) spa: &'a Spa,
}

/// Damaged blocks: the error log, and scrubs of the blocks in it.
#[derive(Debug, Clone, Copy)]
pub struct ErrorLog<'a> {
    pub(super) spa: &'a Spa,
}

/// Sequential reconstruction of mirrors and distributed spares.
#[derive(Debug, Clone, Copy)]
pub struct Rebuilds<'a> {
    pub(super) spa: &'a Spa,
}

/// The vdev tree: top-level vdevs are added, grow when their devices have grown, and are split off.
#[derive(Debug, Clone, Copy)]
pub struct VdevTree<'a> {
    pub(super) spa: &'a Spa,
}

/// Removal of top-level vdevs, log, cache and spare devices.
#[derive(Debug, Clone, Copy)]
pub struct Removal<'a> {
    pub(super) spa: &'a Spa,
}

/// Expansion of raidz vdevs by a disk.
#[derive(Debug, Clone, Copy)]
pub struct RaidzExpansion<'a> {
    pub(super) spa: &'a Spa,
}

/// Free space of devices: initialize, trim, autotrim.
#[derive(Debug, Clone, Copy)]
pub struct FreeSpace<'a> {
    pub(super) spa: &'a Spa,
}

/// Background activities of all kinds: their remaining work, pause, cancel.
#[derive(Debug, Clone, Copy)]
pub struct Background<'a> {
    pub(super) spa: &'a Spa,
}

/// Datasets as a whole: keys, the accounts of users, destroying them by steps.
#[derive(Debug, Clone, Copy)]
pub struct PoolDatasets<'a> {
    pub(super) spa: &'a Spa,
}

/// Intent logs: their host, their replay, and their reset.
#[derive(Debug, Clone, Copy)]
pub struct IntentLogs<'a> {
    pub(super) spa: &'a Spa,
}

/// Properties of the pool, its version and features.
#[derive(Debug, Clone, Copy)]
pub struct PoolProps<'a> {
    pub(super) spa: &'a Spa,
}

/// Events and the history.
#[derive(Debug, Clone, Copy)]
pub struct Reports<'a> {
    pub(super) spa: &'a Spa,
}

/// The checkpoint of the pool.
#[derive(Debug, Clone, Copy)]
pub struct Checkpointing<'a> {
    pub(super) spa: &'a Spa,
}

/// Blocks with more than one owner: dedup and clones.
#[derive(Debug, Clone, Copy)]
pub struct BlockSharing<'a> {
    pub(super) spa: &'a Spa,
}

/// Sizes: space that datasets may use, and reserves.
#[derive(Debug, Clone, Copy)]
pub struct SpaceFacts<'a> {
    pub(super) spa: &'a Spa,
}

/// A suspended pool: why it is suspended, resuming and giving it up.
#[derive(Debug, Clone, Copy)]
pub struct Suspending<'a> {
    pub(super) spa: &'a Spa,
}

/// Injected faults (`zinject`).
#[derive(Debug, Clone, Copy)]
pub struct Injections<'a> {
    pub(super) spa: &'a Spa,
}

/// The claim on the pool against other hosts.
#[derive(Debug, Clone, Copy)]
pub struct MultihostClaim<'a> {
    pub(super) spa: &'a Spa,
}

/// Pace of background jobs beside the traffic of the pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Jobs<'a> {
    pub(super) spa: &'a Spa,
}

impl Spa {
    /// Single devices: attach and replace, detach, offline, online, fault and clear; their properties and health.
    pub fn disks(&self) -> Disks<'_> {
        Disks { spa: self }
    }

    /// Hot spares: the list in the MOS, and their use in place of faulted devices.
    pub fn spares(&self) -> Spares<'_> {
        Spares { spa: self }
    }

    /// Cache devices (L2ARC): their list in the MOS, and their use.
    pub fn caches(&self) -> Caches<'_> {
        Caches { spa: self }
    }

    /// Scrubs and resilvers of all blocks.
    pub fn scans(&self) -> Scans<'_> {
        Scans { spa: self }
    }

    /// Damaged blocks: the error log, and scrubs of the blocks in it.
    pub fn error_log(&self) -> ErrorLog<'_> {
        ErrorLog { spa: self }
    }

    /// Sequential reconstruction of mirrors and distributed spares.
    pub fn rebuilds(&self) -> Rebuilds<'_> {
        Rebuilds { spa: self }
    }

    /// The vdev tree: top-level vdevs are added, grow when their devices have grown, and are split off.
    pub fn vdevs(&self) -> VdevTree<'_> {
        VdevTree { spa: self }
    }

    /// Removal of top-level vdevs, log, cache and spare devices.
    pub fn removal(&self) -> Removal<'_> {
        Removal { spa: self }
    }

    /// Expansion of raidz vdevs by a disk.
    pub fn expansion(&self) -> RaidzExpansion<'_> {
        RaidzExpansion { spa: self }
    }

    /// Free space of devices: initialize, trim, autotrim.
    pub fn free_space(&self) -> FreeSpace<'_> {
        FreeSpace { spa: self }
    }

    /// Background activities of all kinds: their remaining work, pause, cancel.
    pub fn background(&self) -> Background<'_> {
        Background { spa: self }
    }

    /// Datasets as a whole: keys, the accounts of users, destroying them by steps.
    pub fn dsl(&self) -> PoolDatasets<'_> {
        PoolDatasets { spa: self }
    }

    /// Intent logs: their host, their replay, and their reset.
    pub fn logs(&self) -> IntentLogs<'_> {
        IntentLogs { spa: self }
    }

    /// Properties of the pool, its version and features.
    pub fn props(&self) -> PoolProps<'_> {
        PoolProps { spa: self }
    }

    /// Events and the history.
    pub fn reports(&self) -> Reports<'_> {
        Reports { spa: self }
    }

    /// The checkpoint of the pool.
    pub fn checkpoint(&self) -> Checkpointing<'_> {
        Checkpointing { spa: self }
    }

    /// Blocks with more than one owner: dedup and clones.
    pub fn sharing(&self) -> BlockSharing<'_> {
        BlockSharing { spa: self }
    }

    /// Sizes: space that datasets may use, and reserves.
    pub fn space_facts(&self) -> SpaceFacts<'_> {
        SpaceFacts { spa: self }
    }

    /// A suspended pool: why it is suspended, resuming and giving it up.
    pub fn suspending(&self) -> Suspending<'_> {
        Suspending { spa: self }
    }

    /// Injected faults (`zinject`).
    pub fn injections(&self) -> Injections<'_> {
        Injections { spa: self }
    }

    /// The claim on the pool against other hosts.
    pub fn multihost(&self) -> MultihostClaim<'_> {
        MultihostClaim { spa: self }
    }

    /// Pace of background jobs beside the traffic of the pool.
    pub(super) fn jobs(&self) -> Jobs<'_> {
        Jobs { spa: self }
    }
}
