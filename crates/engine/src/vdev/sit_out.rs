//! Disks of a raidz or draid excluded from reads, because they are slow or the administrator wants it, and the search for
//! slow ones.
//!
//! Writes go to such a disk as before, and scrubs read it. The latencies of a vdev's disks are compared from time to time: one
//! that is far above the upper quartile, many times more often than its peers, sits out for some minutes.
//!
//! Source: `vdev_child_slow_outlier`, `vdev_raidz_sit_child`, vdev_raidz.c, OpenZFS 2.4. Differs from OpenZFS: the latency
//! of a `replacing` or `spare` vdev is that of its leaves, and latencies are not rounded to powers of two.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Vdevs of fewer children are not judged. With just as many, a single slow child moves the upper quartile and is not found, as
/// in OpenZFS.
#[doc(alias = "LAT_CHILDREN_MIN")]
pub(crate) const FEWEST: usize = 5;
/// A child sits out when it was found slow more often than so.
#[doc(alias = "LAT_OUTLIER_LIMIT")]
const PATIENCE: u64 = 20;
/// All counts go down by this when a vdev has had as many findings as children.
const DECAY: u64 = 2;

/// The time of a leaf that sits out until it is told otherwise.
const BY_HAND: u64 = u64::MAX;

/// Whether a leaf sits out, and until when.
#[derive(Debug, Default)]
pub(crate) struct SitOut {
    /// Milliseconds of the pool's clock, or [`BY_HAND`]; 0: it does not sit out.
    until: AtomicU64,
    /// Reads heed it.
    on: AtomicBool,
}

impl SitOut {
    /// Whether reads do without the leaf.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Begins: until this time, or without an end.
    pub(crate) fn begin(&self, until: Option<Duration>) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(BY_HAND).max(1);
        self.until.store(until.map_or(BY_HAND, millis), Ordering::Relaxed);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Ends.
    #[doc(alias = "vdev_raidz_unsit_child")]
    pub(crate) fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
        self.on.store(false, Ordering::Relaxed);
    }

    /// Ends when its time is over; `now` is asked when there is an end. Unless it `may` be, the leaf is read as others are
    /// meanwhile.
    pub(crate) fn check(&self, now: &mut dyn FnMut() -> Duration, may: bool) {
        let until = self.until.load(Ordering::Relaxed);
        match until {
            0 => {}
            BY_HAND => self.on.store(may, Ordering::Relaxed),
            _ if now() > Duration::from_millis(until) => self.end(),
            _ => self.on.store(may, Ordering::Relaxed),
        }
    }
}

/// One child of a vdev at a judgement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    /// Its guid.
    pub(crate) guid: u64,
    /// Mean latency of its reads since it was last asked for; `None`: there were none.
    pub(crate) latency: Option<u64>,
    /// It sits out already, or does not work as it should.
    pub(crate) is_out: bool,
}

/// Earlier judgements of the children of one vdev.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// When they were judged last.
    last: Option<Duration>,
    /// Findings since the counts went down.
    #[doc(alias = "vdev_outlier_count")]
    findings: u64,
    counts: BTreeMap<u64, u64>,
    /// Sums and numbers of latencies that wait until all children have been read.
    waiting: BTreeMap<u64, (u64, u64)>,
}

impl Peers {
    /// Whether a judgement is due.
    pub(crate) fn is_due(&mut self, now: Duration, interval: Duration) -> bool {
        let due = self.last.is_none_or(|last| now.saturating_sub(last) >= interval);
        if due {
            self.last = Some(now);
        }
        due
    }

    /// Forgets the findings about a child.
    pub(crate) fn forget(&mut self, guid: u64) {
        self.counts.remove(&guid);
    }

    /// The children with the latencies since all of them were read last; `None` until all have been read again, but for those
    /// that are out. Few reads meet each disk: parity is not read, and a block may have fewer columns than there are children.
    fn all_read(&mut self, peers: &[Peer]) -> Option<Vec<Peer>> {
        for (guid, time) in peers.iter().filter_map(|peer| Some((peer.guid, peer.latency?))) {
            let (sum, count) = self.waiting.entry(guid).or_default();
            (*sum, *count) = (sum.saturating_add(time), count.saturating_add(1));
        }
        let mean = |guid| self.waiting.get(&guid).and_then(|(sum, count)| sum.checked_div(*count));
        let all: Vec<Peer> = peers.iter().map(|peer| Peer { latency: mean(peer.guid), ..*peer }).collect();
        let is_missing = |peer: &Peer| !peer.is_out && peer.latency.is_none_or(|time| time == 0);
        if all.iter().any(is_missing) {
            return None;
        }
        self.waiting.clear();
        Some(all)
    }

    /// Compares the children; returns the guid of one that has been slow too often. `factor` is the distance from the upper
    /// quartile, in interquartile ranges, from which on a child is slow.
    #[doc(alias = "vdev_child_slow_outlier")]
    pub(crate) fn judge(&mut self, peers: &[Peer], parity: usize, factor: u64) -> Option<u64> {
        let out = peers.iter().filter(|peer| peer.is_out).count();
        if peers.len() < FEWEST || out >= parity {
            self.waiting.clear();
            return None;
        }
        let peers = &self.all_read(peers)?[..];
        let slowest = peers.iter().max_by_key(|peer| peer.latency.unwrap_or(0))?;
        let (fence, range) = fence(peers.iter().map(|peer| peer.latency.unwrap_or(0)).collect(), factor)?;
        let beyond = slowest.latency?.checked_sub(fence).filter(|beyond| *beyond > 0 && !slowest.is_out)?;
        let weight = beyond.checked_div(range).unwrap_or(0).clamp(1, PATIENCE / 4);
        self.findings += weight;
        if self.findings >= peers.len() as u64 {
            self.counts.values_mut().for_each(|count| *count = count.saturating_sub(DECAY));
            self.findings = 0;
        }
        let count = self.counts.entry(slowest.guid).or_insert(0);
        *count += weight;
        if *count <= PATIENCE {
            return None;
        }
        self.counts.clear();
        Some(slowest.guid)
    }
}

/// The latency from which on a child is slow, and the interquartile range, which counts as a quarter of the lower quartile at
/// least.
#[doc(alias = "latency_quartiles_fence")]
fn fence(mut latencies: Vec<u64>, factor: u64) -> Option<(u64, u64)> {
    latencies.sort_unstable();
    let half = latencies.len() / 2;
    let lower = median(latencies.get(..half)?)?;
    let upper = median(latencies.get(latencies.len() - half..)?)?;
    let range = (upper - lower).max(lower / 4);
    Some((upper.saturating_add(range.saturating_mul(factor)), range))
}

#[doc(alias = "latency_median_value")]
fn median(sorted: &[u64]) -> Option<u64> {
    let middle = *sorted.get(sorted.len() / 2)?;
    match sorted.len() % 2 {
        0 => Some(sorted.get(sorted.len() / 2 - 1)?.midpoint(middle)),
        _ => Some(middle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(latencies: [u64; 7]) -> Vec<Peer> {
        (1..).zip(latencies).map(|(guid, n)| Peer { guid, latency: Some(n), is_out: false }).collect()
    }

    #[test]
    fn the_fence_is_fifty_ranges_above_the_upper_quartile() {
        assert_eq!(fence(vec![9, 1, 2, 8, 5], 50), Some((8 + 50 * 7, 7)));
        assert_eq!(fence(vec![100, 100, 100, 100, 100, 100], 50), Some((100 + 50 * 25, 25)));
    }

    #[test]
    fn a_child_that_is_slow_time_and_again_sits_out() {
        let slow = peers([1000, 1100, 900, 1000, 1000, 1000, 200_000]);
        let mut known = Peers::default();
        let found = (1..=10).find(|_| known.judge(&slow, 1, 50) == Some(7));
        // Five counts each time, and two are lost every second time.
        assert_eq!(found, Some(5));
        assert!(known.counts.is_empty(), "all begin anew");
    }

    #[test]
    fn nothing_is_found_without_parity_to_spare_or_reads_of_all_or_a_clear_difference() {
        let slow = peers([1000, 1100, 900, 1000, 1000, 1000, 200_000]);
        let judge = |peers: &[Peer], parity| {
            let mut known = Peers::default();
            (0..100).find_map(|_| known.judge(peers, parity, 50))
        };
        let mut out = slow.clone();
        out[0].is_out = true;
        assert_eq!((judge(&out, 1), judge(&slow[3..], 1)), (None, None));
        let mut unread = slow.clone();
        unread[1].latency = None;
        let near = peers([1000, 1100, 900, 1000, 1000, 1000, 10_000]);
        assert_eq!((judge(&unread, 2), judge(&near, 2)), (None, None));
        // With more parity a second one may sit out.
        assert_eq!(judge(&out, 2), Some(7));
    }

    #[test]
    fn reads_that_meet_some_children_count_once_all_have_been_read() {
        let slow = peers([1000, 1100, 900, 1000, 1000, 1000, 200_000]);
        let mut known = Peers::default();
        let read = |even: bool| -> Vec<Peer> {
            let met = |peer: &Peer| (peer.guid % 2 == 0) == even;
            slow.iter().map(|peer| Peer { latency: peer.latency.filter(|_| met(peer)), ..*peer }).collect()
        };
        let found = (0..20).find(|turn| known.judge(&read(turn % 2 == 0), 1, 50) == Some(7));
        assert_eq!(found, Some(9), "the fifth time that all have been read");
    }

    #[test]
    fn it_ends_with_its_time_and_does_not_count_while_it_is_forbidden() {
        let (sit, at) = (SitOut::default(), Duration::from_secs);
        sit.begin(Some(at(10)));
        sit.check(&mut || at(10), true);
        assert!(sit.is_on());
        sit.check(&mut || at(10), false);
        assert!(!sit.is_on());
        sit.check(&mut || at(10), true);
        assert!(sit.is_on());
        sit.check(&mut || at(11), true);
        assert!(!sit.is_on());
        sit.begin(None);
        sit.check(&mut || at(1 << 40), true);
        assert!(sit.is_on());
        sit.end();
        assert!(!sit.is_on());
    }
}
