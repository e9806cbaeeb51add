//! Forged send streams, with right checksums unless the checksum itself is forged.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::type_complexity,
    reason = "only tests run this, and end with it"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use checksum::Fletcher4;
use engine::dsl::write::Encryption;
use engine::recv::{Input, Item, Wish, begin};
use engine::send::{SendFlags, send};
use engine::spa::Spa;
use ondisk::Endian;
use ondisk::drr::{
    DRR_CHECKSUM_OFFSET, DRR_SIZE, Drr, DrrBody, DrrEnd, DrrFree, DrrFreeobjects, DrrObject, DrrSpill,
    DrrWrite,
};
use stdx::rng::Rng;

use crate::pools::create_fs_dir;

/// Values that often lie at a limit.
const WORDS: [u64; 12] =
    [0, 1, 2, 511, 1 << 17, 1 << 31, 1 << 48, 1 << 60, i64::MAX as u64, u64::MAX - 2, u64::MAX - 1, u64::MAX];
/// Bytes that one change of [`forge`] takes.
pub const CHANGE: usize = 16;

/// The records of a stream.
///
/// # Panics
/// If the stream is damaged.
pub fn items(stream: &[u8]) -> Vec<Item> {
    let mut from = stream;
    let mut input = Input::new(&mut from);
    std::iter::from_fn(|| input.record().expect("a record")).collect()
}

/// The first `most` records of a stream, and its END.
///
/// # Panics
/// If the stream has no records.
pub fn head(stream: &[u8], most: usize) -> Vec<Item> {
    let mut all = items(stream);
    let end = all.pop().expect("END");
    all.truncate(most);
    all.push(end);
    all
}

/// A stream of these records with checksums that are right. `change` may change the bytes of a record and its payload.
pub fn encode(
    items: &[Item],
    endian: Endian,
    change: &mut dyn FnMut(usize, &mut Vec<u8>, &mut Vec<u8>),
) -> Vec<u8> {
    let mut out = Vec::new();
    let big = endian == Endian::Big;
    let mut sum = Fletcher4::new(big);
    for (at, item) in items.iter().enumerate() {
        let mut drr: Drr = item.drr;
        if let DrrBody::Begin(_) = &drr.body {
            sum = Fletcher4::new(big);
        }
        if let DrrBody::End(DrrEnd { checksum, .. }) = &mut drr.body {
            *checksum = sum.finish();
        }
        let (mut bytes, mut payload) = (drr.to_bytes(endian), item.payload.clone());
        change(at, &mut bytes, &mut payload);
        sum.update(&bytes[..DRR_CHECKSUM_OFFSET]);
        if drr.checksum.is_some() {
            for (to, word) in bytes[DRR_CHECKSUM_OFFSET..].chunks_exact_mut(8).zip(sum.finish()) {
                to.copy_from_slice(&if big { word.to_be_bytes() } else { word.to_le_bytes() });
            }
        }
        sum.update(&bytes[DRR_CHECKSUM_OFFSET..]);
        sum.update(&payload);
        out.extend(bytes);
        out.extend(payload);
    }
    out
}

/// Changes that a seed tells, as [`forge`] takes them.
pub fn changes(seed: u64, count: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..count * CHANGE / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// One change: which one, where, and a value.
#[derive(Clone, Copy)]
struct Change {
    kind: u8,
    small: u8,
    place: u16,
    at: u32,
    value: u64,
}

impl Change {
    fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            kind: bytes[0],
            small: bytes[1],
            place: u16::from_le_bytes([bytes[2], bytes[3]]),
            at: word(4),
            value: u64::from(word(8)) | u64::from(word(12)) << 32,
        }
    }

    fn of(self, len: usize) -> usize {
        usize::try_from(self.at).unwrap_or(0) % len.max(1)
    }

    /// A number as hostile senders like them.
    fn word(self) -> u64 {
        match self.small % 4 {
            0 => self.value,
            1 => self.value % 64,
            2 => self.value % (1 << 20),
            _ => WORDS[usize::try_from(self.value).unwrap_or(0) % WORDS.len()],
        }
    }

    /// A record that was not sent.
    fn record(self) -> Drr {
        let (object, word) = (self.word(), WORDS[usize::from(self.place) % WORDS.len()]);
        let body = match self.place % 5 {
            0 => {
                DrrBody::Freeobjects(DrrFreeobjects { firstobj: object, numobjs: word, ..Default::default() })
            }
            1 => DrrBody::Free(DrrFree {
                object,
                offset: self.value % (1 << 20),
                length: word,
                ..Default::default()
            }),
            2 => DrrBody::Spill(DrrSpill { object, length: 512, ..Default::default() }),
            3 => DrrBody::Object(DrrObject {
                object,
                object_type: u32::from(self.small),
                bonustype: 44,
                blksz: 512 << (self.place % 4),
                dn_slots: self.small % 4,
                nlevels: 1,
                nblkptr: 3,
                indblkshift: 17,
                ..Default::default()
            }),
            _ => DrrBody::Write(DrrWrite {
                object,
                object_type: 19,
                offset: word,
                logical_size: 512,
                ..Default::default()
            }),
        };
        Drr { payloadlen: 0, body, checksum: Some([1; 4]) }
    }
}

/// The stream of `items` with the changes that `bytes` tells, [`CHANGE`] bytes each.
pub fn forge(items: &[Item], bytes: &[u8]) -> Vec<u8> {
    let mut some = items.to_vec();
    let mut late = Vec::new();
    for change in bytes.chunks_exact(CHANGE).map(Change::read) {
        let (len, at) = (some.len(), change.of(some.len()));
        match change.kind % 12 {
            0 if len > 0 => some.swap(at, usize::from(change.place) % len),
            1 if len > 0 => drop(some.remove(at)),
            2 if len > 0 => some.insert(usize::from(change.place) % len, some[at].clone()),
            3 | 4 => {
                let drr = change.record();
                let payload = vec![7; usize::try_from(drr.payload_size()).unwrap_or(0).min(1 << 20)];
                some.insert(at, Item { drr, payload, offset: 0 });
            }
            _ => late.push((at, change)),
        }
    }
    let mut out = encode(&some, Endian::Little, &mut |at, record, payload| {
        for (_, change) in late.iter().filter(|(place, _)| *place == at) {
            let (word, place) = (change.word(), usize::from(change.place));
            match change.kind % 12 {
                5 if !payload.is_empty() => {
                    let at = place % payload.len();
                    payload[at] ^= 1 << (change.small % 8);
                }
                6 => record[8..16].copy_from_slice(&word.to_le_bytes()),
                7 => record[place % DRR_SIZE] ^= 1 << (change.small % 8),
                8 => {
                    let at = place % 38 * 4;
                    record[at..at + 4].copy_from_slice(&word.to_le_bytes()[..4]);
                }
                9 => {
                    let at = 8 + place % 18 * 8;
                    record[at..at + 8].copy_from_slice(&word.to_le_bytes());
                }
                _ => {}
            }
        }
    });
    for (_, change) in &late {
        match change.kind % 12 {
            10 => out.truncate(change.of(out.len() + 1)),
            11 if !out.is_empty() => {
                let at = change.of(out.len());
                out[at] ^= 1 << (change.small % 8);
            }
            _ => {}
        }
    }
    out
}

/// A pool that receives forged streams.
pub struct Victim {
    dir: tempfile::TempDir,
    /// The pool, named `ours`.
    pub spa: Arc<Spa>,
    /// The records that are forged: of a full stream, or of one that builds on `ours/base@a`.
    items: Vec<Item>,
    is_incremental: bool,
    runs: u64,
}

impl Victim {
    /// A new pool of 256 MiB. With `base`, a full stream, forgeries of `items` are received into the dataset that it becomes.
    ///
    /// # Panics
    /// If the pool cannot be created or does not take `base`.
    pub fn new(base: Option<&[u8]>, items: Vec<Item>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let spa = create_fs_dir(dir.path(), "ours", 256 << 20, Encryption::default()).expect("a pool");
        let victim = Self { dir, spa, items, is_incremental: base.is_some(), runs: 0 };
        if let Some(base) = base {
            victim.receive(base, "ours/base@a", false).expect("the base").expect("the base");
        }
        victim
    }

    /// The directory of the pool's image.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Receives a stream. The outer error is one of the first record.
    fn receive(&self, stream: &[u8], target: &str, resumable: bool) -> engine::Result<engine::Result<()>> {
        let mut from = stream;
        let mut input = Input::new(&mut from);
        let item = input.record()?.ok_or_else(|| engine::Error::not_found("an empty stream"))?;
        let DrrBody::Begin(first) = item.drr.body else { return Err(engine::Error::corrupt("no BEGIN")) };
        let (dataset, snapshot) = target.split_once('@').expect("a snapshot");
        let mut wish = Wish::of(&first, &item.payload, dataset, snapshot)?;
        (wish.force, wish.resumable) = (self.is_incremental, resumable);
        let mut receiver = begin(&self.spa, wish, input.endian())?;
        let filled = receiver.fill(&mut input, &mut |_| true);
        let done = filled.and_then(|()| receiver.end().map(drop));
        if done.is_err() {
            receiver.abort(resumable)?;
        }
        Ok(done)
    }

    fn head(&self) -> Option<ondisk::Blkptr> {
        self.spa.pool.dsl.dataset("ours/base").ok().map(|head| head.phys.bp)
    }

    /// Receives the stream with the changes of [`forge`]. Returns whether the pool took it.
    ///
    /// # Errors
    /// Wrong behaviour of the pool: an error that does not name the record, a changed target, a panic.
    pub fn attack(&mut self, changes: &[u8]) -> Result<bool, String> {
        let forged = forge(&self.items, changes);
        self.runs += 1;
        let target = match self.is_incremental {
            true => format!("ours/base@b{}", self.runs),
            false => format!("ours/forged{}@s", self.runs),
        };
        let resumable = !self.is_incremental && self.runs.is_multiple_of(3);
        let before = self.head();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.receive(&forged, &target, resumable)));
        match outcome {
            Err(_) => return Err("the receive panics".to_owned()),
            Ok(Ok(Ok(()))) => {
                let snapshot = self.spa.pool.dsl.dataset(&target).map_err(|e| e.to_string())?;
                // Whatever was received is read as far as it can be.
                let sent = catch_unwind(AssertUnwindSafe(|| {
                    send(&snapshot, None, SendFlags::default(), &mut std::io::sink())
                }));
                return sent.map(|_| true).map_err(|_| "sending what was received panics".to_owned());
            }
            Ok(Ok(Err(e))) if !(e.what().contains("record ") && e.what().contains("byte ")) => {
                return Err(format!("the error names no record: {e}"));
            }
            Ok(_) => {}
        }
        if self.head() != before {
            return Err("a failed receive changes its target".to_owned());
        }
        self.spa.sync().map(|()| false).map_err(|e| format!("the pool does not sync: {e}"))
    }
}
