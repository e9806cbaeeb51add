//! Simulated disks, shown to real zdb.

use std::fs::File;
use std::os::unix::fs::FileExt;

use sim::image::Pages;
use sim::world::POOL;
use testkit::zdb::Judge;

/// Checks with OpenZFS that every block has its checksum, and none is leaked. Only the newest knows how old a block is that
/// moved.
pub fn show(image: &[Pages], judges: &[Judge]) {
    let dir = tempfile::tempdir().unwrap();
    for (number, pages) in image.iter().enumerate() {
        let file = File::create(dir.path().join(format!("disk{number}"))).unwrap();
        file.set_len(pages.size).unwrap();
        pages.iter().for_each(|(offset, bytes)| file.write_all_at(bytes, offset).unwrap());
    }
    for judge in judges.iter().filter(|judge| judge.installed()) {
        if let Err(why) = judge.verify(dir.path(), POOL) {
            panic!("{judge:?}: {why}");
        }
    }
}
