//! Copies files of this machine into a file system of ours, and changes them on both sides.

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use engine::{Error, Kind, Result};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode};

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// The amount copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Files, directories and symbolic links.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// Copies the tree below `from` into the directory `to`: files, directories and symbolic links, with their
/// modes.
pub fn copy_in(fs: &FsWriter, from: &Path, to: u64) -> Result<Copied> {
    let mut total = Copied::default();
    let mut waiting = vec![(from.to_path_buf(), to)];
    while let Some((from, to)) = waiting.pop() {
        let mut entries = fs::read_dir(&from)?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            let made = copy_one(fs, &path, to, name.as_bytes(), &mut total)?;
            if entry.file_type()?.is_dir() {
                waiting.push((path, made));
            }
        }
    }
    Ok(total)
}

fn copy_one(fs: &FsWriter, path: &Path, dir: u64, name: &[u8], total: &mut Copied) -> Result<u64> {
    let meta = fs::symlink_metadata(path)?;
    total.files += 1;
    let perm = u64::from(meta.permissions().mode() & 0o7777);
    let ids = (u64::from(meta.uid()), u64::from(meta.gid()));
    if meta.is_symlink() {
        let target = fs::read_link(path)?;
        return fs.dirs().create(dir, name, &NewNode::symlink(target.as_os_str().as_bytes(), ids.0, ids.1));
    }
    let kind = if meta.is_dir() { FileKind::Directory } else { FileKind::Regular };
    let number = fs.dirs().create(dir, name, &NewNode::new(kind, perm, ids.0, ids.1))?;
    if meta.is_file() {
        total.bytes += fill(fs, number, path)?;
    }
    Ok(number)
}

/// Writes a file of this machine to the file `number`, from its beginning.
pub fn fill(fs: &FsWriter, number: u64, path: &Path) -> Result<u64> {
    let mut source = fs::File::open(path)?;
    let (mut at, mut piece) = (0, vec![0; PIECE]);
    loop {
        let got = source.read(&mut piece)?;
        let Some(bytes) = piece.get(..got).filter(|b| !b.is_empty()) else { return Ok(at) };
        fs.data().write(number, at, bytes, false)?;
        at += got as u64;
    }
}

/// The object of `path`, from the root of the file system on.
pub fn find(fs: &FsWriter, path: &Path) -> Result<u64> {
    let mut at = fs.root;
    for part in path {
        let found = fs.dirs().lookup(at, part.as_bytes())?;
        at = found.ok_or_else(|| Error::new(Kind::NotFound, format!("no file {}", path.display())))?.object;
    }
    Ok(at)
}
