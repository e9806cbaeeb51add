//! Images that a power cut could leave.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use stdx::rng::Rng;

use crate::disk::Event;
use crate::world::DISK_SIZE;

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// Sparse content of a disk; cheap to copy.
#[derive(Debug, Clone)]
pub struct Pages {
    /// Bytes of the disk.
    pub size: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
}

impl Default for Pages {
    /// An empty disk of the usual size.
    fn default() -> Self {
        Self { size: DISK_SIZE, pages: BTreeMap::new() }
    }
}

/// Page number and offset in it.
fn split(offset: u64) -> (u64, usize) {
    let page = PAGE as u64;
    (offset / page, usize::try_from(offset % page).unwrap_or(0))
}

impl Pages {
    /// An empty disk of that many bytes.
    pub fn empty(size: u64) -> Self {
        Self { size, pages: BTreeMap::new() }
    }

    /// The content of a file of this machine.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut pages = Self::empty(file.metadata()?.len());
        let (mut at, mut piece) = (0, vec![0; 256 * PAGE]);
        loop {
            let got = file.read(&mut piece)?;
            let Some(bytes) = piece.get(..got).filter(|b| !b.is_empty()) else { return Ok(pages) };
            for page in bytes.chunks(PAGE) {
                if page.iter().any(|byte| *byte != 0) {
                    pages.write(at, page);
                }
                at += page.len() as u64;
            }
        }
    }

    /// Reads from `offset` into `out`.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let (page, skip) = split(at);
            let take = rest.len().min(PAGE - skip);
            let (now, later) = rest.split_at_mut(take);
            match self.pages.get(&page).and_then(|p| p.get(skip..skip + take)) {
                Some(bytes) => now.copy_from_slice(bytes),
                None => now.fill(0),
            }
            (at, rest) = (at + take as u64, later);
        }
    }

    /// Writes bytes.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (page, skip) = split(at);
            let take = rest.len().min(PAGE - skip);
            let (now, later) = rest.split_at(take);
            if take == PAGE && now.iter().all(|byte| *byte == 0) {
                self.pages.remove(&page);
                (at, rest) = (at + take as u64, later);
                continue;
            }
            let slot = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
            if let Some(to) = Arc::make_mut(slot).get_mut(skip..skip + take) {
                to.copy_from_slice(now);
            }
            (at, rest) = (at + take as u64, later);
        }
    }

    /// A fingerprint of the content.
    pub fn print(&self, seed: u64) -> u64 {
        let words = self.pages.iter().flat_map(|(page, bytes)| {
            let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            std::iter::once(*page).chain(words)
        });
        words.fold(seed, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95))
    }

    /// All non-zero pages: byte offset and content.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(&page, bytes)| (page * PAGE as u64, &bytes[..]))
    }
}

/// A write that a power cut may lose.
#[derive(Debug, Clone)]
struct Pending {
    disk: usize,
    offset: u64,
    bytes: Arc<[u8]>,
}

/// The fate of an unflushed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    Torn,
}

/// Replays a record event by event, and returns the images that a cut at that moment could leave.
#[derive(Debug)]
pub struct Replay {
    durable: Vec<Pages>,
    pending: Vec<Pending>,
    /// The last state that was promised to be durable.
    pub promised: u64,
}

/// Maximum number of writes for which every combination of kept and lost is tried.
const ALL_SUBSETS: usize = 5;

impl Replay {
    /// Begins with disks of the content `durable`.
    pub fn new(durable: Vec<Pages>) -> Self {
        Self { durable, pending: Vec::new(), promised: 0 }
    }

    /// Advances by one event.
    pub fn step(&mut self, event: &Event) {
        match event {
            Event::Write(disk, offset, bytes) => {
                self.pending.push(Pending { disk: *disk, offset: *offset, bytes: Arc::clone(bytes) });
            }
            Event::Flush(disk) => {
                let durable = &mut self.durable;
                self.pending.retain(|write| {
                    if write.disk == *disk
                        && let Some(pages) = durable.get_mut(*disk)
                    {
                        pages.write(write.offset, &write.bytes);
                    }
                    write.disk != *disk
                });
            }
            Event::Mark(number) => self.promised = *number,
        }
    }

    /// The number of images of this moment: all subsets for few writes, otherwise `most`.
    pub fn variants(&self, most: u64) -> u64 {
        match self.pending.len() {
            n if n <= ALL_SUBSETS => (1 << n).min(most.max(1)),
            _ => most,
        }
    }

    /// One image. For few writes `variant` is the set of kept ones. Otherwise, and for torn and reordered writes,
    /// `random` decides.
    pub fn image(&self, variant: u64, random: &mut Rng) -> Vec<Pages> {
        let few = self.pending.len() <= ALL_SUBSETS;
        let mut fates = Vec::new();
        for (i, write) in self.pending.iter().enumerate() {
            let fate = match few {
                true if variant >> i & 1 == 1 => Fate::Kept,
                true => Fate::Lost,
                false => match (variant, random.below(8)) {
                    // The two extremes first.
                    (0, _) => Fate::Lost,
                    (1, _) => Fate::Kept,
                    (_, 0..4) => Fate::Kept,
                    (_, 4..7) => Fate::Lost,
                    _ => Fate::Torn,
                },
            };
            fates.push((fate, write));
        }
        if !few && variant > 1 {
            shuffle(&mut fates, random);
        }
        let mut images = self.durable.clone();
        for (fate, write) in fates {
            let Some(pages) = images.get_mut(write.disk) else { continue };
            match fate {
                Fate::Kept => pages.write(write.offset, &write.bytes),
                Fate::Lost => {}
                Fate::Torn => tear(pages, write, random),
            }
        }
        images
    }

    /// Writes that could be lost now.
    pub fn at_risk(&self) -> usize {
        self.pending.len()
    }
}

/// Only some sectors of a write arrive.
fn tear(pages: &mut Pages, write: &Pending, random: &mut Rng) {
    for (i, sector) in write.bytes.chunks(SECTOR).enumerate() {
        if random.below(2) == 0 {
            pages.write(write.offset + (i * SECTOR) as u64, sector);
        }
    }
}

/// Shuffles items with `random`.
pub fn shuffle<T>(items: &mut [T], random: &mut Rng) {
    for last in (1..items.len()).rev() {
        let other = usize::try_from(random.below(last as u64 + 1)).unwrap_or(0);
        items.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(disk: usize, offset: u64, byte: u8, len: usize) -> Event {
        Event::Write(disk, offset, vec![byte; len].into())
    }

    fn byte(pages: &Pages, offset: u64) -> u8 {
        let mut out = [0];
        pages.read(offset, &mut out);
        out[0]
    }

    #[test]
    fn only_what_was_flushed_on_its_own_disk_is_safe() {
        let mut replay = Replay::new(vec![Pages::default(); 2]);
        for event in
            [write(0, 10, 1, 1), write(1, 10, 2, 1), Event::Flush(0), write(0, 4095, 3, 2), Event::Mark(9)]
        {
            replay.step(&event);
        }
        assert_eq!((replay.at_risk(), replay.variants(100), replay.promised), (2, 4, 9));
        let mut seen = std::collections::BTreeSet::new();
        for variant in 0..4 {
            let images = replay.image(variant, &mut Rng::new(1));
            assert_eq!(byte(&images[0], 10), 1);
            assert_eq!(byte(&images[0], 4095), byte(&images[0], 4096));
            seen.insert((byte(&images[1], 10), byte(&images[0], 4096)));
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn many_writes_are_torn_by_sectors() {
        let mut replay = Replay::new(vec![Pages::default()]);
        (0..20u64).for_each(|i| replay.step(&write(0, i * 8192, 7, 4096)));
        let mut random = Rng::new(3);
        let torn = (2..50).any(|variant| {
            let image = &replay.image(variant, &mut random)[0];
            (0..20u64).any(|i| {
                let sectors: Vec<u8> = (0..8).map(|s| byte(image, i * 8192 + s * 512)).collect();
                sectors.contains(&7) && sectors.contains(&0)
            })
        });
        assert!(torn);
    }
}
