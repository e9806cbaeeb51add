//! Numbers for people, and from people, as libzfs writes and reads them.

use std::fmt;

use thiserror::Error;

/// Units that [`Nice`] counts in.
#[doc(alias = "zfs_nicenum_format")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Powers of 1024, plain below: `999`, `1.50K`.
    Count,
    /// Powers of 1024, `B` below: `999B`, `1.50K`.
    Bytes,
    /// Nanoseconds, in powers of 1000 and whole units: `1us`; nothing is `-`.
    Time,
}

impl Unit {
    fn base(self) -> u64 {
        if self == Self::Time { 1000 } else { 1024 }
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Count => &["", "K", "M", "G", "T", "P", "E"],
            Self::Bytes => &["B", "K", "M", "G", "T", "P", "E"],
            Self::Time => &["ns", "us", "ms", "s", "?"],
        }
    }
}

/// A number that shows in at most five columns: a whole number of its unit without a fraction, any other with as many
/// decimals as fit, two at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nice(pub u64, pub Unit);

/// A count: `10.2M`.
#[doc(alias = "zfs_nicenum")]
#[doc(alias = "zdb_nicenum")]
pub fn nicenum(n: u64) -> Nice {
    Nice(n, Unit::Count)
}

/// Bytes: `10.2M`, `512B`.
#[doc(alias = "zfs_nicebytes")]
pub fn nicebytes(n: u64) -> Nice {
    Nice(n, Unit::Bytes)
}

/// Nanoseconds: `15us`.
#[doc(alias = "zfs_nicetime")]
pub fn nicetime(n: u64) -> Nice {
    Nice(n, Unit::Time)
}

impl fmt::Display for Nice {
    /// Honours width and alignment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_nice(self.0, self.1))
    }
}

fn format_nice(n: u64, unit: Unit) -> String {
    if n == 0 && unit == Unit::Time {
        return "-".into();
    }
    let (mut scale, mut whole, mut names) = (1u64, n, unit.names().iter().copied().peekable());
    let mut name = names.next().unwrap_or_default();
    while whole >= unit.base() && names.peek().is_some() {
        whole /= unit.base();
        scale = scale.saturating_mul(unit.base());
        name = names.next().unwrap_or_default();
    }
    if unit == Unit::Time || scale == 1 || n.is_multiple_of(scale) {
        return format!("{whole}{name}");
    }
    let value = n as f64 / scale as f64;
    let decimals = [2, 1].into_iter().map(|places| format!("{value:.places$}{name}"));
    decimals.into_iter().find(|text| text.len() <= 5).unwrap_or_else(|| format!("{value:.0}{name}"))
}

/// A ratio kept in hundredths: `1.00x`; with `{:#}` without the `x`, as `-p` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(pub u64);

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if f.alternate() { "" } else { "x" };
        f.pad(&format!("{}.{:02}{unit}", self.0 / 100, self.0 % 100))
    }
}

/// A percentage: `19%`; with `{:#}` without the sign, as `-p` prints it. `u64::MAX` is unknown: `-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.pad("-"),
            n if f.alternate() => f.pad(&n.to_string()),
            n => f.pad(&format!("{n}%")),
        }
    }
}

/// A number that can't be read. Displays in libzfs's words.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NumberError {
    /// Doesn't start with a digit or a point.
    #[error("bad numeric value '{0}'")]
    Bad(String),
    /// Goes on with something else than a unit.
    #[error("invalid numeric suffix '{0}'")]
    Suffix(String),
    /// Doesn't fit into 64 bits.
    #[error("numeric value is too large")]
    TooLarge,
}

/// Reads a number with an optional unit: `512`, `1.5G`, `10kb`, `3TiB`. Units are powers of 1024.
#[doc(alias = "zfs_nicestrtonum")]
pub fn parse_nicenum(text: &str) -> Result<u64, NumberError> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(NumberError::Bad(text.into()));
    }
    let digits = digits_len(text);
    let (whole, rest) = text.split_at_checked(digits).unwrap_or((text, ""));
    if rest.starts_with('.') {
        return parse_fraction(text);
    }
    let number: u64 = whole.parse().map_err(|_| NumberError::TooLarge)?;
    let shift = unit_shift(rest)?;
    let shifted = number.checked_shl(shift).filter(|shifted| shifted >> shift == number);
    shifted.ok_or(NumberError::TooLarge)
}

fn digits_len(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn parse_fraction(text: &str) -> Result<u64, NumberError> {
    let (number, rest) = text.split_at_checked(float_len(text)).unwrap_or((text, ""));
    let value: f64 = number.parse().map_err(|_| NumberError::Suffix(text.into()))?;
    let value = value * 2f64.powi(unit_shift(rest)? as i32);
    // The cast would clamp: 2^64 itself is the first number that doesn't fit.
    if value >= 2f64.powi(64) { Err(NumberError::TooLarge) } else { Ok(value as u64) }
}

/// Length of the longest start that is a decimal fraction, an exponent included.
fn float_len(text: &str) -> usize {
    let whole = digits_len(text);
    let after = |at: usize| text.get(at..).unwrap_or_default();
    let mantissa = whole + 1 + digits_len(after(whole + 1));
    let tail = after(mantissa);
    let Some(exponent) = tail.strip_prefix(['e', 'E']) else {
        return mantissa;
    };
    let sign = usize::from(exponent.starts_with(['+', '-']));
    match digits_len(exponent.get(sign..).unwrap_or_default()) {
        0 => mantissa,
        digits => mantissa + 1 + sign + digits,
    }
}

/// The factor of a unit, as a power of two: none, `B`, or `K` to `Z`, the latter optionally with `B` or `iB`.
fn unit_shift(unit: &str) -> Result<u32, NumberError> {
    let upper = unit.to_ascii_uppercase();
    let mut chars = upper.chars();
    let Some(first) = chars.next() else { return Ok(0) };
    let rest = chars.as_str();
    let power = "BKMGTPEZ".find(first).filter(|_| match rest {
        "" => true,
        "B" | "IB" => first != 'B',
        _ => false,
    });
    power.map(|power| power as u32 * 10).ok_or_else(|| NumberError::Suffix(unit.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_libzfs_writes_them() {
        let golden = include_str!("../tests/data/nicenum.txt");
        for line in golden.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let n: u64 = fields[0].parse().unwrap();
            let ours = [nicenum(n), nicebytes(n), nicetime(n)].map(|nice| nice.to_string());
            assert_eq!(ours, fields[1..], "{n}");
        }
        assert!(golden.lines().count() > 100);
    }

    #[test]
    fn columns_ratios_percents() {
        assert_eq!(format!("{:>6}|{:<6}|", nicenum(1536), nicebytes(1)), " 1.50K|1B    |");
        assert_eq!(format!("{} {:#} {:>6}", Ratio(251), Ratio(100), Ratio(1234)), "2.51x 1.00 12.34x");
        assert_eq!(format!("{} {:#} {}", Percent(19), Percent(8), Percent(u64::MAX)), "19% 8 -");
    }

    #[test]
    fn numbers_are_read_as_libzfs_reads_them() {
        let good = [
            ("10", 10),
            ("10k", 10 << 10),
            ("1.5M", 3 << 19),
            ("1kb", 1 << 10),
            ("1KiB", 1 << 10),
            ("10g", 10 << 30),
            ("1p", 1 << 50),
            ("15e", 15 << 60),
            ("18446744073709551615", u64::MAX),
            ("1.5", 1),
            (".5k", 512),
            ("1b", 1),
            ("1.0001k", 1024),
            ("0.5", 0),
            ("010", 10),
            ("1.5e", 3 << 59),
        ];
        for (text, number) in good {
            assert_eq!(parse_nicenum(text), Ok(number), "{text}");
        }
        let bad =
            ["", "k", "-1", " 10", "0x10", "1 k", "1kk", "1kbb", "1e3", "10T ", "20.1.1k", "1,5k", ".", "1é"];
        for text in bad.into_iter().chain(["1z", "16e", "18446744073709551616", "16.0e"]) {
            assert!(parse_nicenum(text).is_err(), "{text}");
        }
        assert_eq!(parse_nicenum("16e").unwrap_err().to_string(), "numeric value is too large");
        assert_eq!(parse_nicenum("1kk").unwrap_err().to_string(), "invalid numeric suffix 'kk'");
        assert_eq!(parse_nicenum("x").unwrap_err().to_string(), "bad numeric value 'x'");
    }
}
