//! Intent logs whose replay suspended a pool by an error of this program: the next import does not replay them, so that all
//! other file systems are mounted. Another version of the program tries again.
//!
//! A file with a line for each: the seed of the log's chain as two hexadecimal numbers, and the version.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use engine::spa::suspension::LogId;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Lines that are read.
const MAX_LINES: usize = 4096;

/// The file.
#[derive(Debug)]
pub(crate) struct BadLogs {
    path: PathBuf,
}

impl BadLogs {
    /// The file of this path, which may be missing.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Adds logs. The line is on disk when this returns.
    pub fn add(&self, logs: &[LogId]) -> io::Result<()> {
        if logs.is_empty() {
            return Ok(());
        }
        let lines: String = logs.iter().map(|[a, b]| format!("{a:016x} {b:016x} {VERSION}\n")).collect();
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(lines.as_bytes())?;
        file.sync_all()
    }

    /// Returns the logs that this version has noted; none if the file cannot be read.
    pub fn read(&self) -> Vec<LogId> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().take(MAX_LINES).filter_map(parse).collect()
    }
}

fn parse(line: &str) -> Option<LogId> {
    let mut words = line.split(' ');
    let mut number = || u64::from_str_radix(words.next()?, 16).ok();
    let log = [number()?, number()?];
    (words.next() == Some(VERSION)).then_some(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_logs_that_this_version_noted_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bad-logs");
        let notes = BadLogs::at(path.clone());
        assert!(notes.read().is_empty());
        notes.add(&[]).unwrap();
        assert!(!path.exists());
        notes.add(&[[1, u64::MAX], [2, 3]]).unwrap();
        notes.add(&[[4, 5]]).unwrap();
        let mut text = fs::read_to_string(&path).unwrap();
        text += "0000000000000006 0000000000000007 0.0.0-other\nnonsense\n";
        fs::write(&path, text).unwrap();
        assert_eq!(notes.read(), [[1, u64::MAX], [2, 3], [4, 5]]);
    }
}
