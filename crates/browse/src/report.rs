//! Collects errors for a report at the end: damage is listed, and the work continues.

use std::fmt::Write;
use std::io;

use clikit::ctx::Ctx;
use clikit::progress::Progress;
use clikit::verb::{Exit, Failure};
use engine::Error;
use engine::dmu::Unreadable;

use super::text::shown;

/// Maximum listed ranges of one file.
const MAX_RANGES: usize = 16;
/// Maximum files listed one by one at the end.
const MAX_LISTED: usize = 1000;

/// Damage and failures so far.
#[derive(Debug, Default)]
pub struct Report {
    lines: Vec<String>,
    more: u64,
    /// Unreadable bytes that were written as zeros.
    pub lost: u64,
}

impl Report {
    fn line(&mut self, line: String, progress: Option<&Progress>) {
        if let Some(progress) = progress {
            progress.println(&line);
        }
        match self.lines.len() < MAX_LISTED {
            true => self.lines.push(line),
            false => self.more += 1,
        }
    }

    /// Records a file or directory that could not be read at all, or not be written.
    pub fn failed(&mut self, path: &[u8], why: impl std::fmt::Display, progress: Option<&Progress>) {
        self.line(format!("{}: {why}", shown(path)), progress);
    }

    /// Records a path that the engine could not read.
    pub fn unreadable(&mut self, path: &[u8], e: &Error, progress: Option<&Progress>) {
        self.failed(path, e, progress);
    }

    /// Records ranges of a file that could not be read.
    pub fn damaged(&mut self, path: &[u8], bad: &[Unreadable], progress: Option<&Progress>) {
        if bad.is_empty() {
            return;
        }
        self.lost = bad.iter().fold(self.lost, |n, u| n.saturating_add(u.range.end - u.range.start));
        let mut line = format!("{}: unreadable bytes (zeros instead):", shown(path));
        for u in bad.iter().take(MAX_RANGES) {
            let _ = write!(line, " {}-{}", u.range.start, u.range.end.saturating_sub(1));
        }
        if bad.len() > MAX_RANGES {
            let _ = write!(line, " and {} ranges more", bad.len() - MAX_RANGES);
        }
        if let Some(first) = bad.first() {
            let _ = write!(line, ": {}", first.error);
        }
        self.line(line, progress);
    }

    /// Whether no error has occurred so far.
    pub fn is_clean(&self) -> bool {
        self.lines.is_empty()
    }

    /// Lists all errors again at the end and returns the exit code.
    pub fn finish(self, verb: &str, ctx: &mut Ctx) -> Exit {
        if self.is_clean() {
            return Exit::OK;
        }
        let files = self.lines.len() as u64 + self.more;
        ctx.warn(format!("{verb}: {files} could not be read or written in full:"));
        for line in &self.lines {
            ctx.warn(format!("  {line}"));
        }
        if self.more > 0 {
            ctx.warn(format!("  and {} more", self.more));
        }
        if self.lost > 0 {
            ctx.warn(format!("{verb}: {} bytes are lost", self.lost));
        }
        Exit::FAILED
    }
}

/// A failure to write to the destination, after which the verb cannot continue.
pub fn cannot_write(path: impl std::fmt::Display, e: io::Error) -> Failure {
    Failure::failed(format!("cannot write {path}: {e}"))
}
