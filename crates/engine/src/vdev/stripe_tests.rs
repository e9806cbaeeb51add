//! Model tests of raidz and draid: lay a block out by its grid, break things, read it back.

use super::draid::{DraidGeometry, DraidPlan};
use super::plan::{Area, BadCopy, Depth, Fault, ReadPlan};
use super::raidz::{RaidzGeometry, RaidzPlan};
use super::raidz_expand::{Expansion, ReflowState};
use super::stripe::{Column, Grid};
use super::testing::{Leaves, run};
use stdx::rng::Rng;
use zcommon::draid::DraidConfig;

const SPACE: usize = 1 << 20;

fn random_block(rng: &mut Rng, size: u64) -> Vec<u8> {
    let mut block = vec![0; size as usize];
    rng.fill(&mut block);
    block
}

/// Writes a block as the grid lays it out, on all sides of each child; everything else is noise.
fn lay_out(grid: &Grid, block: &[u8], leaves: &mut Leaves) {
    let mut block = block.to_vec();
    block.resize(grid.size as usize, 0);
    for stripe in grid.stripes() {
        let (parity, data) = stripe.split_at(grid.nparity);
        let slices: Vec<&[u8]> =
            data.iter().map(|c| &block[c.at as usize..(c.at + c.len) as usize]).collect();
        let mut sums = vec![vec![0; parity[0].len as usize]; grid.nparity];
        let mut views: Vec<&mut [u8]> = sums.iter_mut().map(Vec::as_mut_slice).collect();
        raidz_math::generate(&slices, &mut views).unwrap();
        let all = sums.iter().map(Vec::as_slice).chain(slices.iter().copied());
        for (column, bytes) in stripe.iter().zip(all) {
            let mut bytes = bytes.to_vec();
            bytes.resize((column.len + column.zeros) as usize, 0);
            leaves.write(column.child, column.area, column.offset, &bytes);
        }
    }
}

fn noise(rng: &mut Rng, sides: &[usize]) -> Leaves {
    let mut leaves = Leaves::new(sides.iter().map(|&n| vec![vec![0; SPACE]; n]).collect());
    for (child, &sides) in sides.iter().enumerate() {
        let mut bytes = vec![0; SPACE];
        rng.fill(&mut bytes);
        for side in 0..sides {
            leaves.bytes_mut(child, side).copy_from_slice(&bytes);
        }
    }
    leaves
}

/// All sets of children up to `most` of them.
fn sets(width: u32, most: u32) -> impl Iterator<Item = Vec<u32>> {
    (0u32..1 << width)
        .filter(move |bits| bits.count_ones() <= most)
        .map(move |bits| (0..width).filter(|i| bits & (1 << i) != 0).collect())
}

fn columns_of(grid: &Grid, children: &[u32]) -> Vec<Column> {
    grid.columns.iter().filter(|c| c.len > 0 && children.contains(&c.child)).copied().collect()
}

fn has_data(grid: &Grid, children: &[u32]) -> bool {
    let width = grid.width;
    let data =
        |(n, c): (usize, &Column)| n % width >= grid.nparity && c.len > 0 && children.contains(&c.child);
    grid.columns.iter().enumerate().any(data)
}

fn children_of(bad: &[BadCopy], fault: Fault) -> Vec<u32> {
    let mut children: Vec<u32> = bad.iter().filter(|b| b.fault == fault).map(|b| b.read.child).collect();
    children.sort_unstable();
    children.dedup();
    children
}

/// A block on a vdev, and how to read it.
struct Case<'a> {
    grid: Grid,
    width: u32,
    block: Vec<u8>,
    plan: &'a dyn Fn(Depth) -> Box<dyn ReadPlan>,
}

impl Case<'_> {
    fn leaves(&self, rng: &mut Rng) -> Leaves {
        let mut leaves = noise(rng, &vec![1; self.width as usize]);
        lay_out(&self.grid, &self.block, &mut leaves);
        leaves
    }

    /// Every set of children, up to the parity, is absent, fails, or lies: the block is found, and
    /// those that matter are named.
    fn survives_all_losses(&self, rng: &mut Rng, most: u32) {
        self.is_resilvered_from_few_columns(rng, most);
        let mut leaves = self.leaves(rng);
        for lost in sets(self.width, most) {
            let columns = columns_of(&self.grid, &lost);
            let spoil = |leaves: &mut Leaves| {
                columns.iter().for_each(|c| leaves.corrupt_at(c.child, c.area, c.offset, c.len));
            };
            spoil(&mut leaves);
            for (how, fault) in [Fault::Unreadable, Fault::Unreadable, Fault::Wrong].into_iter().enumerate() {
                leaves.forgive();
                for &child in &lost {
                    match how {
                        0 => leaves.set_fault(child, 0, Fault::Unreadable),
                        1 => leaves.break_silently(child, 0),
                        _ => {}
                    }
                }
                for depth in [Depth::First, Depth::All] {
                    let outcome = run((self.plan)(depth).as_mut(), &leaves, &self.block);
                    assert!(outcome.data.is_some(), "lost {lost:?} how {how} {depth:?}");
                    self.check_named(&outcome.bad, &lost, fault, depth);
                }
            }
            leaves.forgive();
            spoil(&mut leaves);
        }
    }

    /// Every set of children, up to the parity, lacks the block: each is named, and as many columns are read as hold data.
    fn is_resilvered_from_few_columns(&self, rng: &mut Rng, most: u32) {
        let mut leaves = self.leaves(rng);
        let width = self.grid.width;
        let holds_data = |(n, c): &(usize, &Column)| n % width >= self.grid.nparity && c.len > 0;
        let bytes: u64 = self.grid.columns.iter().enumerate().filter(holds_data).map(|(_, c)| c.len).sum();
        for lacking in sets(self.width, most) {
            leaves.forgive();
            lacking.iter().for_each(|&child| leaves.set_fault(child, 0, Fault::Stale));
            leaves.take_log();
            let outcome = run((self.plan)(Depth::Lacking).as_mut(), &leaves, &self.block);
            assert!(outcome.data.is_some(), "{lacking:?} lack it");
            self.check_named(&outcome.bad, &lacking, Fault::Stale, Depth::All);
            let log = leaves.take_log();
            assert!(log.iter().all(|read| !lacking.contains(&read.child)), "{lacking:?} lack it");
            let read: u64 = log.iter().map(|read| read.len).sum();
            // Parity is as long as the longest column, and a read may reach over a gap.
            let slack = u64::from(most + 1) * u64::from(self.width) * 4096;
            assert!(read <= bytes + slack, "{read} bytes read of {bytes}, {lacking:?} lack it");
        }
        leaves.forgive();
    }

    /// Every set of children, up to the parity, sits out: the block is found without them, also when another one is wrong or
    /// absent, if need be with them.
    fn does_without_the_sitting(&self, rng: &mut Rng, most: u32) {
        let mut leaves = self.leaves(rng);
        for sitting in sets(self.width, most) {
            leaves.forgive();
            sitting.iter().for_each(|&child| leaves.sit_out(child));
            leaves.take_log();
            let outcome = run((self.plan)(Depth::First).as_mut(), &leaves, &self.block);
            assert!(outcome.data.is_some() && outcome.bad.is_empty(), "{sitting:?} sit out");
            let read = leaves.take_log().iter().any(|read| sitting.contains(&read.child));
            assert!(!read, "{sitting:?} sit out");
            run((self.plan)(Depth::All).as_mut(), &leaves, &self.block);
            let all = columns_of(&self.grid, &sitting);
            let log = leaves.take_log();
            assert!(all.iter().all(|column| log.iter().any(|read| read.child == column.child)), "a scrub");
            let absent = (rng.next_u64() % u64::from(self.width)) as u32;
            leaves.set_fault(absent, 0, Fault::Unreadable);
            let outcome = run((self.plan)(Depth::First).as_mut(), &leaves, &self.block);
            assert!(outcome.data.is_some(), "{sitting:?} sit out, {absent} is absent");
        }
    }

    fn check_named(&self, bad: &[BadCopy], lost: &[u32], fault: Fault, depth: Depth) {
        let named = children_of(bad, fault);
        assert_eq!(named, children_of_all(bad), "other faults: {bad:?}");
        let padding = depth == Depth::All && fault != Fault::Wrong;
        let touched: Vec<u32> = lost
            .iter()
            .copied()
            .filter(|&child| {
                self.grid.columns.iter().any(|c| c.child == child && (c.len > 0 || padding && c.zeros > 0))
            })
            .collect();
        if depth == Depth::All || (fault == Fault::Wrong && has_data(&self.grid, lost)) {
            assert_eq!(named, touched, "{bad:?}");
        } else {
            assert_eq!(named.is_empty(), !has_data(&self.grid, lost), "{bad:?}");
            assert!(named.iter().all(|child| touched.contains(child)));
        }
    }
}

fn children_of_all(bad: &[BadCopy]) -> Vec<u32> {
    let mut children: Vec<u32> = bad.iter().map(|b| b.read.child).collect();
    children.sort_unstable();
    children.dedup();
    children
}

fn raidz(width: u32, nparity: u32, ashift: u32) -> RaidzGeometry {
    RaidzGeometry { ashift, width, nparity, expansion: None }
}

fn raidz_case(rng: &mut Rng, geometry: &RaidzGeometry, offset: u64, size: u64, txg: u64, most: u32) {
    let plan = |depth| Box::new(RaidzPlan::new(geometry, offset, size, txg, depth)) as Box<dyn ReadPlan>;
    let grid = geometry.grid(offset, size, txg).unwrap();
    let case = Case { grid, width: geometry.width, block: random_block(rng, size), plan: &plan };
    case.survives_all_losses(rng, most);
    case.does_without_the_sitting(rng, most);
}

#[test]
fn raidz_survives_all_losses() {
    let mut rng = Rng::new(1);
    for nparity in 1..=3u32 {
        for width in nparity + 1..=7 {
            for _ in 0..4 {
                let ashift = 9 + rng.below(4) as u32;
                let size = 512 * (1 + rng.below(40));
                let offset = rng.below(64) << ashift | rng.below(2) << 20;
                raidz_case(&mut rng, &raidz(width, nparity, ashift), offset, size, 5, nparity);
            }
        }
    }
}

#[test]
fn expanded_raidz_survives_all_losses() {
    let mut rng = Rng::new(2);
    for nparity in 1..=3u32 {
        for grown in 1..=2u32 {
            for reflow in [None, Some(0), Some(1 << 16), Some(1 << 40)] {
                for scratch in [false, true] {
                    let reflow = reflow.map(|offset| ReflowState { offset, scratch, next: None });
                    let txgs = (1..=grown).map(|n| u64::from(n) * 10).collect();
                    let width = nparity + 2 + grown + u32::from(reflow.is_some());
                    let expansion = Some(Expansion { txgs, reflow });
                    let geometry = RaidzGeometry { ashift: 9, width, nparity, expansion };
                    let size = 512 * (1 + rng.below(30));
                    let offset = rng.below(256) << 9 | rng.below(2) << 20;
                    let txg = rng.below(30);
                    raidz_case(&mut rng, &geometry, offset, size, txg, nparity);
                }
            }
        }
    }
}

fn draid(ashift: u32, data: u64, parity: u64, spares: u64, children: u64) -> DraidGeometry {
    let config = DraidConfig { parity, data, children, spares };
    DraidGeometry::new(ashift, config, config.groups().unwrap()).unwrap()
}

#[test]
fn draid_survives_all_losses() {
    let mut rng = Rng::new(3);
    for nparity in 1..=3u64 {
        for ndata in 1..=3 {
            for nspares in 0..=1 {
                let children = ndata + nparity + nspares + rng.below(2);
                let geometry = draid(9 + rng.below(4) as u32, ndata, nparity, nspares, children);
                let offset = rng.below(8) * (geometry.asize(1));
                let size = 512 * (1 + rng.below(40));
                let plan =
                    |depth| Box::new(DraidPlan::new(&geometry, offset, size, depth)) as Box<dyn ReadPlan>;
                let grid = geometry.grid(offset, size).unwrap();
                let block = random_block(&mut rng, size);
                let case = Case { grid, width: children as u32, block, plan: &plan };
                case.survives_all_losses(&mut rng, nparity as u32);
                case.does_without_the_sitting(&mut rng, nparity as u32);
            }
        }
    }
}

#[test]
fn bad_padding_of_draid_is_named() {
    let geometry = draid(9, 3, 1, 0, 4);
    let mut rng = Rng::new(4);
    let block = random_block(&mut rng, 1024);
    let grid = geometry.grid(0, 1024).unwrap();
    let mut leaves = noise(&mut rng, &[1; 4]);
    lay_out(&grid, &block, &mut leaves);
    let padded = grid.columns.iter().find(|c| c.zeros > 0).unwrap();
    leaves.corrupt_at(padded.child, Area::Data, padded.offset + padded.len, 1);
    let first = run(&mut DraidPlan::new(&geometry, 0, 1024, Depth::First), &leaves, &block);
    assert!(first.data.is_some() && first.bad.is_empty());
    let all = run(&mut DraidPlan::new(&geometry, 0, 1024, Depth::All), &leaves, &block);
    assert_eq!(children_of(&all.bad, Fault::Wrong), vec![padded.child]);
}

#[test]
fn a_healthy_read_touches_only_data() {
    let mut rng = Rng::new(5);
    let geometry = raidz(6, 2, 12);
    let grid = geometry.grid(0, 1 << 17, 1).unwrap();
    let block = random_block(&mut rng, 1 << 17);
    let mut leaves = noise(&mut rng, &[1; 6]);
    lay_out(&grid, &block, &mut leaves);
    run(&mut RaidzPlan::new(&geometry, 0, 1 << 17, 1, Depth::First), &leaves, &block);
    assert_eq!(leaves.take_log().len(), 4, "one read for each data column");
    leaves.set_fault(3, 0, Fault::Unreadable);
    run(&mut RaidzPlan::new(&geometry, 0, 1 << 17, 1, Depth::First), &leaves, &block);
    assert_eq!(leaves.take_log().len(), 5, "three data columns and all parity");
}

/// A read that reconstructs the column of a missing or stale leaf also finds bad parity that it did not need.
#[test]
fn a_degraded_read_checks_all_parity() {
    let mut rng = Rng::new(15);
    for nparity in 2..=3u32 {
        let geometry = raidz(nparity + 3, nparity, 9);
        let size = 512 * 12;
        let block = random_block(&mut rng, size);
        let grid = geometry.grid(0, size, 1).unwrap();
        for fault in [Fault::Unreadable, Fault::Stale] {
            for bad in 0..nparity as usize {
                let mut leaves = noise(&mut rng, &vec![1; geometry.width as usize]);
                lay_out(&grid, &block, &mut leaves);
                leaves.set_fault(grid.columns[nparity as usize].child, 0, fault);
                let parity = grid.columns[bad];
                leaves.corrupt_at(parity.child, parity.area, parity.offset, 1);
                let outcome = run(&mut RaidzPlan::new(&geometry, 0, size, 1, Depth::First), &leaves, &block);
                assert!(outcome.data.is_some());
                assert_eq!(
                    children_of(&outcome.bad, Fault::Wrong),
                    vec![parity.child],
                    "raidz{nparity} {bad}"
                );
            }
        }
    }
}

/// Damage in more columns than there is parity, but in different rows.
#[test]
fn scattered_damage_is_recovered() {
    let mut rng = Rng::new(6);
    for nparity in 1..=3u32 {
        let geometry = raidz(nparity + 4, nparity, 9);
        let size = 512 * 16;
        let block = random_block(&mut rng, size);
        let grid = geometry.grid(0, size, 1).unwrap();
        let mut leaves = noise(&mut rng, &vec![1; geometry.width as usize]);
        lay_out(&grid, &block, &mut leaves);
        let width = u64::from(geometry.width);
        for row in 0..3u64 {
            for n in 0..u64::from(nparity) {
                let child = (row * u64::from(nparity) + n) % width;
                leaves.corrupt_at(child as u32, Area::Data, row * 512, 512);
            }
        }
        let outcome = run(&mut RaidzPlan::new(&geometry, 0, size, 1, Depth::First), &leaves, &block);
        assert!(outcome.data.is_some(), "raidz{nparity}");
        let columns = width.min(3 * u64::from(nparity));
        assert_eq!(children_of(&outcome.bad, Fault::Wrong).len() as u64, columns);
    }
}

/// Unreadable sectors in more columns than there is parity, but in different rows.
#[test]
fn scattered_unreadable_sectors_are_recovered() {
    let mut rng = Rng::new(12);
    for nparity in 1..=3u32 {
        let geometry = raidz(nparity + 4, nparity, 9);
        let size = 512 * 40;
        let block = random_block(&mut rng, size);
        let grid = geometry.grid(0, size, 1).unwrap();
        let mut leaves = noise(&mut rng, &vec![1; geometry.width as usize]);
        lay_out(&grid, &block, &mut leaves);
        (0..geometry.width).for_each(|child| leaves.make_hole(child, 0, u64::from(child) * 512 + 17));
        for depth in [Depth::First, Depth::All] {
            let outcome = run(&mut RaidzPlan::new(&geometry, 0, size, 1, depth), &leaves, &block);
            assert!(outcome.data.is_some(), "raidz{nparity}");
            assert_eq!(children_of(&outcome.bad, Fault::Unreadable).len() as u32, geometry.width);
        }
    }
}

/// A disk that lied before the reflow has its wrong bytes on all children after it.
#[test]
fn damage_older_than_the_expansion_is_recovered() {
    let mut rng = Rng::new(7);
    for nparity in 1..=2u32 {
        let expansion = Some(Expansion { txgs: vec![100, 200], reflow: None });
        let geometry = RaidzGeometry { ashift: 9, width: nparity + 5, nparity, expansion };
        let old = u64::from(nparity + 3);
        let size = 512 * 64;
        let block = random_block(&mut rng, size);
        let grid = geometry.grid(512 * 7, size, 1).unwrap();
        let mut leaves = noise(&mut rng, &vec![1; geometry.width as usize]);
        lay_out(&grid, &block, &mut leaves);
        for column in grid.columns.iter().filter(|c| c.len > 0 && c.sector % old < u64::from(nparity)) {
            leaves.corrupt_at(column.child, column.area, column.offset, 512);
        }
        let outcome = run(&mut RaidzPlan::new(&geometry, 512 * 7, size, 1, Depth::First), &leaves, &block);
        assert!(outcome.data.is_some(), "raidz{nparity}");
    }
}

/// Children with several leaves: one of them suffices, whatever the others return.
#[test]
fn any_good_side_serves() {
    let mut rng = Rng::new(8);
    let geometry = raidz(4, 1, 9);
    let size = 512 * 9;
    let block = random_block(&mut rng, size);
    let grid = geometry.grid(0, size, 1).unwrap();
    for lie in [None, Some(Fault::Unreadable), Some(Fault::Stale)] {
        let mut leaves = noise(&mut rng, &[2, 2, 3, 1]);
        lay_out(&grid, &block, &mut leaves);
        for (child, side) in [(0, 0), (1, 1), (2, 0), (2, 1)] {
            leaves.corrupt(child, side, 0, 8192);
            if let Some(fault) = lie {
                leaves.set_fault(child as u32, side as u32, fault);
            }
        }
        leaves.corrupt(3, 0, 0, 8192);
        for depth in [Depth::First, Depth::All] {
            let outcome = run(&mut RaidzPlan::new(&geometry, 0, size, 1, depth), &leaves, &block);
            assert!(outcome.data.is_some(), "{lie:?} {depth:?}");
            if depth == Depth::All {
                assert_eq!(outcome.bad.len(), 5, "{lie:?} {:?}", outcome.bad);
            }
        }
    }
}

/// Leaves that should be stale are used when nothing else is left.
#[test]
fn stale_leaves_are_the_last_resort() {
    let mut rng = Rng::new(9);
    let geometry = raidz(4, 1, 9);
    let size = 512 * 9;
    let block = random_block(&mut rng, size);
    let grid = geometry.grid(0, size, 1).unwrap();
    let mut leaves = noise(&mut rng, &[1; 4]);
    lay_out(&grid, &block, &mut leaves);
    leaves.set_fault(0, 0, Fault::Unreadable);
    leaves.set_fault(2, 0, Fault::Stale);
    let outcome = run(&mut RaidzPlan::new(&geometry, 0, size, 1, Depth::First), &leaves, &block);
    assert!(outcome.data.is_some());
    assert_eq!(children_of(&outcome.bad, Fault::Unreadable), vec![0]);
    assert!(children_of(&outcome.bad, Fault::Stale).is_empty(), "its bytes were right after all");
}

#[test]
fn too_much_damage_ends_without_data() {
    let mut rng = Rng::new(10);
    let geometry = raidz(5, 2, 9);
    let size = 512 * 30;
    let block = random_block(&mut rng, size);
    let grid = geometry.grid(0, size, 1).unwrap();
    let mut leaves = noise(&mut rng, &[1; 5]);
    lay_out(&grid, &block, &mut leaves);
    (0..3).for_each(|child| leaves.corrupt(child, 0, 0, 32768));
    for depth in [Depth::First, Depth::All] {
        assert!(run(&mut RaidzPlan::new(&geometry, 0, size, 1, depth), &leaves, &block).data.is_none());
    }
    (0..3).for_each(|child| leaves.set_fault(child, 0, Fault::Unreadable));
    let outcome = run(&mut RaidzPlan::new(&geometry, 0, size, 1, Depth::First), &leaves, &block);
    assert_eq!(children_of(&outcome.bad, Fault::Unreadable), vec![0, 1, 2]);
}

/// Every leaf that gave bytes of a block that can't be had is under suspicion, but not when too few could be read.
#[test]
fn of_a_lost_block_all_that_was_read_counts_as_wrong() {
    let mut rng = Rng::new(14);
    for nparity in 1..=3 {
        let geometry = raidz(nparity + 3, nparity, 9);
        let size = 512 * 3;
        let block = random_block(&mut rng, size);
        let grid = geometry.grid(0, size, 1).unwrap();
        let mut leaves = noise(&mut rng, &vec![1; nparity as usize + 3]);
        lay_out(&grid, &block, &mut leaves);
        (0..=nparity).for_each(|child| leaves.corrupt(child as usize, 0, 0, 512));
        let lost = |leaves: &Leaves, depth| {
            let outcome = run(&mut RaidzPlan::new(&geometry, 0, size, 1, depth), leaves, &block);
            assert!(outcome.data.is_none());
            outcome.bad
        };
        let all: Vec<u32> = (0..nparity + 3).collect();
        for depth in [Depth::First, Depth::All] {
            assert_eq!(children_of(&lost(&leaves, depth), Fault::Wrong), all, "raidz{nparity} {depth:?}");
        }
        (0..=nparity).for_each(|child| leaves.break_silently(child, 0));
        let bad = lost(&leaves, Depth::First);
        assert_eq!(children_of(&bad, Fault::Wrong), Vec::<u32>::new(), "raidz{nparity}");
        assert_eq!(children_of(&bad, Fault::Unreadable), all[..=nparity as usize], "raidz{nparity}");
    }
}

/// A read that repairs also finds bad parity that it did not need.
#[test]
fn a_failed_read_verifies_all_parity() {
    let mut rng = Rng::new(15);
    let (raidz2, raidz3, draid2) = (raidz(5, 2, 9), raidz(6, 3, 9), draid(9, 3, 2, 0, 9));
    let size = 512 * 3;
    let block = random_block(&mut rng, size);
    type Make<'a> = Box<dyn Fn() -> Box<dyn ReadPlan> + 'a>;
    let cases: Vec<(Grid, u32, Make<'_>)> = vec![
        (
            raidz2.grid(0, size, 1).unwrap(),
            5,
            Box::new(|| Box::new(RaidzPlan::new(&raidz2, 0, size, 1, Depth::First))),
        ),
        (
            raidz3.grid(0, size, 1).unwrap(),
            6,
            Box::new(|| Box::new(RaidzPlan::new(&raidz3, 0, size, 1, Depth::First))),
        ),
        (
            draid2.grid(0, size).unwrap(),
            9,
            Box::new(|| Box::new(DraidPlan::new(&draid2, 0, size, Depth::First))),
        ),
    ];
    for (grid, width, plan) in cases {
        let mut leaves = noise(&mut rng, &vec![1; width as usize]);
        lay_out(&grid, &block, &mut leaves);
        let (failing, parity) = (grid.columns[grid.nparity], grid.columns[grid.nparity - 1]);
        leaves.break_silently(failing.child, 0);
        leaves.corrupt_at(parity.child, parity.area, parity.offset, parity.len);
        let outcome = run(plan().as_mut(), &leaves, &block);
        assert!(outcome.data.is_some());
        assert_eq!(children_of(&outcome.bad, Fault::Unreadable), [failing.child]);
        assert_eq!(children_of(&outcome.bad, Fault::Wrong), [parity.child]);
    }
}

#[test]
fn absurd_requests_fail() {
    let mut rng = Rng::new(11);
    let leaves = noise(&mut rng, &[1; 5]);
    let expansion = Some(Expansion { txgs: vec![u64::MAX; 40], reflow: None });
    let geometries = [
        raidz(5, 2, 9),
        raidz(2, 2, 9),
        raidz(5, 0, 9),
        raidz(5, 4, 9),
        raidz(5, 1, 70),
        raidz(u32::MAX, 1, 9),
        raidz(9, 1, 9),
        RaidzGeometry { expansion, ..raidz(5, 1, 9) },
    ];
    let requests = [(0, 0), (1, 512), (0, u64::MAX), (u64::MAX, 512), (!511, 512), (1 << 62, 1 << 20)];
    for geometry in &geometries {
        geometry.asize(u64::MAX, 0);
        for (offset, size) in requests {
            let outcome = run(&mut RaidzPlan::new(geometry, offset, size, 1, Depth::All), &leaves, &[]);
            assert!(outcome.data.is_none());
        }
    }
    let geometry = draid(9, 3, 1, 0, 5);
    geometry.asize(u64::MAX);
    for (offset, size) in requests {
        assert!(run(&mut DraidPlan::new(&geometry, offset, size, Depth::All), &leaves, &[]).data.is_none());
    }
    assert_eq!(geometry.spare_child(0, 0), None);
}

/// Whatever comes back from the children, a plan ends, and never with bytes that were not accepted.
#[test]
fn any_damage_ends_well() {
    let mut rng = Rng::new(13);
    for round in 0..300 {
        let nparity = 1 + rng.below(3) as u32;
        let width = nparity + 2 + rng.below(4) as u32;
        let txgs: Vec<u64> = (0..rng.below(2)).collect();
        let reflow = (rng.below(3) == 0).then(|| rng.next_u64());
        let geometry = RaidzGeometry::new(9, width, nparity, &txgs, reflow.filter(|_| width > nparity + 2));
        let Ok(geometry) = geometry else { continue };
        let (offset, size) = (rng.below(512) << 9, 1 + rng.below(20_000));
        let txg = rng.below(3);
        let Some(grid) = geometry.grid(offset, size, txg) else { continue };
        let block = random_block(&mut rng, size);
        let sides: Vec<usize> = (0..width).map(|_| 1 + rng.below(3) as usize).collect();
        let mut leaves = noise(&mut rng, &sides);
        lay_out(&grid, &block, &mut leaves);
        for _ in 0..rng.below(2 * u64::from(width)) {
            let column = grid.columns[rng.below(grid.columns.len() as u64) as usize];
            let side = rng.below(sides[column.child as usize] as u64) as u32;
            match rng.below(5) {
                0 => leaves.set_fault(column.child, side, Fault::Stale),
                1 => leaves.set_fault(column.child, side, Fault::Unreadable),
                2 => leaves.break_silently(column.child, side),
                3 => leaves.make_hole(column.child, side, column.offset + rng.below(column.len + 1)),
                _ => leaves.corrupt_at(column.child, column.area, column.offset, column.len),
            }
        }
        let depth = if round % 2 == 0 { Depth::First } else { Depth::All };
        run(&mut RaidzPlan::new(&geometry, offset, size, txg, depth), &leaves, &block);
    }
}
