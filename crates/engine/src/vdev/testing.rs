//! Drives read plans over byte vectors instead of devices.

use super::plan::{Area, ChildRead, ChildResult, Children, Fault, PlanOutcome, PlanStep, ReadPlan};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use stdx::Buf;

/// Leaves in memory: `leaves[child][side]` is a data area.
#[derive(Clone)]
pub(crate) struct Leaves {
    areas: Vec<Vec<Vec<u8>>>,
    boot: Vec<Vec<u8>>,
    faults: HashMap<(u32, u32), Fault>,
    /// Leaves that fail every read without having been known to.
    broken: HashSet<(u32, u32)>,
    /// Unreadable bytes of leaves, as (child, side, offset).
    holes: HashSet<(u32, u32, u64)>,
    /// Children that sit out.
    sitting: HashSet<u32>,
    log: RefCell<Vec<ChildRead>>,
}

impl Leaves {
    pub(crate) fn new(areas: Vec<Vec<Vec<u8>>>) -> Self {
        let boot = vec![vec![0; 1 << 20]; areas.len()];
        Self {
            boot,
            areas,
            faults: HashMap::new(),
            broken: HashSet::new(),
            holes: HashSet::new(),
            sitting: HashSet::new(),
            log: RefCell::default(),
        }
    }

    pub(crate) fn bytes(&self, child: usize, side: usize) -> &[u8] {
        &self.areas[child][side]
    }

    pub(crate) fn bytes_mut(&mut self, child: usize, side: usize) -> &mut Vec<u8> {
        &mut self.areas[child][side]
    }

    pub(crate) fn corrupt(&mut self, child: usize, side: usize, offset: usize, len: usize) {
        for byte in &mut self.areas[child][side][offset..offset + len] {
            *byte ^= 0xa5;
        }
    }

    pub(crate) fn set_fault(&mut self, child: u32, side: u32, fault: Fault) {
        self.faults.insert((child, side), fault);
    }

    pub(crate) fn break_silently(&mut self, child: u32, side: u32) {
        self.broken.insert((child, side));
    }

    /// Makes every read of this byte fail.
    pub(crate) fn make_hole(&mut self, child: u32, side: u32, offset: u64) {
        self.holes.insert((child, side, offset));
    }

    /// Has a child sit out.
    pub(crate) fn sit_out(&mut self, child: u32) {
        self.sitting.insert(child);
    }

    /// Takes back all faults.
    pub(crate) fn forgive(&mut self) {
        self.faults.clear();
        self.broken.clear();
        self.sitting.clear();
    }

    /// The same bytes on all sides of a child.
    pub(crate) fn write(&mut self, child: u32, area: Area, offset: u64, bytes: &[u8]) {
        let offset = offset as usize;
        let sides = match area {
            Area::Data => &mut self.areas[child as usize][..],
            Area::Boot => std::slice::from_mut(&mut self.boot[child as usize]),
        };
        for side in sides {
            side[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Damages side 0.
    pub(crate) fn corrupt_at(&mut self, child: u32, area: Area, offset: u64, len: u64) {
        let bytes = match area {
            Area::Data => &mut self.areas[child as usize][0],
            Area::Boot => &mut self.boot[child as usize],
        };
        for byte in &mut bytes[offset as usize..(offset + len) as usize] {
            *byte ^= 0xa5;
        }
    }

    /// The reads since the last call.
    pub(crate) fn take_log(&self) -> Vec<ChildRead> {
        self.log.take()
    }

    fn read(&self, read: &ChildRead) -> Option<Buf> {
        let (child, side) = (read.child as usize, read.side as usize);
        self.log.borrow_mut().push(*read);
        let leaf = (read.child, read.side);
        assert_ne!(self.faults.get(&leaf), Some(&Fault::Unreadable), "an absent leaf is never asked");
        let in_read = |offset| (read.offset..read.offset + read.len).contains(&offset);
        let hole = self.holes.iter().any(|&(child, side, offset)| (child, side) == leaf && in_read(offset));
        if self.broken.contains(&leaf) || hole {
            return None;
        }
        let area = match read.area {
            Area::Data => &self.areas[child][side],
            Area::Boot => &self.boot[child],
        };
        let start = usize::try_from(read.offset).ok()?;
        area.get(start..start.checked_add(usize::try_from(read.len).ok()?)?).map(Buf::from)
    }
}

impl Children for Leaves {
    fn count(&self) -> u32 {
        self.areas.len() as u32
    }

    fn sides(&self, child: u32, _: u64) -> u32 {
        self.areas[child as usize].len() as u32
    }

    fn fault(&self, child: u32, side: u32, _: u64) -> Option<Fault> {
        self.faults.get(&(child, side)).copied()
    }

    fn sits_out(&self, child: u32, _: u64) -> bool {
        self.sitting.contains(&child)
    }
}

/// Runs a plan to its end; the judge accepts exactly `want`. Checks the contract on the way.
pub(crate) fn run(plan: &mut dyn ReadPlan, leaves: &Leaves, want: &[u8]) -> PlanOutcome {
    let mut seen = HashSet::new();
    let mut step = plan.start(leaves);
    for _ in 0..1000 {
        let reads = match step {
            PlanStep::Issue(reads) => reads,
            PlanStep::Done(outcome) => {
                if let Some(data) = &outcome.data {
                    assert_eq!(&**data, want, "a plan may only end with bytes that were accepted");
                }
                return outcome;
            }
        };
        assert!(!reads.is_empty(), "an empty step");
        for read in &reads {
            assert!(seen.insert(*read), "asked twice: {read:?}");
        }
        let results =
            reads.into_iter().rev().map(|read| ChildResult { data: leaves.read(&read), read }).collect();
        step = plan.resume(leaves, results, &mut |bytes| {
            assert_eq!(bytes.len(), want.len(), "the judge sees exactly the block");
            bytes == want
        });
    }
    panic!("the plan does not end");
}
