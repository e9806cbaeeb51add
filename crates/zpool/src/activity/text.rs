//! The lines of `zpool status` on activities of a pool.

use std::time::{SystemTime, UNIX_EPOCH};

use clikit::output::time::{clock, duration};
use engine::spa::copy_pass::CopyPass;
use zcommon::units::{nicebytes, nicenum};
use zutil::names::{NameStyle, vdev_name};

use super::super::prop::PoolView;
use super::rebuild::Rebuild;
use super::{Activity, Checkpoint, Expansion, Removal, Scan, state};

impl Activity {
    /// Whole lines, in OpenZFS's order.
    pub fn lines(&self, view: &PoolView<'_>) -> Vec<String> {
        let name = |vdev: u64, with_id| {
            let top = view.tree.children.iter().find(|top| top.id == vdev);
            top.map_or_else(|| vdev.to_string(), |top| vdev_name(top, NameStyle::default(), with_id))
        };
        let scan = self.scan_lines(&|vdev| name(vdev, true));
        let removal = self.removal.map(|removal| removal.lines(&name(removal.vdev, true)));
        let checkpoint = self.checkpoint.map(|checkpoint| checkpoint.line());
        let expansion = self.expansion.map(|e| e.lines(&name(e.vdev, true)));
        let parts = scan.into_iter().chain(removal.unwrap_or_default()).chain(checkpoint);
        parts.chain(expansion.unwrap_or_default()).collect()
    }
}

/// `pool_scan_func_t`.
const RESILVER: u64 = 2;

impl Activity {
    /// The last scan, and reconstructions where one is under way or ended after the last resilver.
    #[doc(alias = "print_scan_status")]
    fn scan_lines(&self, name: &dyn Fn(u64) -> String) -> Vec<String> {
        let resilver = self.scan.filter(|scan| scan.func == RESILVER);
        let resilvering = resilver.is_some_and(|scan| scan.state == state::SCANNING);
        let rebuilding = self.rebuilds.iter().any(Rebuild::is_active);
        let ended = self.rebuilds.iter().map(Rebuild::end).max().unwrap_or(0);
        let later = ended > resilver.map_or(0, |scan| scan.end);
        let shows_rebuilds = !resilvering && (rebuilding || later);
        let scan = self.scan.filter(|scan| scan.func != RESILVER || !shows_rebuilds);
        // Of a scrub and a scrub of the error log, the later one is shown.
        let scrubbed = self.scan.filter(|scan| scan.func != RESILVER).map_or(0, |scan| scan.start);
        let errors = self.errors.filter(|errors| errors.start >= scrubbed);
        let mut lines = errors.map(|errors| errors.lines()).unwrap_or_default();
        let scan = scan.filter(|scan| errors.is_none() || scan.func == RESILVER);
        lines.extend(scan.map(|scan| scan.lines()).unwrap_or_default());
        if shows_rebuilds {
            lines.extend(self.rebuilds.iter().flat_map(|rebuild| rebuild.lines(&name(rebuild.vdev))));
        }
        lines
    }
}

/// Hours from which on no time is shown.
const SLOW_HOURS: u64 = 30 * 24;

/// In place of a time left that takes longer.
const TOO_SLOW: &str = ", (copy is slow, no estimated time)";
/// The same while nothing has been measured.
const UNKNOWN: &str = ", no estimated completion time";

/// Bytes that a pass copies each second; 0: it has copied none. `copied`: bytes of earlier passes as well.
fn rate(pass: CopyPass, copied: u64, now: u64) -> u64 {
    match copied.saturating_sub(pass.before) {
        0 => 0,
        bytes => (bytes / now.saturating_sub(pass.start).max(1)).max(1),
    }
}

fn at(rate: u64) -> String {
    if rate > 0 { format!(" at {}/s", nicenum(rate)) } else { String::new() }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(super) fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

impl Scan {
    #[doc(alias = "print_scan_scrub_resilver_status")]
    fn lines(&self) -> Vec<String> {
        let (name, done) = match self.func {
            1 => ("scrub", "scrub repaired"),
            2 => ("resilver", "resilvered"),
            _ => return Vec::new(),
        };
        match self.state {
            state::FINISHED => vec![format!(
                "  scan: {done} {} in {} with {} errors on {}",
                nicebytes(self.processed),
                duration(self.end.saturating_sub(self.start)),
                self.errors,
                clock(self.end)
            )],
            state::CANCELED => vec![format!("  scan: {name} canceled on {}", clock(self.end))],
            state::SCANNING => self.under_way(name),
            _ => Vec::new(),
        }
    }

    fn under_way(&self, name: &str) -> Vec<String> {
        let mut lines = match self.paused {
            0 => vec![format!("  scan: {name} in progress since {}", clock(self.start))],
            when => vec![
                format!("  scan: {name} paused since {}", clock(when)),
                format!("\t{name} started on {}", clock(self.start)),
            ],
        };
        let at = |rate: u64| if rate > 0 { format!(" at {}/s", nicebytes(rate)) } else { String::new() };
        lines.push(format!(
            "\t{} / {} scanned{}, {} / {} issued{}",
            nicebytes(self.examined),
            nicebytes(self.to_examine),
            at(self.rates[0]),
            nicebytes(self.issued),
            nicebytes(self.wanted()),
            at(self.rates[1])
        ));
        let work = if self.func == 1 { "repaired" } else { "resilvered" };
        let left = self.wanted().saturating_sub(self.issued);
        let rate = if self.pass.is_typical { self.rates[1] } else { 0 };
        let end = match (self.paused, left.checked_div(rate)) {
            (0, Some(seconds)) => format!(", {} to go", duration(seconds)),
            (0, None) => ", no estimated completion time".to_owned(),
            _ => String::new(),
        };
        let share = percent(self.issued, self.wanted());
        lines.push(format!("\t{} {work}, {share:.2}% done{end}", nicebytes(self.processed)));
        lines
    }
}

impl Removal {
    #[doc(alias = "print_removal_status")]
    fn lines(&self, name: &str) -> Vec<String> {
        let mut lines = match self.state {
            state::FINISHED => {
                let minutes = self.end.saturating_sub(self.start) / 60;
                vec![format!(
                    "remove: Removal of vdev {} copied {} in {}h{}m, completed on {}",
                    self.vdev,
                    nicenum(self.copied),
                    minutes / 60,
                    minutes % 60,
                    clock(self.end)
                )]
            }
            state::CANCELED => vec![format!("remove: Removal of {name} canceled on {}", clock(self.end))],
            state::SCANNING => vec![
                format!("remove: Evacuation of {name} in progress since {}", clock(self.start)),
                self.progress(now()),
            ],
            _ => return Vec::new(),
        };
        if self.mapping_memory > 0 {
            lines.push(format!("\t{} memory used for removed device mappings", nicenum(self.mapping_memory)));
        }
        lines
    }

    /// Progress of the copy at `now`, in seconds since 1970.
    fn progress(&self, now: u64) -> String {
        let rate = rate(self.pass, self.copied, now);
        let left = self.to_copy.saturating_sub(self.copied).checked_div(rate).map(|seconds| seconds / 60);
        let end = match left.map(|minutes| (minutes / 60, minutes % 60)) {
            None => UNKNOWN.to_owned(),
            Some((hours, minutes)) if hours < SLOW_HOURS => format!(", {hours}h{minutes}m to go"),
            Some(_) => TOO_SLOW.to_owned(),
        };
        format!(
            "\t{} copied out of {}{}, {:.2}% done{end}",
            nicenum(self.copied.max(1)),
            nicenum(self.to_copy),
            at(rate),
            percent(self.copied.max(1), self.to_copy)
        )
    }
}

impl Checkpoint {
    #[doc(alias = "print_checkpoint_status")]
    fn line(&self) -> String {
        match self.start {
            Some(start) => {
                format!("checkpoint: created {}, consumes {}", clock(start), nicebytes(self.space))
            }
            None => format!("checkpoint: discarding, {} remaining.", nicebytes(self.space)),
        }
    }
}

impl Expansion {
    #[doc(alias = "print_raidz_expand_status")]
    fn lines(&self, name: &str) -> Vec<String> {
        match self.state {
            state::FINISHED => vec![format!(
                "expand: expanded {name} copied {} in {}, on {}",
                nicenum(self.reflowed),
                duration(self.end.saturating_sub(self.start)),
                clock(self.end)
            )],
            state::SCANNING => vec![
                format!("expand: expansion of {name} in progress since {}", clock(self.start)),
                self.progress(now()),
            ],
            _ => Vec::new(),
        }
    }

    /// Progress of the copy at `now`, in seconds since 1970.
    fn progress(&self, now: u64) -> String {
        let copied = self.reflowed.max(1);
        let rate = rate(self.pass, self.reflowed, now);
        let end = match self.to_reflow.saturating_sub(copied).checked_div(rate) {
            _ if self.waits => ", paused for resilver or clear".to_owned(),
            None => UNKNOWN.to_owned(),
            Some(seconds) if seconds / 3600 < SLOW_HOURS => format!(", {} to go", duration(seconds)),
            Some(_) => TOO_SLOW.to_owned(),
        };
        format!(
            "\t{} / {} copied{}, {:.2}% done{end}",
            nicenum(copied),
            nicenum(self.to_reflow),
            at(rate),
            percent(copied, self.to_reflow)
        )
    }
}

#[cfg(test)]
mod tests {
    use engine::spa::scrub::ScanPass;

    use super::*;

    const FIRST: CopyPass = CopyPass { start: 100, before: 0 };

    #[test]
    fn expansions_say_rate_and_time_left() {
        let (copied, all) = (564 << 10, 11_858_944);
        let expansion = Expansion {
            state: state::SCANNING,
            vdev: 0,
            start: 100,
            end: 0,
            to_reflow: all,
            reflowed: copied,
            waits: false,
            pass: FIRST,
        };
        // The kernel's line 16 seconds after the start (`expand-cut`).
        assert_eq!(expansion.progress(116), "\t564K / 11.3M copied at 35.2K/s, 4.87% done, 00:05:12 to go");
        let slow = Expansion { to_reflow: 1 << 40, reflowed: 1, ..expansion };
        assert!(slow.progress(200).ends_with("% done, (copy is slow, no estimated time)"));
        let later = Expansion { pass: CopyPass { start: 10_000, before: copied }, ..expansion };
        assert_eq!(later.progress(10_001), "\t564K / 11.3M copied, 4.87% done, no estimated completion time");
        let later = Expansion { reflowed: copied + (2 << 20), ..later };
        assert_eq!(later.progress(10_002), "\t2.55M / 11.3M copied at 1M/s, 22.55% done, 00:00:08 to go");
        let waits = Expansion { waits: true, ..expansion };
        assert!(waits.progress(116).ends_with(" at 35.2K/s, 4.87% done, paused for resilver or clear"));
    }

    const SCRUB: Scan = Scan {
        func: 1,
        state: state::SCANNING,
        start: 1_793_500_386,
        end: 0,
        to_examine: 9_000_000,
        examined: 4_000_001,
        skipped: 5,
        issued: 3_999_996,
        processed: 6,
        errors: 7,
        paused: 0,
        pass: ScanPass { start: 0, examined: 0, issued: 0, paused_at: 0, paused: 0, is_typical: true },
        rates: [0; 2],
    };

    #[test]
    fn a_scrub_tells_how_far_it_came() {
        let lines = SCRUB.lines();
        assert_eq!(
            lines[1..],
            [
                "\t3.81M / 8.58M scanned, 3.81M / 8.58M issued",
                "\t6B repaired, 44.44% done, no estimated completion time",
            ]
        );
        let live = Scan { rates: [1 << 20, 1 << 10], ..SCRUB }.lines();
        assert_eq!(live[1], "\t3.81M / 8.58M scanned at 1M/s, 3.81M / 8.58M issued at 1K/s");
        assert_eq!(live[2], "\t6B repaired, 44.44% done, 01:21:22 to go");
        let gathering = ScanPass { is_typical: false, ..SCRUB.pass };
        let live = Scan { rates: [1 << 20, 1 << 10], pass: gathering, issued: 1 << 20, ..SCRUB }.lines();
        assert_eq!(live[1], "\t3.81M / 8.58M scanned at 1M/s, 1M / 8.58M issued at 1K/s");
        assert_eq!(live[2], "\t6B repaired, 11.65% done, no estimated completion time");
        let paused = Scan { paused: 1_793_500_388, ..SCRUB }.lines();
        assert!(paused[0].starts_with("  scan: scrub paused since "), "{}", paused[0]);
        assert!(paused[1].starts_with("\tscrub started on "), "{}", paused[1]);
        assert_eq!(paused[3], "\t6B repaired, 44.44% done");
        let done = Scan { state: state::FINISHED, end: SCRUB.start + 4, func: 2, ..SCRUB }.lines();
        assert!(done[0].starts_with("  scan: resilvered 6B in 00:00:04 with 7 errors on "), "{}", done[0]);
        assert_eq!(Scan { func: 3, ..SCRUB }.lines(), Vec::<String>::new());
    }

    #[test]
    fn small_amounts_copied_have_no_unit() {
        let removal = Removal {
            state: state::FINISHED,
            vdev: 2,
            start: 100,
            end: 4000,
            to_copy: 9_000_000,
            copied: 55,
            mapping_memory: 48,
            pass: FIRST,
        };
        let lines = removal.lines("mirror-2");
        assert!(
            lines[0].starts_with("remove: Removal of vdev 2 copied 55 in 1h5m, completed on "),
            "{}",
            lines[0]
        );
        assert_eq!(lines[1], "\t48 memory used for removed device mappings");
        let running = Removal { state: state::SCANNING, copied: 4_000_001, ..removal }.lines("mirror-2");
        assert!(
            running[0].starts_with("remove: Evacuation of mirror-2 in progress since "),
            "{}",
            running[0]
        );
        let running = Removal { state: state::SCANNING, copied: 4_000_001, ..removal };
        let line = running.progress(100 + 100);
        assert_eq!(line, "\t3.81M copied out of 8.58M at 39.1K/s, 44.44% done, 0h2m to go");
        let slow = Removal { copied: 1, to_copy: 1 << 40, ..running }.progress(1 << 20);
        assert!(slow.ends_with("at 1/s, 0.00% done, (copy is slow, no estimated time)"), "{slow}");
        let pass = CopyPass { start: 10_000, before: 4_000_000 };
        let later = Removal { copied: 5_000_000, pass, ..running }.progress(10_010);
        assert_eq!(later, "\t4.77M copied out of 8.58M at 97.7K/s, 55.56% done, 0h0m to go");
        let reflow = Expansion {
            pass: CopyPass { start: 1, before: 0 },
            state: 1,
            vdev: 0,
            start: 1,
            end: 0,
            to_reflow: 9_000_000,
            reflowed: 55,
            waits: false,
        };
        let line = reflow.progress(2);
        assert_eq!(line, "\t55 / 8.58M copied at 55/s, 0.00% done, 1 days 21:27:15 to go");
    }
}
