//! The state of a removal, an array of words in the MOS directory.

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::SpaRemoving;

use crate::dsl::write::{MosTx, MosView};
use crate::error::Result;
use crate::zap::Value;

/// `dsl_scan_state_t`.
pub(super) const SCANNING: u64 = 1;
pub(super) const FINISHED: u64 = 2;
pub(super) const CANCELED: u64 = 3;
/// No vdev.
pub(super) const NONE: u64 = u64::MAX;

/// The removal under way or the last one; `None` in a pool that never had one.
///
/// # Errors
/// When the MOS cannot be read. A state that cannot be decoded counts as none.
pub(super) fn load(at: &MosView<'_>) -> Result<Option<SpaRemoving>> {
    let value = at.zap_get(MOS_DIRECTORY_OBJECT, mos::REMOVING)?;
    Ok(value.and_then(|value| SpaRemoving::from_words(&value.ints).ok()))
}

/// The removal under way.
pub(super) fn running(at: &MosView<'_>) -> Result<Option<SpaRemoving>> {
    Ok(load(at)?.filter(|removal| removal.state == SCANNING))
}

/// Writes the state.
#[doc(alias = "spa_sync_removing_state")]
pub(super) fn store(at: &MosTx<'_>, removal: &SpaRemoving) -> Result<()> {
    at.zap_set(MOS_DIRECTORY_OBJECT, mos::REMOVING, Value::from(words(&removal.to_bytes())))
}

/// Little-endian words.
pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}
