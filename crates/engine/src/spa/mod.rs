//! The storage pool: from labels to an open pool.
//!
//! Trust grows in steps, each a type that the next consumes:
//!
//! 1. [`ImportSource`]: what labels said, and the devices found by guid. Nothing verified but each
//!    label's own checksum.
//! 2. an uberblock candidate: the newest whose root block can be read ([`load`]).
//! 3. the trusted config: the one stored in the MOS, which replaces the labels' tree.
//! 4. [`Pool`]: features checked, removed vdevs' mappings and the leaves' DTLs loaded.
//!
//! When the newest uberblock can't be opened, older ones may be tried; what was tried and what it
//! costs is kept in [`Pool::rewind`].

mod accounts;
mod admin;
mod chores;
pub mod config;
pub mod create;
pub mod devices;
mod dtl;
pub mod errlog;
pub mod events;
mod faults;
pub mod feature_set;
pub mod features;
pub mod growth;
mod health;
pub mod history;
pub mod history_log;
mod hooks;
pub mod import;
mod keys;
pub mod layout;
pub mod live;
mod load;
pub(crate) mod mapping;
mod multihost;
mod pool;
pub mod props;
mod resume;
pub mod scrub;
mod set_props;
pub mod shared;
mod source;
pub mod space;
mod space_store;
mod spares;
pub mod suspension;
mod sync;
mod upgrade;
pub mod vdev_props;

pub use chores::Chore;
pub use create::{FillRoot, NewPool, create, create_encrypted};
pub use import::{ImportOptions, check_logs, import, missing_logs};
pub use live::{Quiet, Spa};
pub use load::{open, packed_nvlist};
pub use pool::{Pool, Rewind};
pub use source::{FoundUberblock, ImportSource, Newest, OpenOptions};
pub use upgrade::is_version;
