//! Dedup where it is hardest: gangs, forged collisions; where the tables are placed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::Result;
use engine::ddt;
use engine::dsl::props::PropValue;
use engine::dsl::write::Encryption;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::spa::Spa;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::vdev::config::AllocBias;
use engine::zio::dedup::{Claim, ClaimAgain, DedupTables, Want};
use ondisk::Blkptr;
use parking_lot::Mutex;
use stdx::rng::Rng;
use testkit::pools;
use testkit::zdb::Judge;
use zpl::FileKind;
use zpl::write::{CloneFrom, FsWriter, NewNode, Overrides, create_fs, mount};

const POOL: &str = "hard";
const BLOCK: usize = 8 << 10;
const SHA256_VERIFY: u64 = 8 | 256;
const EDONR_VERIFY: u64 = 13 | 256;
const THROUGHPUT: u64 = 1;

fn bed(dedup: u64) -> (tempfile::TempDir, Arc<Spa>) {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 256 << 20, Encryption::default()).unwrap();
    set(&spa, "recordsize", BLOCK as u64);
    set(&spa, "dedup", dedup);
    (dir, spa)
}

fn set(spa: &Arc<Spa>, name: &'static str, value: u64) {
    let all = [(name, Some(PropValue::Number(value)))];
    spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local)).unwrap();
}

fn block(tag: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(tag).fill(&mut bytes);
    bytes
}

fn write(fs: &FsWriter, name: &str, tags: std::ops::Range<u64>) -> (u64, std::ops::Range<u64>) {
    let number =
        fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    let bytes: Vec<u8> = tags.clone().flat_map(block).collect();
    fs.data().write(number, 0, &bytes, true).unwrap();
    (number, tags)
}

fn check(fs: &FsWriter, (number, tags): &(u64, std::ops::Range<u64>)) {
    let mut out = vec![0; BLOCK];
    for (i, tag) in tags.clone().enumerate() {
        fs.data().read(*number, (i * BLOCK) as u64, &mut out).unwrap();
        assert!(out == block(tag), "file {number} block {i}");
    }
}

fn judge(dir: &std::path::Path) {
    let copy = tempfile::tempdir().unwrap();
    pools::copy(dir, copy.path());
    for judge in [Judge::USUAL, Judge::NEWEST].iter().filter(|judge| judge.installed()) {
        judge.verify(copy.path(), POOL).unwrap_or_else(|why| panic!("{judge:?}: {why}"));
    }
}

/// Gangs are shared and freed whole; more copies than a gang has are written without dedup.
#[test]
fn gangs_are_shared() {
    let (dir, spa) = bed(SHA256_VERIFY);
    spa.space.force_ganging(4 << 10);
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let mut files = vec![write(&fs, "a", 0..20), write(&fs, "b", 10..30)];
    spa.sync().unwrap();
    set(&spa, "copies", 2);
    files.push(write(&fs, "c", 5..25));
    spa.sync().unwrap();
    files.iter().for_each(|file| check(&fs, file));
    judge(dir.path());
    for name in [b"a", b"c", b"b"] {
        fs.dirs().unlink(fs.root, name).unwrap();
        (0..4).for_each(|_| spa.dsl_task(|_| Ok(())).unwrap());
    }
    (0..20).for_each(|_| spa.dsl_task(|_| Ok(())).unwrap());
    judge(dir.path());
    fs.unmount().unwrap();
}

/// The ZAPs and the logs of dedup tables, and the entries of clone tables, are on the dedup vdevs.
#[test]
fn tables_are_on_dedup_vdevs() {
    let (dir, env) = (tempfile::tempdir().unwrap(), Env::system(64 << 20).unwrap());
    let top = |name: &str, class| {
        let vdev = VdevSpec::Leaf(pools::leaf(&dir.path().join(name), 128 << 20));
        TopSpec { vdev, class, ashift: None }
    };
    let tops = vec![top("disk1", AllocBias::Normal), top("disk2", AllocBias::Dedup)];
    let new = pools::new_fs(&env);
    let spa = pools::create_pool(&env, POOL, tops, &|o, tx| create_fs(o, tx, &new)).unwrap();
    set(&spa, "recordsize", BLOCK as u64);
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let plain = write(&fs, "plain", 0..40);
    set(&spa, "dedup", SHA256_VERIFY);
    write(&fs, "shared", 100..140);
    let copy = fs.dirs().create(fs.root, b"copy", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    let len = (40 * BLOCK) as u64;
    assert_eq!(
        fs.clones().clone_range((CloneFrom::File(&fs, plain.0), 0), (copy, 0), len, true).unwrap(),
        len
    );
    spa.sync().unwrap();

    let view = spa.mos.view();
    let tables = ddt::tables(&view, &mut Vec::new());
    assert!(tables.iter().any(|table| !table.logs.is_empty()));
    let mut objects: Vec<u64> =
        tables.iter().flat_map(|table| table.logs.iter().map(|log| log.object)).collect();
    let named = engine::brt::named(&view).unwrap();
    objects.extend(named.iter().filter_map(|(_, head)| engine::brt::entries_object(&view, *head)));
    assert!(objects.len() > 2);
    let mut blocks = 0;
    for number in objects {
        let object = view.object(number).unwrap();
        for blkid in 0..=object.dnode.maxblkid {
            let Some(bp) = object.blkptr(0, blkid).unwrap().filter(|bp| !bp.is_hole() && !bp.is_embedded())
            else {
                continue;
            };
            let vdevs: Vec<_> = bp.dvas().map(|dva| dva.vdev).collect();
            assert_eq!(vdevs.first(), Some(&1), "object {number}: {vdevs:?}");
            blocks += 1;
        }
    }
    assert!(blocks > 0);
    fs.unmount().unwrap();
    judge(dir.path());
}

/// Tables in which every block has the key of the first one.
#[derive(Debug, Default)]
struct Colliding(Mutex<(Option<Blkptr>, u64)>);

impl DedupTables for Colliding {
    fn claim(&self, _: &Blkptr, want: &Want, _: &mut Option<ClaimAgain>) -> Result<Claim> {
        let (first, compared) = &mut *self.0.lock();
        Ok(match (want.equal, *first) {
            (_, None) => Claim::Write { copies: want.copies, extends: false },
            (Some(equal), _) => Claim::Shared(equal),
            (None, Some(first)) => {
                *compared += 1;
                Claim::Compare(first)
            }
        })
    }

    fn written(&self, _: &Blkptr, _: &Want, written: Option<&Blkptr>) -> Option<Blkptr> {
        let (first, _) = &mut *self.0.lock();
        *first = first.or(written.copied());
        written.copied()
    }
}

/// With `verify` a block of other bytes is never taken for a stored one, however its checksum was forged: a weak checksum is
/// replaced by a strong one, and then the block is an ordinary one.
#[test]
fn forged_collisions_do_not_share() {
    let forms = [SHA256_VERIFY, EDONR_VERIFY].map(|dedup| [(dedup, false), (dedup, true)]);
    for (dedup, is_placed) in forms.into_iter().flatten() {
        let (_dir, spa) = bed(dedup);
        if is_placed {
            set(&spa, "logbias", THROUGHPUT);
        }
        let fs = mount(&spa, POOL, Overrides::default()).unwrap();
        // The commit that makes the log waits for a txg; later ones place their blocks.
        let empty = write(&fs, "empty", 0..0);
        fs.fsync(empty.0).unwrap();
        let tables = Arc::new(Colliding::default());
        spa.pool.zio.set_dedup(Arc::clone(&tables) as _);
        let first = write(&fs, "first", 7..8);
        if is_placed {
            fs.fsync(first.0).unwrap();
        }
        spa.sync().unwrap();
        let others = write(&fs, "others", 100..120);
        if is_placed {
            fs.fsync(others.0).unwrap();
        }
        spa.sync().unwrap();
        assert!(tables.0.lock().1 >= 20, "each block was compared");
        check(&fs, &first);
        check(&fs, &others);
        fs.unmount().unwrap();
    }
}
