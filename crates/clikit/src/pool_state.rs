//! The states of a pool and its vdevs.

use daemon::Imported;
use engine::spa::Pool;
use engine::spa::suspension::Suspension;
use zcommon::vdev::VdevState;
use zutil::PoolCandidate;
use zutil::assess::Presence;
use zutil::import_listing::{MosFacts, assessed_by, assessed_facts};
use zutil::tree::VdevNode;

/// `ONLINE`, `DEGRADED`, …, `SUSPENDED`.
pub fn word(tree: &VdevNode, is_suspended: bool) -> &'static str {
    if is_suspended { "SUSPENDED" } else { tree.health.name() }
}

/// The suspension of a pool, with its reason; `None` for a pool that can be written.
pub fn suspension(pool: &Imported) -> Option<Suspension> {
    pool.spa().ok()?.suspending().state()
}

/// [`word`] of an imported pool.
///
/// # Errors
/// The pool cannot be read.
pub fn of_imported(pool: &Imported) -> engine::Result<&'static str> {
    let (view, candidate) = (pool.view()?, pool.candidate());
    let facts = zutil::load::facts(&view);
    let tree = tree(&view, &candidate, facts.as_ref(), true);
    Ok(word(&tree, suspension(pool).is_some()))
}

/// The vdevs of a pool with their states.
pub fn tree(pool: &Pool, candidate: &PoolCandidate, facts: Option<&MosFacts>, is_imported: bool) -> VdevNode {
    match (facts, is_imported) {
        (Some(facts), true) => assessed_by(candidate, facts, &|leaf| known(pool, candidate, leaf)),
        (Some(facts), false) => assessed_facts(candidate, facts),
        (None, _) => labels_tree(candidate),
    }
}

/// The presence of a leaf of a pool in use. The reason why a leaf cannot be opened is looked up at its recorded place.
fn known(pool: &Pool, candidate: &PoolCandidate, leaf: &VdevNode) -> Presence {
    let tree = pool.tree();
    let Some(found) = tree.leaf(leaf.guid) else { return candidate.locate(leaf) };
    let health = found.health();
    let physical_sector = found.device().map_or(0, |device| device.geometry().physical_sector);
    let seen = (health.state == VdevState::CantOpen).then(|| candidate.look(leaf));
    match seen {
        Some(seen) if !matches!(seen, Presence::Present { .. }) => seen,
        _ => Presence::Known { health, physical_sector },
    }
}

fn labels_tree(candidate: &PoolCandidate) -> VdevNode {
    let mut tree = candidate
        .config
        .nvlist("vdev_tree")
        .and_then(VdevNode::from_config)
        .unwrap_or_else(|| VdevNode::empty_root(candidate.guid));
    zutil::assess::assess(&mut tree, &|leaf| candidate.locate(leaf));
    tree
}
