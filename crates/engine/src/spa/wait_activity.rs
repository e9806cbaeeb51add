//! Names of the work that a command waits for, pauses or cancels.

/// Work of a pool that a command can wait for. Several activities may do parts of one: a resilver is done by a scan or by a
/// sequential reconstruction.
#[doc(alias = "zpool_wait_activity_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitActivity {
    /// A checkpoint is discarded.
    Discard,
    /// Blocks of destroyed datasets are freed.
    Free,
    /// Devices are initialized.
    Initialize,
    /// A device takes the place of another.
    Replace,
    /// A top-level vdev is removed.
    Remove,
    /// Devices get the blocks that they lack.
    Resilver,
    /// All blocks, or those of the error log, are read and checked.
    Scrub,
    /// Devices are trimmed by a command.
    Trim,
    /// A raidz gets another disk.
    RaidzExpand,
}

impl WaitActivity {
    /// All, in the order in which `zpool wait` reports them.
    pub const ALL: [Self; 9] = [
        Self::Discard,
        Self::Free,
        Self::Initialize,
        Self::Replace,
        Self::Remove,
        Self::Resilver,
        Self::Scrub,
        Self::Trim,
        Self::RaidzExpand,
    ];

    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Discard => "discard",
            Self::Free => "free",
            Self::Initialize => "initialize",
            Self::Replace => "replace",
            Self::Remove => "remove",
            Self::Resilver => "resilver",
            Self::Scrub => "scrub",
            Self::Trim => "trim",
            Self::RaidzExpand => "raidz_expand",
        }
    }
}

/// A command for work under way. Beginning and resuming have options of their own: [`Scans::start`](super::Scans::start),
/// [`FreeSpace::sweep`](super::FreeSpace::sweep). The latter also pauses and cancels the sweeps of single devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivityCommand {
    /// It makes no progress until it is started again.
    Pause,
    /// It ends for good.
    Cancel,
}
