//! KnownFiles whose content follows from their names and versions.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use stdx::rng::Rng;

/// Sizes of files in bytes.
const SIZES: [u64; 5] = [500, 9_000, 130_000, 1_100_000, 6_000_000];

/// The files of a pool, as they must be.
#[derive(Debug, Default)]
pub(super) struct KnownFiles {
    /// Seed and length of each, by its path below the mount point.
    all: BTreeMap<PathBuf, (u64, u64)>,
    made: u64,
}

fn content(seed: u64, len: u64) -> Vec<u8> {
    let mut random = Rng::new(seed);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    random.fill(&mut bytes);
    // Some of it can be compressed.
    bytes.chunks_mut(4096).step_by(3).for_each(|part| part.fill(7));
    bytes
}

impl KnownFiles {
    /// Writes a new file or replaces one, and makes it durable.
    pub(super) fn write(&mut self, at: &Path, dataset: &str, random: &mut Rng) -> std::io::Result<()> {
        self.made += 1;
        let path = Path::new(dataset).join(format!("file{}", random.below(60)));
        let size = usize::try_from(random.below(5)).ok().and_then(|n| SIZES.get(n)).copied().unwrap_or(500);
        let (seed, len) = (random.below(u64::MAX), size + random.below(size));
        // Until it is durable, it may have either content.
        self.all.remove(&path);
        let mut file = fs::File::create(at.join(&path))?;
        file.write_all(&content(seed, len))?;
        file.sync_all()?;
        self.all.insert(path, (seed, len));
        Ok(())
    }

    /// Removes a file.
    pub(super) fn remove(&mut self, at: &Path, random: &mut Rng) -> std::io::Result<()> {
        let count = u64::try_from(self.all.len()).unwrap_or(0);
        let nth = usize::try_from(random.below(count.max(1))).unwrap_or(0);
        let Some(path) = self.all.keys().nth(nth).cloned() else { return Ok(()) };
        self.all.remove(&path);
        fs::remove_file(at.join(path))
    }

    /// Compares all files.
    pub(super) fn compare(&self, at: &Path) -> Result<(), String> {
        for (path, (seed, len)) in &self.all {
            let found = fs::read(at.join(path)).map_err(|e| format!("{}: {e}", path.display()))?;
            if found != content(*seed, *len) {
                return Err(format!("{} of {len} bytes has another content", path.display()));
            }
        }
        Ok(())
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
