//! Numbers from samples, with bounds.

use std::collections::HashMap;

/// 95 % of a normal distribution lie within so many standard errors.
const Z: f64 = 1.96;

/// The mean of independent draws.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mean {
    n: f64,
    sum: f64,
    squares: f64,
}

impl Mean {
    /// Adds a draw.
    pub fn add(&mut self, x: f64) {
        self.n += 1.0;
        self.sum += x;
        self.squares += x * x;
    }

    /// The mean, and half the width of its 95 % confidence interval.
    pub fn get(&self) -> (f64, f64) {
        if self.n < 2.0 {
            return (self.sum, f64::INFINITY);
        }
        let mean = self.sum / self.n;
        let variance = ((self.squares - self.sum * mean) / (self.n - 1.0)).max(0.0);
        (mean, Z * (variance / self.n).sqrt())
    }

    /// Savings when the mean is the stored share, in percent: lower bound, estimate, upper bound.
    pub fn saved(&self) -> [f64; 3] {
        let (mean, error) = self.get();
        [mean + error, mean, mean - error].map(|stored| (100.0 * (1.0 - stored)).clamp(-100.0, 100.0))
    }
}

/// Different contents among all blocks, from a sample without replacement.
#[derive(Debug, Default)]
pub struct Distinct {
    times: HashMap<[u64; 4], u64>,
    read: u64,
}

impl Distinct {
    /// Adds a block's fingerprint.
    pub fn add(&mut self, print: [u64; 4]) {
        *self.times.entry(print).or_default() += 1;
        self.read += 1;
    }

    /// The number of contents among `all` blocks: least, estimate (GEE), most. Exact if all were read.
    pub fn get(&self, all: u64) -> [f64; 3] {
        let (all, read) = (all.max(self.read) as f64, self.read.max(1) as f64);
        let once = self.times.values().filter(|times| **times == 1).count() as f64;
        let seen = self.times.len() as f64;
        let with = |factor: f64| (seen - once + factor * once).min(seen + all - read);
        [with(1.0), with((all / read).sqrt()), with(all / read)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_its_error() {
        let mut mean = Mean::default();
        [0.4, 0.6, 0.4, 0.6].into_iter().for_each(|x| mean.add(x));
        let (value, error) = mean.get();
        assert!((value - 0.5).abs() < 1e-9 && (error - 1.96 * (0.04 / 3.0_f64 / 4.0).sqrt()).abs() < 1e-9);
        let [low, mid, high] = mean.saved();
        assert!(low < mid && mid < high && (mid - 50.0).abs() < 1e-9);
    }

    #[test]
    fn bounds_of_contents_hold_the_truth() {
        // 1000 contents, each in 10 of 10000 blocks; 500 blocks are read.
        let mut random = stdx::rng::Rng::new(1);
        let mut blocks: Vec<u64> = (0..10_000).map(|n| n % 1000).collect();
        let mut distinct = Distinct::default();
        for _ in 0..500 {
            let at = random.below(blocks.len() as u64) as usize;
            distinct.add([blocks.swap_remove(at), 0, 0, 0]);
        }
        let [low, mid, high] = distinct.get(10_000);
        assert!(low < 1000.0 && 1000.0 < high && low < mid && mid < high, "{low} {mid} {high}");
        blocks.into_iter().for_each(|n| distinct.add([n, 0, 0, 0]));
        assert_eq!(distinct.get(10_000), [1000.0; 3]);
    }
}
