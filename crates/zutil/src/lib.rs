//! Support for the tools around the engine: finds devices with labels, groups them into pools, and shows
//! importable pools.
//!
//! ```text
//! paths ─ discover ─▶ FoundDevice (labels) ─ search ─▶ PoolCandidate (config, devices, notes)
//!                                                        │ assess: states as an import would find them
//!                                                        ▼
//!                                              import_listing::render
//! ```
//!
//! Nothing here changes a device, and nothing trusts one: labels may be torn, forged or from another
//! pool, so every count from them is bounded and every contradiction becomes a note.

mod absent;
pub mod assess;
pub mod discover;
pub mod environment;
pub mod import;
pub mod import_listing;
pub mod import_status;
pub mod label;
pub mod load;
pub mod names;
pub mod open;
pub mod ring;
pub mod search;
pub mod tree;
pub mod words;

pub use discover::{Discovery, FoundDevice, Skipped, discover};
pub use label::{DeviceLabels, LabelCopy, LabelFault, Trust};
pub use open::{FoundUberblock, OpenedPool};
pub use search::{Note, PoolCandidate, search};
