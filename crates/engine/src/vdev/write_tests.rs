//! Read plans return the bytes that write plans stored: over vectors, and over devices that fail.

use std::sync::Arc;

use blkdev::{Device, Event, Fault as DeviceFault, FaultyDevice, MemDevice, RecordingDevice};
use stdx::Buf;
use stdx::rng::Rng;
use zcommon::draid::DraidConfig;

use super::config::AllocBias;
use super::draid::{DraidGeometry, DraidPlan};
use super::leaf::Leaf;
use super::mirror::MirrorPlan;
use super::plan::{Area, DATA_START, Depth, Fault, ReadPlan};
use super::raidz::{RaidzGeometry, RaidzPlan};
use super::raidz_expand::Expansion;
use super::testing::{Leaves, run};
use super::top::{Side, Top, VdevLayout};
use super::write::WriteOutcome;
use super::write_plan::WritePlan;

fn random_block(rng: &mut Rng, size: u64) -> Buf {
    let mut block = vec![0; size as usize];
    rng.fill(&mut block);
    Buf::from(&block[..])
}

fn apply(plan: &WritePlan, leaves: &mut Leaves, children: &[u32]) {
    for write in plan.writes.iter().filter(|write| children.contains(&write.child)) {
        let bytes: Vec<u8> = write.parts.iter().flat_map(|part| part.iter().copied()).collect();
        assert_eq!(bytes.len() as u64, write.len());
        leaves.write(write.child, write.area, write.offset, &bytes);
    }
}

/// Fills the children with noise and applies the plan's writes to the surviving children: the block is
/// readable exactly when the plan says so, and always while no more children are lost than there is parity.
fn comes_back(
    rng: &mut Rng,
    width: u32,
    nparity: u32,
    block: &Buf,
    plan: &WritePlan,
    read: &dyn Fn(Depth) -> Box<dyn ReadPlan>,
) {
    let mut noise =
        vec![0; plan.writes.iter().map(|write| write.offset + write.len()).max().unwrap() as usize];
    rng.fill(&mut noise);
    let blank = Leaves::new(vec![vec![noise]; width as usize]);
    for lost in (0u32..1 << width).filter(|lost| lost.count_ones() <= nparity + 1) {
        let too_many = lost.count_ones() > nparity;
        if lost != 0 && rng.below(if too_many { 16 } else { 4 }) != 0 {
            continue;
        }
        let kept: Vec<u32> = (0..width).filter(|child| lost & (1 << child) == 0).collect();
        let gone: Vec<usize> =
            (0..plan.writes.len()).filter(|&n| !kept.contains(&plan.writes[n].child)).collect();
        assert!(too_many || plan.can_lose(&gone), "{gone:?}");
        let mut leaves = blank.clone();
        apply(plan, &mut leaves, &kept);
        if too_many {
            // Rows of an expanded raidz that lost different children are found only where a loss shows.
            (0..width).filter(|child| !kept.contains(child)).for_each(|c| leaves.break_silently(c, 0));
        }
        for depth in [Depth::First, Depth::All] {
            let outcome = run(read(depth).as_mut(), &leaves, block);
            assert_eq!(outcome.data.is_some(), plan.can_lose(&gone), "lost {lost:b}");
            if lost == 0 {
                assert_eq!(outcome.bad, vec![], "all columns, parity and padding are right");
            }
        }
    }
}

#[test]
fn raidz_blocks_come_back() {
    let mut rng = Rng::new(21);
    for nparity in 1..=3u32 {
        for width in nparity + 1..=8 {
            for ashift in [9, 12, 13] {
                let geometry = RaidzGeometry { ashift, width, nparity, expansion: None };
                let offset = rng.below(50) << ashift | rng.below(2) << 20;
                let sizes = [512, 1 << ashift, 512 * (1 + rng.below(60)), (1 + rng.below(9)) << ashift];
                for size in sizes {
                    let block = random_block(&mut rng, size);
                    let plan = WritePlan::raidz(&geometry, offset, &block, 7).unwrap();
                    let read = |depth| -> Box<dyn ReadPlan> {
                        Box::new(RaidzPlan::new(&geometry, offset, size, 7, depth))
                    };
                    comes_back(&mut rng, width, nparity, &block, &plan, &read);
                }
            }
        }
    }
}

#[test]
fn blocks_of_an_expanded_raidz_come_back() {
    let mut rng = Rng::new(22);
    for nparity in 1..=3u32 {
        for grown in 1..=2u32 {
            for txg in [5, 15, 25] {
                let txgs = (1..=grown).map(|n| u64::from(n) * 10).collect();
                let width = nparity + 2 + grown;
                let expansion = Some(Expansion { txgs, reflow: None });
                let geometry = RaidzGeometry { ashift: 9, width, nparity, expansion };
                let (offset, size) = (rng.below(256) << 9 | rng.below(2) << 20, 512 * (1 + rng.below(40)));
                let block = random_block(&mut rng, size);
                let plan = WritePlan::raidz(&geometry, offset, &block, txg).unwrap();
                let read = |depth| -> Box<dyn ReadPlan> {
                    Box::new(RaidzPlan::new(&geometry, offset, size, txg, depth))
                };
                comes_back(&mut rng, width, nparity, &block, &plan, &read);
            }
        }
    }
}

fn draid(ashift: u32, data: u64, parity: u64, spares: u64, children: u64) -> DraidGeometry {
    let config = DraidConfig { parity, data, children, spares };
    DraidGeometry::new(ashift, config, config.groups().unwrap()).unwrap()
}

#[test]
fn draid_blocks_come_back() {
    let mut rng = Rng::new(23);
    for nparity in 1..=3u64 {
        for ndata in 1..=3 {
            for nspares in 0..=1 {
                let children = ndata + nparity + nspares + rng.below(2);
                let geometry = draid(9 + rng.below(4) as u32, ndata, nparity, nspares, children);
                let offset = rng.below(8) * geometry.asize(1);
                for size in [512, 512 * (1 + rng.below(80))] {
                    let block = random_block(&mut rng, size);
                    let plan = WritePlan::draid(&geometry, offset, &block).unwrap();
                    let total: u64 = plan.writes.iter().map(|write| write.len()).sum();
                    assert_eq!(total, geometry.asize(size), "all that is allocated is written");
                    let read = |depth| -> Box<dyn ReadPlan> {
                        Box::new(DraidPlan::new(&geometry, offset, size, depth))
                    };
                    comes_back(&mut rng, children as u32, nparity as u32, &block, &plan, &read);
                }
            }
        }
    }
}

#[test]
fn mirror_blocks_come_back_and_end_with_zeros() {
    let mut rng = Rng::new(24);
    let block = random_block(&mut rng, 1536);
    let plan = WritePlan::mirror(12, 8192, &block);
    assert_eq!(plan.writes[0].len(), 4096);
    let mut leaves = Leaves::new(vec![vec![vec![9; 65536]; 2]]);
    apply(&plan, &mut leaves, &[0]);
    assert_eq!(leaves.bytes(0, 1)[8192 + 1536..8192 + 4096], [0; 4096 - 1536]);
    assert!(run(&mut MirrorPlan::new(8192, 1536, Depth::All, 0), &leaves, &block).data.is_some());
    assert!(plan.can_lose(&[]) && !plan.can_lose(&[0]));
}

/// The block's bytes are referred to, not copied.
#[test]
fn data_is_not_copied() {
    let mut rng = Rng::new(25);
    let block = random_block(&mut rng, 1 << 17);
    let inside = |part: &Buf| block.as_ptr_range().contains(&part.as_ptr());
    let plan =
        WritePlan::raidz(&RaidzGeometry { ashift: 12, width: 6, nparity: 2, expansion: None }, 0, &block, 1);
    let parts: Vec<Buf> = plan.unwrap().writes.into_iter().flat_map(|write| write.parts).collect();
    assert_eq!(parts.len(), 6);
    assert_eq!(parts.iter().filter(|part| inside(part)).count(), 4);
}

#[test]
fn absurd_places_are_refused() {
    let geometry = RaidzGeometry { ashift: 12, width: 6, nparity: 2, expansion: None };
    let block = Buf::from(&[1u8; 4096][..]);
    assert!(WritePlan::raidz(&geometry, 512, &block, 1).is_none());
    assert!(WritePlan::raidz(&geometry, 0, &Buf::empty(), 1).is_none());
    assert!(WritePlan::draid(&draid(12, 2, 1, 0, 4), 4096, &block).is_none());
}

struct Disk {
    leaf: Arc<Leaf>,
    faulty: Arc<FaultyDevice>,
    record: Arc<RecordingDevice>,
}

fn disk(guid: u64) -> Disk {
    let memory: Device = Arc::new(MemDevice::new(format!("disk{guid}"), vec![0; 6 << 20]));
    let record = Arc::new(RecordingDevice::new(memory));
    let faulty = Arc::new(FaultyDevice::new(Arc::clone(&record) as Device, guid));
    let leaf = Leaf::new(guid, format!("disk{guid}"), Some(Arc::clone(&faulty) as Device));
    Disk { leaf, faulty, record }
}

fn top(layout: VdevLayout, children: Vec<Vec<Side>>) -> Arc<Top> {
    Top::of_parts(0, "test-0", AllocBias::Normal, 9, layout, children)
}

fn write(top: &Arc<Top>, offset: u64, block: &Buf, txg: u64) -> WriteOutcome {
    let (tx, rx) = std::sync::mpsc::channel();
    top.write(offset, block.clone(), txg, Box::new(move |outcome| tx.send(outcome).unwrap()));
    rx.recv().unwrap()
}

#[test]
fn a_mirror_needs_one_side_and_names_the_others() {
    let disks: Vec<Disk> = (1..=3).map(disk).collect();
    let sides = disks.iter().map(|disk| Side::Leaf(Arc::clone(&disk.leaf))).collect();
    let top = top(VdevLayout::Mirror, vec![sides]);
    let block = random_block(&mut Rng::new(1), 4096);
    assert_eq!(write(&top, 0, &block, 10).unwrap(), Vec::<u64>::new());
    disks[1].faulty.inject(DeviceFault::Dead);
    assert_eq!(write(&top, 4096, &block, 11).unwrap(), [2]);
    disks[0].faulty.inject(DeviceFault::Dead);
    assert_eq!(write(&top, 8192, &block, 12).unwrap(), [1, 2]);
    assert_eq!(disks[1].leaf.take_changed_dtl(), Some(vec![(11, 13)]));
    assert_eq!(disks[1].leaf.take_changed_dtl(), None);
    assert!(disks[1].leaf.dtl.read().contains(12) && !disks[1].leaf.dtl.read().contains(10));
    assert_eq!(disks[1].leaf.errors.write.load(std::sync::atomic::Ordering::Relaxed), 2);
    disks[2].faulty.inject(DeviceFault::Dead);
    assert_eq!(write(&top, 8192, &block, 13).unwrap_err().kind(), crate::Kind::Io);
    let read = blkdev::read_at(&*disks[2].record, DATA_START + 8192, 4096).unwrap();
    assert_eq!(read[..], block[..]);
}

#[test]
fn a_raidz_needs_all_but_its_parity() {
    let disks: Vec<Disk> = (0..5).map(disk).collect();
    let children = disks.iter().map(|disk| vec![Side::Leaf(Arc::clone(&disk.leaf))]).collect();
    let geometry = RaidzGeometry { ashift: 9, width: 5, nparity: 2, expansion: None };
    let top = top(VdevLayout::Raidz(geometry), children);
    let block = random_block(&mut Rng::new(1), 512 * 9);
    disks[4].faulty.inject(DeviceFault::Dead);
    disks[2].faulty.inject(DeviceFault::WriteError(DATA_START..u64::MAX));
    assert_eq!(write(&top, 0, &block, 10).unwrap(), [2, 4]);
    // One sector and two of parity stand on children 0 to 2.
    assert_eq!(write(&top, 0, &block.slice(0..512), 11).unwrap(), [2]);
    disks[0].faulty.inject(DeviceFault::Dead);
    assert!(write(&top, 0, &block, 12).is_err());
    // A block that was not written as a whole goes elsewhere, so no leaf lacks a part of it here.
    assert!(disks[0].leaf.dtl.read().ranges().is_empty());
}

/// A child that is being replaced counts as written when either side took it.
#[test]
fn one_side_of_a_child_suffices() {
    let disks: Vec<Disk> = (0..4).map(disk).collect();
    let side = |n: usize| Side::Leaf(Arc::clone(&disks[n].leaf));
    let geometry = RaidzGeometry { ashift: 9, width: 3, nparity: 1, expansion: None };
    let top = top(VdevLayout::Raidz(geometry), vec![vec![side(0), side(1)], vec![side(2)], vec![side(3)]]);
    let block = random_block(&mut Rng::new(1), 512 * 9);
    disks[0].faulty.inject(DeviceFault::Dead);
    disks[3].faulty.inject(DeviceFault::Dead);
    assert_eq!(write(&top, 0, &block, 10).unwrap(), [0, 3]);
    disks[1].faulty.inject(DeviceFault::Dead);
    assert!(write(&top, 0, &block, 10).is_err());
}

/// A distributed spare's bytes go to the child that holds them there; missed writes are recorded for both.
#[test]
fn a_distributed_spare_takes_its_part() {
    let disks: Vec<Disk> = (0..5).map(disk).collect();
    let spare = Leaf::new(77, "draid1-0-0".into(), None);
    let geometry = draid(9, 2, 1, 1, 5);
    let holder = geometry.spare_child(0, 0).unwrap() as usize;
    let block = random_block(&mut Rng::new(1), 512 * 2);
    let gone = WritePlan::draid(&geometry, 0, &block).unwrap().writes[0].child as usize;
    let mut children: Vec<Vec<Side>> =
        disks.iter().map(|disk| vec![Side::Leaf(Arc::clone(&disk.leaf))]).collect();
    disks[gone].faulty.inject(DeviceFault::Dead);
    children[gone].push(Side::DistributedSpare { id: 0, spare: Some(Arc::clone(&spare)) });
    let top = top(VdevLayout::Draid(geometry.clone()), children);
    assert_eq!(write(&top, 0, &block, 10).unwrap(), [gone as u64]);
    disks[holder].faulty.inject(DeviceFault::Dead);
    let mut expected = vec![gone as u64, holder as u64, 77];
    expected.sort_unstable();
    assert_eq!(write(&top, 0, &block, 11).unwrap(), expected);
    assert_eq!(spare.dtl.read().ranges(), [(11, 12)]);
}

#[test]
fn absent_leaves_miss_the_txg_and_flush_is_for_what_was_written() {
    let present = disk(1);
    let absent = Leaf::new(2, "gone".into(), None);
    let sides = vec![Side::Leaf(Arc::clone(&present.leaf)), Side::Leaf(Arc::clone(&absent))];
    let top = top(VdevLayout::Mirror, vec![sides]);
    let block = random_block(&mut Rng::new(1), 1024);
    assert_eq!(write(&top, 0, &block, 10).unwrap(), [2]);
    assert_eq!(absent.take_changed_dtl(), Some(vec![(10, 11)]));
    let flush = || {
        let (tx, rx) = std::sync::mpsc::channel();
        top.flush(10, 10, Box::new(move |result| tx.send(result).unwrap()));
        rx.recv().unwrap()
    };
    present.record.take();
    flush().unwrap();
    flush().unwrap();
    assert_eq!(present.record.take(), [Event::Flush]);
    present.faulty.inject(DeviceFault::Dead);
    assert!(write(&top, 0, &block, 11).is_err());
    assert!(flush().is_err());
}

/// As many leaves may fail a flush as the vdev can do without, for logs as for txgs. A later successful flush
/// does not make up for a failed one.
#[test]
fn a_flush_counts_only_when_what_was_written_can_be_reconstructed() {
    let disks: Vec<Disk> = (0..4).map(disk).collect();
    let children = disks.iter().map(|disk| vec![Side::Leaf(Arc::clone(&disk.leaf))]).collect();
    let geometry = RaidzGeometry { ashift: 9, width: 4, nparity: 1, expansion: None };
    let top = top(VdevLayout::Raidz(geometry), children);
    let block = random_block(&mut Rng::new(1), 512 * 9);
    let flush = |began| {
        let (tx, rx) = std::sync::mpsc::channel();
        top.flush(began, 10, Box::new(move |result| tx.send(result.is_ok()).unwrap()));
        rx.recv().unwrap()
    };
    let fail = |disk: &Disk| disk.faulty.inject(DeviceFault::FlushErrors { count: 1, lost: 0 });
    write(&top, 0, &block, 10).unwrap();
    fail(&disks[0]);
    assert!(flush(10));
    fail(&disks[1]);
    write(&top, 0, &block, 10).unwrap();
    assert!(!flush(10), "one has failed before, one fails now");
    write(&top, 0, &block, 10).unwrap();
    assert!(!flush(10), "two have failed since it began");
    assert!(flush(12), "another commit, two txgs later");
    disks[3].leaf.miss(12);
    fail(&disks[2]);
    write(&top, 0, &block, 12).unwrap();
    assert!(!flush(12), "one lacks something of the txg");
}

/// A joined write that meets a bad sector fails only the request that needs it.
#[test]
fn a_failed_run_is_split() {
    let disk = disk(1);
    disk.faulty.inject(DeviceFault::WriteError(5 << 20..(5 << 20) + 512));
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for n in 0..8u64 {
            let (leaf, tx) = (Arc::clone(&disk.leaf), tx.clone());
            scope.spawn(move || {
                let data = Buf::from(&[n as u8; 512][..]);
                let done = Box::new(move |result: std::io::Result<()>| tx.send((n, result.is_ok())).unwrap());
                leaf.write((5 << 20) + n * 512, data, done);
            });
        }
    });
    drop(tx);
    let mut results: Vec<(u64, bool)> = rx.iter().collect();
    results.sort_unstable();
    assert_eq!(results, (0..8).map(|n| (n, n != 0)).collect::<Vec<_>>());
    for n in 1..8u64 {
        assert_eq!(blkdev::read_at(&*disk.record, (5 << 20) + n * 512, 512).unwrap()[..], [n as u8; 512]);
    }
}

#[test]
fn writes_stand_in_the_data_area() {
    let mut rng = Rng::new(26);
    let block = random_block(&mut rng, 12345);
    let geometry = RaidzGeometry { ashift: 9, width: 5, nparity: 1, expansion: None };
    let plan = WritePlan::raidz(&geometry, 0, &block, 1).unwrap();
    assert!(plan.writes.iter().all(|write| write.area == Area::Data));
    let read = RaidzPlan::new(&geometry, 0, 12345, 1, Depth::First);
    let mut leaves = Leaves::new(vec![vec![vec![0; 65536]]; 5]);
    apply(&plan, &mut leaves, &[0, 1, 2, 3, 4]);
    leaves.set_fault(0, 0, Fault::Unreadable);
    let mut read: Box<dyn ReadPlan> = Box::new(read);
    assert!(run(read.as_mut(), &leaves, &block).data.is_some());
}
