//! Results as plain lines, `OUTCOME group/test seconds words`, kept from run to run: a newer line replaces an older
//! one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Pass,
    Fail,
    /// The test itself says that it cannot run here.
    Skip,
    /// It was stopped on timeout.
    Late,
}

impl Outcome {
    /// The word of result lines.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Skip => "SKIP",
            Self::Late => "LATE",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::Pass, Self::Fail, Self::Skip, Self::Late].into_iter().find(|outcome| outcome.word() == word)
    }
}

/// One test's result.
#[derive(Debug, Clone)]
pub struct Line {
    pub outcome: Outcome,
    /// `group/test`.
    pub test: String,
    pub seconds: u64,
    /// The last line of a test that did not pass.
    pub words: String,
}

impl Line {
    /// Parses a line.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        Some(Self {
            outcome: Outcome::from_word(parts.next()?)?,
            test: parts.next()?.to_owned(),
            seconds: parts.next()?.parse().ok()?,
            words: parts.next().unwrap_or_default().to_owned(),
        })
    }

    /// The line as stored and displayed.
    pub fn text(&self) -> String {
        let line = format!("{} {} {} {}", self.outcome.word(), self.test, self.seconds, self.words);
        line.trim_end().to_owned()
    }
}

/// Passed, failed and skipped of some lines, in words.
pub fn tally(lines: &[Line]) -> String {
    let count = |outcome| lines.iter().filter(|line| line.outcome == outcome).count();
    let mut text = format!("{} passed", count(Outcome::Pass));
    for (outcome, word) in [(Outcome::Fail, "failed"), (Outcome::Late, "late"), (Outcome::Skip, "skipped")] {
        if count(outcome) > 0 {
            let _ = write!(text, ", {} {word}", count(outcome));
        }
    }
    text
}

/// Keeps the results in a folder if they are of this suite and, where one is given, of this binary; otherwise they move to
/// `results.old`.
pub fn begin(out: &Path, suite: &Path, binary: Option<&Path>) -> Result<(), String> {
    let told = |e: std::io::Error| format!("{}: {e}", out.display());
    fs::create_dir_all(out).map_err(told)?;
    let mut marks = vec![("suite", stamp(suite)?)];
    if let Some(binary) = binary {
        marks.push(("build", stamp(binary)?));
    }
    marks.retain(|(name, stamp)| !fs::read_to_string(out.join(name)).is_ok_and(|text| text == *stamp));
    let lines = out.join("results");
    if !marks.is_empty() && lines.exists() {
        fs::rename(&lines, out.join("results.old")).map_err(told)?;
    }
    marks.into_iter().try_for_each(|(name, stamp)| fs::write(out.join(name), stamp).map_err(told))
}

/// Path, size and time of a file: another release's has others.
fn stamp(file: &Path) -> Result<String, String> {
    let meta = fs::metadata(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let modified = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Ok(format!("{} {} {}\n", file.display(), meta.len(), modified.as_nanos()))
}

/// The results of all tests that were run.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    lines: BTreeMap<String, Line>,
}

impl Results {
    /// Reads the results of earlier runs.
    pub fn open(path: &Path) -> Result<Self, String> {
        let text = if path.exists() {
            fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?
        } else {
            String::new()
        };
        let lines = text.lines().filter_map(Line::parse).map(|line| (line.test.clone(), line)).collect();
        Ok(Self { path: path.to_owned(), lines })
    }

    /// Adds newer lines and writes the file.
    pub fn merge(&mut self, lines: Vec<Line>) -> Result<(), String> {
        // Another run may have added its own meanwhile.
        self.lines.extend(Self::open(&self.path)?.lines);
        self.lines.extend(lines.into_iter().map(|line| (line.test.clone(), line)));
        let text: String = self.lines.values().map(|line| line.text() + "\n").collect();
        fs::write(&self.path, text).map_err(|e| format!("{}: {e}", self.path.display()))
    }

    /// Whether a test has a result.
    pub fn has(&self, test: &str) -> bool {
        self.lines.contains_key(test)
    }

    /// All lines, by name.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_another_suite_or_binary_are_set_aside() {
        let out = std::env::temp_dir().join(format!("aquifer-zts-results-{}", std::process::id()));
        fs::create_dir_all(&out).unwrap();
        let file = |name: &str| {
            let path = out.join(name);
            fs::write(&path, name).unwrap();
            path
        };
        let (old, new, one, two) = (file("2.3.run"), file("2.4.run"), file("one"), file("two"));
        let line = || Line::parse("PASS acl/off/a 1").into_iter().collect();
        let kept = |suite: &Path, binary: Option<&Path>| {
            begin(&out, suite, binary).unwrap();
            let mut results = Results::open(&out.join("results")).unwrap();
            let has = results.has("acl/off/a");
            results.merge(line()).unwrap();
            has
        };
        let (build, other) = (Some(one.as_path()), Some(two.as_path()));
        assert!(!kept(&old, build) && kept(&old, build), "the same run");
        assert!(!kept(&new, build) && kept(&new, build), "another release");
        assert!(!kept(&new, other) && kept(&new, other), "another binary");
        assert!(kept(&new, None), "a single group keeps the results of other builds");
        assert!(!kept(&old, None), "but not those of another release");
        assert!(out.join("results.old").exists());
        fs::remove_dir_all(out).unwrap();
    }
}
