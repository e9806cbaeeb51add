//! Headers of tar archives in the pax format.
//!
//! Each member is a ustar header; values that do not fit (long or odd names, large numbers, fractions of seconds,
//! extended attributes, ACLs, maps of sparse files) go into an extended header before it. Sparse files are GNU's
//! version 1.0: the map of data comes first in the member's data.

use std::ops::Range;

use zpl::{Acl, Attr, Rdev, Time, acl::ace_text, pflags};

/// Bytes of a tar block.
pub const BLOCK: usize = 512;

/// Types of members.
pub mod kind {
    pub const REGULAR: u8 = b'0';
    pub const LINK: u8 = b'1';
    pub const SYMLINK: u8 = b'2';
    pub const CHAR: u8 = b'3';
    pub const BLOCK: u8 = b'4';
    pub const DIRECTORY: u8 = b'5';
    pub const FIFO: u8 = b'6';
    pub const EXTENDED: u8 = b'x';
}

/// A member to write.
#[derive(Debug, Clone)]
pub struct Member<'a> {
    /// Its name.
    pub path: &'a [u8],
    /// See [`kind`].
    pub kind: u8,
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of data that follow.
    pub size: u64,
    /// Times.
    pub mtime: Time,
    /// Last access.
    pub atime: Time,
    /// Last change.
    pub ctime: Time,
    /// Target of a link.
    pub link: &'a [u8],
    /// Number of a device.
    pub rdev: Option<Rdev>,
    /// Further records of the extended header.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A record: its own length in decimal, a space, `key=value`, newline.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len() + 3;
    let mut len = body + 1;
    while len != body + len.to_string().len() {
        len = body + len.to_string().len();
    }
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// Seconds in decimal, negative ones with the fraction counting away from zero.
fn decimal(time: Time) -> String {
    let total = i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    let sign = if total < 0 { "-" } else { "" };
    let total = total.unsigned_abs();
    let (sec, nsec) = (total / 1_000_000_000, total % 1_000_000_000);
    if nsec == 0 { format!("{sign}{sec}") } else { format!("{sign}{sec}.{nsec:09}") }
}

impl Member<'_> {
    fn extended(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let odd = |name: &[u8]| std::str::from_utf8(name).is_err();
        if odd(self.path) || odd(self.link) {
            out.extend(record(b"hdrcharset", b"BINARY"));
        }
        let mut put = |key: &str, value: &[u8]| out.extend(record(key.as_bytes(), value));
        if self.path.len() > 100 || !self.path.is_ascii() {
            put("path", self.path);
        }
        if self.link.len() > 100 || !self.link.is_ascii() {
            put("linkpath", self.link);
        }
        if self.size > MAX_OCTAL_11 {
            put("size", self.size.to_string().as_bytes());
        }
        for (key, id) in [("uid", self.uid), ("gid", self.gid)] {
            if u64::from(id) > MAX_OCTAL_7 {
                put(key, id.to_string().as_bytes());
            }
        }
        for (key, time) in [("mtime", self.mtime), ("atime", self.atime), ("ctime", self.ctime)] {
            put(key, decimal(time).as_bytes());
        }
        for (key, value) in &self.records {
            out.extend(record(key, value));
        }
        out
    }

    /// The headers: an extended one and the member's own.
    pub fn headers(&self) -> Vec<u8> {
        let extended = self.extended();
        let base = self.path.rsplit(|&b| b == b'/').find(|p| !p.is_empty()).unwrap_or(b"x");
        let name = [b"PaxHeaders/", base].concat();
        let len = u64::try_from(extended.len()).unwrap_or(0);
        let mut out = ustar(&name, kind::EXTENDED, len, 0o644, self, b"").to_vec();
        out.extend(&extended);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
        out.extend(ustar(self.path, self.kind, self.size, self.perm, self, self.link));
        out
    }
}

const MAX_OCTAL_7: u64 = 0o777_7777;
const MAX_OCTAL_11: u64 = 0o777_7777_7777;

/// A ustar header; values that do not fit are truncated or zero, and the extended header has them in full.
fn ustar(path: &[u8], kind: u8, size: u64, perm: u32, m: &Member<'_>, link: &[u8]) -> [u8; BLOCK] {
    let mut out = [0; BLOCK];
    let mtime = u64::try_from(m.mtime.sec).unwrap_or(0).min(MAX_OCTAL_11);
    let id = |id: u32| if u64::from(id) > MAX_OCTAL_7 { 0 } else { u64::from(id) };
    put(&mut out, 0, 100, path);
    put(&mut out, 100, 8, octal(u64::from(perm), 7).as_bytes());
    put(&mut out, 108, 8, octal(id(m.uid), 7).as_bytes());
    put(&mut out, 116, 8, octal(id(m.gid), 7).as_bytes());
    put(&mut out, 124, 12, octal(if size > MAX_OCTAL_11 { 0 } else { size }, 11).as_bytes());
    put(&mut out, 136, 12, octal(mtime, 11).as_bytes());
    put(&mut out, 148, 8, b"        ");
    put(&mut out, 156, 1, &[kind]);
    put(&mut out, 157, 100, link);
    put(&mut out, 257, 8, b"ustar\x0000");
    if let Some(dev) = m.rdev {
        put(&mut out, 329, 8, octal(u64::from(dev.major) & MAX_OCTAL_7, 7).as_bytes());
        put(&mut out, 337, 8, octal(u64::from(dev.minor) & MAX_OCTAL_7, 7).as_bytes());
    }
    let sum: u64 = out.iter().map(|&b| u64::from(b)).sum();
    put(&mut out, 148, 8, format!("{sum:06o}\0 ").as_bytes());
    out
}

fn octal(n: u64, digits: usize) -> String {
    format!("{n:0digits$o}")
}

fn put(out: &mut [u8; BLOCK], at: usize, max: usize, bytes: &[u8]) {
    let field = out.get_mut(at..at + max).unwrap_or_default();
    for (to, from) in field.iter_mut().zip(bytes) {
        *to = *from;
    }
}

/// The map of a sparse file, padded: number of extents, then offset and length of each, a line a number.
pub fn sparse_map(extents: &[Range<u64>], size: u64) -> Vec<u8> {
    // GNU tar ends the map with an empty extent at the end of the file.
    let ends_short = extents.last().is_none_or(|last| last.end < size);
    let last = ends_short.then_some(size..size);
    let mut out = format!("{}\n", extents.len() + usize::from(ends_short)).into_bytes();
    for extent in extents.iter().cloned().chain(last) {
        out.extend(format!("{}\n{}\n", extent.start, extent.end - extent.start).into_bytes());
    }
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

/// Records that mark a member as a sparse file; the member's own name must differ.
pub fn sparse_records(path: &[u8], size: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let text = |key: &str, value: &[u8]| (key.as_bytes().to_vec(), value.to_vec());
    vec![
        text("GNU.sparse.major", b"1"),
        text("GNU.sparse.minor", b"0"),
        text("GNU.sparse.name", path),
        text("GNU.sparse.realsize", size.to_string().as_bytes()),
    ]
}

/// Records of extended attributes and of the NFSv4 ACL. POSIX ACLs become text, as star and GNU tar
/// have them.
pub fn attribute_records(xattrs: &[(Vec<u8>, Vec<u8>)], acl: Option<&Acl>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut out = Vec::new();
    for (name, value) in xattrs {
        let text = posix_acl_text(value);
        match (name.as_slice(), text) {
            (b"system.posix_acl_access", Some(text)) => out.push((b"SCHILY.acl.access".to_vec(), text)),
            (b"system.posix_acl_default", Some(text)) => out.push((b"SCHILY.acl.default".to_vec(), text)),
            // A key ends at the first '=', so such a name cannot be expressed.
            (name, _) if name.contains(&b'=') => {}
            (name, _) => out.push(([b"SCHILY.xattr.", name].concat(), value.clone())),
        }
    }
    if let Some(acl) = acl.filter(|acl| !acl.trivial && !acl.aces.is_empty()) {
        let aces: Vec<String> = acl.aces.iter().map(ace_text).collect();
        out.push((b"SCHILY.acl.ace".to_vec(), aces.join(",").into_bytes()));
    }
    out
}

/// Names of file flags as star and libarchive write them.
const FLAG_NAMES: [(u64, &str); 10] = [
    (pflags::IMMUTABLE, "schg"),
    (pflags::APPENDONLY, "sappnd"),
    (pflags::NODUMP, "nodump"),
    (pflags::NOUNLINK, "sunlnk"),
    (pflags::OPAQUE, "opaque"),
    (pflags::READONLY, "rdonly"),
    (pflags::HIDDEN, "hidden"),
    (pflags::SYSTEM, "system"),
    (pflags::OFFLINE, "offline"),
    (pflags::REPARSE, "reparse"),
];

/// Records of file flags and of the project. `archive` is omitted, because ZFS sets it on every changed file.
pub fn flag_records(attr: &Attr) -> Vec<(Vec<u8>, Vec<u8>)> {
    let names: Vec<&str> =
        FLAG_NAMES.iter().filter(|(flag, _)| attr.has_flag(*flag)).map(|(_, name)| *name).collect();
    let mut out = Vec::new();
    if !names.is_empty() {
        out.push((b"SCHILY.fflags".to_vec(), names.join(",").into_bytes()));
    }
    if attr.projid != 0 {
        out.push((b"AQUIFER.projid".to_vec(), attr.projid.to_string().into_bytes()));
    }
    out
}

/// Converts Linux's binary format (version 2, then tag, bits, id) to `user::rw-,user:1000:rwx,…`.
fn posix_acl_text(value: &[u8]) -> Option<Vec<u8>> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    if u32::from_le_bytes(*version) != 2 {
        return None;
    }
    let entry = |e: &[u8; 8]| {
        let [t0, t1, p0, p1, i0, i1, i2, i3] = *e;
        let (tag, perm) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([p0, p1]));
        let id = u32::from_le_bytes([i0, i1, i2, i3]);
        let who = match tag {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".to_owned(),
            0x20 => "other:".to_owned(),
            _ => return None,
        };
        let bit = |mask: u16, c: char| if perm & mask != 0 { c } else { '-' };
        Some(format!("{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x')))
    };
    let all: Option<Vec<String>> = entries.iter().map(entry).collect();
    Some(all?.join(",").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_length() {
        assert_eq!(record(b"path", b"a"), b"9 path=a\n");
        assert_eq!(record(b"k", &[b'v'; 93]).len(), 99);
        let r = record(b"k", &[b'v'; 94]);
        assert!(r.starts_with(b"101 k=") && r.len() == 101, "{}", r.len());
    }

    #[test]
    fn times_before_1970() {
        assert_eq!(decimal(Time { sec: -2, nsec: 500_000_000 }), "-1.500000000");
        assert_eq!(decimal(Time { sec: 1, nsec: 1 }), "1.000000001");
    }

    #[test]
    fn maps_end_at_the_end() {
        let map = sparse_map(&[0..512, 4096..4608], 8192);
        assert!(map.starts_with(b"3\n0\n512\n4096\n512\n8192\n0\n\0"));
        assert_eq!(map.len(), BLOCK);
    }

    #[test]
    fn posix_acls_as_text() {
        let value = [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 7, 0, 232, 3, 0, 0];
        assert_eq!(posix_acl_text(&value).unwrap(), b"user::rw-,user:1000:rwx");
        assert_eq!(posix_acl_text(&value[..7]), None);
    }

    #[test]
    fn flags_and_projects_are_records() {
        let Some(golden) = testkit::golden::get("basic") else { return };
        let pool = golden.open().unwrap();
        let fs = zpl::Filesystem::open(&pool.dsl.dataset("tank").unwrap()).unwrap();
        let plain = Attr { flags: pflags::ARCHIVE, projid: 0, ..fs.root().unwrap().attr().clone() };
        assert_eq!(flag_records(&plain), []);
        let flags = pflags::IMMUTABLE | pflags::NODUMP | pflags::PROJID;
        let records = flag_records(&Attr { flags, projid: 7, ..plain });
        let text: Vec<_> = records.iter().map(|(k, v)| [k.as_slice(), b"=", v].concat()).collect();
        assert_eq!(text, [&b"SCHILY.fflags=schg,nodump"[..], b"AQUIFER.projid=7"]);
    }
}
