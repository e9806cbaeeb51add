//! ZAPs of the golden pools: their structure by the rules that writers keep, and edited copies of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::dmu::edit::{Edit, MemObject};
use engine::dmu::{Object, Objset};
use engine::spa::OpenOptions;
use engine::zap::{NewZap, Zap, ZapEdit};
use ondisk::dmu_type::Byteswap;
use ondisk::zap::{MicroZap, ZapFlags};
use testkit::golden;

/// Entries added to each copy.
const NEW: u64 = 120;

#[derive(Default, Debug)]
struct Seen {
    micro: u32,
    same_bytes: u32,
    fat: u32,
    entries: usize,
}

fn objsets(golden: &golden::Golden) -> Vec<Arc<Objset>> {
    let pool = golden.open_with_keys(OpenOptions::default()).unwrap();
    let mut all = vec![pool.mos.clone()];
    for dir in pool.dsl.walk(pool.dsl.root().unwrap()) {
        let dir = dir.unwrap();
        all.extend(dir.head().ok().and_then(|head| head.objset().ok()));
    }
    all
}

fn zaps(objset: &Arc<Objset>) -> impl Iterator<Item = Object> {
    objset.objects().flatten().filter(|o| o.dnode.object_type.byteswap() == Some(Byteswap::Zap))
}

fn copy(object: &Object) -> MemObject {
    let mut copy = MemObject::new(object.number, object.dnode.datablksz());
    for blkid in 0..=object.dnode.maxblkid {
        copy.write_block(blkid, object.block(blkid).unwrap().into_owned()).unwrap();
    }
    copy
}

fn look(object: &Object, seen: &mut Seen) {
    let Ok(zap) = Zap::open(object) else { return };
    zap.verify().unwrap();
    let entries = zap.to_vec().unwrap();
    seen.entries += entries.len();
    let original = copy(object);
    if zap.fat_header().is_none() {
        seen.micro += 1;
        let block = object.block(0).unwrap();
        let micro = MicroZap::from_bytes(&block).unwrap();
        let mut again = MemObject::new(object.number, 512);
        let new = NewZap { flags: ZapFlags::default(), normflags: micro.normflags(), salt: micro.salt() };
        let mut edit = ZapEdit::create(&mut again, &new).unwrap();
        for entry in micro.entries() {
            edit.insert(entry.name, entry.value).unwrap();
        }
        assert!(edit.read().unwrap().fat_header().is_none());
        // Slots freed in between, and blocks that grew for entries gone since, differ.
        let dense = micro.entries().enumerate().all(|(i, e)| i == e.index);
        if dense && again.block_size() == original.block_size() {
            seen.same_bytes += 1;
            assert_eq!(*again.read_block(0).unwrap(), *block, "object {}", object.number);
        }
    } else {
        seen.fat += 1;
    }
    // Most micro ZAPs are alike.
    if zap.fat_header().is_none() && seen.micro > 20 {
        return;
    }
    // A copy takes new entries, loses the old ones, and stays valid throughout.
    let mut changed = original;
    let mut edit = ZapEdit::open(&mut changed).unwrap();
    let named = zap.fat_header().is_none_or(|h| !h.flags.has(ZapFlags::UINT64_KEY));
    for entry in entries.iter().step_by(2) {
        edit.remove(&entry.key).unwrap();
    }
    edit.read().unwrap().verify().unwrap();
    for i in 0..NEW {
        if named {
            edit.insert(&format!("a new entry {i}"), i).unwrap();
        } else {
            edit.insert(&[i.wrapping_mul(0x9e37_79b9_7f4a_7c15), i, i][..], i).unwrap();
        }
    }
    for entry in entries.iter().step_by(2) {
        edit.insert(&entry.key, entry.value.clone()).unwrap();
    }
    edit.read().unwrap().verify().unwrap();
    assert_eq!(edit.count().unwrap(), entries.len() as u64 + NEW);
    for entry in &entries {
        assert_eq!(edit.lookup(&entry.key).unwrap().as_ref(), Some(&entry.value));
    }
}

#[test]
fn zaps_of_openzfs_keep_our_rules_and_can_be_edited() {
    for golden in golden::all() {
        let mut seen = Seen::default();
        for objset in objsets(&golden) {
            for object in zaps(&objset) {
                look(&object, &mut seen);
            }
        }
        println!("{}: {seen:?}", golden.name);
        assert!(seen.same_bytes > 0, "{}: {seen:?}", golden.name);
    }
}
