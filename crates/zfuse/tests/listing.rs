//! Listings of a mount, in small steps and from old places, while the directory changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;

use engine::env::Env;
use rustix::fs::{RawDir, SeekFrom, seek};
use sim::files::{FilePool, POOL, disks};
use sim::world::Shape;
use stdx::rng::Rng;
use zfuse::{LiveOptions, Ready, Snapdir, mount_live};
use zpl::FileKind;
use zpl::write::NewNode;

/// Runs `test` in a mount, then unmounts, exports, and asks zdb.
fn mounted(options: LiveOptions, test: impl FnOnce(&Path)) {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["pool", "mnt"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let devices = disks(&dir.path().join("pool"), 2, 256 << 20).unwrap();
    let pool = FilePool::create_with(&Env::system(64 << 20).unwrap(), Shape::Mirror, devices, |new| new);
    let pool = pool.unwrap();
    let dataset = pool.spa.pool.dsl.dataset(POOL).unwrap();
    let at = dir.path().join("mnt");
    let spot = (at.as_path(), Ready::AsIs);
    match mount_live(&pool.spa.view().unwrap(), dataset, Arc::clone(&pool.fs), spot, options, None) {
        Ok(mounted) => {
            test(&at);
            mounted.unmount().unwrap();
        }
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("SKIPPED: FUSE mounts are not allowed here: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    }
    pool.export().unwrap();
    if testkit::zdb::installed() {
        testkit::zdb::verify(&dir.path().join("pool"), POOL).unwrap();
    }
}

/// The next names of an open directory, each with the offset behind it.
fn some(dir: &File) -> Vec<(String, u64)> {
    let mut space = [MaybeUninit::uninit(); 1500];
    let mut all = RawDir::new(dir, &mut space);
    let mut names = Vec::new();
    while let Some(entry) = all.next() {
        let entry = entry.unwrap();
        names.push((entry.file_name().to_str().unwrap().to_owned(), entry.next_entry_cookie()));
        if all.is_buffer_empty() {
            break;
        }
    }
    names
}

/// All names from an offset on.
fn rest(dir: &File, from: u64) -> Vec<(String, u64)> {
    seek(dir, SeekFrom::Start(from)).unwrap();
    let mut names = Vec::new();
    loop {
        let more = some(dir);
        if more.is_empty() {
            return names;
        }
        names.extend(more);
    }
}

/// Removes and makes some files at random; `stay` names those that were there from the begin and never went.
fn change(at: &Path, random: &mut Rng, stay: &mut BTreeMap<String, bool>) {
    for _ in 0..random.below(12) {
        let name = format!("name-{}", random.below(3000));
        stay.insert(name.clone(), false);
        if fs::remove_file(at.join(&name)).is_err() {
            File::create(at.join(&name)).unwrap();
        }
    }
    if random.below(40) == 0 {
        // A name that no micro ZAP has room for.
        File::create(at.join(format!("{:060}", random.below(1000)))).unwrap();
    }
}

#[test]
fn a_listing_is_held_to_a_model_while_the_directory_changes() {
    mounted(LiveOptions::default(), |mnt| {
        for seed in 0..3 {
            let mut random = Rng::new(seed);
            let at = mnt.join(format!("d{seed}"));
            fs::create_dir(&at).unwrap();
            let mut stay: BTreeMap<String, bool> = (0..1200).map(|n| (format!("name-{n}"), true)).collect();
            stay.keys().for_each(|name| drop(File::create(at.join(name)).unwrap()));
            let (dir, other) = (File::open(&at).unwrap(), File::open(&at).unwrap());
            let mut all: Vec<(String, u64)> = Vec::new();
            loop {
                let more = some(&dir);
                if more.is_empty() {
                    break;
                }
                all.extend(more);
                change(&at, &mut random, &mut stay);
            }
            assert_eq!((all[0].0.as_str(), all[1].0.as_str()), (".", ".."));
            for (name, _) in stay.iter().filter(|(_, stays)| **stays) {
                assert_eq!(all.iter().filter(|(met, _)| met == name).count(), 1, "{seed} {name}");
            }
            let offsets: BTreeSet<u64> = all.iter().map(|(_, offset)| *offset).collect();
            assert!(offsets.len() == all.len() && offsets.iter().all(|at| (1..1 << 63).contains(at)));
            // From an old place on come all that came behind it and stayed, and none of those before.
            let stays = |name: &str| stay.get(name) == Some(&true);
            for _ in 0..8 {
                let n = random.below(all.len() as u64) as usize;
                let behind: BTreeSet<String> =
                    all[n + 1..].iter().map(|(name, _)| name.clone()).filter(|name| stays(name)).collect();
                let again = rest(&other, all[n].1).into_iter().map(|(name, _)| name);
                let again: Vec<String> = again.filter(|name| stays(name)).collect();
                assert_eq!((again.len(), again.into_iter().collect::<BTreeSet<_>>()), (behind.len(), behind));
            }
            assert_eq!(rest(&other, 0)[..2], all[..2]);
        }
        fs::remove_dir_all(mnt.join("d0")).unwrap();
        assert!(!mnt.join("d0").exists());
    });
}

#[test]
fn the_root_lists_its_ctl_directory_and_snapshots_from_any_place() {
    mounted(LiveOptions { snapdir: Snapdir::Visible, ..LiveOptions::default() }, |mnt| {
        File::create(mnt.join("a")).unwrap();
        let root = File::open(mnt).unwrap();
        let all = rest(&root, 0);
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [".", "..", ".zfs", "a"]);
        for n in 0..4 {
            assert_eq!(rest(&root, all[n].1), all[n + 1..]);
        }
        let ctl = File::open(mnt.join(".zfs")).unwrap();
        let all = rest(&ctl, 0);
        assert!(all.len() == 3 && all[2].0 == "snapshot" && rest(&ctl, all[1].1) == all[2..]);
    });
}

/// A file that can't be found any more when its directory is listed must not lend its name to another of its number.
#[test]
fn a_listing_that_stood_still_gives_no_name_to_another_file() {
    mounted(LiveOptions::default(), |mnt| {
        let at = mnt.join("d");
        fs::create_dir(&at).unwrap();
        for n in 0..600 {
            fs::write(at.join(format!("old-{n}")), "old").unwrap();
        }
        let dir = File::open(&at).unwrap();
        let first = some(&dir);
        for n in 0..600 {
            let _ = fs::remove_file(at.join(format!("old-{n}")));
        }
        for n in 0..600 {
            fs::write(at.join(format!("new-{n}")), "new").unwrap();
        }
        let rest = rest(&dir, first.last().unwrap().1);
        assert!(rest.iter().all(|(name, _)| name.starts_with("new")), "{rest:?}");
        assert!((0..600).all(|n| fs::read(at.join(format!("old-{n}"))).is_err()));
    });
}

/// Files that a reader has met leave memory, though nothing is written that would look for those without a use.
#[test]
fn files_that_were_read_do_not_stay_in_memory() {
    const FILES: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let devices = disks(dir.path(), 2, 256 << 20).unwrap();
    let pool = FilePool::create_with(&Env::system(64 << 20).unwrap(), Shape::Mirror, devices, |new| new);
    let pool = pool.unwrap();
    let new = NewNode::new(FileKind::Regular, 0o644, 0, 0);
    let make = |n| pool.fs.dirs().create(pool.fs.root, format!("{n}").as_bytes(), &new).unwrap();
    let files: Vec<u64> = (0..FILES).map(make).collect();
    pool.spa.sync().unwrap();
    files.iter().for_each(|file| assert_eq!(pool.fs.attrs().get(*file).unwrap().links, 1));
    let objects = pool.fs.objset.arc().memory().objects.count();
    assert!(objects < FILES / 2, "{objects} of {FILES}");
    pool.export().unwrap();
}
