//! Pools from an enemy: images whose checksums are right and whose content lies.
//!
//! [`overlay`] lays changed bytes over a device, [`forge`] rewrites blocks of a pool up to its uberblock,
//! [`cases`] are the lies, [`mutate`] makes up more of them, and [`exercise`] does with a pool whatever an offline verb would.

pub mod cases;
pub mod exercise;
pub mod forge;
pub mod mutate;
pub mod overlay;
