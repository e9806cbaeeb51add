//! Receives send streams: records become changes of a dataset that is not visible yet.
//!
//! ```text
//! stream   records with their checksums, read with bounded memory; no transaction is open meanwhile
//! fill     dispatch of records, checks, the position of an interrupted receive
//! objects  OBJECT, FREEOBJECTS, OBJECT_RANGE
//! blocks   WRITE, WRITE_EMBEDDED, FREE, SPILL, REDACT
//! heal     damaged blocks of a snapshot are repaired with a stream of the same snapshot
//! ```
//!
//! [`begin`] creates the dataset, [`Receiver::fill`] takes the records, [`Receiver::end`] creates the
//! snapshot. A receive that ends earlier ([`Receiver::abort`]) leaves the target unchanged, and the received
//! part if it can be resumed.
//!
//! Crash argument: see `dsl::write::receive`; a record is one transaction, and the resume token's position is
//! written in the txg that has the records before it.
//!
//! Differs from OpenZFS: one thread reads and applies; records are checked before anything of them is applied, so none is
//! applied in part. A spill block that OpenZFS sent as an embedded write behind the end of its object is
//! stored as a spill block.
//!
//! Source: dmu_recv.c, OpenZFS 2.3.

mod blocks;
mod fill;
mod heal;
mod objects;
mod stream;

pub use crate::dsl::RECEIVE_CHILD;
pub use crate::dsl::write::receive::{BegunReceive, Wish};
pub use fill::{Receiver, begin};
pub use heal::heal;
pub use stream::{Input, Item};

use crate::error::{Error, Kind};

/// A stream that contradicts itself.
fn malformed(what: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, what)
}
