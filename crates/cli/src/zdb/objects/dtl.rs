//! Which device lacks which transaction groups, and which may not go.

use std::sync::Arc;

use engine::vdev::config::{Kind, VdevConfig};
use engine::vdev::tree::Tree;

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
    let ranges = leaf.map(|l| l.dtl.read().ranges().to_vec()).unwrap_or_default();
    for (start, end) in ranges {
        let inner = indent + 2;
        out!(dump, "\t{:inner$}missing [{start},{end}) length {}\n", "", end.saturating_sub(start));
    }
    for child in &config.children {
        vdev(dump, tree, top, child, indent + 4)?;
    }
    Ok(())
}

/// Whether a vdev has data missing when the one of guid `without` is taken away.
fn fails(tree: &Tree, config: &VdevConfig, without: u64) -> bool {
    if config.guid == without {
        return true;
    }
    if config.kind.is_leaf() {
        let leaf = tree.leaf(config.guid);
        return leaf.is_none_or(|l| l.device().is_none() || !l.dtl.read().is_empty());
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
