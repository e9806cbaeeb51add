//! Numbers for people: at most five characters, in powers of 1024.

const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// `10.2M`, `96K`, `512`.
#[doc(alias = "zfs_nicenum")]
pub fn number(n: u64) -> String {
    with_unit(n, "")
}

/// As [`number`], but `512B`.
#[doc(alias = "zfs_nicebytes")]
pub fn bytes(n: u64) -> String {
    with_unit(n, "B")
}

fn with_unit(n: u64, smallest: &str) -> String {
    let index = (0..UNITS.len()).rev().find(|i| n >> (10 * i) != 0).unwrap_or(0);
    let unit = if index == 0 { smallest } else { UNITS.get(index).copied().unwrap_or("") };
    let base = 1_u64 << (10 * index);
    if n % base == 0 {
        return format!("{}{unit}", n / base);
    }
    let value = n as f64 / base as f64;
    let digits = [2, 1].into_iter().map(|d| format!("{value:.d$}{unit}"));
    digits.into_iter().find(|text| text.len() <= 5).unwrap_or_else(|| format!("{value:.0}{unit}"))
}

/// Hundredths as a ratio: `2.51x`, or `2.51` for programs.
pub fn ratio(hundredths: u64, literal: bool) -> String {
    let unit = if literal { "" } else { "x" };
    format!("{}.{:02}{unit}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_characters_hold_any_number() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1025, "1.00K"),
            (10_743_808, "10.2M"),
            (117_440_512, "112M"),
            (1_048_575, "1024K"),
            (123_456_789, "118M"),
            (u64::MAX, "16.0E"),
        ];
        cases.iter().for_each(|(n, text)| assert_eq!(number(*n), *text));
        assert_eq!((bytes(0), bytes(512), bytes(2048)), ("0B".into(), "512B".into(), "2K".into()));
        assert_eq!((ratio(251, false), ratio(100, true)), ("2.51x".into(), "1.00".into()));
    }
}
