//! How many more disks of a pool that lost redundancy may fail: one sentence at the end of the `status:` paragraph of
//! `zpool status`, in text and JSON, of imported pools. The rest of the output is OpenZFS's, and so is the output of a pool with
//! all its redundancy. The sentence names no vdev: scripts search the output for names.
//!
//! A vdev's reserve is the number of disks that it can lose in the worst order and still have all data. A disk that is being
//! filled, or lacks data, counts as lost. Log devices are left out: their failure loses no data of a pool that is imported. The
//! reserve of a draid counts its distributed spares that are in use: in each row a further disk takes one unit, of the data or of
//! the spare.

use zcommon::vdev::{VdevKind, VdevState};
use zutil::tree::VdevNode;

use super::prop::PoolView;

/// The sentence; `None` for a pool that is not imported, lacks no redundancy, or has lost data already.
pub fn sentence(view: &PoolView<'_>) -> Option<String> {
    view.imported()?;
    let is_good = |leaf: &VdevNode| is_readable(leaf) && !view.lacks_something(leaf.guid);
    say(&view.tree, &is_good, view.tree.health.state == VdevState::Degraded)
}

fn is_readable(leaf: &VdevNode) -> bool {
    matches!(leaf.health.state, VdevState::Healthy | VdevState::Degraded) && !leaf.not_present
}

fn say(root: &VdevNode, is_good: &dyn Fn(&VdevNode) -> bool, degraded: bool) -> Option<String> {
    let counts = |top: &&VdevNode| !top.is_log && !top.is_virtual();
    let (mut lacks, mut least) = (degraded, u64::MAX);
    for top in root.children.iter().filter(counts) {
        let left = reserve(top, is_good)?;
        lacks |= left < layout_reserve(top);
        least = least.min(left);
    }
    match least {
        _ if !lacks => None,
        0 => Some("One more failed disk can lose data.".to_owned()),
        1 => Some("1 more disk may fail, whichever it is.".to_owned()),
        left => Some(format!("{left} more disks may fail, whichever they are.")),
    }
}

/// The reserve that a top-level vdev's layout gives; pairs that stand for one disk count once.
fn layout_reserve(top: &VdevNode) -> u64 {
    match top.kind {
        VdevKind::Raidz | VdevKind::Draid => top.nparity,
        VdevKind::Mirror => u64::try_from(top.children.len()).unwrap_or(0).saturating_sub(1),
        _ => 0,
    }
}

/// Disks that the vdev can lose, whichever they are; `None`: it has lost data.
fn reserve(vdev: &VdevNode, is_good: &dyn Fn(&VdevNode) -> bool) -> Option<u64> {
    if vdev.is_leaf() {
        return is_good(vdev).then_some(0);
    }
    // Failures that it takes to lose each child that is there.
    let mut costs: Vec<u64> =
        vdev.children.iter().filter_map(|child| reserve(child, is_good)).map(|left| left + 1).collect();
    costs.sort_unstable();
    let children = u64::try_from(vdev.children.len()).ok()?;
    let there = u64::try_from(costs.len()).ok()?;
    // Children that may be lost in all: the parity, or all but one of a mirror.
    let spare = match vdev.kind {
        VdevKind::Raidz | VdevKind::Draid => vdev.nparity,
        _ => children.saturating_sub(1),
    };
    let left = spare.checked_sub(children.checked_sub(there)?)?;
    let fatal = usize::try_from(left + 1).ok()?;
    Some(costs.iter().take(fatal).sum::<u64>().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use nvpair::NvList;

    use super::*;

    fn vdev(kind: &str, guid: u64, children: Vec<NvList>) -> NvList {
        let mut list = NvList::new();
        list.add("type", kind).add("guid", guid).add("id", guid).add("nparity", guid / 1000);
        if !children.is_empty() {
            list.add("children", children);
        } else {
            list.add("path", format!("/dev/d{guid}"));
        }
        list
    }

    fn disks(guids: std::ops::Range<u64>) -> Vec<NvList> {
        guids.map(|guid| vdev("disk", guid, Vec::new())).collect()
    }

    fn said(tops: Vec<NvList>, bad: &[u64]) -> Option<String> {
        let root = VdevNode::from_config(&vdev("root", 0, tops)).unwrap();
        say(&root, &|leaf| !bad.contains(&leaf.guid), false)
    }

    #[test]
    fn a_whole_pool_says_nothing_and_a_lost_one_neither() {
        assert_eq!(said(vec![vdev("mirror", 1, disks(10..12))], &[]), None);
        assert_eq!(said(vec![vdev("mirror", 1, disks(10..12))], &[10, 11]), None);
        assert_eq!(said(disks(10..12), &[]), None);
    }

    #[test]
    fn each_layout_has_its_reserve() {
        let mirror = || vdev("mirror", 1, disks(10..13));
        assert_eq!(said(vec![mirror()], &[10]).unwrap(), "1 more disk may fail, whichever it is.");
        assert_eq!(said(vec![mirror()], &[10, 12]).unwrap(), "One more failed disk can lose data.");
        let raidz = || vdev("raidz", 2002, disks(20..26));
        let both = said(vec![mirror(), raidz()], &[10, 11]).unwrap();
        assert_eq!(both, "One more failed disk can lose data.");
        let same = said(vec![mirror(), raidz()], &[10, 20]).unwrap();
        assert_eq!(same, "1 more disk may fail, whichever it is.");
        let plain = said(vec![mirror(), vdev("disk", 30, Vec::new())], &[10]).unwrap();
        assert_eq!(plain, "One more failed disk can lose data.");
    }

    /// A disk that is being replaced, by one that is being filled or by a spare that is filled.
    #[test]
    fn pairs_count_as_much_as_they_hold() {
        let with = |kind| {
            let mut children = disks(20..24);
            children.push(vdev(kind, 3, disks(30..32)));
            vec![vdev("raidz", 1000, children)]
        };
        assert_eq!(said(with("replacing"), &[30, 31]).unwrap(), "One more failed disk can lose data.");
        assert_eq!(said(with("replacing"), &[31]), None, "the old disk is whole, the new one adds nothing");
        assert_eq!(said(with("spare"), &[30]), None, "the spare is filled");
        assert_eq!(said(with("spare"), &[30, 20]).unwrap(), "One more failed disk can lose data.");
    }

    #[test]
    fn a_degraded_pool_says_what_is_left_though_spares_stand_in() {
        let children = vec![vdev("disk", 20, Vec::new()), vdev("spare", 3, disks(30..32))];
        let root = VdevNode::from_config(&vdev("root", 0, vec![vdev("mirror", 1, children)])).unwrap();
        let text = say(&root, &|leaf| leaf.guid != 30, true).unwrap();
        assert_eq!(text, "1 more disk may fail, whichever it is.");
    }

    #[test]
    fn logs_do_not_count_and_special_vdevs_do() {
        let mut log = vdev("mirror", 5, disks(50..52));
        log.add("is_log", 1u64);
        assert_eq!(said(vec![vdev("mirror", 1, disks(10..12)), log], &[50]), None);
        let mut special = vdev("mirror", 6, disks(60..62));
        special.add("alloc_bias", "special");
        let text = said(vec![vdev("mirror", 1, disks(10..12)), special], &[60]).unwrap();
        assert_eq!(text, "One more failed disk can lose data.");
    }
}
