//! The configuration for an import, as the search of devices assembles it.

use std::io::Write;

use clikit::ctx::Ctx;
use clikit::verb::Failure;
use nvpair::{NvList, NvValue};
use zutil::search::PoolCandidate;

use super::target::Session;

/// The `load-request-txg` value for the newest txg.
const NEWEST: u64 = u64::MAX;
/// Rewind policies: never, and as far as necessary.
const NEVER_REWIND: u32 = 2;
const DO_REWIND: u32 = 8;
const EXTREME_REWIND: u32 = 16;
/// Pairs of the pool, in libzutil's order.
const OF_POOL: [&str; 7] = ["vdev_children", "version", "pool_guid", "name", "state", "hostid", "hostname"];

/// Prints it; prints nothing if the devices are not found again.
pub fn print(session: &Session, ctx: &mut Ctx) -> Result<(), Failure> {
    let found = zutil::import::candidates(&session.options.paths);
    let Ok(candidate) = zutil::import::select(found, &session.pool.guid.to_string()) else { return Ok(()) };
    let mut list: NvList = pick(&candidate.config, &OF_POOL);
    if let Some(tree) = candidate.config.nvlist("vdev_tree") {
        let mut root = pick(tree, &["type", "id", "guid"]);
        let children = tree.nvlist_array("children").unwrap_or_default();
        root.add(
            "children",
            NvValue::ListArray(children.iter().map(|child| vdev(&candidate, child, 0)).collect()),
        );
        list.add("vdev_tree", NvValue::List(root));
    }
    let policy = match (session.options.has('X'), session.options.has('F')) {
        (true, _) => EXTREME_REWIND | DO_REWIND,
        (_, true) => DO_REWIND,
        _ => NEVER_REWIND,
    };
    let mut how = NvList::new();
    how.add("load-request-txg", NvValue::Uint64(session.options.txg.unwrap_or(NEWEST)));
    how.add("load-rewind-policy", NvValue::Uint32(policy));
    list.add("load-policy", NvValue::List(how));
    writeln!(ctx.out, "\nConfiguration for import:")?;
    write!(ctx.out, "{}", list.dump(8))?;
    Ok(())
}

fn pick(from: &NvList, names: &[&str]) -> NvList {
    names.iter().filter_map(|name| Some((*name, from.get(name)?.clone()))).collect()
}

/// The path comes last for a found device, because the search replaces it.
fn vdev(candidate: &PoolCandidate, config: &NvList, depth: usize) -> NvList {
    let mut list = config.clone();
    let found = config.u64("guid").is_some_and(|guid| candidate.member(guid).is_some());
    if let Some(path) = found.then(|| list.remove("path")).flatten() {
        list.push("path", path);
    }
    // The tree was decoded within bounds; deeper levels keep their order.
    if depth < 8
        && let Some(NvValue::ListArray(children)) = list.get_mut("children")
    {
        for child in children.iter_mut() {
            *child = vdev(candidate, child, depth + 1);
        }
    }
    list
}
