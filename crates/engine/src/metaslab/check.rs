//! Whether space maps can be read, before anything is written: the sync of a txg cannot go on without a map that it must
//! continue, and then the pool is suspended.

use std::sync::Arc;

use stdx::RangeSet;

use super::rebuild::has_metaslabs;
use super::table::{MetaslabRecord, Metaslabs};
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::vdev::config::VdevConfig;

/// Bytes of space maps that an import reads at most: it must not take minutes on a large fragmented pool.
const MAX_BYTES: u64 = 64 << 20;
/// Space maps that an import reads at most.
const MAX_MAPS: u32 = 4096;

/// Reads the space maps of a pool, up to a limit.
///
/// # Errors
/// The errors of the first map that cannot be read or decoded.
pub(crate) fn maps(mos: &Arc<Objset>, root: &VdevConfig) -> Result<()> {
    let (mut bytes, mut count) = (0_u64, 0);
    for config in root.children.iter().filter(|config| has_metaslabs(config)) {
        for metaslab in Metaslabs::load(mos, config)?.all {
            let metaslab = metaslab?;
            bytes = bytes.saturating_add(metaslab.head.map_or(0, |head| head.length));
            count += 1;
            if bytes > MAX_BYTES || count > MAX_MAPS {
                return Ok(());
            }
            load(mos, config, &metaslab)?;
        }
    }
    Ok(())
}

/// Reads a space map, and compares it with its head.
///
/// # Errors
/// As [`maps`], and `Corrupt` when both differ.
pub(crate) fn map(mos: &Arc<Objset>, config: &VdevConfig, metaslab: &MetaslabRecord) -> Result<()> {
    let allocated = load(mos, config, metaslab)?;
    if allocated.covered() == metaslab.allocated() {
        return Ok(());
    }
    let what = format!(
        "space map {} counts {} bytes and lists {}",
        metaslab.space_map,
        metaslab.allocated(),
        allocated.covered()
    );
    Err(Error::corrupt(what))
}

fn load(mos: &Arc<Objset>, config: &VdevConfig, metaslab: &MetaslabRecord) -> Result<RangeSet> {
    if metaslab.space_map == 0 {
        return Ok(RangeSet::new());
    }
    super::load(&mos.object(metaslab.space_map)?, config.ashift, metaslab.start, metaslab.size)
}
