//! Formats modes, names and times of files.

use std::io::{self, Write};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use zpl::{Attr, FileKind, Time};

/// `drwxr-sr-t`.
pub fn mode_string(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::Regular => '-',
        other => other.letter(),
    };
    let p = attr.perm;
    let bit = |at: u32, c: char| if p & at != 0 { c } else { '-' };
    let exec = |at: u32, special: u32, with: char| match (p & at != 0, p & special != 0) {
        (true, true) => with,
        (false, true) => with.to_ascii_uppercase(),
        (true, false) => 'x',
        (false, false) => '-',
    };
    let chars = [
        kind,
        bit(0o400, 'r'),
        bit(0o200, 'w'),
        exec(0o100, 0o4000, 's'),
        bit(0o040, 'r'),
        bit(0o020, 'w'),
        exec(0o010, 0o2000, 's'),
        bit(0o004, 'r'),
        bit(0o002, 'w'),
        exec(0o001, 0o1000, 't'),
    ];
    chars.iter().collect()
}

/// Writes a name: unchanged, or for a terminal with `?` for control bytes.
pub fn write_name(out: &mut dyn Write, name: &[u8], terminal: bool) -> io::Result<()> {
    if !terminal {
        return out.write_all(name);
    }
    let text = String::from_utf8_lossy(name);
    let shown: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    out.write_all(shown.as_bytes())
}

/// A time in the user's zone, in a `strftime` format. A time beyond the calendar's range prints as a number.
pub fn local(time: Time, form: &str) -> String {
    let nsec = i32::try_from(time.nsec).unwrap_or(0);
    match Timestamp::new(time.sec, nsec) {
        Ok(t) => t.to_zoned(TimeZone::system()).strftime(form).to_string(),
        Err(_) => seconds(time, 9),
    }
}

/// Seconds since 1970 with `digits` digits of fraction, as `find` and `stat` print them: the fraction counts
/// upwards from the whole second, even before 1970.
pub fn seconds(time: Time, digits: usize) -> String {
    format!("{}.{:09}{}", time.sec, time.nsec, "0".repeat(digits.saturating_sub(9)))
}

/// A path for messages.
pub fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_find_prints_them() {
        assert_eq!(seconds(Time { sec: -1, nsec: 5 }, 10), "-1.0000000050");
        assert_eq!(local(Time { sec: i64::MAX, nsec: 0 }, "%Y"), format!("{}.000000000", i64::MAX));
    }

    #[test]
    fn terminals_are_not_driven_by_names() {
        let mut out = Vec::new();
        write_name(&mut out, b"a\x1b[31m", true).unwrap();
        assert_eq!(out, b"a?[31m");
    }
}
