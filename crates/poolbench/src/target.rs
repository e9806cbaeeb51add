//! The devices, files, directory or pool that the user names, and the refusal of everything that is in use.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use clikit::verb::{Failure, strerror};
use daemon::devices::{InUse, in_use};
use daemon::foreign::filesystem_on;
use rustix::fs::{FlockOperation, Mode, OFlags};

/// Bytes at the beginning of a device that are searched for signatures.
const HEAD: usize = 8 << 10;

/// The place to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An imported pool, or a file system of one: only a dataset below it is written.
    Dataset(String),
    /// A directory for files as devices.
    Directory(PathBuf),
    /// Devices and files that a pool is made of.
    Devices(Vec<PathBuf>),
}

impl Target {
    /// Interprets the words of the command line. A word that begins with `/` or `.` is a path; another one is a device in `/dev`,
    /// or a pool or dataset.
    ///
    /// # Errors
    /// If a path does not exist, or names of several kinds are mixed.
    pub fn of(words: &[String]) -> Result<Self, Failure> {
        if let [word] = words
            && !word.starts_with(['/', '.'])
            && !is_disk(&Path::new("/dev").join(word))
        {
            return Ok(Self::Dataset(word.clone()));
        }
        let paths = words.iter().map(|word| path_of(word)).collect::<Result<Vec<_>, _>>()?;
        match paths.as_slice() {
            [path] if path.is_dir() => Ok(Self::Directory(path.clone())),
            paths if paths.iter().any(|path| path.is_dir()) => {
                Err(Failure::usage("only one directory can be measured at a time"))
            }
            _ => {
                let mut once = paths.clone();
                once.sort();
                once.dedup();
                match once.len() == paths.len() {
                    true => Ok(Self::Devices(paths)),
                    false => Err(Failure::usage("a device is named twice")),
                }
            }
        }
    }
}

fn path_of(word: &str) -> Result<PathBuf, Failure> {
    let bare = !word.starts_with(['/', '.']);
    let path = if bare { Path::new("/dev").join(word) } else { PathBuf::from(word) };
    let why = |e: std::io::Error| match bare {
        true => Failure::cannot("open", word, "no such device in /dev (a path begins with '/' or '.')"),
        false => Failure::cannot("open", word, strerror(&e)),
    };
    path.canonicalize().map_err(why)
}

fn is_disk(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Checks that a device or file may be overwritten and returns its size.
///
/// # Errors
/// If it cannot be written; if it is mounted or otherwise open as a device, even with `force`; and without
/// `force` if it contains a ZFS label, a file system, a partition table or, as a file, any data.
pub fn check(path: &Path, force: bool) -> Result<u64, Failure> {
    let shown = &path.display();
    let meta = fs::metadata(path).map_err(|e| Failure::cannot("open", shown, strerror(&e)))?;
    let disk = meta.file_type().is_block_device();
    if !disk && !meta.is_file() {
        return Err(Failure::cannot("use", shown, "must be a block device, a regular file or a directory"));
    }
    let file = open_alone(path, disk)?;
    // The lock that the owner of an imported pool holds on its files.
    if !disk && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Failure::cannot("use", shown, "it is in use: another process has it as a device"));
    }
    if let Some(user) = held_by(path, &meta) {
        return Err(Failure::cannot("use", shown, format!("it is in use: {user}")));
    }
    if !force && let Some(found) = content(path, &file, disk) {
        let why = format!("it contains {found}\n-f overwrites it: everything on it is lost");
        return Err(Failure::cannot("use", shown, why));
    }
    let size = if disk { size_of(&file) } else { meta.len() };
    if size == 0 {
        return Err(Failure::cannot("use", shown, "its size is 0"));
    }
    Ok(size)
}

/// Opens it for writing; a disk exclusively, which the kernel refuses for mounted ones, swap, and parts of other devices.
fn open_alone(path: &Path, disk: bool) -> Result<fs::File, Failure> {
    let exclusive = if disk { OFlags::EXCL } else { OFlags::empty() };
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | exclusive, Mode::empty());
    let file = file.map_err(|e| {
        let why = match e {
            rustix::io::Errno::BUSY => "it is in use (mounted, swap, or part of another device)".to_owned(),
            rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => {
                "permission denied: run this as root, or name a directory of yours, where files serve as devices"
                    .to_owned()
            }
            e => strerror(&e.into()),
        };
        Failure::cannot("open", path.display(), why)
    })?;
    Ok(file.into())
}

/// The mount, or the loop device, that uses it.
fn held_by(path: &Path, meta: &fs::Metadata) -> Option<String> {
    let number = format!("{}:{}", rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_disk = meta.file_type().is_block_device();
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        (is_disk && words.next() == Some(&number)).then(|| words.nth(1).unwrap_or_default().to_owned())
    });
    let loops = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
    let loops = loops.filter_map(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        (Path::new(backing.trim_end()) == path).then(|| entry.file_name().to_string_lossy().into_owned())
    });
    let mount = mount.map(|at| format!("mounted on {at}"));
    mount.or_else(|| loops.map(|name| format!("/dev/{name} is made of it")).next())
}

/// Describes the content of a device or file.
fn content(path: &Path, file: &fs::File, disk: bool) -> Option<String> {
    if let Some(usage) = in_use(path) {
        return Some(match usage {
            InUse::Active(pool) => format!("a part of pool '{pool}'"),
            InUse::Exported(pool) => format!("a part of exported pool '{pool}'"),
            InUse::Spare(_) => "a hot spare of a pool".to_owned(),
            InUse::Cache(_) => "a cache device of a pool".to_owned(),
        });
    }
    if let Some(kind) = filesystem_on(path) {
        return Some(format!("a file system ({kind})"));
    }
    let mut head = vec![0; HEAD];
    let len = FileExt::read_at(file, &mut head, 0).unwrap_or(0);
    let head = head.get(..len).unwrap_or_default();
    match signature(head) {
        Some(kind) => Some(kind.to_owned()),
        None if !disk => has_data(file).then(|| "data".to_owned()),
        None => None,
    }
}

/// Partition tables. Sources: the UEFI specification (GPT header in the second sector, of 512 or 4096 bytes) and the PC's master
/// boot record.
fn signature(head: &[u8]) -> Option<&'static str> {
    let is = |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    match () {
        () if is(512, b"EFI PART") || is(4096, b"EFI PART") => Some("a partition table (GPT)"),
        () if is(510, &[0x55, 0xaa]) => Some("a partition table or boot sector"),
        () => None,
    }
}

/// Whether a file has any byte other than 0. Holes are skipped by the file system's own means.
fn has_data(file: &fs::File) -> bool {
    let mut at = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(rustix::io::Errno::NXIO) => return false,
            // Without holes everything is read.
            Err(_) => {}
        }
        match FileExt::read_at(file, &mut buffer, at) {
            Ok(0) => return false,
            Ok(len) if buffer.iter().take(len).all(|byte| *byte == 0) => at += len as u64,
            // Unreadable data is data.
            _ => return true,
        }
    }
}

fn size_of(file: &fs::File) -> u64 {
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).unwrap_or(0)
}

/// Free bytes of the file system of a directory that an ordinary user may take.
///
/// # Errors
/// Errors of the system.
pub fn free_in(dir: &Path) -> Result<u64, Failure> {
    let stat =
        rustix::fs::statvfs(dir).map_err(|e| Failure::cannot("open", dir.display(), strerror(&e.into())))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes of memory that programs may take: `MemAvailable` of `/proc/meminfo`; 1 GiB if it is not there.
pub fn free_memory() -> u64 {
    let mut text = String::new();
    let read = fs::File::open("/proc/meminfo").and_then(|file| file.take(1 << 16).read_to_string(&mut text));
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    read.ok().and(kib).map_or(1 << 30, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        check(path, false).map_or_else(|e| e.message().unwrap(), |size| format!("size {size}"))
    }

    #[test]
    fn words_are_paths_or_pools() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let word = |name: &str| at.join(name).display().to_string();
        fs::write(at.join("a"), "").unwrap();
        assert_eq!(Target::of(&["tank/a".into()]).unwrap(), Target::Dataset("tank/a".into()));
        assert_eq!(Target::of(&[word("")]).unwrap(), Target::Directory(at.clone()));
        assert_eq!(Target::of(&[word("a")]).unwrap(), Target::Devices(vec![at.join("a")]));
        assert!(Target::of(&[word("a"), word("./a")]).is_err());
        assert!(Target::of(&[word("a"), word("")]).is_err());
        assert!(Target::of(&[word("none")]).is_err());
    }

    #[test]
    fn files_with_anything_in_them_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = fs::File::create(&path).unwrap();
        assert!(refusal(&path).contains("size is 0"));
        file.set_len(64 << 20).unwrap();
        assert_eq!(refusal(&path), "size 67108864");
        file.write_all_at(&[0; 5000], 1 << 20).unwrap();
        assert_eq!(refusal(&path), "size 67108864");
        for (at, bytes, what) in [
            (9 << 20, &b"x"[..], "contains data"),
            (510, &[0x55, 0xaa], "partition table"),
            (512, b"EFI PART", "GPT"),
            (0, b"LUKS\xba\xbe", "LUKS"),
            (0, b"XFSB", "file system (xfs)"),
        ] {
            file.write_all_at(bytes, at).unwrap();
            assert!(refusal(&path).contains(what), "{what}: {}", refusal(&path));
            assert_eq!(check(&path, true).unwrap(), 64 << 20);
        }
        assert!(refusal(Path::new("/dev/null")).contains("must be a block device"));
    }
}
