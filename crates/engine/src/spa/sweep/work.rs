//! The steps of a sweep.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stdx::{AlignedBuf, Buf};
use zcommon::vdev::VdevState;

use super::{Sweep, SweepKind, SweepState, TrimOptions};
use crate::error::Result;
use crate::memory::Limit;
use crate::spa::Spa;
use crate::spa::activity::ActivityStep;
use crate::taskq::Promise;
use crate::vdev::leaf::Leaf;
use crate::vdev::plan::DATA_START;
use crate::vdev::stats::IoClass;
use crate::vdev::top::Top;

/// Ranges of a step, and how long it may take.
const RANGES: usize = 64;
const LONGEST: Duration = Duration::from_millis(100);
/// Bytes of a range that is lent to be trimmed: lent space cannot be allocated.
const TRIM_LENT: u64 = 16 << 20;

/// Result of one range.
enum Done {
    /// The walk continues behind it.
    On,
    /// The device is away.
    Away,
}

impl Sweep {
    /// The next step.
    pub(super) fn next(&self, spa: &Arc<Spa>) -> Result<ActivityStep> {
        let _held = self.step.lock();
        if self.progress.lock().state != SweepState::Active {
            return Ok(self.stop());
        }
        let tree = spa.pool.zio.tree();
        let guid = self.leaf();
        let Some((leaf, top)) = tree.leaf(guid).zip(tree.top_of(guid)) else {
            // The leaf has left the pool, or a change of the tree is about to give it another guid.
            return Ok(if spa.sweeps.has(self) { ActivityStep::Later } else { self.stop() });
        };
        if leaf.health().state == VdevState::Faulted {
            self.end(spa, SweepState::Canceled)?;
            return Ok(self.stop());
        }
        let may_go_on = leaf.is_writable() && !spa.free_space().is_reshaped(&top);
        let Some(child) = top.child_of(guid).filter(|_| may_go_on) else {
            return Ok(ActivityStep::Later);
        };
        self.meet_freed(spa)?;
        let clock = || spa.pool.env.clock.monotonic();
        let (began, mut turn) = (clock(), spa.jobs().turn());
        for _ in 0..RANGES {
            if self.is_too_fast(clock()) {
                return Ok(ActivityStep::Later);
            }
            match self.range(spa, (leaf, &top, child)) {
                Some(Done::On) => spa.jobs().pace(&mut turn, || {}),
                Some(Done::Away) => return Ok(ActivityStep::Later),
                None => {
                    self.end(spa, SweepState::Complete)?;
                    return Ok(self.stop());
                }
            }
            if clock().saturating_sub(began) > LONGEST || self.progress.lock().state != SweepState::Active {
                break;
            }
        }
        Ok(ActivityStep::More)
    }

    /// Before its first range, a trim waits until earlier frees are free space, so that it trims them too.
    #[doc(alias = "metaslab_disable")]
    fn meet_freed(&self, spa: &Spa) -> Result<()> {
        let begins = self.kind == SweepKind::Trim && self.progress.lock().cursor == 0;
        if begins { spa.sync_deferred() } else { Ok(()) }
    }

    /// The steps end, unless a command has started the sweep anew meanwhile.
    fn stop(&self) -> ActivityStep {
        self.runs.store(false, Ordering::Release);
        let again = self.progress.lock().state == SweepState::Active;
        if again && !self.runs.swap(true, Ordering::AcqRel) { ActivityStep::More } else { ActivityStep::Done }
    }

    fn end(&self, spa: &Arc<Spa>, state: SweepState) -> Result<()> {
        let Some(sweep) = spa.sweeps.get(self.kind, self.leaf()) else { return Ok(()) };
        spa.sync_task(move |spa, tx| {
            let is_active = sweep.progress.lock().state == SweepState::Active;
            if is_active { sweep.change(spa, state, TrimOptions::default(), tx) } else { Ok(()) }
        })
    }

    /// Whether the rate that the user gave is exceeded.
    #[doc(alias = "vdev_trim_calculate_rate")]
    fn is_too_fast(&self, now: Duration) -> bool {
        let mut progress = self.progress.lock();
        let (rate, bytes) = (progress.options.rate, progress.bytes);
        let since = *progress.since.get_or_insert(now);
        let allowed = u128::from(rate) * now.saturating_sub(since).as_millis() / 1000;
        self.kind == SweepKind::Trim && rate != 0 && bytes > 0 && u128::from(bytes) > allowed
    }

    /// Works on the next free range; `None` when there is none.
    fn range(&self, spa: &Spa, (leaf, top, child): (&Arc<Leaf>, &Top, u32)) -> Option<Done> {
        let limits = spa.limits();
        let most = match self.kind {
            SweepKind::Initialize => limits.get(Limit::InitializeChunk),
            SweepKind::Trim => limits.get(Limit::TrimExtentMax).min(TRIM_LENT),
        };
        let (cursor, offset) = {
            let progress = self.progress.lock();
            (progress.cursor, progress.offset)
        };
        let resumed = offset.saturating_sub(DATA_START);
        let least = if self.kind == SweepKind::Trim { limits.get(Limit::TrimExtentMin) } else { 1 };
        let only_used = self.kind == SweepKind::Trim && self.progress.lock().options.partial;
        let ((_, end), worked) =
            spa.space.with_free(top.id, cursor, top.logical_chunk(most), only_used, |start, end| {
                let mut reached = 0;
                for (from, to) in top.physical(child, start, end) {
                    let from = from.max(resumed);
                    if from >= to || to - from < least {
                        continue;
                    }
                    self.device(spa, leaf, from + DATA_START, to - from)?;
                    reached = to + DATA_START;
                }
                Ok::<u64, io::Error>(reached)
            })?;
        // Errors of the device are its health's business; one that is away is waited for.
        let reached = match worked {
            Err(_) if leaf.device().is_none() => return Some(Done::Away),
            Err(_) => 0,
            Ok(reached) => reached,
        };
        let mut progress = self.progress.lock();
        progress.cursor = end;
        if reached > progress.offset {
            progress.offset = reached;
            progress.changed = true;
        }
        Some(Done::On)
    }

    /// Fills or trims bytes of the device, and waits for that.
    fn device(&self, spa: &Spa, leaf: &Arc<Leaf>, offset: u64, len: u64) -> io::Result<()> {
        let promise = Promise::default();
        let theirs = promise.clone();
        let done = Box::new(move |result| theirs.set(result));
        match self.kind {
            SweepKind::Initialize => {
                let pattern = pattern(spa.limits().get(Limit::InitializeValue), len);
                leaf.write_parts(offset, vec![pattern], IoClass::Initialize, done);
            }
            SweepKind::Trim => {
                let erase = self.progress.lock().options.secure;
                leaf.trim(offset, len, erase, done);
            }
        }
        let result = promise.wait(&*spa.pool.env.executor);
        let mut progress = self.progress.lock();
        progress.bytes = progress.bytes.saturating_add(len);
        result
    }
}

/// A buffer of the same word again and again.
#[doc(alias = "vdev_initialize_block_fill")]
fn pattern(word: u64, len: u64) -> Buf {
    let mut buf = AlignedBuf::zeroed(usize::try_from(len).unwrap_or(0));
    let (words, _) = buf.as_chunks_mut::<8>();
    words.iter_mut().for_each(|slot| *slot = word.to_le_bytes());
    Buf::from(buf)
}
