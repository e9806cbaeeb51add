//! Small reads of a leaf, answered from windows around them.
//!
//! Metadata comes in blocks of a few KiB that were written together and are read one after the other,
//! each only once the one before is understood. A window is read whole the first time, and the next
//! such reads near it cost no trip to the device. Few windows are kept: the cache of blocks is above.
//!
//! A window costs sixteen times the bytes of a small read, which is lost where no other read follows near it (records of a
//! database, read at random). So windows are read while they are used: when the last ones were not, small reads are plain, and
//! one in [`PROBE`] tries a window again.
//!
//! Reads that fail are not answered from here, nor is anything remembered of them: the caller then reads
//! just the range that it needs. Nor is a window remembered that was written to while it was read.
//!
//! Lock order: the state's lock is a leaf lock; nothing is called under it.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use stdx::{AlignedBuf, Buf};

/// Size and alignment of a window.
pub(crate) const WINDOW: u64 = 64 << 10;
/// Longest read that is answered from a window.
pub(crate) const SMALL: u64 = 16 << 10;
/// Windows kept.
const KEPT: usize = 32;
/// Windows in succession without use, after which reads are plain.
const LUCK: u32 = 32;
/// Unused windows that one use makes up for.
const GAIN: u32 = 4;
/// Plain reads for each window that is tried without luck.
const PROBE: u32 = 32;

/// A read that waits for a window: its offset and length on the device, and its receiver.
pub(crate) struct Waiter<D> {
    /// Byte offset on the device.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Called with the result.
    pub(crate) done: D,
}

struct State<D> {
    /// Least recently used first.
    kept: VecDeque<(u64, Buf)>,
    /// Windows on their way, by their starts.
    pending: HashMap<u64, Pending<D>>,
    /// Windows that may go unused until reads are plain.
    luck: u32,
    /// Small reads without luck.
    plain: u32,
}

impl<D> State<D> {
    fn used(&mut self) {
        self.luck = self.luck.saturating_add(GAIN).min(LUCK);
    }

    /// Whether another window is worth its bytes.
    fn tries(&mut self) -> bool {
        if self.luck > 0 {
            self.luck -= 1;
            return true;
        }
        self.plain = self.plain.wrapping_add(1);
        self.plain.is_multiple_of(PROBE)
    }
}

struct Pending<D> {
    waiters: Vec<Waiter<D>>,
    /// Written to since it was asked for.
    changed: bool,
}

/// The windows of one leaf; `D` is the waiters' callback.
pub(crate) struct Windows<D>(Mutex<State<D>>);

/// How to serve a small read.
pub(crate) enum WindowHit<D> {
    /// Here are its bytes.
    Here(Buf, D),
    /// It waits for a window that is on its way.
    Joined,
    /// The caller must read the window that starts here, then call [`Windows::arrived`].
    Read(u64),
    /// The caller must read it plainly: it does not lie within one window, or windows are not used.
    Not(Waiter<D>),
}

impl<D> Default for Windows<D> {
    fn default() -> Self {
        Self(Mutex::new(State { kept: VecDeque::new(), pending: HashMap::new(), luck: LUCK, plain: 0 }))
    }
}

impl<D> Windows<D> {
    /// Looks for a read; `size` is the device's.
    pub(crate) fn find(&self, waiter: Waiter<D>, size: u64) -> WindowHit<D> {
        let start = waiter.offset - waiter.offset % WINDOW;
        let end = start.saturating_add(WINDOW);
        if waiter.len > SMALL || waiter.offset.saturating_add(waiter.len) > end || end > size {
            return WindowHit::Not(waiter);
        }
        let mut state = self.0.lock();
        if let Some(at) = state.kept.iter().position(|(s, _)| *s == start)
            && let Some(window) = state.kept.remove(at)
        {
            let bytes = within(&window.1, start, &waiter);
            state.kept.push_back(window);
            state.used();
            return WindowHit::Here(bytes, waiter.done);
        }
        match state.pending.get_mut(&start) {
            // This read may want exactly the bytes that have changed.
            Some(pending) if pending.changed => return WindowHit::Not(waiter),
            Some(pending) => {
                pending.waiters.push(waiter);
                state.used();
                return WindowHit::Joined;
            }
            None => {}
        }
        if !state.tries() {
            return WindowHit::Not(waiter);
        }
        state.pending.insert(start, Pending { waiters: vec![waiter], changed: false });
        WindowHit::Read(start)
    }

    /// Drops windows of `[offset, offset + len)`, read or being read.
    pub(crate) fn forget(&self, offset: u64, len: u64) {
        let touches =
            |start: u64| start < offset.saturating_add(len) && offset < start.saturating_add(WINDOW);
        let mut state = self.0.lock();
        state.kept.retain(|(start, _)| !touches(*start));
        for (_, pending) in state.pending.iter_mut().filter(|(start, _)| touches(**start)) {
            pending.changed = true;
        }
    }

    /// Ends the read of a window, successful or not. Returns its waiters, each with its bytes.
    pub(crate) fn arrived(&self, start: u64, window: Option<&Buf>) -> Vec<(Waiter<D>, Option<Buf>)> {
        // A window of a joined read must not keep the rest of that read alive.
        let own = window.map(|w| Buf::from(AlignedBuf::copy_of(w)));
        let mut state = self.0.lock();
        let Some(Pending { waiters, changed }) = state.pending.remove(&start) else { return Vec::new() };
        if let Some(own) = own.as_ref().filter(|_| !changed) {
            if state.kept.len() >= KEPT {
                state.kept.pop_front();
            }
            state.kept.push_back((start, own.clone()));
        }
        let answer = |w: Waiter<D>| {
            let bytes = own.as_ref().map(|window| within(window, start, &w));
            (w, bytes)
        };
        waiters.into_iter().map(answer).collect()
    }
}

fn within<D>(window: &Buf, start: u64, waiter: &Waiter<D>) -> Buf {
    let from = usize::try_from(waiter.offset - start).unwrap_or(usize::MAX);
    let len = usize::try_from(waiter.len).unwrap_or(usize::MAX);
    window.slice(from..from.saturating_add(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(offset: u64, len: u64) -> Waiter<u32> {
        Waiter { offset, len, done: 0 }
    }

    #[test]
    fn neighbours_wait_for_one_window_and_then_find_it() {
        let windows = Windows::default();
        let size = 1 << 20;
        assert!(matches!(windows.find(waiter(WINDOW + 512, 512), size), WindowHit::Read(WINDOW)));
        assert!(matches!(windows.find(waiter(WINDOW + 4096, 4096), size), WindowHit::Joined));
        let mut bytes = vec![0; WINDOW as usize];
        bytes[4096] = 7;
        let told = windows.arrived(WINDOW, Some(&Buf::from(bytes.as_slice())));
        assert_eq!(told.len(), 2);
        assert_eq!(told[1].1.as_ref().unwrap()[0], 7);
        assert!(matches!(windows.find(waiter(WINDOW + 4096, 512), size), WindowHit::Here(b, _) if b[0] == 7));
    }

    #[test]
    fn reads_across_a_window_or_the_end_are_plain() {
        let windows = Windows::default();
        assert!(matches!(windows.find(waiter(WINDOW - 512, 1024), 1 << 20), WindowHit::Not(_)));
        assert!(matches!(windows.find(waiter(0, SMALL + 512), 1 << 20), WindowHit::Not(_)));
        assert!(matches!(windows.find(waiter(0, 512), WINDOW - 1), WindowHit::Not(_)));
    }

    #[test]
    fn written_bytes_are_not_answered_from_a_window() {
        let windows = Windows::default();
        let (size, bytes) = (1 << 20, Buf::from(vec![1; WINDOW as usize].as_slice()));
        assert!(matches!(windows.find(waiter(0, 512), size), WindowHit::Read(0)));
        windows.forget(4096, 4096);
        assert!(matches!(windows.find(waiter(4096, 512), size), WindowHit::Not(_)));
        assert_eq!(windows.arrived(0, Some(&bytes)).len(), 1);
        assert!(
            matches!(windows.find(waiter(0, 512), size), WindowHit::Read(0)),
            "was written to on its way"
        );
        windows.arrived(0, Some(&bytes));
        windows.forget(WINDOW, 512);
        assert!(matches!(windows.find(waiter(0, 512), size), WindowHit::Here(..)));
        windows.forget(WINDOW - 1, 2);
        assert!(matches!(windows.find(waiter(0, 512), size), WindowHit::Read(0)));
    }

    #[test]
    fn scattered_reads_become_plain_and_neighbours_bring_windows_back() {
        let windows = Windows::default();
        let size = 1 << 40;
        let bytes = Buf::from(vec![1; WINDOW as usize].as_slice());
        let read = |number: u64| match windows.find(waiter(number * WINDOW, 2048), size) {
            WindowHit::Read(start) => windows.arrived(start, Some(&bytes)).len(),
            WindowHit::Not(_) => 0,
            WindowHit::Here(..) | WindowHit::Joined => unreachable!("no two are near each other"),
        };
        let opened: usize = (0..1000).map(|number| read(number * 3)).sum();
        assert!((32..=64).contains(&opened), "{opened}");
        // Each window is used twice from now on.
        let mut reads = 0;
        for number in 10_000..11_000 {
            for part in 0..3 {
                match windows.find(waiter(number * WINDOW + part * 4096, 2048), size) {
                    WindowHit::Read(start) => {
                        windows.arrived(start, Some(&bytes));
                        reads += 1;
                    }
                    WindowHit::Not(_) => reads += 1,
                    WindowHit::Here(..) | WindowHit::Joined => {}
                }
            }
        }
        assert!(reads < 1200, "{reads}");
    }

    #[test]
    fn a_window_that_fails_is_not_remembered() {
        let windows = Windows::default();
        assert!(matches!(windows.find(waiter(0, 512), 1 << 20), WindowHit::Read(0)));
        assert!(windows.arrived(0, None).iter().all(|(_, bytes)| bytes.is_none()));
        assert!(matches!(windows.find(waiter(0, 512), 1 << 20), WindowHit::Read(0)));
    }
}
