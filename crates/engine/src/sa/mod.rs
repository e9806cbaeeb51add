//! System attributes: a file's metadata in its bonus buffer and spill block.
//!
//! A file system numbers its attributes in a registry and its layouts (lists of attributes) in a second ZAP, both
//! below its SA master node: [`SaTables`]. A buffer contains the number of its layout and the bytes of those
//! attributes: [`SaAttrs`]. File systems older than version 5 have neither; their fixed structure counts as layout
//! 0 of the first sixteen attributes.
//!
//! Source: sa.c, OpenZFS 2.3.

mod attrs;
mod tables;
#[cfg(test)]
mod tests;
pub mod usage;
mod values;

pub use attrs::{SaAttrs, SaBuffers};
pub use tables::SaTables;

use crate::error::Error;

fn corrupt(e: ondisk::Malformed) -> Error {
    Error::corrupt(e.to_string())
}
