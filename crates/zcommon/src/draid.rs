//! Distributed-spare RAID facts: permutation maps and the way a configuration is named.
//!
//! A draid vdev deals its groups over rows of 16 MiB from every child; which child stands in which column changes from
//! slice to slice by a permutation map. A map is not stored on disk: each number of children has one fixed seed, from
//! which the rows of the map are dealt by a generator, each row a shuffle of the row before. A wrong map would send
//! every read to the wrong disk, so a generated map is accepted only when its checksum is the one OpenZFS defines.

mod maps;
mod name;

pub use name::{DraidConfig, DraidNameError};

use self::maps::MAPS;

/// Bytes of each child that one row takes.
#[doc(alias = "VDEV_DRAID_ROWHEIGHT")]
pub const ROW_HEIGHT: u64 = 1 << 24;
/// Most children that a draid vdev has.
#[doc(alias = "VDEV_DRAID_MAX_CHILDREN")]
pub const MAX_CHILDREN: u64 = 255;
/// Fewest children that a draid vdev has.
#[doc(alias = "VDEV_DRAID_MIN_CHILDREN")]
pub const MIN_CHILDREN: u64 = 2;
/// Most distributed spares of a draid vdev.
#[doc(alias = "VDEV_DRAID_MAX_SPARES")]
pub const MAX_SPARES: u64 = 100;
/// Highest parity level.
#[doc(alias = "VDEV_DRAID_MAXPARITY")]
pub const MAX_PARITY: u64 = 3;

/// Half of the generator's first state; the other half is the map's seed.
#[doc(alias = "VDEV_DRAID_SEED")]
const GENERATOR_SEED: u64 = 0xd_7a1d_5eed;

/// Parameters of one permutation map.
#[doc(alias = "draid_map_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapInfo {
    /// Number of children, and of columns in the map.
    pub children: u16,
    /// Number of rows.
    pub permutations: u16,
    /// Second half of the generator's first state.
    pub seed: u64,
    /// First word of the map's fletcher4: the sum of its bytes taken as little-endian 32-bit words.
    pub checksum: u64,
}

impl MapInfo {
    /// The map for this many children.
    #[doc(alias = "vdev_draid_lookup_map")]
    pub fn for_children(children: u64) -> Option<&'static MapInfo> {
        let at = children.checked_sub(MIN_CHILDREN)?;
        MAPS.get(usize::try_from(at).ok()?)
    }
}

/// A permutation map in use.
#[derive(Clone, PartialEq, Eq)]
pub struct PermutationMap {
    children: usize,
    rows: Box<[u8]>,
}

impl std::fmt::Debug for PermutationMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PermutationMap({} x {})", self.permutations(), self.children)
    }
}

impl PermutationMap {
    /// Generates the map for this many children; `None` outside 2 to 255, or if the result were not the defined one.
    #[doc(alias = "vdev_draid_generate_perms")]
    pub fn generate(children: u64) -> Option<Self> {
        let info = MapInfo::for_children(children)?;
        let map = Self::deal(info);
        (map.checksum() == info.checksum).then_some(map)
    }

    fn deal(info: &MapInfo) -> Self {
        let children = usize::from(info.children);
        let mut row: Vec<u8> = (0..=u8::MAX).take(children).collect();
        let mut rows = Vec::with_capacity(children * usize::from(info.permutations));
        let mut random = Xoroshiro([GENERATOR_SEED, info.seed]);
        for _ in 0..info.permutations {
            for last in (1..children).rev() {
                row.swap(last, (random.next() % (last as u64 + 1)) as usize);
            }
            rows.extend_from_slice(&row);
        }
        Self { children, rows: rows.into() }
    }

    /// Number of rows.
    pub fn permutations(&self) -> usize {
        self.rows.len() / self.children
    }

    /// Row number `row` of the map.
    fn row(&self, row: usize) -> &[u8] {
        self.rows.chunks_exact(self.children).nth(row).unwrap_or_default()
    }

    /// The child that `column` of slice number `slice` is on; `None` if there is no such column.
    ///
    /// A row of the map serves as many slices in turn as there are children, each a step further round, before the
    /// next row has its turn.
    #[doc(alias = "vdev_draid_permute_id")]
    #[doc(alias = "vdev_draid_get_perm")]
    pub fn child(&self, slice: u64, column: u64) -> Option<u64> {
        let children = self.children as u64;
        let at = slice % (self.permutations() as u64 * children);
        let row = self.row((at / children) as usize);
        let base = *row.get(usize::try_from(column).ok()?)?;
        Some((u64::from(base) + at % children) % children)
    }

    fn checksum(&self) -> u64 {
        let words = self.rows.as_chunks::<4>().0;
        words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from(u32::from_le_bytes(*word))))
    }
}

/// The generator `xoroshiro128++` of Blackman and Vigna.
#[doc(alias = "vdev_draid_rand")]
struct Xoroshiro([u64; 2]);

impl Xoroshiro {
    fn next(&mut self) -> u64 {
        let [a, b] = self.0;
        let mixed = a ^ b;
        self.0 = [a.rotate_left(49) ^ mixed ^ (mixed << 21), mixed.rotate_left(28)];
        a.wrapping_add(b).rotate_left(17).wrapping_add(a)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_has_the_checksum_that_openzfs_defines() {
        for children in MIN_CHILDREN..=MAX_CHILDREN {
            let info = MapInfo::for_children(children).unwrap();
            assert_eq!(u64::from(info.children), children);
            let map = PermutationMap::generate(children).unwrap_or_else(|| panic!("{children} children"));
            assert_eq!(map.permutations(), usize::from(info.permutations));
        }
        assert!(PermutationMap::generate(1).is_none());
        assert!(PermutationMap::generate(256).is_none());
        assert!(PermutationMap::generate(u64::MAX).is_none());
    }

    #[test]
    fn rows_are_those_of_libzpool() {
        let map = PermutationMap::generate(5).unwrap();
        assert_eq!(map.row(0), [2, 3, 1, 4, 0]);
        assert_eq!(map.row(1), [0, 3, 4, 1, 2]);
        assert_eq!(map.row(3), [4, 1, 0, 3, 2]);
    }

    #[test]
    fn every_row_is_a_permutation() {
        for children in [2, 5, 11, 32, 255] {
            let map = PermutationMap::generate(children).unwrap();
            for row in 0..map.permutations() {
                let mut row = map.row(row).to_vec();
                row.sort_unstable();
                assert!(row.iter().copied().eq((0..=255).take(children as usize)));
            }
        }
    }

    #[test]
    fn a_row_goes_round_before_the_next_has_its_turn() {
        let map = PermutationMap::generate(5).unwrap();
        let slice = |n| (0..5).map(|column| map.child(n, column).unwrap()).collect::<Vec<_>>();
        assert_eq!(slice(0), [2, 3, 1, 4, 0]);
        assert_eq!(slice(1), [3, 4, 2, 0, 1]);
        assert_eq!(slice(5), [0, 3, 4, 1, 2]);
        assert_eq!(slice(5 * 256), slice(0));
        assert_eq!(map.child(0, 5), None);
    }
}
