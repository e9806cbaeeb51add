//! The missing txgs of each device, and the devices that cannot be removed.

use std::sync::Arc;

use engine::vdev::config::{Kind, VdevConfig};
use engine::vdev::tree::Tree;
use ondisk::space_map::SpaceMapDecoder;

use super::dump::{Done, Dump, out};

/// Prints the whole tree.
pub fn print(dump: &mut Dump<'_>) -> Done {
    let tree = dump.session.pool.tree();
    out!(dump, "\nDirty time logs:\n\n");
    let name = dump.session.pool.name.clone();
    line(dump, 0, &name, true)?;
    for top in &tree.config.children {
        vdev(dump, &tree, top, top, 4)?;
    }
    Ok(())
}

fn line(dump: &mut Dump<'_>, indent: usize, name: &str, required: bool) -> Done {
    let word = if required { "DTL-required" } else { "DTL-expendable" };
    out!(dump, "\t{:indent$}{name} [{word}]\n", "");
    Ok(())
}

fn vdev(dump: &mut Dump<'_>, tree: &Arc<Tree>, top: &VdevConfig, config: &VdevConfig, indent: usize) -> Done {
    let leaf = tree.leaf(config.guid);
    let path = leaf.map(|l| l.path.clone()).or_else(|| config.path.clone());
    let name = path.unwrap_or_else(|| config.kind.name().to_owned());
    let required = config.guid == top.guid || fails(tree, top, config.guid);
    line(dump, indent, &name, required)?;
    let lacks = Lacks::of(tree, config);
    for (name, ranges) in
        [("missing", &lacks.missing), ("partial", &lacks.partial), ("outage", &lacks.outage)]
    {
        for (start, end) in ranges {
            let inner = indent + 2;
            out!(dump, "\t{:inner$}{name} [{start},{end}) length {}\n", "", end.saturating_sub(*start));
        }
        if dump.d > 5 && config.kind.is_leaf() && config.dtl_object != 0 && !ranges.is_empty() {
            let object = dump.session.pool.mos.object(config.dtl_object);
            if let Some(object) = dump.read(object) {
                dump.space_map(&object, SpaceMapDecoder::new(0, 0, u64::MAX))?;
            }
        }
    }
    for child in &config.children {
        vdev(dump, tree, top, child, indent + 4)?;
    }
    Ok(())
}

/// Half-open ranges of txgs, ascending.
type Ranges = Vec<(u64, u64)>;

/// The missing txgs of a vdev: of the whole vdev, of some child, and while it cannot be read.
#[derive(Default)]
struct Lacks {
    missing: Ranges,
    partial: Ranges,
    outage: Ranges,
}

impl Lacks {
    #[doc(alias = "vdev_dtl_reassess")]
    fn of(tree: &Tree, config: &VdevConfig) -> Self {
        if config.kind.is_leaf() {
            let Some(leaf) = tree.leaf(config.guid) else { return Self::default() };
            let missing = leaf.dtl.read().ranges().to_vec();
            let readable = leaf.device().is_some() && !config.offline;
            let outage = if readable { missing.clone() } else { vec![(0, u64::MAX)] };
            return Self { partial: missing.clone(), missing, outage };
        }
        let children: Vec<Self> = config.children.iter().map(|child| Self::of(tree, child)).collect();
        let enough = match usize::try_from(config.nparity).unwrap_or(0) {
            0 => children.len(),
            parity => parity + 1,
        };
        let outage = common(children.iter().map(|c| &c.outage), enough);
        let partial = common(children.iter().map(|c| &c.partial), 1);
        Self { missing: outage.clone(), partial, outage }
    }
}

/// Ranges contained in at least `enough` of the sets.
#[doc(alias = "space_reftree_generate_map")]
fn common<'a>(sets: impl Iterator<Item = &'a Ranges>, enough: usize) -> Ranges {
    let mut edges: Vec<(u64, i64)> = Vec::new();
    for (start, end) in sets.flatten().filter(|(start, end)| start < end) {
        edges.extend([(*start, 1), (*end, -1)]);
    }
    // At the same position opening edges come first: neighbours merge.
    edges.sort_unstable_by_key(|(at, step)| (*at, -step));
    let enough = i64::try_from(enough.max(1)).unwrap_or(i64::MAX);
    let (mut depth, mut open, mut found) = (0, 0, Ranges::new());
    for (at, step) in edges {
        let before = depth;
        depth += step;
        if before < enough && depth >= enough {
            open = at;
        } else if before >= enough && depth < enough && open < at {
            found.push((open, at));
        }
    }
    found
}

/// Whether a vdev would lack data without the vdev of guid `without`.
fn fails(tree: &Tree, config: &VdevConfig, without: u64) -> bool {
    if config.guid == without {
        return true;
    }
    if config.kind.is_leaf() {
        let leaf = tree.leaf(config.guid);
        return config.offline || leaf.is_none_or(|l| l.device().is_none() || !l.dtl.read().is_empty());
    }
    let failed = config.children.iter().filter(|child| fails(tree, child, without)).count();
    if config.kind.is_mirror_like() {
        return failed == config.children.len();
    }
    let parity = match config.kind {
        Kind::Raidz | Kind::Draid => usize::try_from(config.nparity).unwrap_or(0),
        _ => 0,
    };
    failed > parity
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_enough_children_lack() {
        let sets = [vec![(1, 5), (7, 9)], vec![(3, 8)], vec![(5, 6)]];
        assert_eq!(common(sets.iter(), 1), [(1, 9)]);
        assert_eq!(common(sets.iter(), 2), [(3, 6), (7, 8)]);
        assert_eq!(common(sets.iter(), 3), []);
        assert_eq!(common([vec![(1, 2)], vec![(2, 3)]].iter(), 1), [(1, 3)]);
    }
}
