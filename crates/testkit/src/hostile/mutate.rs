//! Random changes to a pool: each is encoded in a few bytes, so that a fuzzer or a seed can generate them.

use engine::Result;
use engine::dmu::Object;
use stdx::rng::Rng;

use super::forge::{Forge, set, set_word};

/// Maximum changes to one image.
const MAX_CHANGES: usize = 6;
/// Encoded bytes of one change.
const CHANGE: usize = 24;

/// Words that are likely to confuse decoders.
const WORDS: [u64; 12] = [0, 1, 2, 3, 0x7f, 0xff, 0xffff, 1 << 31, 1 << 40, 1 << 62, 1 << 63, u64::MAX];

/// Encoded changes from a seed.
pub fn from_seed(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let count = 1 + rng.below(MAX_CHANGES as u64) as usize;
    let mut bytes = vec![0; CHANGE * count];
    rng.fill(&mut bytes);
    bytes
}

struct Change {
    objset: u64,
    object: u64,
    what: u8,
    how: u8,
    blkid: u64,
    at: usize,
    value: u64,
}

impl Change {
    fn read(raw: &[u8; CHANGE]) -> Self {
        let word =
            |at: usize| raw.get(at..).and_then(|r| r.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b));
        let low = word(0);
        Self {
            objset: low & 0xff,
            object: low >> 8 & 0xffff,
            what: (low >> 24) as u8,
            how: (low >> 32) as u8,
            blkid: low >> 40 & 0xff,
            at: (word(8) & 0xff_ffff) as usize,
            value: word(16),
        }
    }

    /// Changes bytes as selected by the change.
    fn edit(&self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        let at = self.at % bytes.len();
        let word = at & !7;
        match self.how % 6 {
            0 => set(bytes, at, &[self.value as u8]),
            1 => set_word(bytes, word, self.value),
            2 => set_word(bytes, word, WORDS.get(self.value as usize % WORDS.len()).copied().unwrap_or(0)),
            3 => {
                let old = bytes.get(at).copied().unwrap_or(0);
                set(bytes, at, &[old ^ 1 << (self.value & 7)]);
            }
            4 => {
                let end = (at + (self.value as usize & 0x3ff)).min(bytes.len());
                Rng::new(self.value).fill(bytes.get_mut(at..end).unwrap_or_default());
            }
            _ => {
                let from = (self.value as usize % bytes.len()) & !7;
                let copy = bytes.get(from..).unwrap_or_default().to_vec();
                set(bytes, word, copy.get(..copy.len().min(64)).unwrap_or_default());
            }
        }
    }

    fn apply(&self, forge: &mut Forge) -> Result<()> {
        let id = self.pick_objset(forge)?;
        let object = self.pick_object(forge, id)?;
        let number = object.number;
        let mut edit = |bytes: &mut [u8]| self.edit(bytes);
        match self.what % 8 {
            0 => forge.edit_objset(id, &mut edit),
            1 => {
                forge.edit_dnode(id, number, &mut |dnode| self.edit(dnode.get_mut(..64).unwrap_or_default()))
            }
            2 => forge.edit_dnode(id, number, &mut edit),
            3 | 4 => forge.edit_bonus(id, number, &mut edit),
            5 if object.dnode.nlevels > 1 => self.indirect(forge, &object),
            _ => forge.edit_block(id, number, self.blkid % (object.dnode.maxblkid + 1), &mut edit),
        }
    }

    fn indirect(&self, forge: &mut Forge, object: &Object) -> Result<()> {
        let level = 1 + self.how % (object.dnode.nlevels - 1);
        let Some(bp) = object.blkptr(level, 0)? else { return Ok(()) };
        let mut block = object.indirect(&bp, level, 0)?.to_vec();
        let used = block.len().min(128 * 16);
        self.edit(block.get_mut(..used).unwrap_or_default());
        forge.put_block(object.objset.id, object.number, level, 0, &block)
    }

    /// Picks the MOS half of the time, otherwise a dataset.
    fn pick_objset(&self, forge: &Forge) -> Result<u64> {
        if self.objset.is_multiple_of(2) {
            return Ok(0);
        }
        let objects = forge.pool.mos.objects().flatten();
        let datasets = objects.filter(|o| o.dnode.bonustype == ondisk::ObjectType::DSL_DATASET);
        let all: Vec<u64> = datasets.map(|o| o.number).filter(|&n| forge.objset(n).is_ok()).collect();
        Ok(all.get((self.objset / 2) as usize % all.len().max(1)).copied().unwrap_or(0))
    }

    fn pick_object(&self, forge: &Forge, id: u64) -> Result<Object> {
        let all: Vec<Object> = forge.objset(id)?.objects().flatten().take(300).collect();
        let nth = self.object as usize % all.len().max(1);
        all.get(nth).cloned().ok_or_else(|| engine::Error::not_found("no object"))
    }
}

/// Makes the changes encoded in `bytes`. A change that cannot be made (because of an earlier one) is skipped.
pub fn apply(forge: &mut Forge, bytes: &[u8]) {
    for raw in bytes.as_chunks::<CHANGE>().0.iter().take(MAX_CHANGES) {
        let _ = Change::read(raw).apply(forge);
    }
}

/// Flips bits of a device without correcting checksums: labels, uberblocks, anything.
pub fn flip(forge: &Forge, rng: &mut Rng, flips: u64) -> std::io::Result<()> {
    for (_, disk) in &forge.disks {
        let size = blkdev::BlockDevice::geometry(&**disk).size;
        for _ in 0..flips {
            // Half of them in the front labels, the others anywhere.
            let at = if rng.below(2) == 0 { rng.below(512 << 10) } else { rng.below(size) };
            let old = blkdev::read_at(&**disk, at, 1)?;
            let new: Vec<u8> = old.iter().map(|b| b ^ 1 << rng.below(8)).collect();
            disk.write(at, &new)?;
        }
    }
    Ok(())
}
