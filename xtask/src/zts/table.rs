//! Writes docs/zts.md from the results: a row for each group, then the reasons for failures and skips.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::results::{Line, Outcome, Results};

/// Reasons recorded by hand: `group/test or the start of it`, a tab, the reason.
const REASONS: &str = include_str!("reasons.txt");

/// Writes the table.
pub fn write(results: &Results, path: &Path) -> Result<(), String> {
    let lines: Vec<&Line> = results.lines().collect();
    fs::write(path, text(&lines)).map_err(|e| format!("{}: {e}", path.display()))
}

fn text(lines: &[&Line]) -> String {
    let mut out = include_str!("head.md").to_owned();
    let mut groups: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for line in lines {
        let Some((group, _)) = line.test.rsplit_once('/') else { continue };
        let [passed, failed, skipped] = groups.entry(group).or_default();
        match line.outcome {
            Outcome::Pass => *passed += 1,
            Outcome::Fail | Outcome::Late => *failed += 1,
            Outcome::Skip => *skipped += 1,
        }
        if line.outcome != Outcome::Pass {
            reasons.entry(reason(line)).or_default().push(&line.test);
        }
    }
    let sum = |at: fn(&[usize; 3]) -> usize| groups.values().map(at).sum::<usize>();
    let _ = writeln!(out, "| group | passed | failed | skipped |\n|---|---|---|---|");
    for (group, [passed, failed, skipped]) in &groups {
        let _ = writeln!(out, "| {group} | {passed} | {failed} | {skipped} |");
    }
    let _ = writeln!(out, "| all | {} | {} | {} |", sum(|c| c[0]), sum(|c| c[1]), sum(|c| c[2]));
    let _ = writeln!(out, "\n## Reasons for failures and skips\n");
    for (reason, tests) in &reasons {
        let _ = writeln!(out, "- {reason} ({}): {}", tests.len(), tests.join(", "));
    }
    out
}

/// The recorded reason for a test, otherwise its own last line.
fn reason(line: &Line) -> String {
    let known = REASONS.lines().filter_map(|entry| entry.split_once('\t'));
    let best = known.filter(|(start, _)| line.test.starts_with(start)).max_by_key(|(start, _)| start.len());
    match (best, line.outcome) {
        (Some((_, reason)), _) => reason.to_owned(),
        (None, Outcome::Skip) => format!("skipped by the test itself: {}", line.words),
        (None, Outcome::Late) => "takes longer than the suite allows".to_owned(),
        (None, _) => "not looked into yet".to_owned(),
    }
}
