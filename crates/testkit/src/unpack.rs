//! Archives of pools: `tar` within `zstd`, unpacked once, zeros left as holes.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use zstd_safe::{DCtx, InBuffer, OutBuffer};

/// Unit in which zeros are looked for.
const BLOCK: usize = 64 << 10;

/// Unpacks `archive`, whose entries start with `prefix`, to `below/name` unless that is there; says where it
/// is.
pub(crate) fn unpack(archive: &Path, below: &Path, name: &str, prefix: &str) -> io::Result<PathBuf> {
    let done = below.join(name);
    fs::create_dir_all(below)?;
    let lock = File::create(below.join(format!(".{name}.lock")))?;
    lock.lock()?;
    if done.is_dir() {
        return Ok(done);
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
