//! Deadlists, livelists and block lists of the golden pools: their counts equal ours, and edited copies of
//! them stay right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use engine::Result;
use engine::dmu::NewObject;
use engine::dmu::edit::{Edit, MemObject, MemObjects, Objects};
use engine::dsl::Delta;
use engine::dsl::bpobj::{BlockList, Lists, space_of};
use engine::dsl::deadlist::DeadList;
use engine::spa::Pool;
use ondisk::names::mos;
use ondisk::{Blkptr, ObjectType};
use testkit::golden;

/// Objects of a pool's MOS, copied when they are first asked for.
struct Copies {
    pool: Arc<Pool>,
    objects: MemObjects,
    freed: parking_lot::Mutex<HashSet<u64>>,
    shared: u64,
}

impl Copies {
    fn fetch(&self, number: u64) -> Result<()> {
        if self.objects.kind(number).is_ok() || self.freed.lock().contains(&number) {
            return Ok(());
        }
        let object = self.pool.mos.object(number)?;
        let mut copy = MemObject::new(number, object.dnode.datablksz());
        for blkid in 0..=object.dnode.maxblkid {
            copy.write_block(blkid, object.block(blkid)?.into_owned())?;
        }
        copy.set_bonus(object.dnode.bonus())?;
        self.objects.insert(object.dnode.object_type, copy);
        Ok(())
    }
}

impl Objects for Copies {
    fn create(&self, new: &NewObject) -> Result<u64> {
        // Beyond all numbers of the pool.
        if self.objects.numbers().last().is_none_or(|last| *last < 1 << 40) {
            self.objects.insert(ObjectType::NONE, MemObject::new(1 << 40, 512));
        }
        self.objects.create(new)
    }

    fn free(&self, number: u64) -> Result<()> {
        self.fetch(number)?;
        self.freed.lock().insert(number);
        self.objects.free(number)
    }

    fn edit(&self, number: u64) -> Result<Box<dyn Edit + '_>> {
        self.fetch(number)?;
        self.objects.edit(number)
    }

    fn kind(&self, number: u64) -> Result<ObjectType> {
        self.fetch(number)?;
        self.objects.kind(number)
    }
}

impl Lists for Copies {
    fn dsize(&self, bp: &Blkptr) -> u64 {
        engine::zio::deflated(&self.pool.tree(), bp)
    }

    fn new_list(&self) -> Result<u64> {
        self.create(&NewObject::with_bonus(ObjectType::BPOBJ, 128 << 10, ObjectType::BPOBJ_HDR, 56))
    }

    fn empty_lists(&self, count: usize) -> Result<Vec<u64>> {
        (0..count).map(|_| if self.shared != 0 { Ok(self.shared) } else { self.new_list() }).collect()
    }

    fn shared(&self) -> Result<Option<u64>> {
        Ok((self.shared != 0).then_some(self.shared))
    }

    fn release_shared(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

fn counted(pool: &Copies, list: &BlockList<'_>, births: std::ops::RangeInclusive<u64>) -> (Delta, u64) {
    let (mut sum, mut blocks) = (Delta::default(), 0);
    let _ = list
        .iterate(&mut |bp, freed| {
            assert!(births.contains(&bp.accounting_birth()), "{births:?} {}", bp.accounting_birth());
            sum = sum.plus(space_of(pool, bp, freed));
            blocks += 1;
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    (sum, blocks)
}

/// Checks the counts of one deadlist; returns the number of blocks in it.
fn check(pool: &Copies, list: &DeadList<'_>) -> u64 {
    if list.is_old() {
        let list = BlockList::open(pool, list.number()).unwrap();
        let (sum, blocks) = counted(pool, &list, 0..=u64::MAX);
        assert_eq!(sum, list.space().unwrap());
        return blocks;
    }
    let entries: Vec<(u64, u64)> = list.entries().unwrap().into_iter().collect();
    let ends = entries.iter().skip(1).map(|(key, _)| *key).chain([u64::MAX]);
    let (mut total, mut blocks) = (Delta::default(), 0);
    for ((key, number), end) in entries.iter().zip(ends) {
        let part = BlockList::open(pool, *number).unwrap();
        let (sum, count) = counted(pool, &part, key + 1..=end);
        assert_eq!(sum, part.space().unwrap());
        total = total.plus(sum);
        blocks += count;
    }
    assert_eq!(total, list.space().unwrap());
    blocks
}

#[test]
fn lists_of_openzfs_hold_what_they_count() {
    for golden in golden::all() {
        let pool = golden.open().unwrap();
        let shared = pool.directory().unwrap().u64(mos::EMPTY_BPOBJ).unwrap().unwrap_or(0);
        let objects = MemObjects::default();
        let copies = Copies { pool: pool.clone(), objects, freed: Default::default(), shared };
        let (mut lists, mut blocks) = (0, 0);
        for dir in pool.dsl.walk(pool.dsl.root().unwrap()) {
            let Ok(head) = dir.unwrap().head() else { continue };
            let mut all = head.snapshots().unwrap();
            all.push(head);
            let mut below: Option<u64> = None;
            for dataset in all.iter().filter(|d| d.phys.deadlist_obj != 0) {
                let list = DeadList::open(&copies, dataset.phys.deadlist_obj).unwrap();
                lists += 1;
                blocks += check(&copies, &list);
                // As if the snapshot before were destroyed: its list becomes part of this one.
                if let Some(below) = below.filter(|_| !list.is_old()) {
                    let from = DeadList::open(&copies, below).unwrap();
                    let wanted = list.space().unwrap().plus(from.space().unwrap());
                    list.merge(from).unwrap();
                    assert_eq!(list.space().unwrap(), wanted);
                    check(&copies, &list);
                }
                below = Some(dataset.phys.deadlist_obj);
            }
        }
        println!("{}: {lists} deadlists, {blocks} blocks", golden.name);
        assert!(lists > 0, "{}", golden.name);
    }
}
