//! Formats ratios of properties.

/// Hundredths as a ratio: `2.51x`, or `2.51` with `-p`.
pub fn ratio(hundredths: u64, literal: bool) -> String {
    let unit = if literal { "" } else { "x" };
    format!("{}.{:02}{unit}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_decimals() {
        assert_eq!((ratio(251, false), ratio(100, true)), ("2.51x".into(), "1.00".into()));
    }
}
