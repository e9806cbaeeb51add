//! Block lists, deadlists, livelists and lists of trees against plain lists.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use ondisk::dsl::{BptreeEntry, Deadlist};
use ondisk::{Blkptr, ObjectType};
use stdx::rng::Rng;

use super::bpobj::{BlockList, Lists, space_of};
use super::bptree::{self, FreeOutcome};
use super::deadlist::{DeadList, unfreed};
use super::delta::Delta;
use crate::dmu::NewObject;
use crate::dmu::edit::{Edit, MemObjects, Objects};
use crate::error::{Error, Kind, Result};
use crate::zap::{NewZap, ZapEdit};

/// A pool of nothing but lists. Blocks of lists are small, so that few pointers fill several.
#[derive(Default)]
struct Pool {
    objects: MemObjects,
    shared: Cell<u64>,
    uses: Cell<u64>,
}

impl Objects for Pool {
    fn create(&self, new: &NewObject) -> Result<u64> {
        self.objects.create(&NewObject { block_size: new.block_size.min(2048), ..*new })
    }

    fn free(&self, number: u64) -> Result<()> {
        self.objects.free(number)
    }

    fn edit(&self, number: u64) -> Result<Box<dyn Edit + '_>> {
        self.objects.edit(number)
    }

    fn kind(&self, number: u64) -> Result<ObjectType> {
        self.objects.kind(number)
    }
}

impl Lists for Pool {
    fn dsize(&self, bp: &Blkptr) -> u64 {
        bp.asize()
    }

    fn new_list(&self) -> Result<u64> {
        self.create(&NewObject::with_bonus(ObjectType::BPOBJ, 2048, ObjectType::BPOBJ_HDR, 56))
    }

    fn empty_lists(&self, count: usize) -> Result<Vec<u64>> {
        if self.uses.get() == 0 {
            self.shared.set(self.new_list()?);
        }
        self.uses.set(self.uses.get() + count as u64);
        Ok(vec![self.shared.get(); count])
    }

    fn shared(&self) -> Result<Option<u64>> {
        Ok((self.uses.get() > 0).then(|| self.shared.get()))
    }

    fn release_shared(&self, uses: usize) -> Result<()> {
        if uses == 0 {
            return Ok(());
        }
        self.uses.set(self.uses.get() - uses as u64);
        if self.uses.get() == 0 { self.free(self.shared.get()) } else { Ok(()) }
    }
}

impl Pool {
    fn deadlist(&self) -> DeadList<'_> {
        let new = NewObject::with_bonus(ObjectType::DEADLIST, 512, ObjectType::DEADLIST_HDR, Deadlist::SIZE);
        let number = self.create(&new).unwrap();
        ZapEdit::create(&mut *self.edit(number).unwrap(), &NewZap { salt: number, ..NewZap::default() })
            .unwrap();
        DeadList::open(self, number).unwrap()
    }
}

/// A unique block, identified by place and birth.
fn block(place: u64, birth: u64) -> Blkptr {
    let mut words = [0; 16];
    words[0] = 1 + place % 7;
    words[1] = place;
    words[6] = (place % 9) | ((place % 5) << 16) | (2 << 32) | (7 << 40) | (19 << 48) | (1 << 63);
    words[10] = birth;
    Blkptr::from_words(words)
}

fn sum(pool: &Pool, blocks: &[Blkptr]) -> Delta {
    blocks.iter().fold(Delta::default(), |sum, bp| sum.plus(space_of(pool, bp, false)))
}

fn content(list: &BlockList<'_>) -> Vec<Blkptr> {
    let mut all = Vec::new();
    let _ = list.iterate(&mut |bp, _| {
        all.push(*bp);
        Ok(ControlFlow::Continue(()))
    });
    all.sort_by_key(|bp| *bp.words());
    all
}

fn sorted(blocks: &[Blkptr]) -> Vec<Blkptr> {
    let mut all = blocks.to_vec();
    all.sort_by_key(|bp| *bp.words());
    all
}

#[test]
fn block_lists_match_plain_lists() {
    let mut rng = Rng::new(1);
    let pool = Pool::default();
    let mut lists: Vec<(u64, Vec<Blkptr>)> = Vec::new();
    for place in 0..6000u64 {
        let some = rng.below(lists.len() as u64) as usize;
        match rng.below(40) {
            0 => lists.push((pool.new_list().unwrap(), Vec::new())),
            1 | 2 if lists.len() > 1 => {
                let (from, blocks) = lists.swap_remove(rng.below(lists.len() as u64) as usize);
                let to = rng.below(lists.len() as u64) as usize;
                BlockList::open(&pool, lists[to].0).unwrap().append_list(from).unwrap();
                lists[to].1.extend(blocks);
            }
            3 if !lists.is_empty() => {
                // Drained in part; an error stops, too, and blocks visited before are removed.
                let (number, blocks) = &mut lists[some];
                let mut left = rng.below(200);
                let fail = rng.below(2) == 0;
                let done = BlockList::open(&pool, *number).unwrap().drain(&mut |bp, _| {
                    if left == 0 {
                        return if fail { Err(Error::corrupt("stop")) } else { Ok(ControlFlow::Break(())) };
                    }
                    left -= 1;
                    let at = blocks.iter().position(|b| b == bp).unwrap();
                    blocks.swap_remove(at);
                    Ok(ControlFlow::Continue(()))
                });
                assert!(done.is_ok_and(|flow| flow.is_break() != blocks.is_empty()) || fail);
            }
            _ if !lists.is_empty() => {
                let (number, blocks) = &mut lists[some];
                let new: Vec<Blkptr> = (0..rng.below(12)).map(|i| block(place * 16 + i + 1, place)).collect();
                BlockList::open(&pool, *number).unwrap().append(&new, false).unwrap();
                blocks.extend(new);
            }
            _ => {}
        }
        if place % 500 == 0 {
            for (number, blocks) in &lists {
                let list = BlockList::open(&pool, *number).unwrap();
                assert_eq!(content(&list), sorted(blocks));
                assert_eq!(list.space().unwrap(), sum(&pool, blocks));
                let some = blocks.iter().filter(|b| b.logical_birth() > 100 && b.logical_birth() <= 2000);
                let some: Vec<Blkptr> = some.copied().collect();
                assert_eq!(list.space_range(100, 2000).unwrap(), sum(&pool, &some));
            }
        }
    }
    for (number, _) in lists {
        BlockList::open(&pool, number).unwrap().free().unwrap();
    }
    assert!(pool.objects.numbers().is_empty());
}

#[test]
fn listed_pointers_keep_what_freeing_needs() {
    let mut words = *block(5, 9).words();
    (words[11], words[12], words[15]) = (77, 1, 2);
    let bp = Blkptr::from_words(words);
    let listed = ondisk::bpobj::listed(&bp, true);
    assert_eq!((listed.words()[11], listed.words()[12], listed.words()[15]), (1, 0, 0));
    assert!(listed.same_block(&bp));
    words[6] |= 1 << 62;
    assert_eq!(ondisk::bpobj::listed(&Blkptr::from_words(words), false).words()[12], 1);
    // Embedded: sizes and birth only.
    words[6] = 1 << 39 | 99;
    let listed = ondisk::bpobj::listed(&Blkptr::from_words(words), false);
    assert_eq!((listed.words()[0], listed.words()[6], listed.words()[10]), (0, words[6], 9));
    assert_eq!(listed.words()[12], 0);
}

/// Deadlists as OpenZFS moves them when snapshots come and go.
#[test]
fn deadlists_match_plain_lists() {
    let mut rng = Rng::new(2);
    let pool = Pool::default();
    let list = pool.deadlist();
    let mut model: BTreeMap<u64, Vec<Blkptr>> = BTreeMap::new();
    let mut moved: Vec<Blkptr> = Vec::new();
    let to = pool.new_list().unwrap();
    list.add_key(0).unwrap();
    model.insert(0, Vec::new());
    let key_of =
        |model: &BTreeMap<u64, Vec<Blkptr>>, below: u64| *model.range(..below).next_back().unwrap().0;
    for round in 1..1500u64 {
        let some_key = *model.keys().nth(rng.below(model.len() as u64) as usize).unwrap();
        match rng.below(20) {
            0..=3 => {
                list.add_key(round).unwrap();
                model.insert(round, Vec::new());
            }
            4 | 5 if some_key != 0 => {
                list.remove_key(some_key).unwrap();
                let blocks = model.remove(&some_key).unwrap();
                model.get_mut(&key_of(&model, some_key)).unwrap().extend(blocks);
            }
            6 if some_key != 0 => {
                list.remove_entry(some_key).unwrap();
                model.remove(&some_key);
            }
            7 => {
                list.clear_entry(some_key).unwrap();
                model.get_mut(&some_key).unwrap().clear();
            }
            8 if some_key != 0 => {
                list.move_to(&BlockList::open(&pool, to).unwrap(), some_key).unwrap();
                moved.extend(model.split_off(&some_key).into_values().flatten());
            }
            9 => {
                let other = pool.deadlist();
                for key in [0, round / 2, round] {
                    other.add_key(key).unwrap();
                    let new: Vec<Blkptr> =
                        (0..rng.below(30)).map(|i| block(round << 8 | i, key + 1)).collect();
                    other.insert(&new, false).unwrap();
                    let at = *model.range(..=key).next_back().unwrap().0;
                    model.get_mut(&at).unwrap().extend(new);
                }
                list.merge(other).unwrap();
            }
            _ => {
                let new: Vec<Blkptr> =
                    (0..rng.below(40)).map(|i| block(round << 8 | i, 1 + rng.below(round))).collect();
                list.insert(&new, false).unwrap();
                for bp in new {
                    model.get_mut(&key_of(&model, bp.logical_birth())).unwrap().push(bp);
                }
            }
        }
        let entries = list.entries().unwrap();
        assert!(entries.keys().eq(model.keys()));
        let all: Vec<Blkptr> = model.values().flatten().copied().collect();
        assert_eq!(list.space().unwrap(), sum(&pool, &all));
        let (low, high) = (some_key, key_of(&model, u64::MAX));
        let within: Vec<Blkptr> = model.range(low..high.max(low)).flat_map(|(_, b)| b).copied().collect();
        assert_eq!(list.space_range(low, high).unwrap(), sum(&pool, &within));
        if round % 100 == 0 {
            for (key, blocks) in &model {
                assert_eq!(content(&BlockList::open(&pool, entries[key]).unwrap()), sorted(blocks));
            }
            assert_eq!(content(&BlockList::open(&pool, to).unwrap()), sorted(&moved));
        }
    }
    assert!(list.insert(&[block(1, 0)], false).is_err_and(|e| e.kind() == Kind::Corrupt));
    list.free().unwrap();
    BlockList::open(&pool, to).unwrap().free().unwrap();
    assert!(pool.objects.numbers().is_empty() && pool.uses.get() == 0);
}

/// A new snapshot's head has the keys of the one before it, whatever kind of ZAP they are in, and none of its blocks.
#[test]
fn a_deadlist_takes_over_the_keys_of_another() {
    let pool = Pool::default();
    let list = pool.deadlist();
    let mut keys = 0;
    for many in [3, 60, 2500] {
        (keys..many).for_each(|key| list.add_key(key).unwrap());
        keys = many;
        list.insert(&[block(many, many), block(many + 1, 1)], false).unwrap();
        for before in [u64::MAX, many - 1, many / 2, 2] {
            let (uses, new) = (pool.uses.get(), pool.deadlist());
            new.take_keys(&list, before).unwrap();
            let number = new.number();
            // As it reads when nothing of it is in memory.
            for list in [new, DeadList::open(&pool, number).unwrap()] {
                let entries = list.entries().unwrap();
                assert!(entries.keys().copied().eq(0..many.min(before)));
                assert!(entries.values().all(|list| *list == pool.shared.get()));
                assert_eq!(list.space().unwrap(), Delta::default());
            }
            assert_eq!(pool.uses.get() - uses, many.min(before));
            DeadList::open(&pool, number).unwrap().free().unwrap();
        }
    }
    list.free().unwrap();
    assert!(pool.objects.numbers().is_empty() && pool.uses.get() == 0);
}

#[test]
fn a_list_of_the_old_form_is_merged_block_by_block() {
    let pool = Pool::default();
    let old = pool.new_list().unwrap();
    let blocks: Vec<Blkptr> = (0..9000).map(|i| block(i + 1, 1 + i % 20)).collect();
    DeadList::open(&pool, old).unwrap().insert(&blocks, false).unwrap();
    let list = pool.deadlist();
    (0..3).for_each(|i| list.add_key(i * 8).unwrap());
    list.merge(DeadList::open(&pool, old).unwrap()).unwrap();
    assert_eq!(list.space().unwrap(), sum(&pool, &blocks));
    let entries = list.entries().unwrap();
    let middle = content(&BlockList::open(&pool, entries[&8]).unwrap());
    assert!(middle.len() == 3600 && middle.iter().all(|b| (9..=16).contains(&b.logical_birth())));
    assert!(BlockList::open(&pool, old).is_err());
}

#[test]
fn a_livelist_knows_what_is_alive() {
    let lists = [500_000, 60, 5].map(livelist_of);
    // Condensed lists: some with more blocks than one may have in use, at the end.
    assert!(lists[1] * 3 < lists[0] + 190 && lists[1] > 2, "{lists:?}");
}

/// Records births and frees at random; returns the number of lists in the end.
fn livelist_of(most: u64) -> usize {
    let mut rng = Rng::new(3);
    let pool = Pool::default();
    let list = pool.deadlist();
    let mut alive: HashMap<u64, Blkptr> = HashMap::new();
    for txg in 10..200u64 {
        let born: Vec<Blkptr> = (0..rng.below(40)).map(|i| block(txg << 8 | i, txg)).collect();
        let mut freed: Vec<Blkptr> = Vec::new();
        let mut places: Vec<u64> = alive.keys().copied().collect();
        places.sort_unstable();
        for _ in 0..rng.below(30).min(places.len() as u64) {
            let place = places.swap_remove(rng.below(places.len() as u64) as usize);
            freed.extend(alive.remove(&place));
        }
        alive.extend(born.iter().map(|bp| (bp.words()[1], *bp)));
        list.note_live(txg, Some(most), &born, &freed).unwrap();
        if rng.below(10) == 0 {
            list.add_key(txg).unwrap();
        }
    }
    let found: Vec<Blkptr> = list
        .entries()
        .unwrap()
        .into_values()
        .flat_map(|n| unfreed(&BlockList::open(&pool, n).unwrap(), u64::MAX).unwrap().0)
        .collect();
    let alive: Vec<Blkptr> = alive.into_values().collect();
    assert_eq!(sorted(&found), sorted(&alive));
    assert_eq!(list.space().unwrap(), sum(&pool, &alive));
    list.entries().unwrap().len()
}

#[test]
fn trees_are_worked_off_from_the_front() {
    let pool = Pool::default();
    let list = bptree::create(&pool).unwrap();
    assert!(bptree::is_empty(&pool, list).unwrap());
    let space = Delta::of(10, 8, 20);
    for i in 1..=60 {
        bptree::add(&pool, list, &block(i, i), i, space).unwrap();
    }
    // The second tree needs two goes, the third can't be read, the fifth is the last for now.
    let mut calls = Vec::new();
    let mut go = |entry: &mut BptreeEntry, second: bool| {
        calls.push(entry.birth_txg);
        Ok(match entry.birth_txg {
            2 if !second => {
                entry.zb.object = 7;
                (FreeOutcome::Paused, Delta::of(4, 3, 9))
            }
            2 => {
                assert_eq!(entry.zb.object, 7);
                (FreeOutcome::Freed, Delta::of(6, 5, 11))
            }
            3 if calls.len() < 10 => (FreeOutcome::Unreadable, Delta::default()),
            5 if calls.len() < 10 => (FreeOutcome::Paused, Delta::default()),
            _ => (FreeOutcome::Freed, space),
        })
    };
    assert!(bptree::work(&pool, list, &mut |e| go(e, false)).unwrap());
    assert!(bptree::work(&pool, list, &mut |e| go(e, true)).unwrap());
    assert_eq!(bptree::head(&pool, list).unwrap().begin, 2);
    let left: Vec<u64> = bptree::entries(&pool, list).unwrap().iter().map(|e| e.birth_txg).collect();
    assert_eq!(left[..3], [3, 5, 6]);
    assert_eq!(bptree::head(&pool, list).unwrap().bytes, 570);
    (0..10).for_each(|_| calls.push(0));
    let mut all = |_: &mut BptreeEntry| Ok((FreeOutcome::Freed, space));
    assert!(!bptree::work(&pool, list, &mut all).unwrap());
    assert!(bptree::is_empty(&pool, list).unwrap());
    let head = bptree::head(&pool, list).unwrap();
    assert_eq!((head.begin, head.end, head.bytes, head.uncomp), (60, 60, 0, 0));
    bptree::add(&pool, list, &block(9, 9), 9, space).unwrap();
    assert_eq!(bptree::entries(&pool, list).unwrap().len(), 1);
}

/// Heads and pointers that contradict their objects are errors, never panics or endless walks.
#[test]
fn damaged_lists_give_errors_only() {
    let mut rng = Rng::new(4);
    for round in 0..400 {
        let pool = Pool::default();
        let top = BlockList::open(&pool, pool.new_list().unwrap()).unwrap();
        for i in 0..6 {
            let below = pool.new_list().unwrap();
            let blocks: Vec<Blkptr> = (0..30).map(|n| block(i * 64 + n + 1, n + 1)).collect();
            BlockList::open(&pool, below).unwrap().append(&blocks, false).unwrap();
            top.append_list(below).unwrap();
        }
        for number in pool.objects.numbers() {
            let mut edit = pool.edit(number).unwrap();
            let mut bonus = edit.bonus();
            if rng.below(2) == 0 && !bonus.is_empty() {
                let at = rng.below(bonus.len() as u64 / 8) as usize * 8;
                let value = [0, 1, 2, u64::MAX, 1 << 57, rng.below(20)][rng.below(6) as usize];
                bonus[at..at + 8].copy_from_slice(&value.to_le_bytes());
                edit.set_bonus(&bonus).unwrap();
            } else if bonus.is_empty() {
                edit.write_at(rng.below(6) * 8, &rng.below(9).to_le_bytes()).unwrap();
            }
        }
        let mut go = |_: &Blkptr, _| Ok(ControlFlow::Continue(()));
        let _ = (top.iterate(&mut go), top.space_range(3, 9));
        let _ = if round % 2 == 0 { top.drain(&mut go).map(drop) } else { top.free() };
    }
}
