//! Inode numbers that encode their file.
//!
//! ```text
//! 63        42 41                 0
//! | slot: 22 | object: 42          |
//! ```
//!
//! A *slot* is a dataset or snapshot of this mount ([`crate::space`]), 0 being the one at the mount point, so its
//! inode numbers are its object numbers. The highest object numbers, which no real object set reaches, represent
//! entries that are not objects. FUSE requires 1 for the root; object 1 is never a file.

/// Bits of the object number.
const OBJECT_BITS: u32 = 42;
const OBJECT_MASK: u64 = (1 << OBJECT_BITS) - 1;
/// Maximum number of slots.
pub const MAX_SLOTS: usize = 1 << 22;

const TOP: u64 = OBJECT_MASK;
const CTL: u64 = OBJECT_MASK - 1;
const SNAPDIR: u64 = OBJECT_MASK - 2;

/// The meaning of an inode number within its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// The top of the slot: the root directory of a file system, the file that represents a volume, or an empty
    /// directory for a dataset that cannot be opened.
    Top,
    /// `.zfs`
    Ctl,
    /// `.zfs/snapshot`
    SnapDir,
    /// A file or directory.
    Object(u64),
}

/// A decoded inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Node {
    /// The dataset or snapshot.
    pub slot: usize,
    /// The entry in it.
    pub what: What,
}

impl Node {
    /// The top of a slot.
    pub fn top(slot: usize) -> Self {
        Self { slot, what: What::Top }
    }

    /// From a FUSE inode number.
    pub fn decode(ino: u64) -> Self {
        if ino == 1 {
            return Self::top(0);
        }
        let slot = usize::try_from(ino >> OBJECT_BITS).unwrap_or(0);
        let what = match ino & OBJECT_MASK {
            TOP => What::Top,
            CTL => What::Ctl,
            SNAPDIR => What::SnapDir,
            object => What::Object(object),
        };
        Self { slot, what }
    }

    /// The FUSE inode number; `None` for an object number that does not fit.
    pub fn encode(self) -> Option<u64> {
        let low = match self.what {
            What::Top if self.slot == 0 => return Some(1),
            What::Top => TOP,
            What::Ctl => CTL,
            What::SnapDir => SNAPDIR,
            What::Object(object) if object < SNAPDIR => object,
            What::Object(_) => return None,
        };
        let slot = u64::try_from(self.slot).ok().filter(|_| self.slot < MAX_SLOTS)?;
        Some(slot << OBJECT_BITS | low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_carry_their_meaning() {
        for slot in [0, 1, MAX_SLOTS - 1] {
            for what in [What::Top, What::Ctl, What::SnapDir, What::Object(34), What::Object(SNAPDIR - 1)] {
                let node = Node { slot, what };
                assert_eq!(Node::decode(node.encode().unwrap()), node);
            }
        }
        assert_eq!(Node::top(0).encode(), Some(1));
        assert_eq!(Node { slot: 0, what: What::Object(u64::MAX) }.encode(), None);
        assert_eq!(Node { slot: MAX_SLOTS, what: What::Ctl }.encode(), None);
    }
}
