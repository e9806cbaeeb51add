//! A dataset is filled, record after record.

use std::sync::Arc;

use nvpair::NvList;
use ondisk::drr::{DrrBegin, DrrBody, begin_flag, stream_feature};
use ondisk::{Endian, ObjsetType};

use super::{BegunReceive, Input, Item, Wish, malformed};
use crate::dmu::Tx;
use crate::dsl::write::space_throttle::SpaceThrottles;
use crate::dsl::write::{LiveDataset, RawKey};
use crate::error::{Error, Kind, Result};
use crate::spa::Spa;

/// Features of streams that are understood here.
const KNOWN: u64 = stream_feature::SA_SPILL
    | stream_feature::EMBED_DATA
    | stream_feature::LZ4
    | stream_feature::LARGE_BLOCKS
    | stream_feature::RESUMING
    | stream_feature::REDACTED
    | stream_feature::COMPRESSED
    | stream_feature::LARGE_DNODE
    | stream_feature::RAW
    | stream_feature::ZSTD
    | stream_feature::HOLDS
    | stream_feature::SWITCH_TO_LARGE_BLOCKS
    | stream_feature::LONGNAME
    | stream_feature::LARGE_MICROZAP;

impl Wish {
    /// Parses a BEGIN record with its list, for a receive into the snapshot `target@snapshot`.
    ///
    /// # Errors
    /// `Unsupported` for streams with features that are not known here; `Corrupt`, `Invalid` for impossible
    /// values.
    pub fn of(begin: &DrrBegin, payload: &[u8], target: &str, snapshot: &str) -> Result<Self> {
        let features = begin.features();
        if features & !KNOWN != 0 {
            let unknown = features & !KNOWN;
            let what = format!(
                "stream has unsupported feature, feature flags = {features:x} (unknown flags = {unknown:x})"
            );
            return Err(Error::unsupported(what));
        }
        let kind = ObjsetType::from_raw(begin.objset_type.into());
        let kind = kind.filter(|kind| matches!(kind, ObjsetType::Zfs | ObjsetType::Zvol));
        let list = match payload {
            [] => NvList::new(),
            bytes => NvList::decode(bytes).map_err(|e| malformed(format!("the list of BEGIN: {e}")))?,
        };
        let guids = |name: &str| match list.get(name) {
            Some(nvpair::NvValue::Uint64Array(all)) => Some(all.clone()),
            _ => None,
        };
        let has = |feature| features & feature != 0;
        let key = match has(stream_feature::RAW) {
            true => {
                let list =
                    list.nvlist("crypt_keydata").ok_or_else(|| malformed("a raw stream without a key"))?;
                Some(RawKey::parse(list)?)
            }
            false => None,
        };
        let resumes = match has(stream_feature::RESUMING) {
            true => list.u64("resume_object").zip(list.u64("resume_offset")).map(Some),
            false => Some(None),
        };
        Ok(Self {
            target: target.to_owned(),
            snapshot: snapshot.to_owned(),
            kind: kind.ok_or_else(|| malformed("the stream is of no file system or volume"))?,
            to_guid: begin.toguid,
            from_guid: begin.fromguid,
            creation_time: begin.creation_time,
            flags: begin.flags,
            features,
            to_name: String::from_utf8_lossy(begin.name()).into_owned(),
            force: false,
            resumable: false,
            origin: None,
            redacted: guids("redact_snaps"),
            from_redacted: guids("redact_from_snaps"),
            encryption: crate::dsl::write::Encryption::default(),
            key,
            roots_follow: false,
            resumes: resumes.ok_or_else(|| malformed("the stream does not say where it goes on"))?,
            limited: None,
        })
    }
}

/// A receive.
#[derive(Debug)]
pub struct Receiver {
    pub(super) spa: Arc<Spa>,
    pub(super) dataset: Arc<LiveDataset>,
    begun: BegunReceive,
    throttle: SpaceThrottles,
    /// The stream is of the other byte order.
    pub(super) swap: bool,
    pub(super) raw: bool,
    /// Spill blocks are sent for all objects that have some.
    pub(super) spill: bool,
    /// Object and offset of the last write: they only increase, so that a stream can be resumed where it was
    /// cut.
    pub(super) last: (u64, u64),
    /// The highest number of an object that the stream names.
    pub(super) highest: u64,
    /// Levels and last block of the object at hand, in a raw stream.
    pub(super) shape: Option<(u64, u8, u64)>,
    bytes: u64,
}

/// Creates the dataset that a stream is received into. `endian`: the stream's byte order.
///
/// # Errors
/// As OpenZFS; nothing has changed then.
#[doc(alias = "dmu_recv_begin")]
pub fn begin(spa: &Arc<Spa>, wish: Wish, endian: Endian) -> Result<Receiver> {
    let raw = wish.features & stream_feature::RAW != 0;
    if raw && wish.flags & begin_flag::SPILL_BLOCK == 0 {
        let what =
            "Spill block flag missing for raw send.\nThe zfs software on the sending system must be updated.";
        return Err(Error::unsupported(what));
    }
    let begun = spa.dsl_task(move |tasks| {
        let user = wish.limited.clone();
        tasks.limiting(user.as_deref()).begin_receive(wish)
    })?;
    let dataset = spa.datasets.opened(begun.number);
    let dataset = dataset.ok_or_else(|| Error::not_found("the dataset that is received is not open"))?;
    Ok(Receiver {
        spa: Arc::clone(spa),
        dataset,
        throttle: SpaceThrottles::default(),
        swap: endian == Endian::Big,
        raw,
        spill: begun.wish.flags & begin_flag::SPILL_BLOCK != 0,
        last: (0, 0),
        highest: 0,
        shape: None,
        bytes: begun.bytes,
        begun,
    })
}

impl Receiver {
    /// The receive that has begun.
    pub fn begun(&self) -> &BegunReceive {
        &self.begun
    }

    /// Takes the records up to END. After each, `going` is called with the bytes read so far, and returns
    /// whether to continue.
    ///
    /// # Errors
    /// Naming record and offset: of the stream, as [`Input::record`], `Io` when it ends without END; of the pool.
    #[doc(alias = "dmu_recv_stream")]
    pub fn fill(&mut self, input: &mut Input<'_>, going: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let mut before = input.offset();
        loop {
            let offset = input.offset();
            let Some(item) = input.record()? else {
                return Err(input.place(Error::new(Kind::Io, "incomplete stream"), "", offset));
            };
            self.bytes = self.bytes.saturating_add(input.offset() - before);
            before = input.offset();
            let name = item.drr.body.name();
            if let DrrBody::End(end) = &item.drr.body {
                if end.checksum == [0; 4] {
                    let e = Error::new(Kind::Checksum, "the checksum of the stream is missing");
                    return Err(input.place(e, name, offset));
                }
                return self.complete();
            }
            self.apply(item).map_err(|e| input.place(e, name, offset))?;
            if !going(input.offset()) {
                return Err(input.place(Error::new(Kind::Interrupted, "interrupted"), name, offset));
            }
        }
    }

    fn apply(&mut self, item: Item) -> Result<()> {
        let Item { drr, payload, .. } = item;
        match drr.body {
            DrrBody::Object(body) => self.object(&body, payload),
            DrrBody::Freeobjects(body) => self.free_objects(body.firstobj, body.numobjs),
            DrrBody::Write(body) => self.write(&body, payload),
            DrrBody::WriteEmbedded(body) => self.embedded(&body, &payload),
            DrrBody::Free(body) => self.free(&body),
            DrrBody::Spill(body) => self.spill(&body, payload),
            DrrBody::ObjectRange(body) => self.range(&body),
            DrrBody::Redact(body) => self.redact(&body),
            DrrBody::WriteByref(_) => Err(Error::unsupported(
                "stream was created with deduplication: use 'zstream redup' to convert it",
            )),
            DrrBody::Begin(_) | DrrBody::End(_) => Err(malformed("a stream begins within another")),
        }
    }

    /// A full stream that was received over a snapshot has named all objects that there are.
    fn complete(&mut self) -> Result<()> {
        if self.begun.is_clone && self.begun.wish.from_guid == 0 {
            let above = self.highest.saturating_add(1);
            self.free_objects(above, u64::MAX - above)?;
        }
        Ok(())
    }

    /// A transaction, once there is room.
    pub(super) fn begin(&self, frees: bool) -> Result<Tx> {
        self.begin_for(0, frees)
    }

    /// The same for a change of `bytes` bytes of blocks.
    pub(super) fn begin_for(&self, bytes: u64, frees: bool) -> Result<Tx> {
        let reserved = Some(self.throttle.wait(&*self.spa, &self.dataset, (bytes, frees))?);
        if frees { self.spa.begin_free(reserved) } else { self.spa.begin_reserved(reserved) }
    }

    /// Records the position from which the stream can be resumed once `tx` is on disk.
    #[doc(alias = "save_resume_state")]
    pub(super) fn note(&self, tx: &Tx, object: u64, offset: u64) {
        if self.begun.wish.resumable {
            self.dataset.set_resume(tx, [object, offset, self.bytes]);
        }
    }

    /// Creates the snapshot: the target then has the sent state.
    ///
    /// # Errors
    /// As OpenZFS; the target is unchanged then, and [`Receiver::abort`] must be called.
    #[doc(alias = "dmu_recv_end")]
    pub fn end(&self) -> Result<u64> {
        self.dataset.objset.set_log(None);
        let begun = self.begun.clone();
        self.spa.dsl_task(move |tasks| tasks.end_receive(&begun))
    }

    /// Waits until the received data is on disk, so that others can read it.
    pub fn settle(&self) -> Result<()> {
        self.spa.sync()
    }

    /// Ends the receive without a snapshot. The received part stays if the receive can be resumed and `keep`
    /// is set.
    ///
    /// # Errors
    /// When it can't be destroyed; it will be when the pool is imported next.
    #[doc(alias = "dmu_recv_cleanup_ds")]
    pub fn abort(&self, keep: bool) -> Result<()> {
        self.dataset.objset.set_log(None);
        // The last transactions are on disk before the dataset is destroyed.
        self.spa.sync()?;
        let (received, target) = (self.begun.dataset(), self.begun.wish.target.clone());
        self.spa.dsl_task(move |tasks| tasks.abort_receive(received, &target, keep))
    }
}
