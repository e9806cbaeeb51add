//! The last scrub of the error log, or the one under way.

use clikit::output::time::clock;
use engine::Result;
use ondisk::names::mos;
use ondisk::pool::DslErrorscrub;
use serde_json::{Map, Value, json};

use super::super::json_form::JsonForm;
use super::text::percent;
use super::{json, state};
use crate::prop::PoolView;

/// `pool_scan_func_t`.
const ERROR_SCRUB: u64 = 3;

/// Fields of `pool_scan_stat_t` that begin with `pss_error_scrub`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ErrorScrub {
    state: u64,
    pub start: u64,
    end: u64,
    examined: u64,
    left: u64,
    /// Since when it is paused; 0: it is not.
    paused: u64,
}

impl ErrorScrub {
    pub(super) fn of(view: &PoolView<'_>) -> Result<Option<Self>> {
        let pool = view.pool;
        let Some(value) = pool.directory()?.lookup(mos::ERRORSCRUB.as_bytes())? else { return Ok(None) };
        let scrub = DslErrorscrub::from_words(&value.ints).ok().filter(|scrub| scrub.func == ERROR_SCRUB);
        let paused_at =
            view.imported().and_then(|live| live.spa().ok()).map_or(0, |spa| spa.error_log().scrub_paused());
        Ok(scrub.map(|scrub| Self {
            state: scrub.state,
            start: scrub.start_time,
            end: scrub.end_time,
            examined: scrub.examined,
            left: scrub.to_examine,
            paused: match (scrub.state == state::ERROR_SCRUBBING && scrub.paused_flags != 0, paused_at) {
                (false, _) => 0,
                (true, 0) => pool.uberblock.timestamp,
                (true, when) => when,
            },
        }))
    }

    #[doc(alias = "print_err_scrub_status")]
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = match (self.state, self.paused) {
            (state::FINISHED, _) => {
                let seconds = self.end.saturating_sub(self.start);
                return vec![format!(
                    " scrub: scrubbed {} error blocks in {} days {:02}:{:02}:{:02} on {}",
                    self.examined,
                    seconds / 86_400,
                    seconds / 3600 % 24,
                    seconds / 60 % 60,
                    seconds % 60,
                    clock(self.end)
                )];
            }
            (state::CANCELED, _) => {
                return vec![format!(" scrub: error scrub canceled on {}", clock(self.end))];
            }
            (state::ERROR_SCRUBBING, 0) => {
                vec![format!(" scrub: error scrub in progress since {}", clock(self.start))]
            }
            (state::ERROR_SCRUBBING, when) => vec![
                format!(" scrub: error scrub paused since {}", clock(when)),
                format!("\terror scrub started on {}", clock(self.start)),
            ],
            _ => return Vec::new(),
        };
        let share = percent(self.examined, self.examined.saturating_add(self.left));
        lines.push(format!("\t{share:.2}% done, issued I/O for {} error blocks", self.examined));
        lines
    }

    /// Its part of `scan_stats`.
    pub(super) fn object(&self, form: &JsonForm<'_>) -> Map<String, Value> {
        form.map([
            ("err_scrub_func", json!("ERRORSCRUB")),
            ("err_scrub_state", json::state_name(self.state)),
            ("err_scrub_start_time", form.time(self.start)),
            ("err_scrub_end_time", form.time(self.end)),
            ("err_scrub_examined", form.count(self.examined)),
            ("err_scrub_to_examine", form.count(self.left)),
            ("err_scrub_pause", form.plain(self.paused)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_of_openzfs() {
        let runs = ErrorScrub {
            state: state::ERROR_SCRUBBING,
            start: 1_793_500_386,
            end: 0,
            examined: 3,
            left: 9,
            paused: 0,
        };
        let lines = runs.lines();
        assert!(lines[0].starts_with(" scrub: error scrub in progress since "), "{lines:?}");
        assert_eq!(lines[1], "\t25.00% done, issued I/O for 3 error blocks");
        let lines = ErrorScrub { paused: 1_793_500_390, ..runs }.lines();
        assert!(lines[0].starts_with(" scrub: error scrub paused since "), "{lines:?}");
        assert!(lines[1].starts_with("\terror scrub started on "), "{lines:?}");
        let end = runs.start + 90_061;
        let lines = ErrorScrub { state: state::FINISHED, end, ..runs }.lines();
        assert!(lines[0].starts_with(" scrub: scrubbed 3 error blocks in 1 days 01:01:01 on "), "{lines:?}");
        let lines = ErrorScrub { state: state::CANCELED, end, ..runs }.lines();
        assert!(lines[0].starts_with(" scrub: error scrub canceled on "), "{lines:?}");
    }
}
