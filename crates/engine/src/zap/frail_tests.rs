//! ZAPs in objects of which some blocks cannot be changed or read: an operation that fails has changed nothing.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::zap::{FatHeader, ZapFlags};
use stdx::rng::Rng;
use stdx::{AlignedBuf, Buf};

use super::*;
use crate::dmu::edit::{Edit, MemObject};

/// An object with blocks that cannot be changed, and others that cannot be read.
#[derive(Default)]
struct Frail {
    inner: MemObject,
    fixed: BTreeSet<u64>,
    lost: BTreeSet<u64>,
}

fn lost() -> Error {
    Error::new(Kind::Io, "no such block here")
}

impl Frail {
    fn new() -> Self {
        let mut inner = MemObject::new(9, 4096);
        ZapEdit::create(&mut inner, &NewZap { flags: ZapFlags::HASH64, normflags: 0, salt: 77 }).unwrap();
        Self { inner, ..Self::default() }
    }

    fn all(&self) -> BTreeMap<Vec<u8>, u64> {
        let zap = Zap::open(&(&self.inner as &dyn Edit)).unwrap();
        zap.verify().unwrap();
        let all: BTreeMap<_, _> = zap
            .to_vec()
            .unwrap()
            .into_iter()
            .map(|e| (e.name().to_vec(), e.value.first().unwrap()))
            .collect();
        assert_eq!(zap.count().unwrap(), all.len() as u64);
        all
    }

    fn header(&self) -> FatHeader {
        *Zap::open(&(&self.inner as &dyn Edit)).unwrap().fat_header().unwrap()
    }
}

impl Edit for Frail {
    fn number(&self) -> u64 {
        self.inner.number()
    }

    fn block_size(&self) -> u64 {
        self.inner.block_size()
    }

    fn set_block_size(&mut self, bytes: u64) -> Result<()> {
        self.inner.set_block_size(bytes)
    }

    fn max_block(&self) -> u64 {
        self.inner.max_block()
    }

    fn read_block(&self, blkid: u64) -> Result<Buf> {
        if self.lost.contains(&blkid) { Err(lost()) } else { self.inner.read_block(blkid) }
    }

    fn write_block(&mut self, blkid: u64, bytes: AlignedBuf) -> Result<()> {
        self.check_change(blkid, 1)?;
        self.inner.write_block(blkid, bytes)
    }

    fn check_change(&self, blkid: u64, count: u64) -> Result<()> {
        let fixed = self.fixed.range(blkid..blkid.saturating_add(count)).next();
        fixed.map_or(Ok(()), |_| Err(lost()))
    }

    fn free_from(&mut self, blkid: u64) -> Result<()> {
        self.inner.free_from(blkid)
    }

    fn bonus(&self) -> Vec<u8> {
        self.inner.bonus()
    }

    fn set_bonus(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.set_bonus(bytes)
    }
}

fn name(n: u64) -> String {
    format!("an entry with quite a long name, number {n}")
}

#[test]
fn an_operation_that_fails_has_changed_nothing() {
    let (mut failed, mut done) = (0, 0);
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut object = Frail::new();
        let mut model = BTreeMap::new();
        for step in 0..900_u64 {
            // It grows, then shrinks.
            let is_late = step > 450;
            let some = 1 + object.inner.max_block();
            object.fixed = (0..rng.below(4)).map(|_| rng.below(some + 8)).collect();
            let n = rng.below(600);
            let mut edit = ZapEdit::open(&mut object).unwrap();
            let (result, expected) = match rng.below(4) == 0 || is_late && rng.below(4) > 0 {
                true => (edit.remove(&name(n)), model.contains_key(name(n).as_bytes())),
                false => (edit.update(&name(n), step), true),
            };
            match result {
                Ok(()) if is_late || expected => {
                    done += 1;
                    let now = edit.lookup(&name(n)).unwrap().and_then(|value| value.first());
                    match now {
                        Some(value) => model.insert(name(n).into_bytes(), value),
                        None => model.remove(name(n).as_bytes()),
                    };
                }
                Ok(()) => panic!("an entry was removed that was not there"),
                Err(e) => failed += usize::from(e.kind() != Kind::NotFound),
            }
            assert!(object.all() == model, "seed {seed}, step {step}");
        }
    }
    assert!(failed > 200 && done > 1000, "{failed} failed, {done} done");
}

/// The blocks at the end come back: not past one that cannot be read, and without a search of forged length.
#[test]
fn blocks_at_the_end_come_back_as_far_as_they_are_known() {
    let full = || {
        let mut object = Frail::new();
        let mut edit = ZapEdit::open(&mut object).unwrap();
        (0..400).for_each(|n| edit.insert(&name(n), n).unwrap());
        object
    };
    let empty = |object: &mut Frail| {
        let mut edit = ZapEdit::open(object).unwrap();
        (0..400).for_each(|n| edit.remove(&name(n)).unwrap());
    };
    let forge = |object: &mut Frail, freeblk: u64| {
        let mut block = object.inner.read_block(0).unwrap().into_owned();
        FatHeader { freeblk, ..object.header() }.write_to(&mut block);
        object.inner.write_block(0, block).unwrap();
    };
    let mut object = full();
    let before = object.header().freeblk;
    empty(&mut object);
    let (all, leaves) = (object.header().freeblk, object.header().num_leafs);
    assert!(all < before && leaves == 1, "{all} of {before}, {leaves} leaves");

    // A number of blocks that does not exist.
    let mut object = full();
    forge(&mut object, 1 << 60);
    empty(&mut object);
    assert_eq!(object.header().freeblk, all);

    // Two free blocks at the end, of which the first cannot be read.
    let mut object = full();
    for blkid in [before, before + 1] {
        object.inner.write_block(blkid, AlignedBuf::zeroed(4096)).unwrap();
    }
    forge(&mut object, before + 2);
    object.lost.insert(before);
    empty(&mut object);
    assert_eq!(object.header().freeblk, before + 1);
}
