//! A pool with an intent log that can't be replayed.
#![expect(clippy::expect_used, reason = "only tests run this, and end with it")]

use std::path::Path;
use std::sync::Arc;

use engine::dsl::write::Encryption;
use engine::spa::Spa;
use engine::zil::{Itx, Zil};
use ondisk::zil::{LogRecord, LrRemove, Remove, TxType};
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, create_fs, mount};

use crate::pools;

/// Makes the pool `name` on an image in `dir`, as a crash would leave it, and returns the number of the file `file` in it. The
/// file has 3,000 bytes 1; the log of its file system has a write of 1,000 bytes 2 at its begin, the removal of a name that was
/// never there, which no replay can do, and a write of 1,000 bytes 3 at offset 1,000. The file system `other` has no log.
pub fn forge(dir: &Path, name: &str) -> u64 {
    let own = tempfile::tempdir().expect("a temporary folder");
    let spa = pools::create_fs_dir(own.path(), name, 128 << 20, Encryption::default()).expect("a pool");
    let fs = mount(&spa, name, Overrides::default()).expect("a mount");
    let new = NewNode::new(FileKind::Regular, 0o600, 0, 0);
    let file = fs.dirs().create(fs.root, b"file", &new).expect("a file");
    let root = fs.root;
    fs.data().write(file, 0, &[1; 3000], true).expect("a write");
    fs.unmount().expect("an unmount");
    drop(fs);
    let other = format!("{name}/other");
    let new = pools::new_fs(&spa.pool.env);
    let made = spa.dsl_task(move |tasks| {
        tasks.create(&other, ondisk::ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &new))
    });
    made.expect("a file system");
    log(&spa, name, (root, file));
    pools::copy(own.path(), dir);
    file
}

fn log(spa: &Arc<Spa>, name: &str, (root, file): (u64, u64)) {
    let number = spa.pool.dsl.dataset(name).expect("the file system").number;
    let live = spa.datasets.open(&**spa, number).expect("the file system");
    let zil = Zil::open(&live.objset, spa.logs().host()).expect("its log");
    // The chain begins with a txg on disk.
    for round in 0..2 {
        let tx = spa.begin().expect("a transaction");
        zil.assign(Itx::write(file, 0, &[2; 1000]), &tx);
        let bad = Remove { lr: LrRemove { doid: root }, name: b"never was" };
        if round == 1 {
            zil.assign(Itx::new(0, TxType(TxType::REMOVE), &LogRecord::Remove(bad)), &tx);
            zil.assign(Itx::write(file, 1000, &[3; 1000]), &tx);
        }
        drop(tx);
        zil.commit(0).expect("a commit");
    }
}
