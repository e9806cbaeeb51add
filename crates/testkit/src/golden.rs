//! Pools made by OpenZFS, with manifests of their contents as OpenZFS showed them.
//!
//! Search order: the directory in the environment variable `AQUIFER_POOLS`; `../shared/pools` beside the workspace;
//! `tests/golden/pools.tar.zst` inside it, one archive of the pools that every test run needs. A directory holds
//! either unpacked pools (`NAME/`) or archives (`NAME.tar.zst`). Archives are unpacked once, sparse, below the
//! target directory. Tests must not write to pools.
//!
//! A test without pools must report it: [`all`] prints a line on standard error.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::env::Env;
use engine::spa::{OpenOptions, Pool};

use crate::manifest::Manifest;
use crate::unpack::unpack;
use crate::zdb;

/// Bytes of cache for a pool opened by a test.
const TEST_CACHE: u64 = 64 << 20;

/// A golden pool, unpacked.
#[derive(Debug, Clone)]
pub struct Golden {
    /// Its name in the collection (`raidz2-6`).
    pub name: String,
    /// The directory with its devices, keys and manifests.
    pub dir: PathBuf,
}

/// The datasets described by a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covers {
    /// The dataset or snapshot at the manifest's root.
    pub dataset: String,
    /// Whether its descendants are mounted in it.
    pub recursive: bool,
    /// Whether it describes the pool's checkpoint.
    pub checkpoint: bool,
}

/// All golden pools, by name. Empty, with a notice, when there are none.
pub fn all() -> Vec<Golden> {
    let found: Vec<Golden> = names().iter().filter_map(|name| get(name)).collect();
    if found.is_empty() {
        eprintln!("SKIPPED: no golden pools found (set AQUIFER_POOLS to the folder that has them)");
    }
    found
}

/// Golden pools of OpenZFS 2.3 and before: those that the tools of 2.3 can read.
pub fn of_2_3() -> Vec<Golden> {
    all().into_iter().filter(|golden| !golden.is_of_2_4()).collect()
}

/// One golden pool; `None`, with a notice, if the collection lacks it.
pub fn get(name: &str) -> Option<Golden> {
    for folder in folders() {
        let unpacked = folder.join(name);
        if unpacked.join("manifest").is_dir() || unpacked.join("status.txt").is_file() {
            return Some(Golden { name: name.to_owned(), dir: unpacked });
        }
        let archive = folder.join(format!("{name}.tar.zst"));
        if archive.is_file() {
            let dir = unpack(&archive, &target().join("golden-pools"), name, name);
            match dir {
                Ok(dir) => return Some(Golden { name: name.to_owned(), dir }),
                Err(e) => eprintln!("cannot unpack {}: {e}", archive.display()),
            }
        }
    }
    eprintln!("SKIPPED: golden pool {name} was not found (set AQUIFER_POOLS to the folder that has it)");
    None
}

/// Unpacks a test's own archive (`NAME.tar.zst` with a directory `NAME`) once, and returns its path.
pub fn fixture(archive: &Path) -> std::io::Result<PathBuf> {
    let file = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = file.strip_suffix(".tar.zst").unwrap_or(&file);
    unpack(archive, &target().join("fixtures"), name, name)
}

/// Names of the pools in the first directory that has any.
fn names() -> Vec<String> {
    folders().iter().map(|folder| names_in(folder)).find(|names| !names.is_empty()).unwrap_or_default()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| pool_name(&e.path())).collect();
    names.sort();
    names.dedup();
    names
}

fn pool_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    match file.strip_suffix(".tar.zst") {
        Some(name) => Some(name.to_owned()),
        None => path.join("status.txt").is_file().then(|| file.to_owned()),
    }
}

fn folders() -> Vec<PathBuf> {
    let named = std::env::var_os("AQUIFER_POOLS").map(PathBuf::from);
    let outside = outside(named, &workspace());
    if outside.is_empty() { own().into_iter().collect() } else { outside }
}

/// The directories with pools outside of the repository.
fn outside(named: Option<PathBuf>, workspace: &Path) -> Vec<PathBuf> {
    let beside = workspace.join("../shared/pools");
    named.into_iter().chain([beside]).filter(|f| f.is_dir()).collect()
}

/// The directory of the repository's own pools, unpacked.
fn own() -> Option<PathBuf> {
    let archive = workspace().join("tests/golden/pools.tar.zst");
    let unpacked = unpack(&archive, &target().join("golden-pools"), "all", ".");
    unpacked.inspect_err(|e| eprintln!("cannot unpack {}: {e}", archive.display())).ok()
}

/// The workspace's root.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The build's target directory.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

impl Golden {
    /// Whether it comes from OpenZFS 2.4, with features unknown to 2.3.
    pub fn is_of_2_4(&self) -> bool {
        self.name.starts_with("v24-")
    }

    /// The zdb that checks it.
    pub fn judge(&self) -> zdb::Judge {
        if self.is_of_2_4() { zdb::Judge::NEWEST } else { zdb::Judge::USUAL }
    }

    /// The name inside its labels.
    pub fn pool_name(&self) -> &'static str {
        if self.name == "zfs-fuse-v23" { "old" } else { "tank" }
    }

    /// Opens it at its newest state.
    pub fn open(&self) -> engine::Result<Arc<Pool>> {
        self.open_with(OpenOptions::default())
    }

    /// Opens it at the requested state.
    pub fn open_with(&self, options: OpenOptions) -> engine::Result<Arc<Pool>> {
        let env = Env::system(TEST_CACHE)?;
        zutil::import::open_pool(&env, std::slice::from_ref(&self.dir), self.pool_name(), options)
    }

    /// Opens it and loads its keys.
    pub fn open_with_keys(&self, options: OpenOptions) -> engine::Result<Arc<Pool>> {
        let pool = self.open_with(options)?;
        for (dataset, key) in self.keys()? {
            if let Some(root) = pool.dsl.keys.root_of(&pool.dsl.dir(dataset)?)? {
                pool.dsl.keys.load(&root, &key)?;
            }
        }
        Ok(pool)
    }

    /// Its encryption roots and their keys.
    pub fn keys(&self) -> engine::Result<Vec<(&'static str, Vec<u8>)>> {
        let pass = b"correct horse battery".to_vec();
        match self.name.as_str() {
            "encrypted" => (),
            "raw-received" => return Ok(vec![("tank/r", pass)]),
            _ => return Ok(Vec::new()),
        }
        let file = |name: &str| std::fs::read(self.dir.join(name)).map_err(engine::Error::from);
        Ok(vec![("tank/pass", pass), ("tank/raw", file("raw.key")?), ("tank/hex", file("hex.key")?)])
    }

    /// Its manifests: name, and covered datasets.
    pub fn manifests(&self) -> Vec<(String, Covers)> {
        let entries = std::fs::read_dir(self.dir.join("manifest")).into_iter().flatten().flatten();
        let names = entries.filter_map(|e| e.file_name().to_str()?.strip_suffix(".find").map(str::to_owned));
        let mut all: Vec<_> = names.map(|name| (name.clone(), self.covers(&name))).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    fn covers(&self, manifest: &str) -> Covers {
        let pool = self.pool_name();
        let whole = |checkpoint| Covers { dataset: pool.to_owned(), recursive: true, checkpoint };
        let one = |dataset: String| Covers { dataset, recursive: false, checkpoint: false };
        match (self.name.as_str(), manifest) {
            (_, "live") => whole(false),
            (_, "at-checkpoint") => whole(true),
            ("raw-received", "at-src-b") => one(format!("{pool}/r@b")),
            ("v24-rewritten", "a-before") => one(format!("{pool}/a@before")),
            ("streams", "kid-at-c") => one(format!("{pool}/src/kid@c")),
            ("streams", at) => one(format!("{pool}/src@{}", at.trim_start_matches("at-"))),
            (_, at) => one(format!("{pool}@{}", at.trim_start_matches("at-"))),
        }
    }

    /// Reads a manifest.
    pub fn manifest(&self, name: &str) -> std::io::Result<Manifest> {
        Manifest::read(&self.dir.join("manifest"), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_alone_has_its_own_pools() {
        let alone = std::env::temp_dir();
        assert_eq!(outside(Some(alone.join("no-such-folder")), &alone.join("a/b")), Vec::<PathBuf>::new());
        let dir = own().expect("the archive in tests/golden unpacks");
        let names = names_in(&dir);
        assert!(names.len() >= 29, "{names:?}");
        for name in names {
            let pool = Golden { dir: dir.join(&name), name };
            assert!(pool.dir.join("manifest").is_dir() || pool.dir.join("status.txt").is_file());
            assert!(!pool.manifests().is_empty() || pool.name == "zvol", "{}", pool.name);
        }
        let basic = Golden { name: "basic".into(), dir: dir.join("basic") };
        assert_eq!(basic.open().unwrap().name, "tank");
        assert!(!basic.manifest("live").unwrap().files.is_empty());
    }
}
