//! Statistics of the last txgs, for the kstat `txgs`.
//!
//! Differs from OpenZFS: a txg is open until it is written, so the times of quiescing and waiting are part of the time in which
//! it is open.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use parking_lot::Mutex;

use super::Spa;
use crate::memory::Limit;

/// The statistics of a txg.
#[doc(alias = "spa_txg_history_t")]
#[derive(Debug, Clone, Copy, Default)]
struct Record {
    txg: u64,
    birth: Duration,
    start: Duration,
    /// `None` while it is being written.
    end: Option<Duration>,
    dirty: u64,
    /// Bytes read and written by the devices, requests of both kinds: before the txg was written, then by it.
    traffic: [u64; 4],
}

#[derive(Debug, Default)]
struct Records {
    all: VecDeque<Record>,
    /// When the open txg was opened.
    opened: Duration,
}

/// The records of a pool.
#[derive(Debug, Default)]
pub(super) struct TxgHistory(Mutex<Records>);

impl TxgHistory {
    /// A txg is about to be written.
    pub(crate) fn starts(&self, spa: &Spa, txg: u64) {
        let (start, traffic) = (spa.pool.env.clock.monotonic(), traffic(spa));
        let most = usize::try_from(spa.pool.env.memory.limits.get(Limit::TxgHistory)).unwrap_or(usize::MAX);
        let mut records = self.0.lock();
        let birth = std::mem::replace(&mut records.opened, start);
        let record = Record { txg, birth, start, end: None, dirty: spa.dirty.memory_of(txg), traffic };
        records.all.push_back(record);
        let surplus = records.all.len().saturating_sub(most);
        records.all.drain(..surplus);
    }

    /// It is on disk.
    pub(crate) fn ends(&self, spa: &Spa, txg: u64) {
        let (end, traffic) = (spa.pool.env.clock.monotonic(), traffic(spa));
        let mut records = self.0.lock();
        if let Some(record) = records.all.back_mut().filter(|record| record.txg == txg) {
            record.end = Some(end);
            let mut now = traffic.into_iter();
            record.traffic = record.traffic.map(|before| now.next().unwrap_or(0).saturating_sub(before));
        }
    }
}

impl Spa {
    /// The statistics of the last txgs, as a table in the form of `/proc/spl/kstat/zfs/POOL/txgs`, without its first line.
    #[doc(alias = "spa_txg_history_show")]
    pub fn txg_history(&self) -> String {
        let mut text = format!(
            "{:<8} {:<16} {:<5} {:<12} {:<12} {:<12} {:<8} {:<8} {:<12} {:<12} {:<12} {:<12}\n",
            "txg",
            "birth",
            "state",
            "ndirty",
            "nread",
            "nwritten",
            "reads",
            "writes",
            "otime",
            "qtime",
            "wtime",
            "stime"
        );
        let records = self.txg_history.0.lock();
        let open = Record { txg: self.txgs.open(), birth: records.opened, ..Record::default() };
        for record in records.all.iter().chain([&open]) {
            let (state, traffic) = match (record.txg == open.txg, record.end) {
                (true, _) => ('O', [0; 4]),
                (false, None) => ('S', [0; 4]),
                (false, Some(_)) => ('C', record.traffic),
            };
            let [nread, nwritten, reads, writes] = traffic;
            let opened = record.start.saturating_sub(record.birth).as_nanos();
            let synced = record.end.map_or(0, |end| end.saturating_sub(record.start).as_nanos());
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:<8} {:<16} {state:<5} {:<12} {nread:<12} {nwritten:<12} {reads:<8} {writes:<8} {opened:<12} {:<12} {:<12} {synced:<12}",
                record.txg,
                record.birth.as_nanos(),
                record.dirty,
                0,
                0
            );
        }
        text
    }
}

/// Bytes that devices have read and written, and their requests.
fn traffic(spa: &Spa) -> [u64; 4] {
    let get = |number: &std::sync::atomic::AtomicU64| number.load(std::sync::atomic::Ordering::Relaxed);
    spa.pool.zio.tree().leaves().fold([0; 4], |[nread, nwritten, reads, writes], leaf| {
        [
            nread + get(&leaf.reads.bytes),
            nwritten + get(&leaf.writes.bytes),
            reads + get(&leaf.reads.count),
            writes + get(&leaf.writes.count),
        ]
    })
}
