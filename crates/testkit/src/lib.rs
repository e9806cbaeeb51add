//! What tests across the rooms share: pools that OpenZFS made, and what OpenZFS said of them.

pub mod golden;
pub mod hostile;
pub mod kept_log;
pub mod live;
pub mod manifest;
pub mod pools;
pub mod targets;
pub mod tree;
mod unpack;
pub mod zdb;
pub mod ztest;
