//! Names of the holds and bookmarks that keep the base of a job's next stream.
//!
//! Jobs of one name may copy a source to several targets. Each target has marks of its own, so that a run to one of them does
//! not take away the base of another.

use crate::host::{Failed, Host};
use crate::look::{Dataset, Snapshot};

/// Names that one command is given at most.
pub(crate) const AT_ONCE: usize = 100;

/// The names of one job's marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The prefix of names that earlier versions made, without the target.
    old: String,
    /// The target's part.
    target: String,
}

impl Marks {
    /// The marks of the job called `name`; `target` distinguishes its target from others.
    pub(crate) fn of(name: &str, target: &str) -> Self {
        Self { old: format!("aquifer_{name}"), target: format!("{:08x}", hash(target)) }
    }

    /// The tag of the job's holds.
    pub(crate) fn tag(&self) -> String {
        format!("{}_{}", self.old, self.target)
    }

    /// Whether a hold is the job's.
    pub(crate) fn is_tag(&self, tag: &str) -> bool {
        tag == self.old || tag == self.tag()
    }

    /// The bookmark of a snapshot, which a job's own begins with `prefix`.
    pub(crate) fn bookmark(&self, snapshot: &str, prefix: &str) -> String {
        format!("{}_{}", self.tag(), snapshot.strip_prefix(prefix).unwrap_or(snapshot))
    }

    /// Whether a bookmark is the job's.
    pub(crate) fn is_bookmark(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix(&self.old).and_then(|rest| rest.strip_prefix('_')) else {
            return false;
        };
        match rest.split_once('_') {
            Some((target, _)) if is_hash(target) => target == self.target,
            _ => true,
        }
    }
}

fn is_hash(word: &str) -> bool {
    word.len() == 8 && word.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// FNV-1a of 32 bits.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Holds a snapshot, which may have the hold already.
pub(crate) fn hold(host: &Host, tag: &str, snapshot: &str) -> Result<(), Failed> {
    match host.run(&["hold", tag, snapshot]) {
        Err(e) if !e.text.contains("tag already exists") => Err(e),
        _ => Ok(()),
    }
}

/// Holds the snapshot with a guid, and releases the job's holds of all others.
pub(crate) fn keep(
    host: &Host,
    dataset: &Dataset,
    guid: u64,
    whole: &str,
    how: (&Marks, bool),
) -> Result<(), Failed> {
    let (marks, no_holds) = how;
    let name = |snapshot: &Snapshot| format!("{whole}@{}", snapshot.name);
    if let Some(common) = dataset.by_guid(guid).filter(|_| !no_holds) {
        hold(host, &marks.tag(), &name(common))?;
    }
    let is_held = |snapshot: &&Snapshot| snapshot.userrefs > 0 && (snapshot.guid != guid || no_holds);
    let held: Vec<String> = dataset.snapshots.iter().filter(is_held).map(name).collect();
    for names in held.chunks(AT_ONCE) {
        let mut words = vec!["holds", "-H"];
        words.extend(names.iter().map(String::as_str));
        for line in host.run(&words)?.lines() {
            let cells: Vec<&str> = line.split('\t').collect();
            if let [name, known, ..] = cells[..]
                && marks.is_tag(known.trim())
            {
                host.run(&["release", known.trim(), name.trim()])?;
            }
        }
    }
    Ok(())
}

/// Makes the bookmark of a snapshot, and destroys those of older ones.
pub(crate) fn mark(
    host: &Host,
    dataset: &Dataset,
    guid: u64,
    whole: &str,
    how: (&Marks, &str),
) -> Result<(), Failed> {
    let (marks, prefix) = how;
    let own = dataset.bookmarks.iter().filter(|bookmark| marks.is_bookmark(&bookmark.name));
    let (same, old): (Vec<_>, Vec<_>) = own.partition(|bookmark| bookmark.guid == guid);
    let Some(common) = dataset.by_guid(guid) else { return Ok(()) };
    if same.is_empty() {
        let name = marks.bookmark(&common.name, prefix);
        let (from, to) = (format!("{whole}@{}", common.name), format!("{whole}#{name}"));
        host.run(&["bookmark", &from, &to])?;
    }
    for bookmark in old {
        host.run(&["destroy", &format!("{whole}#{}", bookmark.name)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_other_targets_are_not_the_jobs() {
        let (a, b) = (Marks::of("replicate", "1 far/a"), Marks::of("replicate", "2 far/a"));
        assert!(a.is_tag(&a.tag()) && !a.is_tag(&b.tag()) && a.is_tag("aquifer_replicate"));
        let mark = a.bookmark("aquifer_replicate_2026", "aquifer_replicate_");
        assert_eq!(mark, format!("{}_2026", a.tag()));
        assert!(a.is_bookmark(&mark) && !b.is_bookmark(&mark));
        assert!(b.is_bookmark("aquifer_replicate_s_2") && !b.is_bookmark("mine"));
    }
}
