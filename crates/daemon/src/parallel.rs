//! Applies one function to many items on several threads and returns the results in order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Stack of a command: trees of datasets are walked recursively, and clones of clones can be as deep as there are
/// datasets. Only the used part takes memory.
pub(crate) const STACK: usize = 256 << 20;

/// Returns the results of `work` for each item, in the order of the items. At most `threads` threads work, the caller's
/// included; if the system refuses to start one, the others do its work. A panic of `work` is passed on.
pub fn map<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let some = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut done = thread::scope(|scope| {
        let helper = |_| thread::Builder::new().stack_size(STACK).spawn_scoped(scope, some).ok();
        let helpers: Vec<_> = (1..items.len().min(threads)).filter_map(helper).collect();
        let mut done = some();
        for helper in helpers {
            match helper.join() {
                Ok(theirs) => done.extend(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
