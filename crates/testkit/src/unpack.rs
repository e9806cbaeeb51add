//! Archives of pools: `tar` within `zstd`, unpacked once, with zeros as holes.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use zstd_safe::{DCtx, InBuffer, OutBuffer};

/// Unit of the search for zeros.
const BLOCK: usize = 64 << 10;

/// Unpacks `archive`, whose entries start with `prefix`, to `below/name` unless that exists and is as new as the
/// archive; returns its path.
pub(crate) fn unpack(archive: &Path, below: &Path, name: &str, prefix: &str) -> io::Result<PathBuf> {
    let done = below.join(name);
    fs::create_dir_all(below)?;
    let lock = File::create(below.join(format!(".{name}.lock")))?;
    lock.lock()?;
    if let Ok(made) = done.metadata() {
        if made.modified()? >= archive.metadata()?.modified()? {
            return Ok(done);
        }
        fs::remove_dir_all(&done)?;
    }
    let partial = below.join(format!(".{name}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    let mut tar = tar::Archive::new(Zstd::new(File::open(archive)?));
    for entry in tar.entries()? {
        let mut entry = entry?;
        let path = partial.join(entry.path()?.strip_prefix(prefix).map_err(io::Error::other)?);
        match entry.header().entry_type().is_dir() {
            true => fs::create_dir_all(&path)?,
            false => {
                fs::create_dir_all(path.parent().unwrap_or(&partial))?;
                sparse_copy(&mut entry, &mut File::create(&path)?)?;
            }
        }
    }
    // The archive's own directory entry is older than the archive.
    File::open(&partial)?.set_modified(SystemTime::now())?;
    fs::rename(&partial, &done)?;
    Ok(done)
}

fn sparse_copy(from: &mut impl Read, to: &mut File) -> io::Result<()> {
    let mut buffer = vec![0; BLOCK];
    let mut len = 0;
    loop {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|r| !r.is_empty()) {
            match from.read(rest)? {
                0 => break,
                n => filled += n,
            }
        }
        let block = buffer.get(..filled).unwrap_or_default();
        if block.is_empty() {
            return to.set_len(len);
        }
        if block.iter().all(|&b| b == 0) {
            to.seek(SeekFrom::Current(i64::try_from(filled).unwrap_or(0)))?;
        } else {
            to.write_all(block)?;
        }
        len += u64::try_from(filled).unwrap_or(0);
    }
}

/// A reader that decompresses.
struct Zstd {
    from: BufReader<File>,
    context: DCtx<'static>,
    input: Vec<u8>,
    at: usize,
}

impl Zstd {
    fn new(file: File) -> Self {
        Self { from: BufReader::new(file), context: DCtx::create(), input: Vec::new(), at: 0 }
    }
}

impl Read for Zstd {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.at >= self.input.len() {
                self.input.resize(BLOCK, 0);
                let n = self.from.read(&mut self.input)?;
                self.input.truncate(n);
                self.at = 0;
            }
            let mut to = OutBuffer::around(&mut *out);
            let mut from = InBuffer { src: &self.input, pos: self.at };
            let result = self.context.decompress_stream(&mut to, &mut from);
            result.map_err(|code| io::Error::other(zstd_safe::get_error_name(code)))?;
            let (made, end) = (to.pos(), self.input.is_empty());
            self.at = from.pos;
            if made > 0 || end {
                return Ok(made);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Creates an archive like `tar -C FOLDER --zstd -cf OUT .`.
    fn archive(at: &Path, files: &[(&str, &[u8])]) {
        let mut tar = tar::Builder::new(Vec::new());
        let mut add = |path: &str, kind, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(bytes.len() as u64);
            header.set_mode(0o755);
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            tar.append(&header, bytes).unwrap();
        };
        add("./", tar::EntryType::Directory, &[]);
        files.iter().for_each(|(path, bytes)| add(path, tar::EntryType::Regular, bytes));
        let plain = tar.into_inner().unwrap();
        let mut packed = vec![0; zstd_safe::compress_bound(plain.len())];
        let len = zstd_safe::compress(&mut packed[..], &plain, 3).unwrap();
        fs::write(at, &packed[..len]).unwrap();
    }

    #[test]
    fn an_archive_is_unpacked_with_its_holes_and_again_when_it_changes() {
        let below = std::env::temp_dir().join(format!("aquifer-unpack-{}", std::process::id()));
        fs::create_dir_all(&below).unwrap();
        let packed = below.join("set.tar.zst");
        let mut disk = vec![0_u8; 4 << 20];
        disk[3 << 20] = 7;
        archive(&packed, &[("./a/disk1", &disk), ("./a/manifest/live.find", b"f")]);
        let dir = unpack(&packed, &below.join("out"), "set", ".").unwrap();
        assert_eq!(dir, below.join("out/set"));
        assert_eq!(fs::read(dir.join("a/disk1")).unwrap(), disk);
        assert_eq!(fs::read(dir.join("a/manifest/live.find")).unwrap(), b"f");
        assert!(dir.join("a/disk1").metadata().unwrap().blocks() * 512 < 1 << 20, "zeros take no space");

        fs::write(dir.join("kept"), b"").unwrap();
        unpack(&packed, &below.join("out"), "set", ".").unwrap();
        assert!(dir.join("kept").exists(), "it is unpacked once");
        archive(&packed, &[("./b/disk1", b"new")]);
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        File::options().write(true).open(&packed).unwrap().set_modified(later).unwrap();
        unpack(&packed, &below.join("out"), "set", ".").unwrap();
        assert!(dir.join("b/disk1").exists() && !dir.join("a").exists(), "a newer archive takes its place");
        fs::remove_dir_all(&below).unwrap();
    }
}
