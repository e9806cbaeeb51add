//! Changing datasets: what OpenZFS calls the DSL's write side.
//!
//! ```text
//!  open context      LiveDataset: the head's live object set, changed by file systems and volumes
//!        │
//!  syncing context   DslPool::sync: each dirty dataset is written; [`account::BlockAccount`] collects what was born
//!        │           and killed and puts it into dataset, directory and ancestors; then sync tasks run
//!  MOS               everything here is kept in objects of the MOS, which the caller writes afterwards
//! ```
//!
//! A *sync task* is a check and a change, both in syncing context: the check refuses without having changed
//! anything, the change can only fail when the pool is damaged. Names are looked up when the task runs, so
//! changes since the request are taken into account.
//!
//! Datasets and directories are read from and written to their bonus buffers each time: the MOS' own handles are
//! the only state in memory, so there is nothing that could differ from it.
//!
//! Differs from OpenZFS: space is summed up over a dataset's sync and added to the directories once, which
//! yields the same numbers, as every share of a reservation depends on the totals only.

pub(crate) mod account;
mod batch;
pub(crate) mod bookmarks;
pub mod crypto;
pub mod destroy;
pub(crate) mod freeing;
mod holds;
mod hooks;
mod limits;
pub(crate) mod lists;
mod livelist;
pub(crate) mod log;
pub(crate) mod long_holds;
mod mos_tx;
pub mod names;
pub(crate) mod open_datasets;
pub(crate) mod pool;
mod promote;
pub mod props;
mod readable;
pub(crate) mod receive;
mod received_key;
mod redact;
pub(crate) mod redaction;
mod remap;
mod rename;
pub mod scan_moves;
pub mod scan_state;
mod set_each;
pub mod space;
pub mod space_throttle;
mod swap;
pub(crate) mod tasks;
pub(crate) mod tree;
mod tree_walk;

pub use crypto::{Cipher, Encryption, NewKey};
pub use hooks::{Hooks, version};
pub use long_holds::LongHold;
pub use mos_tx::{Limited, MosTx, MosView};
pub use open_datasets::{DslPool, LiveDataset};
pub(crate) use received_key::RawKey;
pub use tasks::{DestroyOutcome, Tasks};
