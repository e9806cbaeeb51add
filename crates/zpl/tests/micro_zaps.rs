//! Micro ZAPs that are changed in place, with an index of their names: their bytes are those of blocks that are searched,
//! copied and rewritten whole, which is how an object in memory without a pool is changed. And how often blocks are copied.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::Bench;
use engine::Kind;
use engine::dmu::edit::{Edit, MemObject};
use engine::dmu::{Handle, NewObject};
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::OpenOptions;
use engine::zap::{NewZap, TOUPPER, Zap, ZapEdit};
use ondisk::ObjectType;
use ondisk::zap::{HASH_POLY, ZapFlags, hash_name};
use stdx::AlignedBuf;
use stdx::rng::Rng;
use zcommon::features::Feature;
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, mount};

const SALT: u64 = 0x1234_5678_9abd;

/// A directory of the pool, and its twin outside.
struct Pair {
    bench: Bench,
    live: Arc<Handle>,
    twin: MemObject,
}

impl Pair {
    fn new(normflags: u64) -> Self {
        let bench = Bench::new(256 << 20, |_| ());
        let new = NewZap { normflags, salt: SALT, ..NewZap::default() };
        let tx = bench.spa.begin().unwrap();
        let live = bench.objset.create_object(&tx, NewObject::plain(ObjectType::DIRECTORY_CONTENTS, 512));
        let live = live.unwrap();
        ZapEdit::create(&mut live.edit(&tx), &new).unwrap();
        drop(tx);
        let mut twin = MemObject::new(live.number, 512);
        ZapEdit::create(&mut twin, &new).unwrap();
        Self { bench, live, twin }
    }

    fn both(&mut self, work: impl Fn(&mut ZapEdit<'_>) -> engine::Result<()>) {
        let tx = self.bench.spa.begin().unwrap();
        let ours = work(&mut ZapEdit::open(&mut self.live.edit(&tx)).unwrap()).map_err(|e| e.kind());
        let theirs = work(&mut ZapEdit::open(&mut self.twin).unwrap()).map_err(|e| e.kind());
        assert_eq!(ours, theirs);
    }

    fn compare(&self) {
        assert_eq!(self.live.block_size(), self.twin.block_size());
        assert_eq!(self.live.max_block(), self.twin.max_block());
        for blkid in 0..=self.twin.max_block() {
            let (ours, theirs) = (self.live.block(blkid).unwrap(), self.twin.read_block(blkid).unwrap());
            assert!(*ours == *theirs, "block {blkid}");
        }
    }

    fn step(&mut self, rng: &mut Rng, name: &str) {
        let word = rng.next_u64();
        match rng.below(8) {
            0..=2 => self.both(|zap| zap.insert(name, word)),
            3 => self.both(|zap| zap.update(name, word)),
            4..=5 => self.both(|zap| zap.remove(name)),
            _ => {
                let ours = Zap::open(&&self.live).unwrap().lookup(name.as_bytes()).unwrap();
                assert_eq!(ours, ZapEdit::open(&mut self.twin).unwrap().lookup(name).unwrap());
            }
        }
    }

    /// Other ways to change the block, after which an index would be wrong.
    fn change_otherwise(&mut self, rng: &mut Rng) {
        let tx = self.bench.spa.begin().unwrap();
        let slot = 1 + rng.below(self.live.block_size() / 64 - 1) as usize;
        let mut block = self.live.block(0).unwrap().into_owned();
        block[64 * slot..64 * (slot + 1)].fill(0);
        self.twin.write_block(0, AlignedBuf::copy_of(&block)).unwrap();
        match rng.below(3) {
            0 => self.live.write_block(&tx, 0, block.into()).unwrap(),
            1 => self.live.write(&tx, 64 * slot as u64, &[0; 64]).unwrap(),
            _ => self.live.edit(&tx).patch_block(0, &mut |b| b[64 * slot..64 * (slot + 1)].fill(0)).unwrap(),
        }
    }
}

#[test]
fn a_directory_that_is_changed_in_place_has_the_bytes_of_one_that_is_rewritten() {
    for (seed, normflags) in [(1, 0), (2, TOUPPER)] {
        let (mut pair, mut rng) = (Pair::new(normflags), Rng::new(seed));
        for round in 0..4000 {
            let name = format!("{}-{}", if rng.below(2) == 0 { "Name" } else { "name" }, rng.below(500));
            pair.step(&mut rng, &name);
            if round % 211 == 0 {
                pair.change_otherwise(&mut rng);
            }
            if round % 97 == 0 {
                pair.compare();
            }
            if round % 500 == 499 {
                pair.bench.spa.sync().unwrap();
                pair.compare();
            }
        }
        assert!(pair.live.block_size() > 16 << 10);
        // Up to the moment at which it becomes fat, and beyond.
        for number in 0..2047 {
            pair.both(|zap| zap.insert(&format!("n{number}"), number));
            assert_eq!(pair.live.max_block(), pair.twin.max_block(), "{number}");
        }
        assert!(pair.live.max_block() > 0);
        pair.compare();
    }
}

/// Blocks that are at another place in memory than at the last look.
fn moved(live: &Handle, places: &mut BTreeMap<u64, usize>) -> usize {
    let now = (0..=live.max_block()).map(|blkid| (blkid, live.block(blkid).unwrap().as_ptr().addr()));
    now.filter(|(blkid, at)| places.insert(*blkid, *at) != Some(*at)).count()
}

/// A txg copies a block once, a micro ZAP again each time that it grows by an eighth, and leaves that are split or joined: not
/// each block for each name.
#[test]
fn names_that_come_and_go_in_one_txg_move_few_blocks() {
    const FEW: u64 = 2047;
    const ALL: u64 = 6000;
    let pair = Pair::new(0);
    let tx = pair.bench.spa.begin().unwrap();
    let mut places = BTreeMap::new();
    let mut change = |work: &dyn Fn(&mut ZapEdit<'_>) -> engine::Result<()>| {
        work(&mut ZapEdit::open(&mut pair.live.edit(&tx)).unwrap()).unwrap();
        moved(&pair.live, &mut places)
    };
    let few: usize = (0..FEW).map(|n| change(&|zap| zap.insert(&format!("name {n}"), n))).sum();
    let more: usize = (FEW..ALL).map(|n| change(&|zap| zap.insert(&format!("name {n}"), n))).sum();
    let fewer: usize = (0..ALL).map(|n| change(&|zap| zap.remove(&format!("name {n}")))).sum();
    println!("{few} moves of a micro ZAP that grows, {more} of a fat one, {fewer} of one that shrinks");
    assert!(few < 40 && more < 400 && fewer < 400, "{few}, {more} and {fewer} moves");
}

/// A name with the high hash bits of `wanted` after any prefix.
fn colliding(prefix: &[u8], wanted: u64, rng: &mut Rng) -> Vec<u8> {
    let table: Vec<u64> = (0..256)
        .map(|i| (0..8).fold(i, |c: u64, _| if c & 1 == 1 { c >> 1 ^ HASH_POLY } else { c >> 1 }))
        .collect();
    let state = prefix.iter().fold(SALT, |crc, b| crc >> 8 ^ table[usize::from(crc as u8 ^ b)]);
    loop {
        let target = wanted & !(u64::MAX >> 28) | rng.below(1 << 36);
        let before = (0..8).fold(target, |crc, _| {
            let i = table.iter().position(|t| t >> 56 == crc >> 56).unwrap();
            (crc ^ table[i]) << 8 | i as u64
        });
        let tail = (before ^ state).to_le_bytes();
        if !tail.contains(&0) {
            return [prefix, &tail].concat();
        }
    }
}

#[test]
fn names_of_one_hash_get_the_same_numbers() {
    let (mut pair, mut rng) = (Pair::new(0), Rng::new(3));
    let wanted = 0xabcd_ef12_3456_789a;
    let names: Vec<Vec<u8>> =
        (0..130).map(|i: u32| colliding(&i.to_be_bytes().map(|b| b | 0x40), wanted, &mut rng)).collect();
    assert!(names.iter().all(|n| hash_name(SALT, n, ZapFlags::default()) >> 36 == wanted >> 36));
    for _ in 0..3000 {
        let name = &names[rng.below(100) as usize][..];
        match rng.below(5) {
            0..=2 => pair.both(|zap| zap.insert(name, 1)),
            _ => pair.both(|zap| zap.remove(name)),
        }
    }
    pair.compare();
    // One leaf has no room for all of them: it becomes fat at the same name.
    for name in &names {
        pair.both(|zap| zap.insert(&name[..], 2));
        assert_eq!(pair.live.max_block(), pair.twin.max_block());
    }
    pair.compare();
}

#[test]
fn indexes_take_bounded_memory_and_those_that_went_come_back() {
    let pair = Pair::new(0);
    let (mut big, objset) = (MemObject::new(1, 512), &pair.bench.objset);
    ZapEdit::create(&mut big, &NewZap { salt: SALT, ..NewZap::default() }).unwrap();
    for number in 0..2047_u64 {
        ZapEdit::open(&mut big).unwrap().insert(&format!("n{number}"), number).unwrap();
    }
    let block = big.read_block(0).unwrap();
    let make = || {
        let tx = pair.bench.spa.begin().unwrap();
        let new = NewObject::plain(ObjectType::DIRECTORY_CONTENTS, block.len() as u64);
        let handle = objset.create_object(&tx, new).unwrap();
        handle.write_block(&tx, 0, block.clone()).unwrap();
        handle
    };
    let all: Vec<_> = (0..150).map(|_| make()).collect();
    for _ in 0..2 {
        for handle in &all {
            for name in ["n7", "n2046", "none"] {
                let found = Zap::open(&handle).unwrap().u64(name).unwrap();
                assert_eq!(found, name.strip_prefix('n').and_then(|n| n.parse().ok()));
            }
        }
        let bytes = pair.bench.env.memory.objects.index_bytes();
        assert!((1 << 20..=4 << 20).contains(&bytes), "{bytes}");
    }
    let tx = pair.bench.spa.begin().unwrap();
    let mut edit = all[0].edit(&tx);
    let mut zap = ZapEdit::open(&mut edit).unwrap();
    zap.remove("n7").unwrap();
    assert_eq!(zap.remove("n7").map_err(|e| e.kind()), Err(Kind::NotFound));
    zap.insert("n7", 8).unwrap();
    assert_eq!(zap.insert("n2046", 8).map_err(|e| e.kind()), Err(Kind::Exists));
}

/// A directory may stay a micro ZAP beyond 128 KiB, with the feature `large_microzap`, and remains whole when that is no longer
/// set.
#[test]
fn large_directories_stay_micro_where_that_is_set() {
    let bench = Bench::new(256 << 20, |_| ());
    let limits = &bench.env.memory.limits;
    limits.set(Limit::MicroZapMax, 1 << 20).unwrap();
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let make = |dir: u64, name: String| {
        fs.dirs().create(dir, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap()
    };
    let dir = fs.dirs().create(fs.root, b"dir", &NewNode::new(FileKind::Directory, 0o755, 0, 0)).unwrap();
    for number in 0..3000 {
        make(dir, format!("name-{number}"));
    }
    fs.dirs().unlink(dir, b"name-77").unwrap();
    let handle = fs.objset.handle(dir).unwrap();
    assert!(handle.block_size() > 128 << 10 && handle.max_block() == 0, "{}", handle.block_size());
    limits.set(Limit::MicroZapMax, 128 << 10).unwrap();
    let last = make(dir, "one-more".into());
    let found = |name: &[u8]| fs.dirs().lookup(dir, name).unwrap().map(|entry| entry.object);
    assert_eq!(
        (found(b"one-more"), found(b"name-77"), found(b"name-78").is_some()),
        (Some(last), None, true)
    );
    fs.unmount().unwrap();
    drop((handle, fs));
    bench.spa.export().unwrap();
    bench.zdb(&["-bcc", "wpool"]);
    let dirs = vec![bench.dir.path().to_owned()];
    let env = Env::system(32 << 20).unwrap();
    let pool = zutil::import::open_pool(&env, &dirs, "wpool", OpenOptions::default()).unwrap();
    assert!(pool.features.is_active(Feature::LargeMicrozap.info().guid));
}
