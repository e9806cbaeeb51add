//! Devices that carry labels, in folders and by name.
//!
//! As `zpool import` does it: a folder is searched one level deep, its symbolic links are followed but
//! keep their names; anything that is neither a regular file nor a block device is left alone unopened
//! (opening some character devices has effects). One device under several names is found once.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use blkdev::{BlockDevice, FileDevice, Geometry, Identity, OpenOptions};
use ondisk::label::MIN_DEVICE_SIZE;

use crate::environment;
use crate::label::DeviceLabels;

/// Default directories for the search for devices, best names first.
#[doc(alias = "zpool_default_search_paths")]
pub const DEFAULT_DIRS: [&str; 9] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];

/// Entries of one folder that are looked at.
const MAX_ENTRIES: usize = 1 << 16;
/// Number of devices with concurrent reads of their labels.
const MAX_THREADS: usize = 16;

/// A device with at least one usable label, or with those of a pool that it has left.
#[derive(Debug, Clone)]
pub struct FoundDevice {
    /// Its names, best first: with the place in the search order of the folder that has it.
    pub names: Vec<(usize, PathBuf)>,
    /// Which device it is.
    pub identity: Identity,
    /// Size and sectors.
    pub geometry: Geometry,
    /// Its labels.
    pub labels: DeviceLabels,
}

impl FoundDevice {
    /// Its best name.
    pub fn path(&self) -> &Path {
        self.names.first().map_or(Path::new(""), |(_, path)| path)
    }

    /// Its place in the search order.
    pub fn order(&self) -> usize {
        self.names.first().map_or(usize::MAX, |(order, _)| *order)
    }

    /// Whether one of its names is this one.
    pub fn has_name(&self, wanted: &Path) -> bool {
        self.names.iter().any(|(_, path)| path == wanted)
    }
}

/// Something that was named or found and could not be looked at.
#[derive(Debug, Clone)]
pub struct Skipped {
    /// The skipped path.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

/// Result of a search.
#[derive(Debug, Clone, Default)]
pub struct Discovery {
    /// Devices with labels, in the order of their names.
    pub devices: Vec<FoundDevice>,
    /// Paths that could not be read: no permission, device errors, missing paths.
    pub skipped: Vec<Skipped>,
}

/// Searches folders and devices; without any, `ZPOOL_IMPORT_PATH` or the standard folders.
pub fn discover(search: &[PathBuf]) -> Discovery {
    let mut found = Candidates::default();
    if search.is_empty() {
        for (order, dir) in default_dirs().iter().enumerate().filter(|(_, dir)| dir.is_dir()) {
            found.add_dir(dir, order);
        }
    } else {
        search.iter().enumerate().for_each(|(order, path)| found.add_path(path, order));
    }
    let Candidates { names, mut skipped } = found;
    let mut by_identity: BTreeMap<Identity, FoundDevice> = BTreeMap::new();
    for (name, opened) in probe_all(names) {
        match opened {
            Ok(Some((identity, geometry, labels))) => {
                let device = by_identity.entry(identity).or_insert_with(|| FoundDevice {
                    names: Vec::new(),
                    identity,
                    geometry,
                    labels,
                });
                device.names.push((name.order, name.path));
            }
            Ok(None) => {}
            Err(err) => skipped.push(Skipped { path: name.path, why: err.to_string() }),
        }
    }
    let mut devices: Vec<_> = by_identity.into_values().collect();
    devices.iter_mut().for_each(|device| device.names.sort());
    devices.sort_by(|a, b| a.names.cmp(&b.names));
    Discovery { devices, skipped }
}

/// Looks at one path; `None` when it is a device without usable labels.
pub fn probe(path: &Path) -> io::Result<Option<FoundDevice>> {
    let opened = open_and_read(path, 0)?.filter(|(_, _, labels)| labels.best().is_some());
    Ok(opened.map(|(identity, geometry, labels)| FoundDevice {
        names: vec![(0, path.to_owned())],
        identity,
        geometry,
        labels,
    }))
}

/// A device that is open already, under a name of its own; `number` distinguishes devices.
pub fn from_device(device: &dyn BlockDevice, number: u64) -> FoundDevice {
    FoundDevice {
        names: vec![(0, PathBuf::from(device.name()))],
        identity: Identity::File(0, number),
        geometry: device.geometry(),
        labels: DeviceLabels::read(device),
    }
}

/// The folders where short names of devices are looked for: those of `ZPOOL_IMPORT_PATH`, or the standard ones.
pub(crate) fn default_dirs() -> Vec<PathBuf> {
    match environment::var("ZPOOL_IMPORT_PATH").filter(|paths| !paths.is_empty()) {
        Some(paths) => std::env::split_paths(&paths).collect(),
        None => DEFAULT_DIRS.iter().map(PathBuf::from).collect(),
    }
}

/// A path to look at.
struct Name {
    path: PathBuf,
    order: usize,
    /// Smaller files are left alone: 0 for those named by the user, since a cut-off image is worth a look.
    min_size: u64,
}

#[derive(Default)]
struct Candidates {
    names: Vec<Name>,
    skipped: Vec<Skipped>,
}

impl Candidates {
    fn skip(&mut self, path: &Path, why: impl ToString) {
        self.skipped.push(Skipped { path: path.to_owned(), why: why.to_string() });
    }

    fn add_path(&mut self, path: &Path, order: usize) {
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => self.add_dir(path, order),
            Ok(_) => match absolute(path) {
                Ok(path) => self.names.push(Name { path, order, min_size: 0 }),
                Err(err) => self.skip(path, err),
            },
            Err(err) => self.skip(path, err),
        }
    }

    fn add_dir(&mut self, dir: &Path, order: usize) {
        let entries = std::fs::canonicalize(dir).and_then(std::fs::read_dir);
        let entries = match entries {
            Ok(entries) => entries,
            Err(err) => return self.skip(dir, err),
        };
        for (count, entry) in entries.enumerate() {
            if count >= MAX_ENTRIES {
                return self.skip(dir, format!("more than {MAX_ENTRIES} entries; the rest was not searched"));
            }
            match entry {
                Ok(entry) => {
                    self.names.push(Name { path: entry.path(), order, min_size: MIN_DEVICE_SIZE });
                }
                Err(err) => return self.skip(dir, err),
            }
        }
    }
}

/// The path with its folder resolved and its own name kept: a link's name is often the better one.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(std::fs::canonicalize(parent)?.join(name))
}

type Opened = Option<(Identity, Geometry, DeviceLabels)>;

/// Reads the labels of every path, several at a time.
fn probe_all(names: Vec<Name>) -> Vec<(Name, io::Result<Opened>)> {
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let workers = (2 * cores).min(MAX_THREADS).min(names.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(name) = names.get(index) else { return done };
            done.push((index, open_and_read(&name.path, name.min_size)));
        }
    };
    let mut results: Vec<(usize, io::Result<Opened>)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    });
    results.sort_by_key(|(index, _)| *index);
    let results = results.into_iter().map(|(_, result)| result);
    names.into_iter().zip(results).collect()
}

fn open_and_read(path: &Path, min_size: u64) -> io::Result<Opened> {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        // A dangling link, or a file that vanished since the folder was read.
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err),
    };
    let is_device = meta.file_type().is_block_device();
    if !is_device && (!meta.is_file() || meta.len() < min_size) {
        return Ok(None);
    }
    let device = match FileDevice::open(path, OpenOptions { threads: 1, ..OpenOptions::default() }) {
        Ok(device) => device,
        // An empty drive, or a device node that nothing stands behind.
        Err(err) if is_device && matches!(err.raw_os_error(), Some(NO_MEDIUM | NO_DEVICE)) => {
            return Ok(None);
        }
        Err(err) => return Err(err),
    };
    let labels = DeviceLabels::read(&device);
    let counts = labels.best().is_some() || labels.left().is_some();
    Ok(counts.then(|| (device.identity(), device.geometry(), labels)))
}

const NO_MEDIUM: i32 = rustix::io::Errno::NOMEDIUM.raw_os_error();
const NO_DEVICE: i32 = rustix::io::Errno::NXIO.raw_os_error();
