//! `POOL/DATASET[@SNAPSHOT]:PATH` as the user writes it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A target on a command line. A dataset's name may contain colons, so there may be several readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// As written.
    pub text: String,
    /// Readings, the shortest dataset name first: dataset or snapshot, and path if one was given.
    pub readings: Vec<(String, Option<Vec<u8>>)>,
}

impl Target {
    /// All readings of `text`. A reading whose dataset is not UTF-8 is dropped.
    pub fn parse(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        let mut readings = Vec::new();
        for (at, _) in bytes.iter().enumerate().filter(|(_, b)| **b == b':') {
            let Some((dataset, path)) = bytes.split_at_checked(at) else { continue };
            if let Ok(dataset) = std::str::from_utf8(dataset) {
                readings.push((dataset.to_owned(), path.get(1..).map(<[u8]>::to_vec)));
            }
        }
        if let Ok(dataset) = std::str::from_utf8(bytes) {
            readings.push((dataset.to_owned(), None));
        }
        Self { text: text.to_string_lossy().into_owned(), readings }
    }

    /// The pool; all readings start with it.
    pub fn pool(&self) -> &str {
        let first = self.readings.first().map_or("", |(dataset, _)| dataset);
        first.split(['/', '@']).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colon_may_be_the_one() {
        let t = Target::parse(OsStr::new("tank/a:b:/c"));
        assert_eq!(t.pool(), "tank");
        let paths: Vec<_> = t.readings.iter().map(|(d, p)| (d.as_str(), p.as_deref())).collect();
        assert_eq!(
            paths,
            [("tank/a", Some(&b"b:/c"[..])), ("tank/a:b", Some(&b"/c"[..])), ("tank/a:b:/c", None)]
        );
    }

    #[test]
    fn paths_may_be_any_bytes() {
        let t = Target::parse(OsStr::from_bytes(b"tank@s:\xff"));
        assert_eq!(t.readings, [("tank@s".to_owned(), Some(vec![0xff]))]);
        assert_eq!(t.pool(), "tank");
    }
}
