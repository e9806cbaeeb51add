//! Blocks that are known by two places, as after OpenZFS has written the new place of a removed vdev's block into a head,
//! while a snapshot keeps the old one: clones by either place count.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::dmu::{NewObject, Tx};
use engine::dsl::write::Hooks as _;
use engine::env::Env;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::spa::{Spa, WaitActivity};
use engine::vdev::config::AllocBias;
use ondisk::{Blkptr, Dva, ObjectType, ObjsetType};
use stdx::rng::Rng;
use testkit::pools;
use testkit::zdb::Judge;
use zcommon::features::Feature;

const POOL: &str = "remapped";
const BLOCK: u64 = 16 << 10;
const BLOCKS: u64 = 400;

struct Bench {
    spa: Arc<Spa>,
    dataset: u64,
    body: Vec<u8>,
    dir: tempfile::TempDir,
}

impl Bench {
    /// A pool of three disks, of which the first is removed after the blocks of an object were written to all of them.
    fn new() -> (Self, u64) {
        let dir = tempfile::tempdir().unwrap();
        let leaf = |n: u32| VdevSpec::Leaf(pools::leaf(&dir.path().join(format!("disk{n}")), 128 << 20));
        let top = |n| TopSpec { vdev: leaf(n), class: AllocBias::Normal, ashift: None };
        let env = Env::system(0).unwrap();
        let spa = pools::create_pool(&env, POOL, [1, 2, 3].map(top).into(), &|_, _| Ok(())).unwrap();
        let name = format!("{POOL}/data");
        let dataset =
            spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
        let mut body = vec![0; (BLOCK * BLOCKS) as usize];
        Rng::new(5).fill(&mut body);
        let bench = Self { spa, dataset, body, dir };
        let first = bench.object(|object, tx| object.write(tx, 0, &bench.body).unwrap());
        let gone = bench.spa.pool.tree().config.children.iter().find(|top| top.id == 0).unwrap().guid;
        bench.spa.removal().remove(gone).unwrap();
        while bench.spa.background().left(WaitActivity::Remove).unwrap().is_some() {
            bench.spa.sync().unwrap();
        }
        (bench, first)
    }

    fn object(&self, fill: impl FnOnce(&Arc<engine::dmu::dirty::Handle>, &Tx)) -> u64 {
        let data = self.spa.datasets.open(&*self.spa, self.dataset).unwrap();
        let tx = self.spa.begin().unwrap();
        let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, BLOCK);
        let object = data.objset.create_object(&tx, new).unwrap();
        fill(&object, &tx);
        drop(tx);
        self.spa.sync().unwrap();
        object.number
    }

    /// An object of clones.
    fn clone_of(&self, blocks: &[(u64, Blkptr)]) -> u64 {
        self.object(|object, tx| blocks.iter().for_each(|(at, bp)| object.clone_block(tx, *at, bp).unwrap()))
    }

    fn free(&self, object: u64) {
        let data = self.spa.datasets.open(&*self.spa, self.dataset).unwrap();
        let tx = self.spa.begin().unwrap();
        data.objset.free_object(&tx, object).unwrap();
        drop(tx);
        // Freed space may be allocated again after some txgs.
        (0..5).for_each(|_| self.spa.sync().unwrap());
    }

    /// The pointers to the blocks on the removed vdev, and those that OpenZFS would replace them by.
    fn pointers(&self, object: u64) -> (Vec<(u64, Blkptr)>, Vec<(u64, Blkptr)>) {
        let data = self.spa.datasets.open(&*self.spa, self.dataset).unwrap();
        let stored = data.objset.view().object(object).unwrap();
        let all = (0..BLOCKS).map(|at| (at, stored.blkptr(0, at).unwrap().unwrap()));
        let old: Vec<(u64, Blkptr)> = all.filter(|(_, bp)| bp.dva(0).unwrap().vdev == 0).collect();
        let mapping = self.spa.pool.tree().top(0).unwrap().mapping().unwrap();
        let replaced = |(at, bp): &(u64, Blkptr)| {
            let dva = bp.dva(0).unwrap();
            let [piece] = mapping.resolve(dva.offset, dva.asize).unwrap()[..] else { return None };
            let mut new = *bp;
            new.set_dvas(&[Dva { vdev: piece.vdev as u32, offset: piece.offset, ..dva }]);
            new.set_births(bp.logical_birth(), piece.born.unwrap());
            Some(((*at, *bp), (*at, new)))
        };
        // A block that a removal has split keeps its pointer.
        let (old, new): (Vec<_>, Vec<_>) = old.iter().filter_map(replaced).unzip();
        assert!(new.len() > 10, "{}", new.len());
        (old, new)
    }

    /// All blocks of an object of clones are there, and their space is theirs.
    fn check(&self, object: u64, blocks: &[(u64, Blkptr)]) {
        // Whatever is free is written over.
        let mut noise = vec![0; 120 << 20];
        Rng::new(6).fill(&mut noise);
        let other = self.object(|object, tx| object.write(tx, 0, &noise).unwrap());
        self.spa.pool.arc.forget_all();
        let data = self.spa.datasets.open(&*self.spa, self.dataset).unwrap();
        let stored = data.objset.view().object(object).unwrap();
        for (at, _) in blocks {
            let bytes = stored.read_vec(at * BLOCK, BLOCK as usize).unwrap();
            assert!(bytes == self.body[(at * BLOCK) as usize..][..BLOCK as usize], "block {at}");
        }
        self.free(other);
    }
}

#[test]
fn clones_of_both_places_of_a_block_keep_it() {
    let (bench, first) = Bench::new();
    let (old, new) = bench.pointers(first);
    let (by_new, by_old) = (bench.clone_of(&new), bench.clone_of(&old));
    // The old place has an entry for one of the two pointers to it, the new place has one for the other.
    bench.free(first);
    bench.free(by_old);
    bench.check(by_new, &new);
    // As from a snapshot with the old pointers, whose blocks have one more reference by the new ones.
    let from_snapshot = bench.clone_of(&old);
    bench.free(by_new);
    bench.check(from_snapshot, &old);
    // As when the last snapshot with an old pointer that OpenZFS has replaced is destroyed.
    let obsolete = || bench.spa.space.obsolete().iter().map(|(_, bytes, _)| bytes).sum::<u64>();
    let (before, places) = (obsolete(), old.clone());
    let mark = move |spa: &Spa, tx: &Tx| places.iter().try_for_each(|(_, bp)| spa.mark_obsolete(bp, tx));
    bench.spa.sync_task(mark).unwrap();
    bench.spa.sync().unwrap();
    assert_eq!(obsolete(), before, "the last clone refers to these places");
    let allocated =
        || [1, 2].map(|vdev| bench.spa.space.vdev_stats(vdev).unwrap().allocated).iter().sum::<u64>();
    let before = allocated();
    bench.free(from_snapshot);
    let freed = before - allocated();
    assert!(freed >= BLOCK * old.len() as u64, "{freed}");
    assert_eq!(bench.spa.feature(Feature::BlockCloning), Some(0));
    bench.spa.export().unwrap();
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        judge.verify(bench.dir.path(), POOL).unwrap();
    }
}
