//! Applies one function to many items in parallel and returns the results in order.
//!
//! Each call may wait for a device, so there are more threads than cores.

use crate::interrupt::Interrupt;

/// Maximum number of threads.
const THREADS: usize = 4;
/// Number of items that a thread takes at a time; with fewer items no thread is started.
const CHUNK: usize = 8;

/// Returns the results of `answer` for each item, in the order of the items; `None` on an interrupt.
pub fn map<T: Sync, R: Send>(
    items: &[T],
    interrupt: &Interrupt,
    answer: impl Fn(&T) -> R + Sync,
) -> Option<Vec<R>> {
    let chunks: Vec<&[T]> = items.chunks(CHUNK).collect();
    let work = |chunk: &&[T]| (!interrupt.is_set()).then(|| chunk.iter().map(&answer).collect::<Vec<R>>());
    let done: Option<Vec<_>> = daemon::parallel::map(&chunks, THREADS, work).into_iter().collect();
    done.map(|done| done.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_the_order_of_the_questions() {
        for count in [0, 1, CHUNK, CHUNK + 1, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let doubled = map(&items, &Interrupt::default(), |n| n * 2).unwrap();
            assert_eq!(doubled, items.iter().map(|n| n * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_interrupt_leaves_no_answer() {
        let interrupt = Interrupt::default();
        let asked = map(&[0; 1000], &interrupt, |_| interrupt.set());
        assert_eq!(asked, None);
    }
}
