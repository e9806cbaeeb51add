//! Space that a volume needs when all of it is written.

use engine::spa::Pool;
use engine::vdev::top::Layout;

/// Entries of an indirect block.
#[doc(alias = "DNODES_PER_LEVEL")]
const PER_INDIRECT: u64 = 1024;
/// Bytes of an indirect block.
const INDIRECT: u64 = 128 << 10;
/// The block by which raidz's cost is told.
const OLD_MAX_BLOCK: u64 = 128 << 10;

/// Bytes to reserve for a volume.
#[doc(alias = "zvol_volsize_to_reservation")]
pub fn reservation(pool: &Pool, volsize: u64, block: u64, copies: u64) -> u64 {
    let mut blocks = volsize / block.max(1);
    let data = on_vdevs(pool, blocks, block).max(volsize).saturating_mul(copies);
    // The object's own seven levels.
    let mut indirects: u64 = 7;
    while blocks > 1 {
        blocks = blocks.div_ceil(PER_INDIRECT);
        indirects = indirects.saturating_add(blocks);
    }
    let copies = (copies + 1).min(3);
    data.saturating_add(indirects.saturating_mul(copies).saturating_mul(INDIRECT))
}

/// What blocks of that size cost on the worst of the pool's raidz vdevs, in the pool's own measure.
#[doc(alias = "volsize_from_vdevs")]
fn on_vdevs(pool: &Pool, blocks: u64, block: u64) -> u64 {
    let cost = |layout: &Layout| match layout {
        Layout::Raidz(geometry) => {
            let asize = |bytes: u64| geometry.asize(bytes, u64::MAX);
            let whole = blocks.saturating_mul(asize(block));
            u64::try_from(
                u128::from(whole) * u128::from(OLD_MAX_BLOCK) / u128::from(asize(OLD_MAX_BLOCK).max(1)),
            )
            .unwrap_or(u64::MAX)
        }
        _ => 0,
    };
    pool.tree().tops().map(|top| cost(&top.layout)).max().unwrap_or(0)
}
