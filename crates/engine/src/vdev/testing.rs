//! Drives read plans over byte vectors instead of devices.

use super::plan::{Area, ChildRead, ChildResult, Children, Fault, Outcome, ReadPlan, Step};
use std::collections::{HashMap, HashSet};
use stdx::Buf;

/// Leaves in memory: `leaves[child][side]` is a data area.
#[derive(Clone)]
pub struct Leaves {
    areas: Vec<Vec<Vec<u8>>>,
    boot: Vec<Vec<u8>>,
    faults: HashMap<(u32, u32), Fault>,
}

impl Leaves {
    pub fn new(areas: Vec<Vec<Vec<u8>>>) -> Self {
        Self { boot: vec![Vec::new(); areas.len()], areas, faults: HashMap::new() }
    }

    pub fn bytes(&self, child: usize, side: usize) -> &[u8] {
        &self.areas[child][side]
    }

    pub fn bytes_mut(&mut self, child: usize, side: usize) -> &mut Vec<u8> {
        &mut self.areas[child][side]
    }

    pub fn corrupt(&mut self, child: usize, side: usize, offset: usize, len: usize) {
        for byte in &mut self.areas[child][side][offset..offset + len] {
            *byte ^= 0xa5;
        }
    }

    pub fn set_fault(&mut self, child: u32, side: u32, fault: Fault) {
        self.faults.insert((child, side), fault);
    }

    fn read(&self, read: &ChildRead) -> Option<Buf> {
        let (child, side) = (read.child as usize, read.side as usize);
        if self.faults.get(&(read.child, read.side)) == Some(&Fault::Unreadable) {
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

    fn sides(&self, child: u32) -> u32 {
        self.areas[child as usize].len() as u32
    }

    fn fault(&self, child: u32, side: u32) -> Option<Fault> {
        self.faults.get(&(child, side)).copied()
    }
}

/// Runs a plan to its end; the judge accepts exactly `want`. Checks the contract on the way.
pub fn run(plan: &mut dyn ReadPlan, leaves: &Leaves, want: &[u8]) -> Outcome {
    let mut seen = HashSet::new();
    let mut step = plan.start(leaves);
    for _ in 0..1000 {
        let reads = match step {
            Step::Issue(reads) => reads,
            Step::Done(outcome) => {
                if let Some(data) = &outcome.data {
                    assert_eq!(&**data, want, "a plan may only end with bytes that were accepted");
                }
                return outcome;
            }
        };
        assert!(!reads.is_empty(), "an empty step");
        for read in &reads {
            let key = (read.child, read.side, read.area, read.offset);
            assert!(seen.insert(key), "asked twice: {read:?}");
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
