//! Encoders, shared by all threads, and the limit of their memory.
//!
//! The workspace of an encoder grows with level and block, from 0.1 MiB to 82 MiB (level 19, 16 MiB). Small ones are in
//! use without a limit: a thread has at most one. Large ones have a limit together, and wait for each other in the order
//! in which they came. Unused encoders are kept up to a limit, until [`release_idle`] frees them.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use zstd_safe::{CCtx, CParameter, FrameFormat, ResetDirective};

use super::{HEADER_LEN, Header, Level};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Workspaces up to this size have no limit.
const SMALL: usize = 4 * MIB;
/// Bytes that all large workspaces together may take for each processor, and in a machine with few of them.
const LARGE_PER_PROCESSOR: usize = 32 * MIB;
const LARGE_LEAST: usize = 64 * MIB;
/// Bytes of one unused encoder that is kept, and of all of them.
const KEPT_EACH: usize = 16 * MIB;
const KEPT_ALL: usize = 32 * MIB;

/// Maximum bytes of the workspace of an encoder for a block of `len` bytes.
///
/// The first bound of a level are its tables for long blocks, by measurement (zstd 1.5.7); tables for shorter blocks are
/// proportional to the block.
pub fn workspace(level: Level, len: usize) -> usize {
    let most = match level.for_encoder() {
        ..=2 => MIB,
        3 => MIB + 256 * KIB,
        4..=6 => 3 * MIB,
        7 | 8 => 5 * MIB + 512 * KIB,
        9 => 10 * MIB + 512 * KIB,
        10 | 11 => 20 * MIB + 512 * KIB,
        12 => 40 * MIB + 512 * KIB,
        13 | 16 => 33 * MIB,
        14 | 17 | 18 => 49 * MIB + 512 * KIB,
        15 => 64 * MIB + 512 * KIB,
        _ => 82 * MIB,
    };
    most.min(len.saturating_mul(20).saturating_add(MIB))
}

struct Idle {
    context: CCtx<'static>,
    /// The largest [`workspace`] that it was made for.
    fit: usize,
    size: usize,
    /// Used since the last [`release_idle`].
    is_fresh: bool,
}

struct Pool {
    idle: Vec<Idle>,
    /// Bytes of large workspaces in use.
    large: usize,
    /// Tickets of large encoders: the next one, and the one whose turn it is.
    next: u64,
    turn: u64,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: Vec::new(), large: 0, next: 0, turn: 0 });
static RETURNED: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn large_limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        processors.saturating_mul(LARGE_PER_PROCESSOR).max(LARGE_LEAST)
    })
}

impl Pool {
    fn has_room(&self, need: usize) -> bool {
        self.large == 0 || self.large + need <= large_limit()
    }

    fn kept(&self) -> usize {
        self.idle.iter().map(|idle| idle.size).sum()
    }

    /// The smallest unused encoder that fits.
    fn take(&mut self, need: usize) -> Option<Idle> {
        let fitting = self.idle.iter().enumerate().filter(|(_, idle)| idle.fit >= need);
        let (at, _) = fitting.min_by_key(|(_, idle)| idle.fit)?;
        Some(self.idle.swap_remove(at))
    }
}

/// Frees the encoders that were not used since the last call.
#[doc(alias = "zstd_mempool_reap")]
pub fn release_idle() {
    let mut pool = pool();
    let (kept, freed): (Vec<_>, Vec<_>) =
        std::mem::take(&mut pool.idle).into_iter().partition(|idle| idle.is_fresh);
    pool.idle = kept;
    pool.idle.iter_mut().for_each(|idle| idle.is_fresh = false);
    drop(pool);
    drop(freed);
}

/// An encoder in use.
pub struct Encoder {
    level: Level,
    context: Option<CCtx<'static>>,
    fit: usize,
    /// Bytes of it that count to the limit.
    large: usize,
}

impl Encoder {
    /// An encoder for a block of `len` bytes. If its workspace is large, waits until others return theirs.
    /// `None`: no memory.
    pub fn new(level: Level, len: usize) -> Option<Self> {
        let need = workspace(level, len);
        let large = if need > SMALL { need } else { 0 };
        let mut pool = pool();
        if large > 0 {
            let ticket = pool.next;
            pool.next += 1;
            while pool.turn != ticket || !pool.has_room(large) {
                pool = RETURNED.wait(pool).unwrap_or_else(PoisonError::into_inner);
            }
            pool.turn += 1;
            pool.large += large;
            RETURNED.notify_all();
        }
        let found = pool.take(need);
        // Unused encoders make room for a large one.
        let crowded = found.is_none() && large > 0 && pool.large + pool.kept() > large_limit();
        let freed = if crowded { std::mem::take(&mut pool.idle) } else { Vec::new() };
        drop(pool);
        drop(freed);
        let fit = found.as_ref().map_or(need, |idle| idle.fit);
        // Dropping it returns its part of the limit, also without a context.
        let mut own = Self { level, context: found.map(|idle| idle.context), fit, large };
        if own.context.is_none() {
            own.context = Some(CCtx::try_create()?);
        }
        Some(own)
    }

    /// Bytes of its workspace if they are worth counting; 0 if it is small.
    pub fn large(&self) -> usize {
        self.large
    }

    /// The compressed form of `src` with its header; `None` when that needs more than `capacity` bytes.
    pub fn compress(&mut self, src: &[u8], capacity: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; capacity];
        let (header, room) = out.split_first_chunk_mut::<HEADER_LEN>()?;
        let len = encode(self.context.as_mut()?, self.level, src, room)?;
        let version = zstd_safe::version_number();
        *header = Header { len: u32::try_from(len).ok()?, version, level: self.level.number() }.to_bytes();
        out.truncate(HEADER_LEN + len);
        Some(out)
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        let Some(context) = self.context.take() else { return self.give_back(&mut pool()) };
        let size = context.sizeof();
        let mut pool = pool();
        let is_kept = size <= KEPT_EACH && pool.kept() + size <= KEPT_ALL;
        if is_kept {
            pool.idle.push(Idle { context, fit: self.fit, size, is_fresh: true });
            return self.give_back(&mut pool);
        }
        // Its memory is free before another takes its place.
        drop(pool);
        drop(context);
        self.give_back(&mut self::pool());
    }
}

impl Encoder {
    fn give_back(&mut self, pool: &mut Pool) {
        if self.large > 0 {
            pool.large -= std::mem::take(&mut self.large);
            RETURNED.notify_all();
        }
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder")
            .field("level", &self.level)
            .field("large", &self.large)
            .finish_non_exhaustive()
    }
}

fn encode(context: &mut CCtx<'static>, level: Level, src: &[u8], room: &mut [u8]) -> Option<usize> {
    context.reset(ResetDirective::SessionAndParameters).ok()?;
    let parameters = [
        CParameter::CompressionLevel(level.for_encoder()),
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ChecksumFlag(false),
        CParameter::ContentSizeFlag(false),
    ];
    for parameter in parameters {
        context.set_parameter(parameter).ok()?;
    }
    context.compress2(room, src).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut word = 1_u64;
        std::iter::repeat_with(|| {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (word >> 56) as u8 & 0x3f
        })
        .take(len)
        .collect()
    }

    #[test]
    fn no_workspace_is_larger_than_its_bound() {
        let src = noise(16 * MIB);
        for number in (1..=19).chain([103, 123]) {
            let level = Level::from_number(number).unwrap();
            for shift in 12..=24 {
                let mut context = CCtx::create();
                // No room: the workspace is allocated, and nothing is searched.
                let _ = encode(&mut context, level, &src[..1 << shift], &mut [0; 1]);
                let (size, most) = (context.sizeof(), workspace(level, 1 << shift));
                assert!(size <= most, "{level:?} {}: {size} > {most}", 1 << shift);
            }
        }
    }

    /// Ten threads with the largest workspaces: no more than the limit are in use at a time, and unused ones are freed.
    #[test]
    fn large_encoders_have_a_limit_together() {
        let level = Level::from_number(19).unwrap();
        let (src, used, most) = (noise(64 * KIB), AtomicUsize::new(0), AtomicUsize::new(0));
        let capacity = src.len();
        let alone = Encoder::new(level, src.len()).unwrap().compress(&src, capacity);
        std::thread::scope(|all| {
            for _ in 0..10 {
                all.spawn(|| {
                    for _ in 0..3 {
                        let mut large = Encoder::new(level, 16 * MIB).unwrap();
                        let now = used.fetch_add(large.large(), Ordering::SeqCst) + large.large();
                        most.fetch_max(now, Ordering::SeqCst);
                        // A used encoder writes the same bytes as a new one.
                        assert_eq!(large.compress(&src, capacity), alone);
                        used.fetch_sub(large.large(), Ordering::SeqCst);
                    }
                });
            }
        });
        let most = most.into_inner();
        assert!(most > 0 && most <= large_limit().max(82 * MIB), "{most}");
        assert!(pool().kept() <= KEPT_ALL);
        release_idle();
        release_idle();
        let pool = pool();
        assert_eq!((pool.kept(), pool.large), (0, 0));
    }
}
