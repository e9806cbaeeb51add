//! Properties of datasets: set by users, or computed by the pool.
//!
//! A *setting* ([`settings`]) is an entry of a directory's (or a snapshot's) property ZAP: it holds for that
//! dataset and, when the property is inheritable, for everything below. A ZAP may hold three entries of one
//! property: `name` (local), `name$recvd` (came with a stream), `name$inherit` (explicitly inherited, hides
//! the received one). A *statistic* ([`stats`]) is computed from the dataset, its directory and its
//! ancestors: space, ratios, times, names of its relatives.
//!
//! Values here are numbers and texts as they are on disk; how they are printed is the command line's
//! business. Nothing here needs a key.

pub mod bookmarks;
pub mod holds;
pub(crate) mod inherit;
pub mod names;
pub mod resume;
pub mod settings;
pub(crate) mod space;
pub mod stats;
pub mod userspace;
pub mod written;
pub mod zpl;

pub use settings::{Setpoint, Setting, Settings};
pub use stats::{Crypto, DslDatasetStats};

use crate::zap::Value as ZapValue;

/// The value of a property as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropValue {
    /// A number, or the index of an enumeration.
    Number(u64),
    /// A text.
    Text(String),
}

impl PropValue {
    /// Reads an entry: one 64-bit integer, or the bytes of a string.
    pub fn from_zap(value: &ZapValue) -> Self {
        match value.ints.first() {
            Some(&n) if value.width == 8 => PropValue::Number(n),
            _ => PropValue::Text(value.string()),
        }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<u64> {
        match self {
            PropValue::Number(n) => Some(*n),
            PropValue::Text(_) => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            PropValue::Number(_) => None,
            PropValue::Text(t) => Some(t),
        }
    }
}
