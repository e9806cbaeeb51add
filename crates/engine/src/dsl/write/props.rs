//! Settings of datasets.

use super::at::MosAt;
use crate::error::Result;

/// A number that is set on a directory itself; 0 when it isn't.
pub(super) fn own_number(at: &MosAt<'_>, dir: u64, name: &str) -> Result<u64> {
    let zap = at.dir(dir)?.props_zapobj;
    if let Some(value) = at.zap_word(zap, name)? {
        return Ok(value);
    }
    if at.zap_word(zap, format!("{name}$inherit").as_str())?.is_some() {
        return Ok(0);
    }
    Ok(at.zap_word(zap, format!("{name}$recvd").as_str())?.unwrap_or(0))
}
