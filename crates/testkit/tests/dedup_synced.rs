//! Blocks that an `fsync` places for the intent log, and that enter the dedup tables with their txg.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crypt::{KeyFormat, Suite};
use engine::ddt::{self, Totals};
use engine::dsl::RootKey;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::dsl::write::{Cipher, Encryption, NewKey};
use engine::spa::Spa;
use stdx::rng::Rng;
use testkit::pools;
use testkit::zdb::Judge;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, mount};

const POOL: &str = "synced";
const BLOCK: usize = 64 << 10;
const ON: u64 = 1;
const OFF: u64 = 2;
const SHA256: u64 = 8;
const SHA512: u64 = 11;
const BLAKE3: u64 = 14;
const VERIFY: u64 = 256;
const LZ4: u64 = 15;

struct Bed {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
    fs: Arc<FsWriter>,
}

impl Bed {
    fn new(dedup: u64, encrypted: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let encryption = match encrypted {
            true => {
                let key = RootKey::derive(KeyFormat::Raw, &[7; 32], None).unwrap();
                let key = Some(NewKey { key, location: Some("prompt".into()) });
                Encryption { cipher: Cipher::Suite(Suite::Aes256Gcm), key }
            }
            false => Encryption::default(),
        };
        let spa = pools::create_fs_dir(dir.path(), POOL, 256 << 20, encryption).unwrap();
        let fs = mount(&spa, POOL, Overrides::default()).unwrap();
        let bed = Self { dir, spa, fs };
        bed.set("recordsize", BLOCK as u64);
        bed.set("dedup", dedup);
        bed
    }

    fn set(&self, name: &'static str, value: u64) {
        let all = [(name, Some(PropValue::Number(value)))];
        self.spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local)).unwrap();
    }

    fn create(&self, name: &str) -> u64 {
        let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
        self.fs.dirs().create(self.fs.root, name.as_bytes(), &node).unwrap()
    }

    fn write(&self, name: &str, tags: Range<u64>) -> (u64, Range<u64>) {
        self.fill(self.create(name), tags)
    }

    /// Writes to a file and commits each of its blocks.
    fn fill(&self, number: u64, tags: Range<u64>) -> (u64, Range<u64>) {
        for (i, tag) in tags.clone().enumerate() {
            self.fs.data().write(number, (i * BLOCK) as u64, &block(tag), true).unwrap();
            self.fs.fsync(number).unwrap();
        }
        (number, tags)
    }

    fn check(&self, (number, tags): &(u64, Range<u64>)) {
        let mut out = vec![0; BLOCK];
        for (i, tag) in tags.clone().enumerate() {
            self.fs.data().read(*number, (i * BLOCK) as u64, &mut out).unwrap();
            assert!(out == block(tag), "file {number} block {i}");
        }
    }

    /// Entries and references.
    fn counts(&self) -> (u64, u64) {
        let tables = ddt::tables(&self.spa.mos.view(), &mut Vec::new());
        let all = Totals::of(&tables, &|_| 0).all();
        (all.blocks, all.ref_blocks)
    }

    /// Strong checksums made since the pool was created: metadata has others.
    fn summed(&self) -> u64 {
        self.spa.pool.zio.stats.summed.load(Ordering::Relaxed)
    }

    fn judge(&self) {
        let copy = tempfile::tempdir().unwrap();
        pools::copy(self.dir.path(), copy.path());
        for judge in [Judge::USUAL, Judge::NEWEST].iter().filter(|judge| judge.installed()) {
            judge.verify(copy.path(), POOL).unwrap_or_else(|why| panic!("{judge:?}: {why}"));
        }
    }

    /// Removes all files; nothing is left of the tables.
    fn empty(self) {
        for entry in self.fs.dirs().entries(self.fs.root).unwrap() {
            self.fs.dirs().unlink(self.fs.root, &entry.name).unwrap();
        }
        (0..30).for_each(|_| self.spa.dsl_task(|_| Ok(())).unwrap());
        assert_eq!(self.counts(), (0, 0));
        self.judge();
        self.fs.unmount().unwrap();
    }
}

/// Every third compresses.
fn block(tag: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(tag + 1).fill(&mut bytes);
    if tag.is_multiple_of(3) {
        bytes[9000..].fill(tag as u8 | 1);
    }
    bytes
}

/// A block that a commit has placed is checksummed once, whether the table has it or not.
#[test]
fn each_block_is_checksummed_once() {
    for (dedup, encrypted) in
        [(ON, false), (ON | VERIFY, false), (BLAKE3, false), (ON, true), (ON | VERIFY, true)]
    {
        let bed = Bed::new(dedup, encrypted);
        let before = bed.summed();
        let first = bed.write("first", 0..9);
        bed.spa.sync().unwrap();
        assert_eq!((bed.counts(), bed.summed() - before), ((9, 9), 9), "unique, {dedup} {encrypted}");
        let more = [bed.write("twice", 0..9), bed.write("more", 5..12)];
        bed.spa.sync().unwrap();
        assert_eq!((bed.counts(), bed.summed() - before), ((12, 25), 25), "duplicates, {dedup} {encrypted}");
        [&first, &more[0], &more[1]].into_iter().for_each(|file| bed.check(file));
        bed.judge();
        bed.empty();
    }
}

/// Properties that change between a commit and its txg: no block is lost, leaked or listed under the checksum of another.
#[test]
fn properties_change_before_the_txg() {
    let changes = [
        (ON, "dedup", SHA512, (9, 9), (9, 18)),
        (ON, "dedup", OFF, (0, 0), (0, 0)),
        (OFF, "dedup", ON, (9, 9), (9, 18)),
        (ON, "dedup", SHA256 | VERIFY, (9, 9), (9, 18)),
        // The blocks that compress are others then.
        (ON, "compression", OFF, (9, 9), (12, 18)),
        (ON, "copies", 2, (9, 9), (9, 18)),
    ];
    for (encrypted, (dedup, name, value, once, twice)) in
        [false, true].into_iter().flat_map(|encrypted| changes.map(|change| (encrypted, change)))
    {
        let bed = Bed::new(dedup, encrypted);
        bed.set("compression", LZ4);
        let number = bed.create("first");
        bed.fs.fsync(number).unwrap();
        let ((go, told), (done, wait)) = (mpsc::channel::<()>(), mpsc::channel());
        let (ours, wait) = (&bed, Mutex::new(wait));
        let first = std::thread::scope(|scope| {
            // A sync task of one txg sets the property when the blocks have been placed in the next one.
            let writer = scope.spawn(move || {
                told.recv().unwrap();
                let first = ours.fill(number, 0..9);
                done.send(()).unwrap();
                first
            });
            let all = [(name, Some(PropValue::Number(value)))];
            bed.spa
                .dsl_task(move |tasks| {
                    if go.send(()).is_ok() {
                        wait.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
                    }
                    tasks.set(POOL, &all, SettingSource::Local)
                })
                .unwrap();
            writer.join().unwrap()
        });
        bed.spa.sync().unwrap();
        assert_eq!(bed.counts(), once, "{name} {value} {encrypted}");
        let second = bed.write("second", 0..9);
        bed.spa.sync().unwrap();
        assert_eq!(bed.counts(), twice, "{name} {value} {encrypted}");
        bed.check(&first);
        bed.check(&second);
        bed.judge();
        bed.empty();
    }
}
