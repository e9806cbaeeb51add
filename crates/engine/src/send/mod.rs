//! Send streams: a snapshot as a sequence of records that another pool can receive.
//!
//! ```text
//! begin    the BEGIN record: which features, which name, whose key
//! walk     the object set in the order of objects and offsets
//! records  what is met on the way becomes records; neighbouring frees become one
//! stream   records with their running checksum
//! ```
//!
//! A stream says of every object that it exists, of every block what it holds, of everything else that it
//! is free; so it can be received over an older state. With [`From`] only what was born since is sent.
//!
//! Differs from OpenZFS: one thread reads ahead instead of four that pass ranges on. A stream with
//! compressed blocks of an encrypted dataset whose key is loaded holds them uncompressed. A spill block that
//! is embedded in its pointer is sent as a SPILL record whatever the flags; 2.3 makes an embedded write far
//! behind the end of the object of it, which loses the attributes.
//!
//! Source: dmu_send.c, dmu_traverse.c, OpenZFS 2.3.

mod begin;
mod records;
mod stream;
mod walk;

use std::io::Write;

use ondisk::names;

use crate::dsl::Dataset;
use crate::error::{Error, Kind, Result};
use crate::zio::Form;

use records::Sender;
use stream::Stream;

/// What a stream may hold, as `zfs send` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags {
    /// Blocks embedded in their pointers stay so (`-e`).
    pub embed: bool,
    /// Blocks larger than 128 KiB stay whole (`-L`).
    pub large_blocks: bool,
    /// Compressed blocks stay so (`-c`).
    pub compressed: bool,
    /// Everything as it lies on disk, encrypted too (`-w`).
    pub raw: bool,
}

/// What an incremental stream builds on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct From {
    /// Guid of the snapshot.
    pub guid: u64,
    /// Txg of the snapshot: what is not younger is not sent.
    pub txg: u64,
    /// Tells the IVs of an encrypted snapshot apart; 0: none.
    pub ivset_guid: u64,
    /// The stream makes a clone of the snapshot.
    pub is_clone: bool,
}

impl From {
    /// To build on this snapshot.
    pub fn snapshot(snapshot: &Dataset) -> Result<Self> {
        let phys = &snapshot.phys;
        let ivset_guid = snapshot.extra(names::dsl_dataset::IVSET_GUID)?.and_then(|v| v.first()).unwrap_or(0);
        Ok(Self { guid: phys.guid, txg: phys.creation_txg, ivset_guid, is_clone: false })
    }
}

/// Writes a stream of `dataset` to `out`: all of it, or what came after `from`.
///
/// Stops at the first block that can't be read, with an error that names it; the stream then has no END
/// and will not be received.
pub fn send(dataset: &Dataset, from: Option<From>, flags: SendFlags, out: &mut dyn Write) -> Result<()> {
    let form = if flags.raw { Form::NoKey } else { Form::Logical };
    let objset = dataset.objset_as(form)?;
    let from = from.unwrap_or_default();
    let begin = begin::Begin::new(dataset, &objset, &from, flags)?;
    let mut stream = Stream::new(out);
    stream.begin(begin.record, &begin.payload)?;
    let mut sender = Sender::new(stream, &objset, begin.features, dataset.phys.guid, from.txg);
    walk::walk(&objset, from.txg, &mut sender)?;
    sender.end().map_err(|e| e.in_dataset(&dataset.name))
}

/// The reader of a stream went away, or its disk is full.
fn output(e: std::io::Error) -> Error {
    Error::new(Kind::Io, format!("the stream can't be written: {e}"))
}
