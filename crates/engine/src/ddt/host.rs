//! The pool operations that dedup tables need.

use std::sync::Arc;
use std::time::Duration;

use ondisk::Blkptr;
use zcommon::features::Feature;

use crate::dmu::Objset;
use crate::dmu::edit::Objects;
use crate::error::Result;
use crate::memory::Limits;

/// The pool operations that tables of shared blocks need, within one transaction.
pub(crate) trait DdtHost {
    /// The MOS, for change.
    fn objects(&self) -> &dyn Objects;
    /// The MOS, read as it is now.
    fn view(&self) -> Arc<Objset>;
    /// Bytes that a block takes, all copies together, as users count them.
    fn dsize(&self, bp: &Blkptr) -> u64;
    /// Any number.
    fn salt(&self) -> u64;
    /// The txg that is being written, and its sync pass.
    fn txg(&self) -> (u64, u64);
    /// Seconds since 1970.
    fn now(&self) -> u64;
    /// Takes note of the bytes that indices of tables hold in memory; returns how many they may.
    fn index_room(&self, held: u64) -> u64;
    /// The settings.
    fn limits(&self) -> &Limits;
    /// The time, and whether a caller waits for the txg.
    fn elapsed(&self) -> (Duration, bool);
    /// Changes how often a feature is in use.
    fn count_feature(&self, feature: Feature, delta: i64) -> Result<()>;
}

/// The pool operations that a look-up of an entry needs.
pub(crate) trait DdtSource {
    /// The MOS, read as it is now.
    fn view(&self) -> Result<Arc<Objset>>;
    /// New tables have the form of `fast_dedup`.
    fn makes_fast(&self) -> bool;
    /// Whether the places that a pointer names are within the pool's devices, and its birth is not in the future.
    fn is_sound(&self, bp: &Blkptr) -> bool;
}
