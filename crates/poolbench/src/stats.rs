//! The median of repeated runs, and the resource that limited them.

/// The resource that was busy during a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// A block device under the pool was busy for at least nine tenths of the time.
    Device,
    /// All processors of the machine were busy for at least nine tenths of the time.
    Cpu,
    /// Neither: waiting for each other, one busy thread, or a device without counters.
    Unknown,
}

impl Limit {
    /// The word in tables and JSON; empty if no limit is known.
    pub fn word(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Cpu => "cpu",
            Self::Unknown => "",
        }
    }
}

/// One run: units per second, and its limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    /// Units per second.
    pub rate: f64,
    /// Its limit.
    pub limit: Limit,
}

/// The result of all runs of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The median rate; of an even number of runs, the mean of the middle two.
    pub median: f64,
    /// The slowest run.
    pub min: f64,
    /// The fastest run.
    pub max: f64,
    /// Number of runs.
    pub runs: usize,
    /// The limit that more than half of the runs met.
    pub limit: Limit,
}

impl Figure {
    /// Summarizes runs; `None` without any.
    pub fn of(samples: &[Measurement]) -> Option<Self> {
        let mut rates: Vec<f64> = samples.iter().map(|sample| sample.rate).collect();
        rates.sort_by(f64::total_cmp);
        let (min, max) = (*rates.first()?, *rates.last()?);
        let middle = |at: usize| rates.get(at).copied().unwrap_or(min);
        let (low, high) = (middle((rates.len() - 1) / 2), middle(rates.len() / 2));
        let is_most = |limit: &Limit| {
            samples.iter().filter(|sample| sample.limit == *limit).count() * 2 > samples.len()
        };
        let limit = [Limit::Device, Limit::Cpu].into_iter().find(|l| is_most(l)).unwrap_or(Limit::Unknown);
        Some(Self { median: f64::midpoint(low, high), min, max, runs: rates.len(), limit })
    }

    /// Half the distance between the slowest and the fastest run, in percent of the median.
    pub fn spread(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / 2.0 / self.median * 100.0 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rates: &[f64], limit: Limit) -> Vec<Measurement> {
        rates.iter().map(|rate| Measurement { rate: *rate, limit }).collect()
    }

    #[test]
    fn medians_have_their_spread_and_the_limit_of_most_runs() {
        assert_eq!(Figure::of(&[]), None);
        let odd = Figure::of(&samples(&[30.0, 10.0, 20.0], Limit::Cpu)).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.runs, odd.limit), (20.0, 10.0, 30.0, 3, Limit::Cpu));
        assert!((odd.spread() - 50.0).abs() < 1e-9);
        let even = Figure::of(&samples(&[10.0, 20.0], Limit::Device)).unwrap();
        assert_eq!(even.median, 15.0);
        let mixed = [samples(&[1.0], Limit::Cpu), samples(&[1.0], Limit::Device)].concat();
        assert_eq!(Figure::of(&mixed).unwrap().limit, Limit::Unknown);
    }
}
