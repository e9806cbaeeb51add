//! The pool engine: from labels on devices to objects, bottom to top.
//!
//! Modules import only downwards: `error`, `types` → `plug`, `taskq` → `memory` → `inject` → `vdev` → `zio` → `arc` → `dmu` →
//! `zap` → `sa` → `ddt`, `brt`, `zil` → `traverse` → `dsl` → `send` → `spa` → `recv` → `scan`, `sharing`. Clock, randomness,
//! devices and threads come from outside through [`env::Env`].

#![warn(unreachable_pub)]

pub mod arc;
pub mod brt;
pub mod ddt;
pub mod dmu;
pub mod dsl;
pub mod env;
pub(crate) mod error;
pub mod inject;
pub mod memory;
pub mod metaslab;
pub(crate) mod plug;
pub mod recv;
pub mod sa;
pub mod scan;
pub mod send;
pub mod sharing;
pub mod spa;
pub mod taskq;
pub(crate) mod traverse;
pub mod txg;
pub mod types;
pub mod vdev;
pub mod zap;
pub mod zil;
pub mod zio;

pub use error::{Error, Kind, Result};
