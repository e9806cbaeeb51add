//! The parameters of new objects.

use ondisk::dnode::DNODE_MIN_SIZE;
use ondisk::{Dnode, ObjectType};

/// The parameters of an object that is about to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewObject {
    /// The type of its blocks.
    pub object_type: ObjectType,
    /// Bytes of a data block, a multiple of 512.
    pub block_size: u64,
    /// The type of its bonus buffer.
    pub bonus_type: ObjectType,
    /// Bytes of the bonus buffer; zeros at first.
    pub bonus_len: usize,
    /// Bytes of its dnode: 512 to 16,384.
    pub dnode_size: usize,
    /// log2 of its indirect block size; 0 for the default.
    pub indirect_shift: u8,
}

impl NewObject {
    /// An object without a bonus, with the smallest dnode.
    pub fn plain(object_type: ObjectType, block_size: u64) -> Self {
        Self::with_bonus(object_type, block_size, ObjectType::NONE, 0)
    }

    /// An object with a bonus, with the smallest dnode.
    pub fn with_bonus(
        object_type: ObjectType,
        block_size: u64,
        bonus_type: ObjectType,
        bonus_len: usize,
    ) -> Self {
        Self { object_type, block_size, bonus_type, bonus_len, dnode_size: DNODE_MIN_SIZE, indirect_shift: 0 }
    }

    /// Number of pointers in its dnode.
    pub(crate) fn nblkptr(&self) -> usize {
        self.dnode().nblkptr()
    }

    /// Its dnode before the first block.
    pub(super) fn dnode(&self) -> Dnode {
        let slots = self.dnode_size / DNODE_MIN_SIZE;
        let mut dnode = Dnode::new(self.object_type, self.block_size, slots, self.bonus_type, self.bonus_len);
        if self.indirect_shift != 0 {
            dnode.indblkshift = self.indirect_shift;
        }
        dnode
    }
}
