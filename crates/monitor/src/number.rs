//! Formats numbers like `arcstat` and `arc_summary`.

/// A number in a column of `width`: divided by `scale` until it is not larger, with one decimal if it is not whole
/// and there is room.
#[doc(alias = "prettynum")]
pub(super) fn narrow(value: f64, width: usize, scale: Option<f64>) -> String {
    const LETTERS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let (mut value, mut letters) = (value, LETTERS.iter());
    let mut letter = letters.next().copied().unwrap_or_default();
    while let Some(scale) = scale
        && value.abs() > scale
        && let Some(next) = letters.next()
    {
        (value, letter) = (value / scale, next);
    }
    let whole = format!("{value:.0}{letter}");
    let finer = format!("{value:.1}{letter}");
    if value.fract() == 0.0 || finer.len() > width { whole } else { finer }
}

/// A count for `zilstat`: divided by `scale` until it is not larger, with one decimal below 10.
pub(super) fn shortened(value: u64, scale: f64) -> String {
    const LETTERS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let (mut number, mut at) = (value as f64, 0);
    while number > scale && at + 1 < LETTERS.len() {
        (number, at) = (number / scale, at + 1);
    }
    let letter = LETTERS.get(at).copied().unwrap_or_default();
    match at {
        0 => value.to_string(),
        _ if number < 10.0 => format!("{number:.1}{letter}"),
        _ => format!("{:.0}{letter}", number.trunc()),
    }
}

/// Bytes: `5.4 GiB`, `376 Bytes`.
#[doc(alias = "f_bytes")]
pub(super) fn bytes(value: i64) -> String {
    const UNITS: [&str; 7] = ["Bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut number, mut at) = (value as f64, 0);
    while number.abs() >= 1024.0 && at + 1 < UNITS.len() {
        (number, at) = (number / 1024.0, at + 1);
    }
    let unit = UNITS.get(at).copied().unwrap_or_default();
    if at == 0 { format!("{value} {unit}") } else { format!("{number:.1} {unit}") }
}

/// Counts: `1.9k`, `123.5M`.
#[doc(alias = "f_hits")]
pub(super) fn hits(value: i64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let (mut number, mut at) = (value as f64, 0);
    while number.abs() >= 1000.0 && at + 1 < UNITS.len() {
        (number, at) = (number / 1000.0, at + 1);
    }
    let unit = UNITS.get(at).copied().unwrap_or_default();
    if at == 0 { value.to_string() } else { format!("{number:.1}{unit}") }
}

/// A part of a whole: `97.5 %`, `< 0.1 %`, `n/a`.
#[doc(alias = "f_perc")]
pub(super) fn percent(part: i64, whole: i64) -> String {
    if whole == 0 {
        return "n/a".to_owned();
    }
    let percent = 100.0 * part as f64 / whole as f64;
    if percent > 0.0 && percent < 0.1 { "< 0.1 %".to_owned() } else { format!("{percent:.1} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with the output of OpenZFS 2.3's arcstat.
    #[test]
    fn columns_are_used_as_arcstat_does() {
        let cases = [
            (7.25, 3, Some(1000.0), "7.2"),
            (99.96, 4, Some(1000.0), "100"),
            (99.96, 5, Some(1000.0), "100.0"),
            (666.6667, 4, None, "667"),
            (1234.0, 3, Some(1000.0), "1K"),
            (1234.0, 4, Some(1000.0), "1.2K"),
            (9999.0, 4, Some(1000.0), "10K"),
            (999_999.0, 5, Some(1000.0), "1000K"),
            (1024.0, 5, Some(1024.0), "1024"),
            (10_240.0, 5, Some(1024.0), "10K"),
            (99_999.0, 5, Some(1024.0), "97.7K"),
            (123_456_789.0, 5, Some(1024.0), "118M"),
            (-5000.0, 5, Some(1024.0), "-4.9K"),
            (0.04, 4, None, "0.0"),
            (0.0, 4, None, "0"),
        ];
        for (value, width, scale, text) in cases {
            assert_eq!(narrow(value, width, scale), text, "{value} {width}");
        }
    }

    #[test]
    fn summaries_have_units_of_their_own() {
        assert_eq!((bytes(376), bytes(6_815_744)), ("376 Bytes".into(), "6.5 MiB".into()));
        assert_eq!(
            (hits(999), hits(1_900), hits(123_500_000)),
            ("999".into(), "1.9k".into(), "123.5M".into())
        );
        assert_eq!(
            (percent(1, 0), percent(1, 100_000), percent(1, 40)),
            ("n/a".into(), "< 0.1 %".into(), "2.5 %".into())
        );
    }
}
