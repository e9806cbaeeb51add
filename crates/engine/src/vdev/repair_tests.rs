//! Damage, read, repair: every byte is restored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blkdev::{Device, MemDevice};
use stdx::Buf;
use stdx::rng::Rng;
use zcommon::draid::DraidConfig;

use super::config::AllocBias;
use super::draid::DraidGeometry;
use super::leaf::Leaf;
use super::plan::{BadCopy, ChildResult, DATA_START, Depth, Fault, PlanOutcome, PlanStep};
use super::raidz::RaidzGeometry;
use super::raidz_expand::Expansion;
use super::repair::Mend;
use super::top::{Side, Top, VdevLayout};

const SIZE: usize = 6 << 20;

fn top(layout: VdevLayout, sides: &[usize]) -> (Arc<Top>, Vec<Arc<MemDevice>>) {
    let mut devices = Vec::new();
    let mut children = Vec::new();
    for &count in sides {
        let mut all = Vec::new();
        for _ in 0..count {
            let device = Arc::new(MemDevice::new("m", vec![0; SIZE]));
            let guid = devices.len() as u64 + 1;
            all.push(Side::Leaf(Leaf::new(guid, "m".into(), Some(Arc::clone(&device) as Device))));
            devices.push(device);
        }
        children.push(all);
    }
    (Top::of_parts(0, "test-0", AllocBias::Normal, 9, layout, children), devices)
}

fn read(top: &Arc<Top>, offset: u64, block: &Buf, birth: u64, depth: Depth) -> PlanOutcome {
    let mut plan = top.plan(offset, block.len() as u64, birth, depth).unwrap();
    let mut step = plan.start(&top.view(birth));
    loop {
        let reads = match step {
            PlanStep::Issue(reads) => reads,
            PlanStep::Done(outcome) => return outcome,
        };
        let mut results = Vec::new();
        for read in reads {
            let (tx, rx) = std::sync::mpsc::channel();
            top.read(read, None, Box::new(move |result| tx.send(result).unwrap()));
            results.push(ChildResult { read, data: rx.recv().unwrap().ok() });
        }
        step = plan.resume(&top.view(birth), results, &mut |bytes| *bytes == **block);
    }
}

fn repair(top: &Arc<Top>, at: (u64, u64), block: &Buf, outcome: &PlanOutcome, mend: Mend) -> Vec<u64> {
    let (tx, rx) = std::sync::mpsc::channel();
    top.repair(at, block, &outcome.bad, mend, Box::new(move |mended| tx.send(mended).unwrap()));
    rx.recv().unwrap().leaves.into_keys().collect()
}

/// Spoils some devices wholly, and checks that a thorough read and a repair restore the block's bytes there.
fn heals(rng: &mut Rng, layout: VdevLayout, sides: &[usize], offset: u64, birth: u64, most: usize) {
    let (top, devices) = top(layout, sides);
    let mut bytes = vec![0; 512 * (1 + rng.below(40)) as usize];
    rng.fill(&mut bytes);
    let block = Buf::from(&bytes[..]);
    let (tx, rx) = std::sync::mpsc::channel();
    top.write(offset, block.clone(), birth, Box::new(move |outcome| tx.send(outcome).unwrap()));
    assert!(rx.recv().unwrap().unwrap().is_empty());
    let before: Vec<Vec<u8>> = devices.iter().map(|device| device.snapshot()).collect();
    let written: Vec<Vec<(u64, u64)>> = {
        let plan = top.write_plan(offset, &block, birth).unwrap();
        let of = |child: usize| plan.writes.iter().filter(move |write| write.child as usize == child);
        sides
            .iter()
            .enumerate()
            .flat_map(|(child, &count)| {
                let places: Vec<_> =
                    of(child).map(|write| (write.offset + DATA_START, write.len())).collect();
                std::iter::repeat_n(places, count)
            })
            .collect()
    };
    for _ in 0..most {
        let victim = rng.below(devices.len() as u64) as usize;
        for &(at, len) in &written[victim] {
            let noise: Vec<u8> = (0..len).map(|n| before[victim][(at + n) as usize] ^ 0x55).collect();
            blkdev::write_at(&*devices[victim], at, &noise).unwrap();
            top.leaves().for_each(|leaf| leaf.changed(at, len));
        }
    }
    let outcome = read(&top, offset, &block, birth, Depth::All);
    assert!(outcome.data.is_some());
    let spoilt: Vec<u64> =
        (0..devices.len()).filter(|&n| devices[n].snapshot() != before[n]).map(|n| n as u64 + 1).collect();
    assert_eq!(repair(&top, (offset, birth), &block, &outcome, Mend::Unexpected), spoilt);
    assert!(devices.iter().zip(&before).all(|(device, before)| device.snapshot() == *before));
    assert!(read(&top, offset, &block, birth, Depth::All).bad.is_empty());
}

#[test]
fn every_layout_heals() {
    let mut rng = Rng::new(31);
    for round in 0..10u64 {
        let unit = rng.below(100);
        heals(&mut rng, VdevLayout::Mirror, &[3], 512 * unit, 9, 2);
        let nparity = 1 + (round % 3) as u32;
        let width = nparity + 1 + (round % 4) as u32;
        let geometry = RaidzGeometry { ashift: 9, width, nparity, expansion: None };
        let offset = 512 * rng.below(100);
        heals(&mut rng, VdevLayout::Raidz(geometry), &vec![1; width as usize], offset, 9, nparity as usize);
        let config = DraidConfig { parity: 1, data: 2, children: 5, spares: 1 };
        let geometry = DraidGeometry::new(9, config, config.groups().unwrap()).unwrap();
        heals(&mut rng, VdevLayout::Draid(geometry), &[1; 5], 1536 * unit, 9, 1);
        let expansion = Some(Expansion { txgs: vec![10], reflow: None });
        let geometry = RaidzGeometry { ashift: 9, width: 5, nparity: 1, expansion };
        heals(&mut rng, VdevLayout::Raidz(geometry), &[1; 5], offset, 9 + round % 3, 1);
        let geometry = RaidzGeometry { ashift: 9, width: 3, nparity: 1, expansion: None };
        heals(&mut rng, VdevLayout::Raidz(geometry), &[1, 2, 1], offset, 9, 1);
    }
}

/// Blocks in a leaf's DTL are left to a resilver; reads do not repair them.
#[test]
fn stale_copies_are_left_to_resilver() {
    let (top, devices) = top(VdevLayout::Mirror, &[2]);
    let block = Buf::from(&[7u8; 1024][..]);
    blkdev::write_at(&*devices[0], DATA_START, &block).unwrap();
    let leaf = top.leaves().nth(1).unwrap();
    leaf.miss(9);
    let outcome = read(&top, 0, &block, 9, Depth::All);
    assert_eq!(outcome.bad.len(), 1);
    assert_eq!(repair(&top, (0, 9), &block, &outcome, Mend::Unexpected), Vec::<u64>::new());
    assert_eq!(repair(&top, (0, 9), &block, &outcome, Mend::Stale), [2]);
    assert_eq!(blkdev::read_at(&*devices[1], DATA_START, 1024).unwrap()[..], block[..]);
}

/// A bad piece is enough for its column to be rewritten, and nothing else is.
#[test]
fn only_what_is_bad_is_written() {
    let geometry = RaidzGeometry { ashift: 9, width: 4, nparity: 1, expansion: None };
    let (top, devices) = top(VdevLayout::Raidz(geometry), &[1; 4]);
    let block = Buf::from(&[3u8; 512 * 6][..]);
    top.write(0, block.clone(), 5, Box::new(|outcome| assert!(outcome.unwrap().is_empty())));
    blkdev::write_at(&*devices[2], DATA_START + 700, &[9]).unwrap();
    top.leaves().for_each(|leaf| leaf.changed(DATA_START, 4096));
    let outcome = read(&top, 0, &block, 5, Depth::First);
    assert_eq!(repair(&top, (0, 5), &block, &outcome, Mend::Unexpected), [3]);
    assert_eq!(devices[2].snapshot()[DATA_START as usize + 700], 3);
}

/// A draid of as many groups as rows: each row has its own permutation.
fn spread(spares: u64) -> (DraidGeometry, Vec<Arc<MemDevice>>, Vec<Vec<Side>>) {
    let config = DraidConfig { parity: 1, data: 2, children: 3 + spares, spares };
    let geometry = DraidGeometry::new(9, config, config.groups().unwrap()).unwrap();
    assert_eq!(config.groups().unwrap(), 1);
    let size = DATA_START as usize + (34 << 20);
    let device = |_| Arc::new(MemDevice::new("m", vec![0; size]));
    let devices: Vec<Arc<MemDevice>> = (0..config.children).map(device).collect();
    let side = |(guid, device): (u64, &Arc<MemDevice>)| {
        vec![Side::Leaf(Leaf::new(guid, "m".into(), Some(Arc::clone(device) as Device)))]
    };
    let children = (1..).zip(&devices).map(side).collect();
    (geometry, devices, children)
}

fn distributed(id: u32) -> (Arc<Leaf>, Side) {
    let leaf = Leaf::distributed(70 + u64::from(id), format!("draid1-0-{id}"));
    (Arc::clone(&leaf), Side::DistributedSpare { id, spare: Some(leaf) })
}

fn store(top: &Arc<Top>, offset: u64, block: &Buf, birth: u64) {
    let (tx, rx) = std::sync::mpsc::channel();
    top.write(offset, block.clone(), birth, Box::new(move |outcome| tx.send(outcome).unwrap()));
    rx.recv().unwrap().unwrap();
}

fn random(seed: u64, size: usize) -> Buf {
    let mut bytes = vec![0; size];
    Rng::new(seed).fill(&mut bytes);
    Buf::from(&bytes[..])
}

/// A distributed spare has a block that crosses from one row into the next on two leaves; its neighbours stay as they were.
#[test]
fn a_block_across_two_rows_of_a_distributed_spare_comes_back() {
    for gone in 0..4 {
        let (geometry, _, mut children) = spread(1);
        let unit = 3 << 9;
        children[gone] = vec![Side::Leaf(Leaf::new(9, "gone".into(), None)), distributed(0).1];
        let top =
            Top::of_parts(0, "test-0", AllocBias::Normal, 9, VdevLayout::Draid(geometry.clone()), children);
        let start = geometry.group_bytes() - 4 * unit;
        let blocks = [(start - 2 * unit, 2), (start, 8), (start + 8 * unit, 2)]
            .map(|(at, rows)| (at, random(at, rows * 1024)));
        blocks.iter().for_each(|(at, block)| store(&top, *at, block, 10));
        for (at, block) in &blocks {
            for depth in [Depth::First, Depth::All] {
                let outcome = read(&top, *at, block, 10, depth);
                let is_known = |bad: &BadCopy| bad.fault == Fault::Unreadable && bad.read.side == 0;
                assert!(
                    outcome.data.is_some() && outcome.bad.iter().all(is_known),
                    "{gone} {:?}",
                    outcome.bad
                );
            }
        }
    }
}

/// A disk on which a distributed spare stands is replaced: the new disk gets the spare's bytes, too, and is checked.
#[test]
fn a_new_disk_gets_what_a_distributed_spare_has_there() {
    let (geometry, devices, mut children) = spread(2);
    let holder = geometry.spare_child(0, 0).unwrap() as usize;
    let block = random(1, 1024);
    let gone = geometry.grid(0, 1024).unwrap().columns[1].child as usize;
    children[gone] = vec![Side::Leaf(Leaf::new(9, "gone".into(), None)), distributed(0).1];
    let top = |children| {
        Top::of_parts(0, "test-0", AllocBias::Normal, 9, VdevLayout::Draid(geometry.clone()), children)
    };
    store(&top(children.clone()), 0, &block, 10);

    let device = Arc::new(MemDevice::new("new", vec![0; SIZE]));
    let new = Leaf::new(20, "new".into(), Some(Arc::clone(&device) as Device));
    new.miss_all(1, 30);
    children[holder].push(Side::Leaf(Arc::clone(&new)));
    let replacing = top(children.clone());
    let outcome = read(&replacing, 0, &block, 10, Depth::All);
    assert_eq!(repair(&replacing, (0, 10), &block, &outcome, Mend::Stale), [20]);
    let place = DATA_START as usize..DATA_START as usize + 512;
    assert_eq!(device.snapshot()[place.clone()], devices[holder].snapshot()[place.clone()]);

    new.has_again(1, 30, &BTreeSet::new());
    blkdev::write_at(&*device, DATA_START, &[7; 512]).unwrap();
    let outcome = read(&replacing, 0, &block, 10, Depth::All);
    let wrong: Vec<_> = outcome.bad.iter().filter(|bad| bad.fault == Fault::Wrong).collect();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(replacing.leaf(&wrong[0].read).unwrap().is_same(&new));
}

/// A distributed spare whose row is on a disk out of use lacks the block still.
#[test]
fn writes_that_a_distributed_spare_cannot_take_are_not_forgotten() {
    let (geometry, _, mut children) = spread(2);
    let holder = geometry.spare_child(0, 0).unwrap() as usize;
    let block = random(1, 1024);
    let gone = geometry.grid(0, 1024).unwrap().columns[1].child as usize;
    let whole = Top::of_parts(
        0,
        "test-0",
        AllocBias::Normal,
        9,
        VdevLayout::Draid(geometry.clone()),
        children.clone(),
    );
    store(&whole, 0, &block, 10);
    let (spare, side) = distributed(0);
    spare.miss_all(1, 30);
    children[gone].push(side);
    children[holder] = vec![Side::Leaf(Leaf::new(9, "gone".into(), None))];
    let top = Top::of_parts(0, "test-0", AllocBias::Normal, 9, VdevLayout::Draid(geometry), children);
    let outcome = read(&top, 0, &block, 10, Depth::All);
    let (tx, rx) = std::sync::mpsc::channel();
    let told = Box::new(move |mended| tx.send(mended).unwrap());
    top.repair((0, 10), &block, &outcome.bad, Mend::Stale, told);
    let mended = rx.recv().unwrap();
    assert_eq!((mended.unserved, mended.leaves), (BTreeSet::from([spare.guid]), BTreeMap::new()));
}
