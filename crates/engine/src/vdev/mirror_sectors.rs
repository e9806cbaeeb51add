//! Putting a block together from copies none of which is right as a whole.
//!
//! Where all copies agree there is no question. The stretches where they differ, the *islands*, are
//! decided one by one; every choice is shown to the judge, up to a limit.

use stdx::{AlignedBuf, Buf};

/// Bytes compared and taken together: the smallest sector.
pub(super) const UNIT: usize = 512;

/// Candidates shown to the judge.
const MAX_TRIES: u32 = 4096;

/// The part of the block that one leaf holds.
#[derive(Debug)]
pub(super) struct Scrap {
    bytes: Vec<u8>,
    /// By unit.
    have: Vec<bool>,
}

impl Scrap {
    /// Nothing yet of a block of `size` bytes.
    pub(crate) fn empty(size: usize) -> Self {
        Self { bytes: vec![0; size], have: vec![false; size.div_ceil(UNIT)] }
    }

    /// Adds bytes that were read; `at` is a multiple of the unit.
    pub(crate) fn add(&mut self, at: usize, bytes: &[u8]) {
        let end = at.saturating_add(bytes.len()).min(self.bytes.len());
        let Some(slot) = self.bytes.get_mut(at..end) else { return };
        slot.copy_from_slice(bytes.get(..slot.len()).unwrap_or_default());
        for have in self.have.iter_mut().take(end.div_ceil(UNIT)).skip(at / UNIT) {
            *have = true;
        }
    }

    fn unit(&self, index: usize) -> Option<&[u8]> {
        self.have.get(index).filter(|have| **have)?;
        self.bytes.chunks(UNIT).nth(index)
    }
}

/// Units `from..to` and, for each way they may be, a scrap that has them so.
struct Island {
    from: usize,
    to: usize,
    choices: Vec<usize>,
}

/// Which scraps have the unit, the first of each group of equal ones.
fn choices(scraps: &[Scrap], unit: usize) -> Vec<usize> {
    let mut found: Vec<(usize, &[u8])> = Vec::new();
    for (index, bytes) in scraps.iter().enumerate().filter_map(|(i, scrap)| Some((i, scrap.unit(unit)?))) {
        if !found.iter().any(|(_, known)| *known == bytes) {
            found.push((index, bytes));
        }
    }
    found.into_iter().map(|(index, _)| index).collect()
}

/// The block from the scraps of all leaves, if some choice is accepted.
pub(super) fn combine(size: usize, scraps: &[Scrap], judge: &mut dyn FnMut(&[u8]) -> bool) -> Option<Buf> {
    let mut block = AlignedBuf::zeroed(size);
    let mut islands = Vec::new();
    for unit in 0..size.div_ceil(UNIT) {
        let choices = choices(scraps, unit);
        match choices.as_slice() {
            [] => return None,
            [only] => put(&mut block, scraps, *only, unit),
            _ => islands.push(Island { from: unit, to: unit + 1, choices }),
        }
    }
    // Beyond this many islands not even a useful part of the choices could be tried.
    let most = MAX_TRIES.ilog2() as usize;
    if islands.len() > most {
        islands = joined(islands);
    }
    let mut tries = MAX_TRIES;
    let few = islands.len() <= most;
    (few && decide(&mut block, scraps, &islands, &mut tries, judge)).then(|| block.into())
}

/// Neighbours with the same choices as one: damage mostly has some length.
fn joined(islands: Vec<Island>) -> Vec<Island> {
    let mut all: Vec<Island> = Vec::new();
    for next in islands {
        match all.last_mut() {
            Some(last) if last.to == next.from && last.choices == next.choices => last.to = next.to,
            _ => all.push(next),
        }
    }
    all
}

fn put(block: &mut [u8], scraps: &[Scrap], scrap: usize, unit: usize) {
    let bytes = scraps.get(scrap).and_then(|scrap| scrap.unit(unit));
    if let (Some(slot), Some(bytes)) = (block.chunks_mut(UNIT).nth(unit), bytes) {
        slot.copy_from_slice(bytes);
    }
}

fn decide(
    block: &mut [u8],
    scraps: &[Scrap],
    islands: &[Island],
    tries: &mut u32,
    judge: &mut dyn FnMut(&[u8]) -> bool,
) -> bool {
    let Some((island, rest)) = islands.split_first() else {
        *tries = tries.saturating_sub(1);
        return judge(block);
    };
    for &choice in &island.choices {
        (island.from..island.to).for_each(|unit| put(block, scraps, choice, unit));
        if *tries == 0 {
            return false;
        }
        if decide(block, scraps, rest, tries, judge) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrap(bytes: &[u8]) -> Scrap {
        let mut scrap = Scrap::empty(bytes.len());
        scrap.add(0, bytes);
        scrap
    }

    #[test]
    fn islands_are_decided_one_by_one() {
        let want: Vec<u8> = (0..5000u32).map(|i| (i / 7) as u8).collect();
        let (mut a, mut b) = (want.clone(), want.clone());
        a[100] ^= 1;
        b[2000] ^= 1;
        a[4999] ^= 1;
        let found = combine(5000, &[scrap(&a), scrap(&b)], &mut |bytes| bytes == want);
        assert_eq!(found.as_deref(), Some(&want[..]));
        b[100] ^= 1;
        assert!(combine(5000, &[scrap(&a), scrap(&b)], &mut |bytes| bytes == want).is_none());
    }

    #[test]
    fn holes_are_filled_from_the_other() {
        let want = vec![7u8; 2048];
        let (mut a, mut b) = (Scrap::empty(2048), Scrap::empty(2048));
        a.add(0, &want[..1024]);
        assert!(combine(2048, &[a, scrap(&[1; 2048])], &mut |bytes| bytes == want).is_none());
        let mut a = Scrap::empty(2048);
        a.add(0, &want[..1024]);
        b.add(1024, &want[1024..]);
        assert!(combine(2048, &[a, b], &mut |bytes| bytes == want).is_some());
    }

    #[test]
    fn hopeless_ends_soon() {
        let noise = |seed| {
            let mut bytes = vec![0; 1 << 17];
            stdx::rng::Rng::new(seed).fill(&mut bytes);
            scrap(&bytes)
        };
        let mut calls = 0;
        let scraps: Vec<Scrap> = (0..8).map(noise).collect();
        assert!(
            combine(1 << 17, &scraps, &mut |_| {
                calls += 1;
                false
            })
            .is_none()
        );
        assert!(calls <= MAX_TRIES);
    }
}
