//! Sequential reconstructions in `zpool status`.

use clikit::output::time::{clock, duration};
use engine::Result;
use engine::spa::reconstruct::RebuildPass;
use ondisk::names::vdev_top;
use ondisk::pool::VdevRebuild;
use serde_json::{Value, json};
use zcommon::units::nicebytes;
use zutil::names::{NameStyle, vdev_name};

use super::super::json_form::{JsonForm, vdev_info};
use super::text::percent;
use crate::prop::PoolView;

/// `vdev_rebuild_state_t`.
const ACTIVE: u64 = 1;
const CANCELED: u64 = 2;
const COMPLETE: u64 = 3;

/// The last reconstruction of a top-level vdev, or the one under way.
#[doc(alias = "vdev_rebuild_stat_t")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Rebuild {
    /// Number of the vdev.
    pub(super) vdev: u64,
    record: VdevRebuild,
    pass: RebuildPass,
}

impl Rebuild {
    /// All of a pool.
    pub(super) fn all(view: &PoolView<'_>) -> Result<Vec<Self>> {
        let spa = view.imported().and_then(|live| live.spa().ok());
        let mut found = Vec::new();
        for top in &view.pool.tree().config.children {
            let Some(zap) = view.pool.dsl.zap(top.top_zap)? else { continue };
            let Some(value) = zap.lookup(vdev_top::VDEV_REBUILD_PHYS.as_bytes())? else { continue };
            let Ok(record) = VdevRebuild::from_words(&value.ints) else { continue };
            let pass = spa.map(|spa| spa.rebuilds().pass(top.id)).unwrap_or_default();
            found.push(Self { vdev: top.id, record, pass });
        }
        found.retain(|rebuild| (ACTIVE..=COMPLETE).contains(&rebuild.record.rebuild_state));
        Ok(found)
    }

    pub(super) fn is_active(&self) -> bool {
        self.record.rebuild_state == ACTIVE
    }

    /// Seconds since 1970.
    pub(super) fn end(&self) -> u64 {
        self.record.end_time
    }

    /// The name of its vdev, and its entry in JSON.
    #[doc(alias = "scan_status_nvlist")]
    pub(super) fn entry(&self, view: &PoolView<'_>, form: &JsonForm<'_>) -> Option<(String, Value)> {
        let top = view.tree.children.iter().find(|top| top.id == self.vdev)?;
        let name = vdev_name(top, NameStyle::default(), true);
        let (record, pass) = (&self.record, &self.pass);
        let state = match record.rebuild_state {
            ACTIVE => "ACTIVE",
            CANCELED => "CANCELED",
            _ => "COMPLETE",
        };
        let mut map = vdev_info(top, name.clone(), form.style);
        map.extend(form.map([
            ("state", json!(state)),
            ("start_time", form.time(record.start_time)),
            ("end_time", form.time(record.end_time)),
            ("scan_time", form.span(record.scan_time_ms)),
            ("scanned", form.bytes(record.bytes_scanned)),
            ("issued", form.bytes(record.bytes_issued)),
            ("rebuilt", form.bytes(record.bytes_rebuilt)),
            ("to_scan", form.bytes(record.bytes_est)),
            ("errors", form.count(record.errors)),
            ("pass_time", form.span(pass.time_ms)),
            ("pass_scanned", form.bytes(pass.scanned)),
            ("pass_issued", form.bytes(pass.issued)),
            ("pass_skipped", form.bytes(0)),
        ]));
        Some((name, map.into()))
    }

    /// Whole lines; `name` is the vdev's.
    #[doc(alias = "print_rebuild_status_impl")]
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        let record = &self.record;
        match record.rebuild_state {
            COMPLETE => vec![format!(
                "  scan: resilvered ({name}) {} in {} with {} errors on {}",
                nicebytes(record.bytes_rebuilt),
                duration(record.scan_time_ms / 1000),
                record.errors,
                clock(record.end_time)
            )],
            CANCELED => vec![format!("  scan: resilver ({name}) canceled on {}", clock(record.end_time))],
            _ => self.under_way(name),
        }
    }

    fn under_way(&self, name: &str) -> Vec<String> {
        let record = &self.record;
        let rate = |bytes: u64| (bytes / self.pass.time_ms.saturating_add(1)).saturating_mul(1000);
        let at = |rate: u64| if rate > 0 { format!(" at {}/s", nicebytes(rate)) } else { String::new() };
        let (scan, issue) = (rate(self.pass.scanned), rate(self.pass.issued));
        let (scanned, wanted) = (record.bytes_scanned, record.bytes_est);
        let end = match wanted.saturating_sub(scanned).checked_div(scan) {
            Some(seconds) => format!(", {} to go", duration(seconds)),
            None => ", no estimated completion time".to_owned(),
        };
        vec![
            format!("  scan: resilver ({name}) in progress since {}", clock(record.start_time)),
            format!(
                "\t{} / {} scanned{}, {} / {} issued{}",
                nicebytes(scanned),
                nicebytes(wanted),
                at(scan),
                nicebytes(record.bytes_issued),
                nicebytes(wanted),
                at(issue)
            ),
            format!(
                "\t{} resilvered, {:.2}% done{end}",
                nicebytes(record.bytes_rebuilt),
                percent(scanned, wanted.saturating_add(1)).min(100.0)
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reconstruction_tells_how_far_it_came() {
        let record = VdevRebuild {
            rebuild_state: ACTIVE,
            start_time: 1_793_500_386,
            scan_time_ms: 4_999,
            bytes_scanned: 4_000_001,
            bytes_issued: 3_000_000,
            bytes_rebuilt: 6,
            bytes_est: 9_000_000,
            errors: 7,
            ..VdevRebuild::default()
        };
        let idle = Rebuild { vdev: 0, record, pass: RebuildPass::default() };
        let lines = idle.lines("mirror-0");
        assert!(lines[0].starts_with("  scan: resilver (mirror-0) in progress since "), "{}", lines[0]);
        assert_eq!(lines[1], "\t3.81M / 8.58M scanned, 2.86M / 8.58M issued");
        assert_eq!(lines[2], "\t6B resilvered, 44.44% done, no estimated completion time");
        let pass = RebuildPass { time_ms: 999, scanned: 1 << 20, issued: 1 << 20 };
        let live = Rebuild { pass, ..idle }.lines("mirror-0");
        assert_eq!(live[1], "\t3.81M / 8.58M scanned at 1023K/s, 2.86M / 8.58M issued at 1023K/s");
        assert!(live[2].ends_with(" done, 00:00:04 to go"), "{}", live[2]);
        let done = Rebuild { record: VdevRebuild { rebuild_state: COMPLETE, ..record }, ..idle };
        let wanted = "  scan: resilvered (mirror-0) 6B in 00:00:04 with 7 errors on ";
        assert!(done.lines("mirror-0")[0].starts_with(wanted), "{:?}", done.lines("mirror-0"));
        let ended = Rebuild { record: VdevRebuild { rebuild_state: CANCELED, ..record }, ..idle };
        assert!(ended.lines("mirror-0")[0].starts_with("  scan: resilver (mirror-0) canceled on "));
    }
}
