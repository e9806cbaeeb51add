//! Numbers and bars as zdb prints them.

use std::io::{self, Write};

use zcommon::units::{nicebytes, nicenum};

/// Widest bar of a histogram.
const WIDTH: u64 = 40;

/// The format of numbers: short, or exact with `-P`.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    /// Exact.
    pub exact: bool,
}

impl Numbers {
    /// A count.
    pub fn count(self, n: u64) -> String {
        if self.exact { n.to_string() } else { nicenum(n).to_string() }
    }

    /// Bytes.
    pub fn bytes(self, n: u64) -> String {
        if self.exact { n.to_string() } else { nicebytes(n).to_string() }
    }
}

/// Prints a histogram from its first bucket in use to its last; bucket i is labelled `i + offset`.
#[doc(alias = "dump_histogram")]
pub fn histogram(out: &mut dyn Write, counts: &[u64], offset: u64) -> io::Result<()> {
    let used = |n: &u64| *n != 0;
    let Some(first) = counts.iter().position(used) else { return Ok(()) };
    let last = counts.iter().rposition(used).unwrap_or(first);
    let most = counts.iter().copied().max().unwrap_or(0).max(WIDTH);
    for (bucket, &count) in counts.iter().enumerate().take(last + 1).skip(first) {
        let label = u64::try_from(bucket).unwrap_or(0).saturating_add(offset);
        let missing = u128::from(most - count) * u128::from(WIDTH) / u128::from(most);
        let stars = usize::try_from(WIDTH).unwrap_or(0) - usize::try_from(missing).unwrap_or(0);
        writeln!(out, "\t\t\t{label:>3}: {count:>6} {}", "*".repeat(stars))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_at_most_forty_stars() {
        let mut out = Vec::new();
        histogram(&mut out, &[0, 1, 0, 74, u64::MAX], 9).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].trim_end(), "\t\t\t 10:      1 *");
        assert!(lines.len() == 4 && lines[3].ends_with(&"*".repeat(40)));
        let mut out = Vec::new();
        histogram(&mut out, &[0; 8], 0).unwrap();
        assert!(out.is_empty());
    }
}
