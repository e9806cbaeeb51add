//! Destroys chosen blocks of a pool on images, all copies and all parity, whatever the layout.

#![expect(clippy::expect_used, reason = "a test that cannot damage its images can't go on")]

use std::path::Path;
use std::sync::Arc;

use blkdev::{OpenMode, OpenOptions};
use engine::env::Env;
use engine::spa::Pool;
use engine::taskq::Promise;
use ondisk::Blkptr;
use stdx::AlignedBuf;
use zutil::import::{candidates, select, source_with};

/// Destroys the blocks that `pick` chooses of the pool on the images of `dir`. Returns how many there were.
///
/// # Panics
/// If the pool cannot be opened, or a device not written.
pub fn destroy(dir: &Path, pool: &str, pick: impl FnOnce(&Pool) -> Vec<Blkptr>) -> usize {
    let env = Env::system(64 << 20).expect("an environment");
    let candidate = select(candidates(&[dir.to_path_buf()]), pool).expect("a pool");
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    let source = source_with(&candidate, options);
    let pool = engine::spa::open(&env, source, engine::spa::OpenOptions::default()).expect("it opens");
    let blocks = pick(&pool);
    let tree = pool.tree();
    for (bp, dva) in blocks.iter().flat_map(|bp| bp.dvas().map(move |dva| (bp, dva))) {
        let top = tree.top(u64::from(dva.vdev)).expect("a vdev");
        let size = usize::try_from(bp.psize().next_multiple_of(1 << top.ashift)).expect("a size");
        let mut garbage = AlignedBuf::zeroed(size);
        garbage.iter_mut().for_each(|byte| *byte = 0xa5);
        let promise = Promise::default();
        let theirs = promise.clone();
        top.write(dva.offset, garbage.into(), bp.physical_birth(), Box::new(move |_| theirs.set(())));
        promise.wait(&*env.executor);
    }
    blocks.len()
}

/// All blocks of an object of the MOS at a level: 0 for data.
pub fn blocks(pool: &Pool, object: u64, level: u8) -> Vec<Blkptr> {
    let object = Arc::new(pool.mos.object(object).expect("an object"));
    let shift = object.dnode.blocks_per_indirect_shift() * u32::from(level);
    let last = object.dnode.maxblkid >> shift;
    let all = (0..=last).filter_map(|blkid| object.blkptr(level, blkid).expect("a pointer"));
    all.filter(|bp| !bp.is_hole() && !bp.is_embedded()).collect()
}
