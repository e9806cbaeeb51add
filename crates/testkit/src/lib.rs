//! Shared by the tests of all crates: pools made by OpenZFS, and OpenZFS's view of them.

pub mod big_endian;
pub mod flushes;
pub mod golden;
pub mod hostile;
pub mod hurt;
pub mod kept_log;
pub mod live;
pub mod manifest;
pub mod pattern;
pub mod pools;
pub mod rebuilt;
pub mod seed;
pub mod streams;
pub mod targets;
pub mod tree;
mod unpack;
pub mod zdb;
pub mod ztest;
