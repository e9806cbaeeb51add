//! The slop space that a pool reserves, so that a full pool can still delete.

/// Slop is this share of the pool, as a shift.
#[doc(alias = "spa_slop_shift")]
const SHIFT: u32 = 5;
/// Least slop, unless that is more than half of the pool.
#[doc(alias = "spa_min_slop")]
const MIN: u64 = 128 << 20;
/// Most slop.
#[doc(alias = "spa_max_slop")]
const MAX: u64 = 128 << 30;

/// Slop of a pool whose normal class has `space` deflated bytes in metaslabs that are allocated from. Space
/// saved by dedup and cloning does not count. The `embedded_log` bytes that the class keeps for the intent
/// log are part of the slop, up to half of it.
#[doc(alias = "spa_get_slop_space")]
pub(crate) fn slop(space: u64, embedded_log: u64) -> u64 {
    let slop = (space >> SHIFT).min(MAX);
    let slop = slop - embedded_log.min(slop >> 1);
    slop.max((space >> 1).min(MIN))
}

#[cfg(test)]
mod tests {
    use super::slop;

    #[test]
    fn slop_has_bounds_and_the_embedded_log_is_part_of_it() {
        const GIB: u64 = 1 << 30;
        assert_eq!(slop(100 << 20, 0), 50 << 20, "half of a small pool");
        assert_eq!(slop(GIB, 0), 128 << 20);
        assert_eq!(slop(32 * GIB, 0), GIB);
        assert_eq!(slop(32 * GIB, 256 << 20), 768 << 20);
        assert_eq!(slop(32 * GIB, GIB), 512 << 20, "at most half is the log's");
        assert_eq!(slop(GIB << 20, 0), 128 * GIB);
    }
}
