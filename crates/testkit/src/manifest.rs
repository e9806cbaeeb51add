//! The contents of a mounted tree according to OpenZFS, as printed by `find`, `sha256sum`, `getfattr` and `stat`.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// One file of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// `find -printf %y`: f d l p s c b.
    pub kind: char,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u64,
    /// Size from `stat`.
    pub size: u64,
    /// Modification time, seconds.
    pub mtime_sec: i64,
    /// Modification time, nanoseconds.
    pub mtime_nsec: u32,
    /// Target of a symbolic link.
    pub link: Vec<u8>,
    /// SHA-256 of a regular file, in hex.
    pub sha256: Option<String>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Device number.
    pub rdev: Option<(u32, u32)>,
}

/// A tree: records by path relative to its root.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    /// Records.
    pub files: BTreeMap<Vec<u8>, Record>,
    /// Whether extended attributes were listed at all.
    pub has_xattrs: bool,
}

fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

impl Manifest {
    /// Reads `dir/NAME.find` and its companions.
    pub fn read(dir: &Path, name: &str) -> Result<Self> {
        let file = |ext: &str| std::fs::read(dir.join(format!("{name}.{ext}")));
        let mut manifest = Self::default();
        for raw in file("find")?.split(|&b| b == 0).filter(|r| !r.is_empty()) {
            let (path, record) = record(raw).ok_or_else(|| bad(String::from_utf8_lossy(raw)))?;
            manifest.files.insert(path, record);
        }
        manifest.shas(&file("sha")?)?;
        let xattrs = file("xattr").unwrap_or_default();
        manifest.has_xattrs = !xattrs.is_empty();
        manifest.xattrs(&xattrs)?;
        manifest.devices(&file("dev").unwrap_or_default())?;
        Ok(manifest)
    }

    fn at(&mut self, path: &[u8]) -> Result<&mut Record> {
        let path = path.strip_prefix(b"./").unwrap_or(path);
        self.files.get_mut(path).ok_or_else(|| bad(format!("no file {}", String::from_utf8_lossy(path))))
    }

    /// `sha256sum -z`: hex, two spaces, path, NUL.
    fn shas(&mut self, bytes: &[u8]) -> Result<()> {
        for line in bytes.split(|&b| b == 0).filter(|l| !l.is_empty()) {
            let (hex, rest) = line.split_at_checked(64).ok_or_else(|| bad("short line of sha256sum"))?;
            let path = rest.get(2..).unwrap_or_default();
            let hex = String::from_utf8_lossy(hex).into_owned();
            self.at(path)?.sha256 = Some(hex);
        }
        Ok(())
    }

    /// `getfattr -d -e hex`: a line `# file: PATH`, then `NAME=0xHEX`.
    fn xattrs(&mut self, bytes: &[u8]) -> Result<()> {
        let mut path = Vec::new();
        for line in bytes.split(|&b| b == b'\n').filter(|l| !l.is_empty()) {
            if let Some(name) = line.strip_prefix(b"# file: ") {
                path = unescape(name);
                continue;
            }
            let at = line.iter().position(|&b| b == b'=');
            let (name, value) = at.and_then(|at| line.split_at_checked(at)).unwrap_or((line, b""));
            let hex = value.strip_prefix(b"=0x").unwrap_or_default();
            let value = unhex(hex).ok_or_else(|| bad("value of an extended attribute"))?;
            self.at(&path)?.xattrs.insert(unescape(name), value);
        }
        Ok(())
    }

    /// `PATH MAJOR:MINOR`, numbers in the format of `stat -c %t:%T` or `%Hr:%Lr`.
    fn devices(&mut self, bytes: &[u8]) -> Result<()> {
        for line in bytes.split(|&b| b == b'\n').filter(|l| !l.is_empty()) {
            let at = line.iter().rposition(|&b| b == b' ').ok_or_else(|| bad("device"))?;
            let (path, numbers) = line.split_at_checked(at).ok_or_else(|| bad("device"))?;
            let numbers = String::from_utf8_lossy(numbers);
            let (major, minor) = numbers.trim().split_once(':').ok_or_else(|| bad("device"))?;
            let number = |text: &str| text.parse::<u32>().map_err(|_| bad("device"));
            self.at(path)?.rdev = Some((number(major)?, number(minor)?));
        }
        Ok(())
    }
}

/// `type mode uid gid nlink size mtime path target`, tab separated.
fn record(raw: &[u8]) -> Option<(Vec<u8>, Record)> {
    let mut parts = raw.splitn(8, |&b| b == b'\t');
    let mut text = || parts.next().and_then(|p| std::str::from_utf8(p).ok());
    let kind = text()?.chars().next()?;
    let mode = u32::from_str_radix(text()?, 8).ok()?;
    let (uid, gid) = (text()?.parse().ok()?, text()?.parse().ok()?);
    let (nlink, size) = (text()?.parse().ok()?, text()?.parse().ok()?);
    let (mtime_sec, mtime_nsec) = time(text()?)?;
    let rest = parts.next()?;
    // The target comes last; only a link has one, and neither may contain a tab here.
    let at = rest.iter().rposition(|&b| b == b'\t')?;
    let (path, link) = rest.split_at_checked(at)?;
    let link = link.get(1..)?.to_vec();
    let record =
        Record { kind, mode, uid, gid, nlink, size, mtime_sec, mtime_nsec, link, ..Record::default() };
    Some((path.to_vec(), record))
}

/// `%T@`: seconds, a point, ten digits of which the last is always 0. Before 1970 the fraction still
/// counts upwards from the whole second.
fn time(text: &str) -> Option<(i64, u32)> {
    let (sec, fraction) = text.split_once('.')?;
    Some((sec.parse().ok()?, fraction.get(..9)?.parse().ok()?))
}

/// Decodes `\ooo`, as `getfattr` writes unusual bytes.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|d| first == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match digits {
            Some(digits) => {
                out.push(digits.iter().fold(0_u8, |v, d| v.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |c: &u8| char::from(*c).to_digit(16);
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    pairs.iter().map(|[a, b]| u8::try_from(digit(a)? * 16 + digit(b)?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_their_times() {
        let (path, r) = record(b"l\t777\t0\t5\t1\t3\t-1.5000000000\ta b\tc d").unwrap();
        assert_eq!(
            (path.as_slice(), r.link.as_slice(), r.kind, r.mode),
            (&b"a b"[..], &b"c d"[..], 'l', 0o777)
        );
        assert_eq!((r.mtime_sec, r.mtime_nsec), (-1, 500_000_000));
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(br"a\012b\\"), b"a\nb\\\\");
        assert_eq!(unhex(b"00ff"), Some(vec![0, 255]));
        assert_eq!(unhex(b"0"), None);
    }
}
