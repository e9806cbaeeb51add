//! The intent log: a chain of blocks of records, replayed after a crash.
//!
//! A block is written in its writer's byte order, and records mix integers, names and file data, so
//! it must not be swapped as a whole: hand [`LogBlock`] the bytes as they lay on disk, and the order
//! that its pointer names. (A block that was swapped as 64-bit words becomes itself again by
//! [`crate::byteswap::words`].) Source: zil.h, zil.c, zfs_log.c, OpenZFS 2.3.

mod block;
mod encode;
mod layout;
mod record;
mod tx_type;

pub use block::{LogBlock, ZIL_MIN_BLOCK_SIZE, ZilChain};
pub use encode::{encode_write, encoded_write, stamp_seq, stamp_txg};
pub use layout::{
    LrAclCreate, LrAclV0, LrCloneRange, LrCommon, LrCreate, LrLink, LrRemove, LrRename, LrRenameWhiteout,
    LrSetattr, LrSetsaxattr, LrTruncate, LrWrite,
};
pub use record::{
    AclRecord, AclV0Record, CloneRange, Create, CreateAcl, Link, LogRecord, LrAttr, Remove, Rename,
    RenameWhiteout, Setattr, Setsaxattr, Write, decode_log_aces, encode_log_aces,
};
pub use tx_type::TxType;
