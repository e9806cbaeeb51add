//! The progress of initialize and trim per device, for `zpool status -i` and `-t`.
//!
//! Differs from OpenZFS: of work that was suspended, how much is done is read off where it stopped, whatever is free there.

use clikit::output::time::clock;
use engine::spa::layout::config::{LEAF_ZAP, find};
use engine::spa::sweep::SweepKind;
use engine::zap::Zap;
use serde_json::{Map, Value, json};
use zutil::tree::VdevNode;

use super::json_form::JsonForm;
use super::prop::PoolView;

/// Work on all that is free on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Writing it.
    Initialize,
    /// Telling the device.
    Trim,
}

/// Where its state is kept in a leaf's ZAP: state, next offset, time of the last change.
///
/// Source: `VDEV_LEAF_ZAP_INITIALIZE_STATE` and the like, dmu.h, OpenZFS 2.3.
const INITIALIZE: [&str; 3] = [
    "com.delphix:vdev_initialize_state",
    "com.delphix:next_offset_to_initialize",
    "com.delphix:vdev_initialize_action_time",
];
const TRIM: [&str; 3] = [
    "org.zfsonlinux:vdev_trim_state",
    "org.zfsonlinux:next_offset_to_trim",
    "org.zfsonlinux:vdev_trim_action_time",
];

/// `vdev_initializing_state_t`, and `vdev_trim_state_t`.
const ACTIVE: u64 = 1;
const SUSPENDED: u64 = 3;
const COMPLETE: u64 = 4;
const STATES: [&str; 5] = ["NONE", "ACTIVE", "CANCELED", "SUSPENDED", "COMPLETE"];

/// The progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    state: u64,
    /// Bytes done, and to do in all.
    done: u64,
    all: u64,
    /// Seconds since 1970.
    time: u64,
}

impl Work {
    /// The pool's record of a leaf; empty for one without a ZAP.
    pub fn on(self, view: &PoolView<'_>, vdev: &VdevNode) -> Progress {
        let config = view.pool.config.nvlist("vdev_tree").and_then(|root| find(root, vdev.guid));
        let number = config.and_then(|list| list.u64(LEAF_ZAP)).filter(|number| *number != 0);
        let zap = number.and_then(|number| Zap::open(&view.pool.mos.object(number).ok()?).ok());
        let (kind, names) = match self {
            Self::Initialize => (SweepKind::Initialize, INITIALIZE),
            Self::Trim => (SweepKind::Trim, TRIM),
        };
        // A txg may be seconds old: work under way has come further.
        let [state, done, time] = view.sweep_progress(kind, vdev.guid).unwrap_or_else(|| {
            names.map(|name| zap.as_ref().and_then(|zap| zap.u64(name).ok()?).unwrap_or(0))
        });
        let all = view.sizes.get(vdev.guid).physical;
        Progress { state, done: if state == COMPLETE { all } else { done.min(all) }, all, time }
    }

    /// The text behind a device's other columns; without `wanted` only operations under way.
    #[doc(alias("print_status_initialize", "print_status_trim"))]
    pub fn note(self, progress: Progress, wanted: bool, possible: bool) -> String {
        let (doing, done, undone) = match self {
            Self::Initialize => ("initializing", "initialized", "uninitialized"),
            Self::Trim => ("trimming", "trimmed", "untrimmed"),
        };
        let Progress { state, time, .. } = progress;
        let since = match state {
            ACTIVE if !wanted => return format!("  ({doing})"),
            _ if !wanted => return String::new(),
            ACTIVE => "started at",
            SUSPENDED => "suspended, started at",
            COMPLETE => "completed at",
            _ if !possible => return "  (trim unsupported)".to_owned(),
            _ => return format!("  ({undone})"),
        };
        format!("  ({}% {done}, {since} {})", progress.percent(), clock(time))
    }

    /// The same in JSON.
    #[doc(alias = "vdev_stats_nvlist")]
    pub fn json(self, progress: Progress, possible: bool, form: &JsonForm<'_>, map: &mut Map<String, Value>) {
        let (key, names, none) = match self {
            Self::Initialize => {
                ("init_state", ["initialized", "to_initialize", "init_time", "init_errors"], "UNINITIALIZED")
            }
            Self::Trim => ("trim_state", ["trimmed", "to_trim", "trim_time", "trim_errors"], "UNTRIMMED"),
        };
        let Progress { state, done, all, time } = progress;
        if possible && state == 0 {
            map.insert(key.into(), json!(none));
        } else if possible {
            let word = usize::try_from(state).ok().and_then(|state| STATES.get(state));
            map.insert(key.into(), json!(word.unwrap_or(&"NONE")));
            let values = [form.bytes(done), form.bytes(all), form.time(time), form.count(0)];
            names.into_iter().zip(values).for_each(|(name, value)| drop(map.insert(name.into(), value)));
        }
        if self == Self::Trim {
            map.insert("trim_notsup".into(), form.plain(u64::from(!possible)));
        }
    }
}

impl Progress {
    fn percent(self) -> u64 {
        match self.state {
            COMPLETE => 100,
            _ => u64::try_from(u128::from(self.done) * 100 / (u128::from(self.all) + 1)).unwrap_or(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_says_how_far_it_is() {
        let at = |state, done| Progress { state, done, all: 1000, time: 0 };
        let date = clock(0);
        let said = |progress| Work::Initialize.note(progress, true, true);
        assert_eq!(said(at(0, 0)), "  (uninitialized)");
        assert_eq!(said(at(2, 500)), "  (uninitialized)");
        assert_eq!(said(at(ACTIVE, 500)), format!("  (49% initialized, started at {date})"));
        assert_eq!(said(at(SUSPENDED, 20)), format!("  (1% initialized, suspended, started at {date})"));
        assert_eq!(said(at(COMPLETE, 1000)), format!("  (100% initialized, completed at {date})"));
        assert_eq!(Work::Trim.note(at(0, 0), true, false), "  (trim unsupported)");
        assert_eq!(Work::Trim.note(at(ACTIVE, 0), false, true), "  (trimming)");
        assert_eq!(Work::Trim.note(at(COMPLETE, 0), false, true), "");
    }
}
