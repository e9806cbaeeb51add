//! Streams that lie, with checksums that are right: whatever they say, the pool stays whole.

use std::panic::{AssertUnwindSafe, catch_unwind};

use checksum::Fletcher4;
use engine::recv::{Input, Item};
use engine::send::SendFlags;
use ondisk::Endian;
use ondisk::drr::{DRR_CHECKSUM_OFFSET, Drr, DrrBody, DrrEnd};
use stdx::rng::Rng;
use testkit::golden;

use crate::golden::{assert_same, read};
use crate::tools::{Place, stream};

/// Words that are worth being tried in place of others.
const WORDS: [u64; 10] = [0, 1, 2, 511, 1 << 17, 1 << 31, 1 << 48, 1 << 60, i64::MAX as u64, u64::MAX];

fn items(stream: &[u8]) -> Vec<Item> {
    let mut from = stream;
    let mut input = Input::new(&mut from);
    std::iter::from_fn(|| input.record().expect("a record")).collect()
}

/// A stream of these records with checksums that are right. Bytes of a record are changed by `change`.
fn encode(items: &[Item], change: &mut dyn FnMut(usize, &mut Vec<u8>, &mut Vec<u8>)) -> Vec<u8> {
    let (mut out, mut sum) = (Vec::new(), Fletcher4::new(false));
    for (at, item) in items.iter().enumerate() {
        let mut drr: Drr = item.drr;
        if let DrrBody::End(DrrEnd { checksum, .. }) = &mut drr.body {
            *checksum = sum.finish();
        }
        let (mut bytes, mut payload) = (drr.to_bytes(Endian::Little), item.payload.clone());
        change(at, &mut bytes, &mut payload);
        sum.update(&bytes[..DRR_CHECKSUM_OFFSET]);
        if drr.checksum.is_some() {
            for (to, word) in bytes[DRR_CHECKSUM_OFFSET..].chunks_exact_mut(8).zip(sum.finish()) {
                to.copy_from_slice(&word.to_le_bytes());
            }
        }
        sum.update(&bytes[DRR_CHECKSUM_OFFSET..]);
        sum.update(&payload);
        out.extend(bytes);
        out.extend(payload);
    }
    out
}

/// Receives `count` forgeries of a stream into one pool, and after them the stream itself.
fn forge(pool: &str, file: &str, flags: SendFlags, count: u64) {
    let Some(golden) = golden::get(pool) else { return };
    let real = read(&golden, file);
    // The first records have all kinds; the rest only takes time.
    let mut all = items(&real);
    let end = all.pop().expect("END");
    all.truncate(400);
    all.push(end);
    let mut place = Place::new();
    for seed in 0..count {
        let mut rng = Rng::new(seed);
        let mut some = all.clone();
        match rng.below(5) {
            0 => {
                let (a, b) = (rng.below(some.len() as u64), rng.below(some.len() as u64));
                some.swap(usize::try_from(a).unwrap(), usize::try_from(b).unwrap());
            }
            1 => drop(some.remove(usize::try_from(rng.below(some.len() as u64)).unwrap())),
            _ => {}
        }
        let lies: Vec<usize> =
            (0..3).map(|_| usize::try_from(rng.below(some.len() as u64)).unwrap()).collect();
        let forged = encode(&some, &mut |at, bytes, payload| {
            if !lies.contains(&at) {
                return;
            }
            let place = usize::try_from(rng.below(40)).unwrap();
            match rng.below(3) {
                0 if !payload.is_empty() => {
                    let at = usize::try_from(rng.below(payload.len() as u64)).unwrap();
                    payload[at] ^= 1 << rng.below(8);
                }
                1 => bytes[place * 4..place * 4 + 4].copy_from_slice(&rng.next_u64().to_le_bytes()[..4]),
                _ => {
                    let word = WORDS[usize::try_from(rng.below(WORDS.len() as u64)).unwrap()];
                    bytes[8 + place / 2 * 8..16 + place / 2 * 8].copy_from_slice(&word.to_le_bytes());
                }
            }
        });
        let target = format!("ours/forged{seed}@s");
        let resumable = seed % 3 == 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            place.receive(&forged, &target, &|wish| wish.resumable = resumable)
        }));
        assert!(outcome.is_ok(), "seed {seed} panics");
    }
    place.receive(&real, "ours/real@s", &|_| ()).expect("the stream itself");
    let opened = place.exported();
    assert_same(&stream(&opened, "ours/real@s", None, flags), &real);
}

#[test]
fn forged_streams_leave_the_pool_whole() {
    forge("streams", "full-a", SendFlags::default(), 60);
}

#[test]
fn forged_streams_of_compressed_blocks_leave_the_pool_whole() {
    let flags = SendFlags { embed: true, large_blocks: true, compressed: true, ..SendFlags::default() };
    forge("streams", "full-b-Lec", flags, 40);
}

#[test]
fn forged_raw_streams_leave_the_pool_whole() {
    forge("raw-received", "raw-a", SendFlags { raw: true, ..SendFlags::default() }, 40);
}
