//! States that only operations at the same time, or a failure in the middle of one, lead to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::sync::{Arc, Mutex, Weak};

use common::Bench;
use engine::dmu::Tx;
use engine::zap::{Zap, ZapEdit};
use ondisk::acl::{Ace, ace_mask, ace_type};
use ondisk::names::MASTER_NODE_OBJECT;
use testkit::pools;
use zpl::write::{
    AclMode, FsWriter, LogOp, LogSink, NewNode, Options, Overrides, RenameKind, Settings, Transactions, mount,
};
use zpl::{Error, FileKind, Kind};

fn file() -> NewNode<'static> {
    NewNode::new(FileKind::Regular, 0o600, 1000, 100)
}

fn content(fs: &FsWriter, file: u64) -> Vec<u8> {
    let mut bytes = vec![0; fs.attrs().get(file).unwrap().size as usize];
    fs.data().read(file, 0, &mut bytes).unwrap();
    bytes
}

/// Opens each file whose object is about to be freed, as another thread may at that moment.
#[derive(Debug)]
struct Opener {
    fs: Weak<FsWriter>,
    opened: Mutex<Vec<bool>>,
}

impl LogSink for Opener {
    fn log(&self, _: &Tx, _: &LogOp<'_>) {}
    fn skip(&self, _: &Tx) {}
    fn forget(&self, object: u64) {
        let opened = self.fs.upgrade().unwrap().open_file(object).is_ok();
        self.opened.lock().unwrap().push(opened);
    }
    fn settle(&self, _: u64) -> zpl::Result<()> {
        Ok(())
    }
    fn expect(&self, _: u64) -> Option<std::time::Duration> {
        None
    }
    fn commit(&self, _: u64) -> zpl::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_that_is_being_removed_cannot_be_opened() {
    let bench = Bench::new(128 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let [kept, ..] = [&b"kept"[..], b"over", b"new", b"gone"]
        .map(|name| fs.dirs().create(fs.root, name, &file()).unwrap());
    let opener = Arc::new(Opener { fs: Arc::downgrade(&fs), opened: Mutex::default() });
    fs.set_sink(Some(Arc::clone(&opener) as _));
    fs.dirs().unlink(fs.root, b"gone").unwrap();
    fs.dirs().rename((fs.root, b"new"), (fs.root, b"over"), RenameKind::Plain, (0, 0)).unwrap();
    assert_eq!(*opener.opened.lock().unwrap(), [false, false]);
    // One that stays, because its removal fails, can be opened again.
    for failing in 1.. {
        fs.fail_step(failing);
        let done = fs.dirs().unlink(fs.root, b"kept");
        fs.fail_step(0);
        if done.is_ok() {
            assert!(failing > 2);
            break;
        }
        fs.open_file(kept).unwrap();
        fs.close_file(kept).unwrap();
    }
}

#[test]
fn a_file_with_a_name_leaves_the_delete_queue_unharmed() {
    let bench = Bench::new(128 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let named = fs.dirs().create(fs.root, b"named", &file()).unwrap();
    fs.data().write(named, 0, &[7; 5000], true).unwrap();
    let queue = Zap::open(&fs.objset.view().object(MASTER_NODE_OBJECT).unwrap()).unwrap();
    let queue = queue.need("DELETE_QUEUE").unwrap();
    let tx = bench.spa.begin().unwrap();
    ZapEdit::open(&mut fs.objset.handle(queue).unwrap().edit(&tx)).unwrap().add_int(named).unwrap();
    drop(tx);
    bench.spa.sync().unwrap();
    drop(fs);
    let fs = bench.writer(Options::default());
    assert_eq!(content(&fs, named), [7; 5000]);
    let tx = bench.spa.begin().unwrap();
    let handle = fs.objset.handle(queue).unwrap();
    assert!(!ZapEdit::open(&mut handle.edit(&tx)).unwrap().has_int(named).unwrap());
}

#[test]
fn a_lookup_finds_names_in_leaves_that_were_split_since_it_began() {
    let bench = Bench::new(128 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let name = |n: u32| format!("{n:060}").into_bytes();
    fs.dirs().create(fs.root, &name(0), &file()).unwrap();
    let handle = fs.objset.handle(fs.root).unwrap();
    let before = Zap::open(&&handle).unwrap();
    let leaves = |zap: &Zap<&Arc<engine::dmu::Handle>>| zap.fat_header().unwrap().num_leafs;
    (1..600).for_each(|n| assert_ne!(fs.dirs().create(fs.root, &name(n), &file()).unwrap(), 0));
    assert!(leaves(&Zap::open(&&handle).unwrap()) > leaves(&before) + 2);
    for n in 0..600 {
        assert!(before.lookup(&name(n)).unwrap().is_some(), "{n}");
    }
    assert!(before.lookup(&name(600)).unwrap().is_none());
    // Nor does it meet leaves that are gone.
    let full = Zap::open(&&handle).unwrap();
    (1..600).for_each(|n| fs.dirs().unlink(fs.root, &name(n)).unwrap());
    for n in 0..600 {
        assert_eq!(full.lookup(&name(n)).unwrap().is_some(), n == 0, "{n}");
    }
}

#[test]
fn attributes_that_are_refused_leave_the_size_as_it_is() {
    let bench = Bench::new(128 << 20, |_| {});
    let fs = bench.writer(Options { aclmode: AclMode::Restricted, ..Options::default() });
    let kept = fs.dirs().create(fs.root, b"kept", &file()).unwrap();
    fs.data().write(kept, 0, &[3; 5000], true).unwrap();
    let mut list = fs.acls().get(kept).unwrap();
    let mask = ace_mask::READ_DATA;
    list.insert(0, Ace { ace_type: ace_type::ALLOW, flags: 0, access_mask: mask, who: 501, object: None });
    fs.acls().set(kept, &list).unwrap();
    let both = Settings { size: Some(0), mode: Some(0o640), ..Settings::default() };
    assert_eq!(fs.attrs().set(kept, &both).unwrap_err().kind(), Kind::NotPermitted);
    assert_eq!(content(&fs, kept), [3; 5000]);
}

#[test]
fn an_unmount_that_failed_can_be_done_again() {
    let bench = Bench::new(128 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let kept = fs.dirs().create(fs.root, b"kept", &file()).unwrap();
    bench.spa.txgs.suspend(Error::new(Kind::Io, "the disks are away"));
    fs.unmount().unwrap_err();
    fs.unmount().unwrap_err();
    bench.spa.txgs.resume();
    fs.unmount().unwrap();
    fs.unmount().unwrap();
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    assert_eq!(fs.dirs().lookup(fs.root, b"kept").unwrap().unwrap().object, kept);
    fs.unmount().unwrap();
}

/// A long free makes transactions before the one that has its record.
#[test]
fn a_promised_write_whose_block_was_freed_is_a_hole_after_a_crash() {
    const BLOCK: usize = 128 << 10;
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let cut = fs.dirs().create(fs.root, b"cut", &file()).unwrap();
    fs.data().write(cut, 0, &[1; 2 * BLOCK], true).unwrap();
    fs.fsync(0).unwrap();
    bench.spa.sync().unwrap();
    let before = bench.spa.txgs.synced();
    fs.data().write(cut, 0, &[2; BLOCK], true).unwrap();
    let tx = bench.spa.begin().unwrap();
    fs.objset.handle(cut).unwrap().free_blocks(&tx, 0, 1).unwrap();
    drop(tx);
    fs.fsync(cut).unwrap();
    assert_eq!(bench.spa.txgs.synced(), before, "the log has it alone");
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(bench.dir.path(), crashed.path());
    let spa = pools::import_dir(crashed.path(), "wpool").unwrap();
    let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
    let bytes = content(&fs, cut);
    assert!(bytes[..BLOCK] == [0; BLOCK] && bytes[BLOCK..] == [1; BLOCK], "{} {}", bytes[0], bytes[BLOCK]);
    fs.unmount().unwrap();
}

/// Transactions of a pool, which change the record size of the file system that begins them.
#[derive(Debug)]
struct Resizing {
    spa: Arc<engine::spa::Spa>,
    fs: std::sync::OnceLock<Weak<FsWriter>>,
}

impl Transactions for Resizing {
    fn begin(&self, _: u64, _: bool) -> engine::Result<Tx> {
        if let Some(fs) = self.fs.get().and_then(Weak::upgrade) {
            fs.set_options(Options { recordsize: 1 << 20, ..Options::default() });
        }
        self.spa.begin()
    }

    fn sync(&self) -> engine::Result<()> {
        self.spa.sync()
    }

    fn use_feature(&self, _: zcommon::features::Feature, _: &Tx) -> engine::Result<bool> {
        Ok(true)
    }
}

#[test]
fn a_block_does_not_grow_under_a_write_that_has_locked_its_range_only() {
    let bench = Bench::new(128 << 20, |_| ());
    let txs = Arc::new(Resizing { spa: Arc::clone(&bench.spa), fs: std::sync::OnceLock::new() });
    let clock = Arc::clone(&bench.env.clock);
    let fs = FsWriter::open(&bench.objset, Arc::clone(&txs) as _, clock, Options::default(), 3).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(file, 0, &[1; 128 << 10], true).unwrap();
    txs.fs.set(Arc::downgrade(&fs)).unwrap();
    // The record size is 128K when the write takes its lock, and 1M when it begins.
    fs.data().write(file, 128 << 10, &[2; 4096], true).unwrap();
    assert_eq!(fs.attrs().get(file).unwrap().blksize, 128 << 10, "the block has grown");
    let mut bytes = vec![0; (128 << 10) + 4096];
    assert_eq!(fs.data().read(file, 0, &mut bytes).unwrap(), bytes.len());
    assert!(
        bytes[..128 << 10].iter().all(|byte| *byte == 1) && bytes[128 << 10..].iter().all(|byte| *byte == 2)
    );
}
