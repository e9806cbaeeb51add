//! Names of the holds and bookmarks that keep the base of a job's next stream.
//!
//! Jobs of one name may copy a source to several targets. Each target has marks of its own, so that a run to one of them does
//! not take away the base of another.

/// The names of one job's marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marks {
    /// What the names begin with that earlier versions made, without the target.
    old: String,
    /// The target's part.
    target: String,
}

impl Marks {
    /// Those of the job called `name`; `target` distinguishes its target from others.
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
