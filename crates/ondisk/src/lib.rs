//! Every on-disk structure of OpenZFS: layout, bit fields, byte order, verification, text dump.
//!
//! No I/O and no clock. Each structure has up to two types: `XxxPhys` is the raw little-endian
//! image and may hold any bytes; the type without the suffix is its checked, in-core form. A block
//! of the other byte order goes through [`byteswap`] once, where the buffer is filled, so decoders
//! only ever meet little-endian bytes (the exceptions are documented: uberblocks and labels have a magic
//! number for their order).
//!
//! Bytes from disk are hostile: no decoder here panics, loops without bound, or allocates more than
//! its input justifies.

pub mod acl;
pub mod blkptr;
pub mod bookmark;
pub mod bootenv;
pub mod bpobj;
pub mod byteswap;
mod cursor;
pub mod ddt;
pub mod dmu_type;
pub mod dnode;
pub mod drr;
pub mod dsl;
mod error;
mod fields;
pub mod gang;
pub mod indirect;
pub mod l2arc;
pub mod label;
pub mod names;
pub mod objset;
pub mod pool;
pub mod sa;
pub mod space_map;
pub mod time_log;
pub mod uberblock;
mod words;
pub mod zap;
pub mod zil;
pub mod zio_type;
pub mod znode;

pub use blkptr::{Blkptr, BlkptrLimits, BlkptrPhys, Dva, DvaPhys, EmbeddedType};
pub use bookmark::{Bookmark, ErrBookmark};
pub use cursor::{Cursor, Endian};
pub use dmu_type::{Byteswap, ObjectType};
pub use dnode::{Dnode, DnodeFlags, DnodePhys, DnodeRef};
pub use error::Malformed;
pub use fields::{Field, Raw};
pub use label::{Eck, EckPhys};
pub use objset::{Objset, ObjsetFlags, ObjsetType, ZilHeader};
pub use uberblock::Uberblock;
pub use zio_type::{ChecksumType, CompressType};
pub use znode::ZnodePhys;

/// log2 of the smallest block and the unit of sizes in block pointers.
#[doc(alias = "SPA_MINBLOCKSHIFT")]
pub const MIN_BLOCK_SHIFT: u32 = 9;
/// Smallest block, in bytes.
#[doc(alias = "SPA_MINBLOCKSIZE")]
pub const MIN_BLOCK_SIZE: u64 = 1 << MIN_BLOCK_SHIFT;
/// Largest block, in bytes (with the `large_blocks` feature).
#[doc(alias = "SPA_MAXBLOCKSIZE")]
pub const MAX_BLOCK_SIZE: u64 = 16 << 20;
/// Largest block without the `large_blocks` feature, in bytes.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
pub const OLD_MAX_BLOCK_SIZE: u64 = 128 << 10;
