//! Send streams: a snapshot as a sequence of records that another pool can receive.
//!
//! ```text
//! begin      the BEGIN record: features, name, key
//! walk       the object set in the order of objects and offsets, from where a receive stopped
//! merge      events of the walk merged with redaction lists
//! redact     the blocks of a snapshot that clones changed, for redaction lists
//! ahead      blocks are read before they are needed
//! until      the end of the stream of a partial receive
//! records    events become records; neighbouring frees are joined
//! stream     records with their running checksum
//! compound   the records around the streams of several snapshots
//! estimate   the length of a stream, without making it
//! ```
//!
//! A stream describes every object, the content of every block, and everything else as free; so it can be
//! received over an older state. With [`From`] only blocks born since are sent.
//!
//! Differs from OpenZFS: one thread walks and writes, and reads are asynchronous, instead of five threads that pass
//! ranges on. A spill block that is embedded in its pointer is sent as a SPILL record whatever the flags; OpenZFS makes
//! an embedded write far behind the end of the object of it, which loses the attributes.
//!
//! Source: dmu_send.c, dmu_traverse.c, OpenZFS 2.3 and 2.4.

mod ahead;
mod begin;
pub mod compound;
pub mod estimate;
mod event;
mod merge;
mod meter;
mod records;
pub mod redact;
mod redaction;
mod stream;
mod until;
mod walk;

use std::io::Write;
use std::sync::Arc;

use ondisk::dsl::ZfsBookmark;
use ondisk::names;
use zcommon::features::Feature;

use crate::dmu::Objset;
use crate::dsl::Dataset;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::memory::ahead::Share;
use crate::zap::Zap;
use crate::zio::Form;

pub use meter::Meter;
pub use redaction::{RedactedRange, Redaction, Runs};

use ahead::Ahead;
use merge::Merge;
use records::Sender;
use stream::Stream;
use until::Until;

/// Features that a stream may use, as the flags of `zfs send`.
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

/// The base of an incremental stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct From {
    /// Guid of the snapshot.
    pub guid: u64,
    /// Txg of the snapshot: only younger blocks are sent.
    pub txg: u64,
    /// Distinguishes the IVs of an encrypted snapshot; 0: none.
    pub ivset_guid: u64,
    /// The stream makes a clone of the snapshot.
    pub is_clone: bool,
    /// Guids of the snapshots with respect to which the snapshot itself is redacted.
    pub redacted: Option<Vec<u64>>,
    /// The redaction list of a bookmark; 0: none.
    pub redaction_obj: u64,
}

impl From {
    /// To build on this snapshot.
    pub fn snapshot(snapshot: &Dataset) -> Result<Self> {
        let phys = &snapshot.phys;
        let ivset_guid = snapshot.extra(names::dsl_dataset::IVSET_GUID)?.and_then(|v| v.first()).unwrap_or(0);
        let redacted = snapshot.extra(Feature::RedactedDatasets.info().guid)?.map(|snaps| snaps.ints);
        let (guid, txg) = (phys.guid, phys.creation_txg);
        Ok(Self { guid, txg, ivset_guid, redacted, ..Self::default() })
    }

    /// To build on the snapshot that a bookmark was made of.
    pub fn bookmark(phys: &ZfsBookmark) -> Self {
        Self {
            guid: phys.guid,
            txg: phys.creation_txg,
            ivset_guid: phys.ivset_guid,
            redaction_obj: phys.redaction_obj,
            ..Self::default()
        }
    }
}

/// A receive that stopped before its end and left a dataset of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Saved {
    /// Guid of the snapshot that was being received.
    pub toguid: u64,
    /// Its name at the sender.
    pub toname: String,
    /// Object and byte offset up to which the dataset was received; the stream ends there.
    pub place: (u64, u64),
}

/// Parameters of a send, beside the dataset.
#[derive(Debug, Clone, Default)]
pub struct SendOptions {
    /// The base of the stream; `None`: a full stream.
    pub from: Option<From>,
    /// Features that it may use.
    pub flags: SendFlags,
    /// Object and byte offset from which a receive is resumed.
    pub resume: Option<(u64, u64)>,
    /// The bookmark whose blocks are redacted: the number of its redaction list.
    pub redact: Option<u64>,
    /// The dataset is the rest of an interrupted receive; its stream has no END record.
    pub saved: Option<Saved>,
    /// Blocks are not read: payloads are zeros, for callers that only count.
    pub dry: bool,
}

/// Writes a stream of `dataset` to `out`: all of it, or the changes since `from`.
///
/// Stops at the first block that can't be read, with an error that names it; the stream then has no END
/// and will not be received.
pub fn send(dataset: &Dataset, from: Option<From>, flags: SendFlags, out: &mut dyn Write) -> Result<()> {
    send_with(dataset, &SendOptions { from, flags, ..SendOptions::default() }, out, &Meter::default())
}

/// As [`send`], with all options. `meter` counts on the way, and stops the stream on request.
///
/// # Errors
/// `Unsupported` when blocks of directories are too large for the flags, `NotFound` when the stream is to be
/// resumed in an object that the dataset lacks, `KeyMissing`, `Interrupted`, and errors of reads and of
/// `out`.
pub fn send_with(dataset: &Dataset, options: &SendOptions, out: &mut dyn Write, meter: &Meter) -> Result<()> {
    write(dataset, options, out, meter).map_err(|e| e.in_dataset(&dataset.name))
}

fn write(dataset: &Dataset, options: &SendOptions, out: &mut dyn Write, meter: &Meter) -> Result<()> {
    let form = if options.flags.raw { Form::NoKey } else { Form::Logical };
    let objset = dataset.objset_as(form)?;
    let list = |number: Option<u64>| -> Result<Option<Redaction>> {
        number.filter(|&n| n != 0).map(|n| Redaction::open(&dataset.dsl, n)).transpose()
    };
    let from = options.from.clone().unwrap_or_default();
    let (redact, older) = (list(options.redact)?, list(Some(from.redaction_obj))?);
    let lists = begin::RedactionLists { redact: redact.as_ref(), from: older.as_ref() };
    let begin = begin::BeginRecord::new(dataset, &objset, &from, options, &lists)?;
    let resume = match options.resume {
        Some((object, offset)) => {
            let size = objset.object(object)?.dnode.datablksz().max(1);
            (object, offset / size)
        }
        None => (0, 0),
    };
    let mut stream = Stream::new(out, meter);
    stream.begin(begin.record, &begin.payload)?;
    let toguid = dataset.phys.guid;
    let sender = Sender::new(stream, &objset, begin.features, toguid, (from.txg, resume.0));
    let share = Share::new(Arc::clone(objset.arc().memory()));
    let until = options.saved.as_ref().map(|saved| Until::new(&objset, saved.place));
    let mut ahead = Ahead::new(sender, share, until, options.dry);
    let place = walk::Begin {
        from_txg: from.txg,
        resume,
        raw: options.flags.raw,
        past_end: false,
        skip_old_holes: skips_old_holes(dataset, &objset, from.txg)?,
    };
    let ahead = if redact.is_some() || older.is_some() {
        let redact = redact.as_ref().map(|list| list.runs(resume));
        let older = older.as_ref().map(|list| list.runs(resume));
        let mut merge = Merge::new(ahead, &objset, redact, older)?;
        walk::walk(&objset, place, &mut merge, meter)?;
        merge.finish()?
    } else {
        walk::walk(&objset, place, &mut ahead, meter)?;
        ahead
    };
    ahead.finish()?.end(options.saved.is_none())
}

/// Whether a hole of unknown birth is known to be older than `from_txg`, unless its object has the number of another:
/// all holes since then record their birth.
#[doc(alias = "send_holes_without_birth_time")]
fn skips_old_holes(dataset: &Dataset, objset: &Objset, from_txg: u64) -> Result<bool> {
    if objset.arc().limits().is_on(Limit::SendOldHoles) {
        return Ok(false);
    }
    let mos = &dataset.dsl.mos;
    let directory = Zap::open(&mos.object(names::MOS_DIRECTORY_OBJECT)?)?;
    let Some(number) = directory.u64(names::mos::FEATURE_ENABLED_TXG)?.filter(|&n| n != 0) else {
        return Ok(false);
    };
    let since = Zap::open(&mos.object(number)?)?.u64(Feature::HoleBirth.info().guid)?;
    Ok(since.is_some_and(|since| since <= from_txg))
}

/// How the errors of a stream's output begin; the system's message follows.
pub const UNWRITTEN: &str = "the stream can't be written: ";

/// The reader of a stream went away, or its disk is full.
fn output(e: std::io::Error) -> Error {
    Error::new(Kind::Io, format!("{UNWRITTEN}{e}"))
}
