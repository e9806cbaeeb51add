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

/// The recorded reason for a test, otherwise the reason that its last line proves, otherwise that line.
fn reason(line: &Line) -> String {
    let known = REASONS.lines().filter_map(|entry| entry.split_once('\t'));
    let best = known.filter(|(start, _)| line.test.starts_with(start)).max_by_key(|(start, _)| start.len());
    match (best, line.outcome) {
        (Some((_, reason)), _) => reason.to_owned(),
        (None, Outcome::Skip) => format!("skipped by the test itself: {}", line.words),
        (None, Outcome::Late) => "takes longer than the suite allows".to_owned(),
        (None, _) => proved(&line.words),
    }
}

/// The reason that the last line of a failed test proves. A test that uses a volume's device, or sets a module parameter that
/// the daemon has no setting for, cannot get further; of any other test the line itself is shown.
fn proved(words: &str) -> String {
    let mut rest = words.split_whitespace();
    if words.contains("/dev/zvol") || words.starts_with("Volume device file should exist") {
        return "volumes are not block devices here: there is no `/dev/zvol`".to_owned();
    }
    match (rest.next(), rest.next()) {
        (Some("set_tunable32" | "set_tunable64" | "get_tunable"), Some(name)) => {
            format!("the daemon has no setting for the module parameter `{name}` of the suite")
        }
        _ => format!("not examined; its last line: `{}`", words.replace('`', "'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_prove_reasons() {
        let line = |words: &str| Line {
            outcome: Outcome::Fail,
            test: "no_group/t".into(),
            seconds: 1,
            words: words.into(),
        };
        assert!(
            reason(&line("dd if=/dev/zero of=/dev/zvol/p/v exited 1"))
                .starts_with("volumes are not block devices")
        );
        assert!(reason(&line("set_tunable32 SPA_X 1 exited 1")).contains("`SPA_X`"));
        assert_eq!(reason(&line("zfs a `b` exited 1")), "not examined; its last line: `zfs a 'b' exited 1`");
    }
}
