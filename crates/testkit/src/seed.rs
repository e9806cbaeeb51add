//! The first seed of random tests: another one each day, so that runs of the suite do not repeat each other.

use stdx::clock::{Clock, SystemClock};

/// The variable that sets the first seed.
const VARIABLE: &str = "AQUIFER_SEED";
/// Seeds between those of two days, so that no test uses seeds of the day before.
const OF_A_DAY: u64 = 1000;

/// The first seed of a test: the value of `AQUIFER_SEED`, otherwise a thousand for each day since 1970.
///
/// Prints the command that runs the test with this seed again; the output of a test is shown when it fails.
pub fn first(package: &str, test: &str) -> u64 {
    let seed = std::env::var(VARIABLE).ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| of_day(SystemClock::default().wall().0));
    println!("seed {seed}; again: {VARIABLE}={seed} cargo test -p {package} --test {test}");
    seed
}

/// The first seed of the day of a moment, in seconds since 1970.
fn of_day(seconds: i64) -> u64 {
    u64::try_from(seconds / 86_400).unwrap_or(0) * OF_A_DAY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_day_has_its_own_seeds() {
        let (noon, midnight) = (20_787 * 86_400 + 43_200, 20_788 * 86_400);
        assert_eq!(
            [of_day(noon), of_day(midnight - 1), of_day(midnight)],
            [20_787_000, 20_787_000, 20_788_000]
        );
        assert_eq!(of_day(-1), 0);
    }
}
