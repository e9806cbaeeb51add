//! Reads the complete members of an interrupted archive.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::pax::{BLOCK, kind};

/// Maximum bytes of an extended header.
const MAX_EXTENDED: u64 = 64 << 20;

/// Values that an extended header may override.
#[derive(Debug, Default)]
struct Extended {
    path: Option<Vec<u8>>,
    sparse_name: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Returns the names of the complete members, and the end of the last one. Stops at the archive's end marker, at
/// the first truncated member, and at anything that is not a tar header.
pub fn scan(file: &mut File) -> io::Result<(HashSet<Vec<u8>>, u64)> {
    let len = file.metadata()?.len();
    let mut done = HashSet::new();
    let (mut at, mut whole) = (0, 0);
    let mut extended = Extended::default();
    let mut block = [0; BLOCK];
    while at + BLOCK as u64 <= len {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut block)?;
        let Some((typeflag, own_size)) = header(&block) else { break };
        let size = if typeflag == kind::EXTENDED { own_size } else { extended.size.unwrap_or(own_size) };
        let data = if matches!(typeflag, kind::REGULAR | kind::EXTENDED) { size } else { 0 };
        let next = data.checked_next_multiple_of(BLOCK as u64).and_then(|n| n.checked_add(at + BLOCK as u64));
        let Some(next) = next.filter(|next| *next <= len) else { break };
        if typeflag == kind::EXTENDED {
            let mut records = Vec::new();
            file.take(size.min(MAX_EXTENDED)).read_to_end(&mut records)?;
            extended = parse(&records);
        } else {
            let own = block.get(..100).unwrap_or_default();
            let own = own.split(|b| *b == 0).next().unwrap_or_default().to_vec();
            let Extended { path, sparse_name, .. } = std::mem::take(&mut extended);
            done.insert(sparse_name.or(path).unwrap_or(own));
            whole = next;
        }
        at = next;
    }
    Ok((done, whole))
}

/// Type and size, if the checksum is correct.
fn header(block: &[u8; BLOCK]) -> Option<(u8, u64)> {
    let sum = octal(block.get(148..156)?)?;
    let counted = block.iter().enumerate();
    let counted: u64 = counted.map(|(i, b)| if (148..156).contains(&i) { 32 } else { u64::from(*b) }).sum();
    (sum == counted).then_some(())?;
    Some((*block.get(156)?, octal(block.get(124..136)?)?))
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

fn parse(records: &[u8]) -> Extended {
    let mut out = Extended::default();
    let mut rest = records;
    while let Some((record, next)) = split(rest) {
        rest = next;
        let Some(at) = record.iter().position(|&b| b == b'=') else { continue };
        let (key, value) = record.split_at(at);
        let value = value.get(1..).unwrap_or_default();
        match key {
            b"path" => out.path = Some(value.to_vec()),
            b"GNU.sparse.name" => out.sparse_name = Some(value.to_vec()),
            b"size" => out.size = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok()),
            _ => {}
        }
    }
    out
}

/// The first record without its length and newline, and the rest.
fn split(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = records.iter().position(|&b| b == b' ')?;
    let len: usize = std::str::from_utf8(records.get(..space)?).ok()?.parse().ok()?;
    let record = records.get(space + 1..len.checked_sub(1)?)?;
    Some((record, records.get(len..)?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zpl::Time;

    use super::*;
    use crate::pax::Member;

    fn member(path: &[u8], size: u64) -> Vec<u8> {
        let t = Time::default();
        let kind = kind::REGULAR;
        let (atime, ctime, mtime) = (t, t, t);
        let m = Member {
            path,
            kind,
            perm: 0o644,
            uid: 0,
            gid: 0,
            size,
            mtime,
            atime,
            ctime,
            link: b"",
            rdev: None,
            records: vec![],
        };
        m.headers()
    }

    #[test]
    fn cut_members_do_not_count() {
        let mut file = tempfile::tempfile().unwrap();
        let long = vec![b'n'; 300];
        file.write_all(&member(&long, 3)).unwrap();
        file.write_all(&[7; BLOCK]).unwrap();
        let end = file.metadata().unwrap().len();
        file.write_all(&member(b"cut", 600)).unwrap();
        file.write_all(&[7; BLOCK]).unwrap();
        let (done, at) = scan(&mut file).unwrap();
        assert_eq!((done.contains(&long), done.len(), at), (true, 1, end));
    }

    #[test]
    fn files_that_are_no_archive_hold_nothing() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[9; 2000]).unwrap();
        assert_eq!(scan(&mut file).unwrap(), (HashSet::new(), 0));
    }
}
