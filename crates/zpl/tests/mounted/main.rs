//! Mounted file systems: changes acknowledged by fsync survive a crash unchanged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod full;
mod offline;
mod quotas;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use common::Bench;
use engine::dmu::Tx;
use engine::dsl::write::Tasks;
use engine::spa::Spa;
use engine::spa::layout::VdevSpec;
use ondisk::acl::{Ace, ace_mask, ace_type};
use stdx::rng::Rng;
use testkit::tree::{Tree, excuse_golden};
use testkit::{golden, pools, zdb};
use zcommon::draid::DraidConfig;
use zpl::write::{
    FsWriter, LogOp, LogSink, NewNode, Options, Overrides, QuotaKind, RenameKind, Settings, XattrMode, mount,
};
use zpl::{FileKind, Time, pflags};

fn node(kind: FileKind, perm: u64) -> NewNode<'static> {
    NewNode::new(kind, perm, 1000, 100)
}

/// A file without its times, which a log has only where they were set.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    object: u64,
    mode: u64,
    uid: u32,
    gid: u32,
    links: u64,
    size: u64,
    flags: u64,
    project: u64,
    crtime: Time,
    data: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    acl: Vec<Ace>,
}

impl Seen {
    fn brief(&self) -> String {
        let Self { object, mode, uid, gid, links, size, flags, project, crtime, .. } = self;
        let rest = format!("{links} {size} {flags:x} {project} {crtime:?}");
        format!("{object} {mode:o} {uid} {gid} {rest} {:?} {:?}", self.xattrs.keys(), self.acl)
    }
}

fn see(fs: &FsWriter, dir: u64, at: &str, all: &mut BTreeMap<String, Seen>) {
    for entry in fs.dirs().entries(dir).unwrap() {
        let path = format!("{at}/{}", String::from_utf8_lossy(&entry.name));
        let attr = fs.attrs().get(entry.object).unwrap();
        let mut data = vec![0; attr.size as usize];
        match attr.kind {
            FileKind::Regular => {
                fs.data().read(entry.object, 0, &mut data).unwrap();
            }
            FileKind::Symlink => data = fs.data().readlink(entry.object).unwrap(),
            _ => data.clear(),
        }
        let names = fs.xattrs().names(entry.object).unwrap();
        let value = |name: Vec<u8>| {
            let value = fs.xattrs().get(entry.object, &name).unwrap().unwrap();
            (name, value)
        };
        let seen = Seen {
            object: entry.object,
            mode: attr.mode().into(),
            uid: attr.uid,
            gid: attr.gid,
            links: attr.links,
            size: attr.size,
            flags: attr.flags,
            project: attr.projid,
            crtime: attr.crtime,
            data,
            xattrs: names.into_iter().map(value).collect(),
            acl: fs.acls().get(entry.object).unwrap(),
        };
        if attr.kind == FileKind::Directory {
            see(fs, entry.object, &path, all);
        }
        all.insert(path, seen);
    }
}

fn tree(fs: &FsWriter) -> BTreeMap<String, Seen> {
    let mut all = BTreeMap::new();
    see(fs, fs.root, "", &mut all);
    all
}

fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// One of everything that a log can hold.
fn everything(fs: &FsWriter, rng: &mut Rng) {
    let root = fs.root;
    let dir = fs.dirs().create(root, b"dir", &node(FileKind::Directory, 0o755)).unwrap();
    let file = fs.dirs().create(dir, b"file", &node(FileKind::Regular, 0o640)).unwrap();
    for (at, len) in
        [(0, 100), (70, 5000), (3000, 200_000), (150_000, 1), (131_072, 131_072), (1 << 20, 300_000)]
    {
        fs.data().write(file, at, &random(rng, len), true).unwrap();
    }
    fs.data().truncate(file, 1_200_000).unwrap();
    fs.data().punch(file, 100_000, 70_000).unwrap();
    fs.dirs().link(file, root, b"hard").unwrap();
    fs.dirs().create(dir, b"soft", &NewNode::symlink(b"file", 5, 6)).unwrap();
    fs.dirs().create(dir, b"fifo", &node(FileKind::Fifo, 0o600)).unwrap();
    fs.dirs().create(dir, b"dev", &node(FileKind::BlockDevice, 0o600).device(7 << 20 | 3)).unwrap();
    fs.dirs().rename((dir, b"fifo"), (root, b"pipe"), RenameKind::Plain, (0, 0)).unwrap();
    fs.dirs().rename((dir, b"dev"), (dir, b"soft"), RenameKind::Exchange, (0, 0)).unwrap();
    fs.dirs().rename((root, b"pipe"), (root, b"moved"), RenameKind::Whiteout, (0, 0)).unwrap();
    let set = Settings {
        mode: Some(0o4711),
        uid: Some(7),
        projid: Some(12),
        flags: Some((pflags::NODUMP, pflags::NODUMP)),
        crtime: Some(Time { sec: 77, nsec: 1 }),
        ..Settings::default()
    };
    fs.attrs().set(file, &set).unwrap();
    let ace = |who, mask| Ace { ace_type: ace_type::ALLOW, flags: 0, access_mask: mask, who, object: None };
    let acl = fs.dirs().create(dir, b"acl", &node(FileKind::Regular, 0o600)).unwrap();
    let mut list = fs.acls().get(acl).unwrap();
    list.insert(0, ace(501, ace_mask::READ_DATA));
    fs.acls().set(acl, &list).unwrap();
    fs.xattrs().set(acl, b"user.small", Some(b"value"), XattrMode::Set).unwrap();
    fs.xattrs().set(acl, b"user.gone", Some(b"value"), XattrMode::Set).unwrap();
    fs.xattrs().set(acl, b"user.gone", None, XattrMode::Set).unwrap();
    fs.xattrs().set(acl, b"user.large", Some(&random(rng, 50_000)), XattrMode::Set).unwrap();
    let gone = fs.dirs().create(dir, b"gone", &node(FileKind::Directory, 0o700)).unwrap();
    fs.dirs().create(gone, b"below", &node(FileKind::Regular, 0o600)).unwrap();
    fs.dirs().unlink(gone, b"below").unwrap();
    fs.dirs().rmdir(dir, b"gone").unwrap();
}

/// The images as they are now, as a power cut would leave them: files are written without a cache of ours.
fn crashed(bench: &Bench) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    pools::copy(bench.dir.path(), dir.path());
    dir
}

fn compare(have: &BTreeMap<String, Seen>, want: &BTreeMap<String, Seen>) {
    for (path, want) in want {
        let have = have.get(path).unwrap_or_else(|| panic!("{path} is missing"));
        assert!(have == want, "{path}:\n{}\n{}", have.brief(), want.brief());
    }
    assert_eq!(have.len(), want.len());
}

fn check(dir: &Path, want: &BTreeMap<String, Seen>, least: u64) {
    if zdb::installed() {
        let text = zdb::run(dir, "wpool", &["-ivv"]).unwrap();
        assert!(least == 0 || text.contains("TX_"), "{text}");
    }
    let (have, applied) = offline::tree(dir);
    compare(&have, want);
    assert!(applied >= least, "{applied} records applied in memory");
    let spa = pools::import_dir(dir, "wpool").unwrap();
    let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
    let replayed = fs.replayed().unwrap();
    assert!(replayed.error.is_none() && replayed.done >= least, "{replayed:?}");
    println!("{} records done again", replayed.done);
    compare(&tree(&fs), want);
    fs.unmount().unwrap();
    assert!(fs.dirs().create(fs.root, b"late", &node(FileKind::Regular, 0o600)).is_err());
    drop(fs);
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir, "wpool").unwrap();
        let text = zdb::run(dir, "wpool", &["-ivv"]).unwrap();
        assert!(!text.contains("TX_"), "the log is empty\n{text}");
    }
}

fn promised(settings: &[(&'static str, u64)], seed: u64) {
    let bench = Bench::new(512 << 20, |_| {});
    for &(name, value) in settings {
        bench.set(name, value);
    }
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    assert_eq!(mount(&bench.spa, "wpool", Overrides::default()).unwrap_err().kind(), zpl::Kind::Busy);
    let always = settings.contains(&("sync", 1));
    // Begins the chain, and the use of features.
    let first = fs.dirs().create(fs.root, b"first", &node(FileKind::Regular, 0o600)).unwrap();
    fs.xattrs().set(first, b"user.x", Some(b"y"), XattrMode::Set).unwrap();
    fs.fsync(0).unwrap();
    fs.data().write(first, 0, b"z", true).unwrap();
    fs.fsync(first).unwrap();
    bench.spa.sync().unwrap();
    let before = bench.spa.txgs.synced();
    everything(&fs, &mut Rng::new(seed));
    if !always {
        fs.fsync(0).unwrap();
    }
    assert_eq!(bench.spa.txgs.synced(), before, "commits don't wait for groups");
    let (dir, want) = (crashed(&bench), tree(&fs));
    check(dir.path(), &want, 20);
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    bench.zdb(&["-bcc", "wpool"]);
}

#[test]
fn files_have_their_content_of_the_last_fsync() {
    promised(&[], 1);
}

#[test]
fn always_synchronous_writes_survive() {
    promised(&[("sync", 1)], 2);
}

#[test]
fn blocks_that_the_log_points_to_are_there() {
    promised(&[("logbias", 1), ("recordsize", 16 << 10)], 3);
}

/// Records the operations that the log receives.
#[derive(Debug, Default)]
struct Told {
    done: Mutex<Vec<String>>,
    forgotten: Mutex<Vec<u64>>,
}

impl LogSink for Told {
    fn log(&self, _: &Tx, op: &LogOp<'_>) {
        self.done.lock().unwrap().push(format!("{op:?}"));
    }
    fn skip(&self, _: &Tx) {}
    fn forget(&self, object: u64) {
        self.forgotten.lock().unwrap().push(object);
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

/// A new file with the number of a removed or replaced one must not get its writes.
#[test]
fn the_log_forgets_writes_to_files_that_go() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let create =
        |name: &str| fs.dirs().create(fs.root, name.as_bytes(), &node(FileKind::Regular, 0o600)).unwrap();
    let (replaced, removed, linked) = (create("replaced"), create("removed"), create("linked"));
    create("other");
    fs.dirs().link(linked, fs.root, b"again").unwrap();
    let told = Arc::new(Told::default());
    fs.set_sink(Some(Arc::clone(&told) as _));
    fs.dirs().rename((fs.root, b"other"), (fs.root, b"replaced"), RenameKind::Plain, (0, 0)).unwrap();
    fs.dirs().unlink(fs.root, b"removed").unwrap();
    fs.dirs().unlink(fs.root, b"linked").unwrap();
    assert_eq!(*told.forgotten.lock().unwrap(), [replaced, removed]);
}

/// After a crash such a file is gone, and a record about it would end the replay, or change another file with
/// its number.
#[test]
fn nothing_is_logged_of_a_file_without_names() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &node(FileKind::Regular, 0o600)).unwrap();
    let told = Arc::new(Told::default());
    fs.set_sink(Some(Arc::clone(&told) as _));
    let change = || {
        fs.data().write(file, 0, &[1; 5000], true).unwrap();
        fs.data().truncate(file, 4000).unwrap();
        fs.data().punch(file, 0, 100).unwrap();
        fs.attrs().set(file, &Settings { mode: Some(0o640), ..Settings::default() }).unwrap();
        fs.xattrs().set(file, b"user.short", Some(b"x"), XattrMode::Set).unwrap();
        fs.xattrs().set(file, b"user.long", Some(&[1; 50_000]), XattrMode::Set).unwrap();
        fs.xattrs().set(file, b"user.long", None, XattrMode::Set).unwrap();
        fs.acls().set(file, &fs.acls().get(file).unwrap()).unwrap();
    };
    let count = || std::mem::take(&mut *told.done.lock().unwrap()).len();
    change();
    assert!(count() >= 10, "with a name all are told");
    fs.open_file(file).unwrap();
    fs.dirs().unlink(fs.root, b"file").unwrap();
    assert_eq!(count(), 1);
    change();
    fs.close_file(file).unwrap();
    assert_eq!(*told.done.lock().unwrap(), [""; 0]);
}

#[test]
fn nothing_is_logged_when_that_is_disabled() {
    let bench = Bench::new(256 << 20, |_| {});
    bench.set("sync", 2);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    everything(&fs, &mut Rng::new(4));
    fs.fsync(0).unwrap();
    check(crashed(&bench).path(), &BTreeMap::new(), 0);
    // A change of the property counts at once.
    bench.set("sync", 0);
    let want = tree(&fs);
    fs.fsync(0).unwrap();
    check(crashed(&bench).path(), &want, 0);
}

/// The log that OpenZFS left, done again on disk.
#[test]
fn the_log_of_an_unclean_pool_is_replayed() {
    let Some(golden) = golden::get("unclean-log") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_dir(dir.path(), "tank").unwrap();
    let fs = mount(&spa, "tank", Overrides::default()).unwrap();
    let replayed = fs.replayed().unwrap();
    assert!(replayed.error.is_none(), "{replayed:?}");
    assert_eq!(replayed.done, 16);
    fs.unmount().unwrap();
    drop(fs);
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), "tank").unwrap();
    }
    let env = engine::env::Env::system(64 << 20).unwrap();
    let dirs = [dir.path().to_owned()];
    let pool = zutil::import::open_pool(&env, &dirs, "tank", engine::spa::OpenOptions::default()).unwrap();
    let (name, covers) = golden.manifests().into_iter().find(|(name, _)| name == "live").unwrap();
    let excuse = |path: &[u8], have: &mut _, want: &_| excuse_golden("unclean-log/live", path, have, want);
    let wrong =
        Tree::read(&pool, &covers).unwrap().differences("live", &golden.manifest(&name).unwrap(), &excuse);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files that were unlinked while open are gone after a crash, and so is the space of their blocks.
#[test]
fn unlinked_files_are_removed_at_the_next_mount() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &node(FileKind::Regular, 0o600)).unwrap();
    fs.xattrs().set(file, b"user.large", Some(&[3; 50_000]), XattrMode::Set).unwrap();
    fs.open_file(file).unwrap();
    let unnamed = fs.dirs().create_unnamed(fs.root, &node(FileKind::Regular, 0o600)).unwrap();
    for number in [file, unnamed] {
        fs.data().write(number, 0, &random(&mut Rng::new(5), 300_000), true).unwrap();
    }
    fs.dirs().unlink(fs.root, b"file").unwrap();
    bench.spa.sync().unwrap();
    // A file that gets its name late: the log can't make it, so the commit waits for its txg.
    let late = fs.dirs().create_unnamed(fs.root, &node(FileKind::Regular, 0o600)).unwrap();
    fs.data().write(late, 0, b"late", true).unwrap();
    fs.dirs().link(late, fs.root, b"late").unwrap();
    fs.dirs().rename((fs.root, b"late"), (fs.root, b"named"), RenameKind::Plain, (0, 0)).unwrap();
    fs.fsync(late).unwrap();
    let want = tree(&fs);
    assert_eq!(want.keys().collect::<Vec<_>>(), ["/named"]);
    check(crashed(&bench).path(), &want, 0);
}

/// A mounted file system is not destroyed or rolled back; its snapshots and their clones have no part in its log.
#[test]
fn clones_have_no_log_and_rollback_ends_it() {
    let bench = Bench::new(256 << 20, |_| {});
    let spa = &bench.spa;
    let task = |work: fn(&Tasks<'_>) -> zpl::Result<()>| {
        spa.sync_task(move |spa: &Spa, tx: &engine::dmu::Tx| {
            work(&Tasks { at: spa.datasets.at(tx, spa), datasets: &spa.datasets, pool: &spa.pool.name })
        })
    };
    let fs = mount(spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &node(FileKind::Regular, 0o600)).unwrap();
    for n in 0..4u8 {
        fs.data().write(file, 0, &[n; 20_000], true).unwrap();
        fs.fsync(file).unwrap();
    }
    task(|tasks| tasks.snapshot(&["wpool@snap"], &[])).unwrap();
    fs.data().write(file, 0, &[9; 90_000], true).unwrap();
    fs.fsync(file).unwrap();
    {
        let work = (|t: &Tasks<'_>| t.rollback("wpool", None)) as fn(&Tasks<'_>) -> zpl::Result<()>;
        assert_eq!(task(work).unwrap_err().kind(), zpl::Kind::Busy);
    }
    task(|tasks| tasks.clone_snapshot("wpool@snap", "wpool/clone").map(drop)).unwrap();
    // An untouched clone is destroyed with the root block of its own.
    task(|tasks| tasks.clone_snapshot("wpool@snap", "wpool/untouched").map(drop)).unwrap();
    task(|tasks| tasks.destroy("wpool/untouched", false)).unwrap();
    let clone = mount(spa, "wpool/clone", Overrides::default()).unwrap();
    assert!(clone.replayed().unwrap().done == 0);
    assert_eq!(clone.attrs().get(file).unwrap().size, 20_000);
    clone.data().write(file, 0, b"clone", true).unwrap();
    clone.fsync(0).unwrap();
    let (want, want_clone) = (tree(&fs), tree(&clone));
    let dir = crashed(&bench);
    let again = pools::import_dir(dir.path(), "wpool").unwrap();
    for (name, want) in [("wpool", &want), ("wpool/clone", &want_clone)] {
        let fs = mount(&again, name, Overrides::default()).unwrap();
        assert!(tree(&fs) == *want);
        fs.unmount().unwrap();
    }
    again.export().unwrap();
    drop(again);
    if zdb::installed() {
        zdb::verify(dir.path(), "wpool").unwrap();
    }
    clone.unmount().unwrap();
    fs.unmount().unwrap();
    drop((fs, clone));
    task(|tasks| tasks.rollback("wpool", None)).unwrap();
    task(|tasks| tasks.destroy("wpool/clone", false)).unwrap();
    let fs = mount(spa, "wpool", Overrides::default()).unwrap();
    assert_eq!(fs.attrs().get(file).unwrap().size, 20_000);
    fs.data().write(file, 5, b"more", true).unwrap();
    fs.fsync(file).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    for _ in 0..4 {
        spa.sync().unwrap();
    }
    spa.export().unwrap();
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{text}");
}

#[test]
fn long_names_use_their_feature() {
    let bench = Bench::new(256 << 20, |_| {});
    bench.set("longname", 1);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let name = [b'n'; 700];
    fs.dirs().create(fs.root, &name, &node(FileKind::Regular, 0o600)).unwrap();
    assert!(fs.dirs().create(fs.root, &[b'n'; 1024], &node(FileKind::Regular, 0o600)).is_err());
    fs.fsync(0).unwrap();
    let want = tree(&fs);
    check(crashed(&bench).path(), &want, 0);
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    bench.zdb(&["-bcc", "wpool"]);
    let text = bench.zdb(&["-dddd", "wpool/"]);
    assert!(text.is_empty() || text.contains("nnnn"), "{text}");
}

#[test]
fn quotas_that_a_command_sets_count_on_its_mount() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &node(FileKind::Regular, 0o600)).unwrap();
    fs.data().write(file, 0, &random(&mut Rng::new(1), 300_000), true).unwrap();
    bench.spa.sync().unwrap();
    let command = bench.writer(Options::default());
    let refused = || {
        bench.spa.sync().unwrap();
        fs.data().write(file, 0, b"x", true).err().map(|e| e.kind())
    };
    command.quotas().set(QuotaKind::User, 1000, 100_000).unwrap();
    assert_eq!(refused(), Some(zpl::Kind::Quota));
    // The quota of those without one of their own holds for them only.
    command.quotas().set(QuotaKind::User, 1000, 0).unwrap();
    command.quotas().set_default(QuotaKind::User, 90_000).unwrap();
    assert_eq!(refused(), Some(zpl::Kind::Quota));
    command.quotas().set(QuotaKind::User, 1000, 10 << 20).unwrap();
    assert_eq!(refused(), None);
    command.quotas().set(QuotaKind::User, 1000, 0).unwrap();
    command.quotas().set_default(QuotaKind::User, 0).unwrap();
    assert_eq!(refused(), None);
    fs.unmount().unwrap();
}
