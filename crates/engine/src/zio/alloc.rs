//! The interface between zio and the pool's allocator: where new blocks go.
//!
//! The allocator itself (the metaslab room) stands above; this is the door that zio knows.

use std::fmt::Debug;

use ondisk::Dva;

use crate::error::Result;

/// Which allocation class a block belongs to. Each falls back to the next it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetaslabClass {
    /// Ordinary data.
    Normal,
    /// The intent log; falls back to [`MetaslabClass::EmbeddedLog`].
    Log,
    /// Intent-log blocks on ordinary vdevs; falls back to [`MetaslabClass::Normal`].
    EmbeddedLog,
    /// Metadata and small blocks; falls back to [`MetaslabClass::Normal`].
    Special,
    /// Dedup tables; falls back to [`MetaslabClass::Special`] where that may be, else [`MetaslabClass::Normal`].
    Dedup,
}

/// A request for space.
#[derive(Debug, Clone, Copy)]
pub struct AllocRequest {
    /// Bytes to be stored in each copy: a multiple of 512. The asize is the allocator's business.
    pub psize: u64,
    /// Copies wanted, 1 to 3, on different top-level vdevs while there are enough.
    pub copies: u8,
    /// Class to start with.
    pub class: MetaslabClass,
    /// Txg that the block is born in.
    pub txg: u64,
    /// Mark the DVAs as gang headers.
    pub gang: bool,
    /// Vdevs that are fuller than the class as a whole come last.
    pub evens_out: bool,
    /// Give fewer copies rather than fail, but at least one (gang members).
    pub fewer_will_do: bool,
}

/// Allocates and frees space. All methods may be called from any thread.
pub trait Allocator: Send + Sync + Debug {
    /// Space for a block.
    ///
    /// # Errors
    /// [`crate::Kind::NoSpace`] when nothing is left; [`crate::Kind::Fragmented`] when no segment is long
    /// enough though smaller ones are left (the caller gangs).
    fn allocate(&self, request: &AllocRequest) -> Result<Vec<Dva>>;

    /// Whether small blocks of files may go to the special class: a part of it is kept for metadata.
    fn takes_small(&self) -> bool {
        true
    }

    /// Takes back space that was allocated in `txg`, the txg that is being written now, and that nothing on disk
    /// refers to: it may be used again at once.
    fn unallocate(&self, dva: &Dva, txg: u64);

    /// Frees a block's space in the syncing `txg`: it may be used again once no uberblock that still counts
    /// refers to it.
    fn free(&self, dva: &Dva, txg: u64);

    /// As [`Self::free`], for a block born in `birth` (logical): its space is kept if a checkpoint has it.
    fn free_born(&self, dva: &Dva, birth: u64, txg: u64) {
        let _ = birth;
        self.free(dva, txg);
    }

    /// Marks the space of an intent-log block that is to be replayed as allocated. Returns false when it
    /// already is.
    fn claim(&self, dva: &Dva, txg: u64) -> Result<bool>;
}
