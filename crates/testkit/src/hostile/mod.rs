//! Hostile pools: images with correct checksums and forged content.
//!
//! [`overlay`] lays changed bytes over a device, [`forge`] rewrites blocks of a pool up to its uberblock, [`cases`]
//! lists the forgeries, [`mutate`] generates more of them, and [`exercise`] runs all operations of offline verbs on
//! a pool.

pub mod cases;
pub mod exercise;
pub mod forge;
pub mod mutate;
pub mod overlay;
pub mod streams;
