//! The lines of `zpool history`.

use std::fmt::Write;

use nvpair::NvList;

use super::time::stamp;
use crate::users::Names;

/// Events of the internal log before it had names (`zfs_history_event_names`), by number.
#[doc(alias = "zfs_history_event_names")]
const LEGACY_EVENTS: [&str; 41] = [
    "invalid event",
    "pool create",
    "vdev add",
    "pool remove",
    "pool destroy",
    "pool export",
    "pool import",
    "vdev attach",
    "vdev replace",
    "vdev detach",
    "vdev online",
    "vdev offline",
    "vdev upgrade",
    "pool clear",
    "pool scrub",
    "pool property set",
    "create",
    "clone",
    "destroy",
    "destroy_begin_sync",
    "inherit",
    "property set",
    "quota set",
    "permission update",
    "permission remove",
    "permission who remove",
    "promote",
    "receive",
    "rename",
    "reservation set",
    "replay_inc_sync",
    "replay_full_sync",
    "rollback",
    "snapshot",
    "filesystem version upgrade",
    "refquota set",
    "refreservation set",
    "pool scrub done",
    "user hold",
    "user release",
    "pool split",
];

/// The parts of the history to show.
#[derive(Debug, Clone, Copy, Default)]
pub struct HistoryFormat {
    /// `-i`: include internal events.
    pub internal: bool,
    /// `-l`: user, host and zone.
    pub long: bool,
}

/// The text of a record with its newline; `None` if it is not shown.
pub fn record(rec: &NvList, format: HistoryFormat, users: &Names) -> Option<String> {
    let when = moment(rec);
    let mut text = match event(rec) {
        Event::Command(command) => format!("{when} {command}"),
        Event::Internal(_) | Event::Ioctl(_) if !format.internal => return None,
        Event::Internal(what) => format!("{when} {what}"),
        Event::Ioctl(name) => format!("{when} ioctl {name}\n{}", ioctl_body(rec)),
        Event::Unknown => return Some(format!("{when} unrecognized record:\n{}", rec.dump(4))),
    };
    if format.long {
        text.push_str(&actor(rec, users));
    }
    text.push('\n');
    Some(text)
}

enum Event {
    Command(String),
    Internal(String),
    Ioctl(String),
    Unknown,
}

fn event(rec: &NvList) -> Event {
    let txg = rec.u64("history txg").unwrap_or(0);
    let said = text(rec, "history internal str").unwrap_or_default();
    if let Some(command) = text(rec, "history command") {
        return Event::Command(command);
    }
    if let Some(number) = rec.u64("history internal event") {
        let name = usize::try_from(number).ok().and_then(|n| LEGACY_EVENTS.get(n));
        let line = name.map(|name| Event::Internal(format!("[internal {name} txg:{txg}] {said}")));
        return line.unwrap_or(Event::Unknown);
    }
    if let Some(name) = text(rec, "internal_name") {
        let mut line = format!("[txg:{txg}] {name}");
        if let Some(dataset) = text(rec, "dsname") {
            let _ = write!(line, " {dataset} ({})", rec.u64("dsid").unwrap_or(0));
        }
        let _ = write!(line, " {said}");
        return Event::Internal(line);
    }
    text(rec, "ioctl").map_or(Event::Unknown, Event::Ioctl)
}

fn moment(rec: &NvList) -> String {
    let when = rec.u64("history time").map(stamp).unwrap_or_default();
    match rec.i64("elapsed_ns") {
        Some(ns) => format!("{when} ({}ms)", ns / 1_000_000),
        None => when,
    }
}

fn ioctl_body(rec: &NvList) -> String {
    let mut body = String::new();
    if let Some(input) = rec.nvlist("in_nvl") {
        let _ = write!(body, "    input:\n{}", input.dump(8));
    }
    if let Some(output) = rec.nvlist("out_nvl") {
        let _ = write!(body, "    output:\n{}", output.dump(8));
    }
    if let Some(size) = rec.i64("out_size") {
        let _ = writeln!(body, "    output nvlist omitted; original size: {}KB", size / 1024);
    }
    if let Some(errno) = rec.i64("errno") {
        let _ = writeln!(body, "    errno: {errno}");
    }
    body
}

/// ` [user 0 (root) on host:zone]`
fn actor(rec: &NvList, users: &Names) -> String {
    let mut who = String::new();
    if let Some(id) = rec.u64("history who") {
        let _ = write!(who, "user {id} ");
        if let Some(name) = users.name(id) {
            let _ = write!(who, "({name}) ");
        }
    }
    if let Some(host) = text(rec, "history hostname") {
        let _ = write!(who, "on {host}");
    }
    if let Some(zone) = text(rec, "history zone") {
        let _ = write!(who, ":{zone}");
    }
    format!(" [{who}]")
}

/// A string of a record. A record stays on its own lines: newlines in user-supplied property values are escaped.
fn text(rec: &NvList, name: &str) -> Option<String> {
    let mut shown = String::new();
    for c in rec.string(name)?.to_string_lossy().chars() {
        match c.is_control() {
            true => write!(shown, "\\{:03o}", u32::from(c)).ok()?,
            false => shown.push(c),
        }
    }
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rec(pairs: &[(&str, &str)]) -> NvList {
        let mut list = NvList::new();
        pairs.iter().for_each(|(name, value)| {
            list.add(*name, *value);
        });
        list
    }

    const LONG: HistoryFormat = HistoryFormat { internal: true, long: true };

    #[test]
    fn internal_records_are_hidden_unless_asked() {
        let mut internal = rec(&[
            ("internal_name", "create"),
            ("dsname", "tank/a"),
            ("history internal str", " "),
            ("history hostname", "vm"),
        ]);
        internal.add("history txg", 15_u64).add("dsid", 73_u64);
        assert_eq!(record(&internal, HistoryFormat::default(), &Names::default()), None);
        let line = record(&internal, LONG, &Names::default()).unwrap();
        assert_eq!(line, " [txg:15] create tank/a (73)   [on vm]\n");
    }

    #[test]
    fn a_value_with_a_newline_makes_no_record() {
        let forged = rec(&[("history command", "zfs set a:b=1\n\u{1b}2026 zpool destroy tank")]);
        let line = record(&forged, LONG, &Names::default()).unwrap();
        assert_eq!(line, " zfs set a:b=1\\012\\0332026 zpool destroy tank []\n");
    }

    #[test]
    fn ioctls_show_their_arguments() {
        let mut ioctl = rec(&[("ioctl", "create"), ("history hostname", "vm"), ("history zone", "linux")]);
        let mut input = NvList::new();
        input.add("type", 2_u64);
        ioctl.add("in_nvl", input).add("history who", 0_u64);
        assert_eq!(
            record(&ioctl, LONG, &Names::default()).unwrap(),
            " ioctl create\n    input:\n        type: 2\n [user 0 on vm:linux]\n"
        );
    }

    #[test]
    fn old_events_have_names_and_strange_ones_are_dumped() {
        let mut old = rec(&[("history internal str", "a=b")]);
        old.add("history internal event", 21_u64).add("history txg", 6_u64);
        let internal = HistoryFormat { internal: true, long: false };
        assert_eq!(
            record(&old, internal, &Names::default()).unwrap(),
            " [internal property set txg:6] a=b\n"
        );
        let strange = rec(&[("x", "y")]);
        assert!(record(&strange, internal, &Names::default()).unwrap().contains("unrecognized record:"));
    }
}
