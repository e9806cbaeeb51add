//! What is done to a pool while its disks are recorded, and how to see what of it survived.

use std::sync::Arc;

use engine::dmu::{LiveObjset, Tx};
use engine::spa::history::history;
use engine::spa::history_log::{HistoryEvent, HistoryOrigin};
use engine::spa::{Pool, Spa};
use engine::{Error, Result};
use stdx::rng::Rng;

use crate::disk::Record;

/// Fills the root dataset of a new pool.
pub fn fill_root(_: &Arc<LiveObjset>, _: &Tx) -> Result<()> {
    Ok(())
}

/// Word under which the history keeps our steps.
const STEP: &str = "step";

/// Runs `steps` steps, each in a transaction group of its own. After each the record is told that it must survive.
pub fn run(spa: &Arc<Spa>, steps: u64, random: &mut Rng, record: &Record) -> Result<()> {
    for step in 1..=steps {
        let filler = "x".repeat(usize::try_from(random.below(3000)).unwrap_or(0));
        spa.sync_task(move |spa, tx| {
            let event =
                HistoryEvent::Internal { name: STEP.into(), dataset: None, text: format!("{step} {filler}") };
            spa.log_history(&event, &HistoryOrigin::default(), tx)
        })?;
        record.mark(step);
    }
    Ok(())
}

/// The last step that a pool holds; all before it must be there, too.
pub fn survived(pool: &Pool) -> Result<u64> {
    let history = history(pool)?;
    if let Some(damage) = history.damage.into_iter().next() {
        return Err(damage);
    }
    let mut last = 0;
    for record in history.records.iter().filter(|r| r.str("internal_name") == Some(STEP)) {
        let number =
            record.str("history internal str").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        match number {
            Some(step) if step == last + 1 => last = step,
            other => return Err(Error::corrupt(format!("step {other:?} follows step {last}"))),
        }
    }
    Ok(last)
}
