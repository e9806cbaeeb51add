//! Quotas of users refuse at the call, however much one txg takes.

use common::Bench;
use engine::Kind;
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::{CloneFrom, FsWriter, Overrides, QuotaKind, XattrMode, mount};

use super::{common, node, random};

const USER: u64 = 1000;
const M: u64 = 1 << 20;
const RECORD: u64 = 128 << 10;

fn used(bench: &Bench, fs: &FsWriter) -> u64 {
    bench.spa.sync().unwrap();
    fs.quotas().used_by(QuotaKind::User, USER).unwrap()
}

/// Calls `call` with numbers until it fails; the number and the kind of the error.
fn until_refused(mut call: impl FnMut(u32) -> engine::Result<()>) -> (u32, Kind) {
    (0..200).find_map(|n| call(n).err().map(|e| (n, e.kind()))).expect("nothing was refused")
}

#[test]
fn clones_count_before_their_txg_is_on_disk() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let source = fs.dirs().create(fs.root, b"source", &node(FileKind::Regular, 0o600)).unwrap();
    fs.data().write(source, 0, &random(&mut Rng::new(1), 4 << 20), true).unwrap();
    let limit = used(&bench, &fs) + 10 * M;
    fs.quotas().set(QuotaKind::User, USER, limit).unwrap();
    bench.spa.sync().unwrap();
    let files: Vec<u64> = (0..20)
        .map(|n| {
            fs.dirs()
                .create(fs.root, format!("clone{n}").as_bytes(), &node(FileKind::Regular, 0o600))
                .unwrap()
        })
        .collect();
    let mut cloned = 0;
    let (_, kind) = until_refused(|n| {
        let to = files[n as usize % files.len()];
        cloned += fs.clones().clone_range((CloneFrom::File(&fs, source), 0), (to, 0), 4 * M, true)?;
        Ok(())
    });
    assert_eq!(kind, Kind::Quota);
    let over = used(&bench, &fs).checked_sub(limit).expect("less than the quota was cloned");
    assert!(over <= 2 * RECORD && cloned >= 9 * M, "{over} {cloned}");
    // Clones in place of clones take no space: only the user who is over the quota is refused.
    fs.quotas().set(QuotaKind::User, USER, limit + 2 * M).unwrap();
    for _ in 0..5 {
        let done = fs.clones().clone_range((CloneFrom::File(&fs, source), 0), (files[0], 0), 4 * M, true);
        assert_eq!(done.unwrap(), 4 * M);
    }
    fs.unmount().unwrap();
}

#[test]
fn attributes_in_files_and_writes_count_before_their_txg_is_on_disk() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &node(FileKind::Regular, 0o600)).unwrap();
    let value = random(&mut Rng::new(2), 60_000);
    let limit = used(&bench, &fs) + 600_000;
    fs.quotas().set(QuotaKind::User, USER, limit).unwrap();
    bench.spa.sync().unwrap();
    let set = |n: u32| fs.xattrs().set(file, format!("user.{n}").as_bytes(), Some(&value), XattrMode::Set);
    let (count, kind) = until_refused(set);
    assert_eq!(kind, Kind::Quota);
    let over = used(&bench, &fs).checked_sub(limit).expect("attributes take less than the quota");
    assert!((9..12).contains(&count) && over <= 70_000, "{count} {over}");
    // Neither does what is over the quota keep attributes from being removed, nor small ones in the file itself.
    fs.xattrs().set(file, b"user.0", None, XattrMode::Set).unwrap();
    fs.xattrs().set(file, b"user.small", Some(b"x"), XattrMode::Set).unwrap();

    let limit = used(&bench, &fs) + 2 * M;
    fs.quotas().set(QuotaKind::User, USER, limit).unwrap();
    bench.spa.sync().unwrap();
    let data = random(&mut Rng::new(3), 128 << 10);
    let (count, kind) = until_refused(|n| fs.data().write(file, u64::from(n) * RECORD, &data, true));
    assert_eq!(kind, Kind::Quota);
    let over = used(&bench, &fs).checked_sub(limit).expect("less than the quota was written");
    assert!((15..19).contains(&count) && over <= 2 * RECORD, "{count} {over}");
    fs.unmount().unwrap();
}
