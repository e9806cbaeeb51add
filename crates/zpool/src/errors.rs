//! Damaged data that the pool itself has recorded, and the names of the files that it is in.
//!
//! A file of a mounted file system is named by its path in the machine's tree, any other by its dataset and the path in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::output::status::KnownErrors;
use clikit::paths::Paths;
use daemon::imported::Imported;
use engine::dmu::Objset;
use engine::dsl::props::names::dataset_name;
use engine::dsl::{Dataset, DatasetKind};
use engine::spa::Pool;
use engine::spa::errlog::{LoggedError, block_at, errors};
use engine::{Kind, Result};
use zpl::Filesystem;

/// Clones of clones that are looked at, and datasets in all for one damaged block.
const MAX_CLONES: usize = 64;
const MAX_DATASETS: usize = 1 << 16;

/// The blocks in the pool's error logs.
pub fn logged(pool: &Pool, ctx: &mut Ctx) -> Vec<LoggedError> {
    let mut notes = Vec::new();
    let found = errors(pool, &mut notes);
    notes.iter().for_each(|note| ctx.warn(format!("{}: error log: {note}", pool.name)));
    found
}

/// Returns the number of known errors of the pool, and with `list` the names of the damaged files. `live` is
/// the pool if it is imported: errors that wait for the next txg count, too, and with `list` those in blocks that are gone leave
/// its log.
#[doc(alias("spa_get_errlog", "spa_approx_errlog_size"))]
pub fn known_errors(pool: &Pool, live: Option<&Imported>, list: bool, ctx: &mut Ctx) -> KnownErrors {
    let mut found = logged(pool, ctx);
    let waiting = live.and_then(|live| live.spa().ok()).map(|spa| spa.error_log().unlogged());
    found.extend(waiting.unwrap_or_default());
    found.sort_unstable();
    found.dedup();
    let mountpoint = |dataset: &str| live.and_then(|live| live.mounts.at(dataset));
    let (names, gone) = match list {
        true => {
            let (names, gone) = Namer::new(pool, &mountpoint).all(&found);
            (Some(names), gone)
        }
        false => (None, Vec::new()),
    };
    let count = u64::try_from(found.len().saturating_sub(gone.len())).unwrap_or(u64::MAX);
    if let Some(Ok(spa)) = live.map(Imported::spa) {
        spa.error_log().forget_gone(gone);
    }
    KnownErrors { count, names }
}

/// Turns damaged blocks into names of files; keeps what it has opened.
struct Namer<'a> {
    pool: &'a Pool,
    /// Where a dataset is mounted.
    mountpoint: &'a dyn Fn(&str) -> Option<PathBuf>,
    objsets: HashMap<u64, Option<Arc<Objset>>>,
    filesystems: HashMap<u64, Option<(Arc<Filesystem>, Paths)>>,
    names: HashMap<u64, Option<String>>,
    /// Something could not be read, so that a block may be where it was not found.
    unsure: bool,
}

impl<'a> Namer<'a> {
    fn new(pool: &'a Pool, mountpoint: &'a dyn Fn(&str) -> Option<PathBuf>) -> Self {
        let (objsets, filesystems, names) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { pool, mountpoint, objsets, filesystems, names, unsure: false }
    }

    /// Each object once, in OpenZFS's order: by dataset and object number. Also the errors in blocks that no dataset has any
    /// more.
    #[doc(alias("zpool_get_errlog", "process_error_block"))]
    fn all(&mut self, errors: &[LoggedError]) -> (Vec<String>, Vec<LoggedError>) {
        let (mut objects, mut gone) = (BTreeSet::new(), Vec::new());
        for error in errors {
            match error.birth {
                None => objects.extend([(error.objset, error.object)]),
                Some(birth) => match self.sharers(error, birth) {
                    Some(sharers) => objects.extend(sharers.into_iter().map(|d| (d, error.object))),
                    None => gone.push(*error),
                },
            }
        }
        (objects.into_iter().map(|(objset, object)| self.name(objset, object)).collect(), gone)
    }

    /// The datasets that hold the damaged block: of the head that it is logged for, its snapshots, and their
    /// clones. `None`: there are none.
    #[doc(alias = "check_filesystem")]
    fn sharers(&mut self, error: &LoggedError, birth: u64) -> Option<Vec<u64>> {
        let mut found = BTreeMap::new();
        if error.objset == 0 {
            return Some(vec![0]);
        }
        self.unsure = false;
        let mut heads = vec![error.objset];
        for _ in 0..MAX_CLONES {
            let Some(head) = heads.pop() else { break };
            if self.holds(head, error, birth) {
                found.insert(head, ());
            }
            for snapshot in self.snapshots_since(head, birth) {
                if found.len() >= MAX_DATASETS || found.contains_key(&snapshot.0) {
                    break;
                }
                if self.holds(snapshot.0, error, birth) {
                    found.insert(snapshot.0, ());
                    heads.extend(snapshot.1);
                }
            }
        }
        self.unsure |= !heads.is_empty();
        match found.is_empty() {
            false => Some(found.into_keys().collect()),
            // Only the logged number is known.
            true if self.unsure || birth == 0 => Some(vec![error.objset]),
            true => None,
        }
    }

    /// Snapshots of a head that were taken after `birth`, each with the heads of its clones.
    fn snapshots_since(&mut self, head: u64, birth: u64) -> Vec<(u64, Vec<u64>)> {
        let snapshots = Dataset::open(&self.pool.dsl, head, String::new()).and_then(|head| head.snapshots());
        self.unsure |= is_unsure(&snapshots);
        let late = snapshots.unwrap_or_default().into_iter().filter(|s| s.phys.creation_txg >= birth);
        late.map(|snapshot| (snapshot.number, self.clones(&snapshot))).collect()
    }

    /// The heads of a snapshot's clones, as far as they can be read. A clone with snapshots is listed by its first one.
    fn clones(&mut self, snapshot: &Dataset) -> Vec<u64> {
        let pool = self.pool;
        let listed = pool.dsl.zap(snapshot.phys.next_clones_obj);
        self.unsure |= listed.is_err();
        let Some(zap) = listed.ok().flatten() else { return Vec::new() };
        let mut heads = Vec::new();
        for entry in zap.entries() {
            if heads.len() >= MAX_CLONES {
                self.unsure = true;
                break;
            }
            let number = entry.map(|entry| entry.value.first().unwrap_or(0));
            let head = number.and_then(|number| {
                let dataset = Dataset::open(&pool.dsl, number, String::new())?;
                Ok(dataset.dir()?.phys.head_dataset_obj)
            });
            // An entry without its dataset is damage, too.
            self.unsure |= head.is_err();
            heads.extend(head.ok().filter(|head| *head != 0));
        }
        heads
    }

    /// Whether the dataset has the very block that is damaged.
    #[doc(alias = "find_birth_txg")]
    fn holds(&mut self, dataset: u64, error: &LoggedError, birth: u64) -> bool {
        let pool = self.pool;
        let opened = Dataset::open(&pool.dsl, dataset, String::new());
        self.unsure |= is_unsure(&opened);
        let Ok(opened) = opened else { return false };
        let open = || opened.objset();
        let objset = self.objsets.entry(dataset).or_insert_with(|| open().ok());
        let (Some(objset), Ok(level)) = (objset, u8::try_from(error.level)) else {
            self.unsure = true;
            return false;
        };
        let block = block_at(objset, error.object, level, error.blkid);
        self.unsure |= is_unsure(&block);
        block.ok().flatten().is_some_and(|bp| [bp.physical_birth(), bp.logical_birth()].contains(&birth))
    }

    /// `/home/a/file` where `tank/home` is mounted, otherwise `tank/home:/a/file`, `tank/home:<0x2a>`, `<metadata>:<0x1f>` or
    /// `<0x36>:<0x2>`.
    #[doc(alias = "zpool_obj_to_path")]
    fn name(&mut self, objset: u64, object: u64) -> String {
        if objset == 0 {
            return format!("<metadata>:<0x{object:x}>");
        }
        let pool = self.pool;
        let dataset = self.names.entry(objset).or_insert_with(|| dataset_name(&pool.dsl, objset).ok());
        let Some(dataset) = dataset.clone() else { return format!("<0x{objset:x}>:<0x{object:x}>") };
        let path = self.path(objset, object);
        let path = path.as_deref().map(String::from_utf8_lossy);
        match (path, (self.mountpoint)(&dataset)) {
            (Some(path), Some(at)) => format!("{}{path}", at.to_string_lossy().trim_end_matches('/')),
            (Some(path), None) => format!("{dataset}:{path}"),
            (None, _) => format!("{dataset}:<0x{object:x}>"),
        }
    }

    fn path(&mut self, objset: u64, object: u64) -> Option<Vec<u8>> {
        let pool = self.pool;
        let open = || {
            let dataset = Dataset::open(&pool.dsl, objset, String::new()).ok()?;
            let is_filesystem = dataset.kind().ok()? == DatasetKind::Filesystem || dataset.is_snapshot();
            let fs = is_filesystem.then(|| Filesystem::open_committed(&dataset).ok()).flatten()?;
            Some((fs, Paths::default()))
        };
        let (fs, paths) = self.filesystems.entry(objset).or_insert_with(open).as_mut()?;
        let inode = fs.inode(object).ok()?;
        paths.walk(&inode).ok()
    }
}

/// Whether a search that failed says nothing about the block.
fn is_unsure<T>(found: &Result<T>) -> bool {
    found.as_ref().is_err_and(|e| e.kind() != Kind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of `tank/legacy` that its snapshots share, as an error log would have it.
    fn logged_block(pool: &Arc<Pool>, path: &[u8]) -> (LoggedError, u64) {
        let dataset = pool.dsl.dataset("tank/legacy").unwrap();
        let objset = dataset.objset().unwrap();
        let inode = Filesystem::open_committed(&dataset).unwrap().resolve(path, false).unwrap();
        let object = objset.object(inode.number()).unwrap();
        let birth = object.blkptr(0, 0).unwrap().unwrap().physical_birth();
        let error = LoggedError {
            objset: dataset.number,
            object: inode.number(),
            level: 0,
            blkid: 0,
            birth: Some(birth),
        };
        (error, birth)
    }

    #[test]
    fn a_damaged_file_is_named_wherever_it_is() {
        let Some(golden) = testkit::golden::get("basic") else { return };
        let pool = golden.open().unwrap();
        let (error, birth) = logged_block(&pool, b"/d/r128k-minus-1");
        let nowhere = |_: &str| None;
        let (names, _) = Namer::new(&pool, &nowhere).all(&[error, error]);
        // In the order of the datasets' object numbers: a head outlives its first snapshots.
        let expected = ["tank/legacy@one", "tank/legacy", "tank/legacy@three"];
        assert_eq!(names, expected.map(|dataset| format!("{dataset}:/d/r128k-minus-1")));
        // Another birth: the block was replaced since. Without one that cannot be told.
        let gone = LoggedError { birth: Some(birth + 1), ..error };
        assert_eq!(Namer::new(&pool, &nowhere).all(&[gone]), (Vec::new(), vec![gone]));
        let unborn = LoggedError { birth: Some(0), ..error };
        assert_eq!(Namer::new(&pool, &nowhere).all(&[unborn]).0, ["tank/legacy:/d/r128k-minus-1"]);
        // Old logs name the dataset itself.
        let old = LoggedError { birth: None, ..error };
        assert_eq!(Namer::new(&pool, &nowhere).all(&[old]).0, ["tank/legacy:/d/r128k-minus-1"]);
        let mounted = |dataset: &str| (dataset == "tank/legacy").then(|| PathBuf::from("/mnt/old"));
        assert_eq!(Namer::new(&pool, &mounted).all(&[old]).0, ["/mnt/old/d/r128k-minus-1"]);
    }

    /// A list of clones that cannot be read may name the one that has the block.
    #[test]
    fn a_lost_list_of_clones_makes_unsure() {
        let Some(golden) = testkit::golden::get("basic") else { return };
        let pool = golden.open().unwrap();
        let mut snapshot = pool.dsl.dataset("tank/legacy@one").unwrap();
        let mut namer = Namer::new(&pool, &|_| None);
        namer.clones(&snapshot);
        assert!(!namer.unsure);
        for lost in [u64::MAX >> 16, snapshot.number] {
            snapshot.phys.next_clones_obj = lost;
            namer.unsure = false;
            assert!(namer.clones(&snapshot).is_empty() && namer.unsure, "{lost}");
        }
    }

    #[test]
    fn files_without_a_name_have_a_number() {
        let Some(golden) = testkit::golden::get("basic") else { return };
        let pool = golden.open().unwrap();
        let head = pool.dsl.dataset("tank").unwrap().number;
        let mut namer = Namer::new(&pool, &|_| None);
        assert_eq!(namer.name(0, 0x1f), "<metadata>:<0x1f>");
        assert_eq!(namer.name(head, 0xffff_ffff), "tank:<0xffffffff>");
        assert_eq!(namer.name(head, 1), "tank:<0x1>", "the master node is no file");
        assert_eq!(namer.name(0xffff_ffff, 2), "<0xffffffff>:<0x2>");
    }
}
