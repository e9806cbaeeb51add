//! A vdev's state with its reason, and the words that an import listing has for it.

use crate::vdev::{VdevAux, VdevState};

/// A state with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// How it is.
    pub state: VdevState,
    /// Why.
    pub aux: VdevAux,
}

impl Health {
    /// All is well.
    pub const ONLINE: Self = Self { state: VdevState::Healthy, aux: VdevAux::None };
    /// Works, with something missing.
    pub const DEGRADED: Self = Self { state: VdevState::Degraded, aux: VdevAux::None };
    /// Taken offline by the administrator.
    pub const OFFLINE: Self = Self { state: VdevState::Offline, aux: VdevAux::None };
    /// Pulled out.
    pub const REMOVED: Self = Self { state: VdevState::Removed, aux: VdevAux::None };
    /// Not looked at yet.
    pub const CLOSED: Self = Self { state: VdevState::Closed, aux: VdevAux::None };

    /// Can't be opened, for this reason.
    pub const fn cant_open(aux: VdevAux) -> Self {
        Self { state: VdevState::CantOpen, aux }
    }

    /// Given up on, for this reason.
    pub const fn faulted(aux: VdevAux) -> Self {
        Self { state: VdevState::Faulted, aux }
    }

    /// Whether data can be read from it.
    #[doc(alias = "vdev_readable")]
    pub fn is_readable(self) -> bool {
        self.state >= VdevState::Degraded
    }

    /// The word that listings print.
    pub fn name(self) -> &'static str {
        self.state.name(self.aux)
    }

    /// The words that an import listing has beside the state: fewer than `zpool status` knows.
    pub fn import_text(self) -> &'static str {
        use VdevAux::*;
        match self.aux {
            None | OpenFailed | BadGuidSum | NoReplicas | VersionNewer | UnsupportedFeature
            | ErrorsExceeded | Active | ChildrenOffline | BadLabel => self.aux.text(),
            _ => VdevAux::CorruptData.text(),
        }
    }
}
