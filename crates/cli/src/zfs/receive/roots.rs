//! Encryption roots after a raw package: each raw stream makes its dataset an encryption root, because it is received before
//! its place in the tree is final. Datasets that inherit their key on the sending side inherit it here, too, once all have
//! arrived.
//!
//! Source: `recv_fix_encryption_hierarchy`, libzfs_sendrecv.c, OpenZFS 2.4.

use std::collections::BTreeMap;

use engine::dsl::props::PropValue;
use engine::dsl::props::names::dataset_name;
use engine::dsl::write::props::Source;
use nvpair::{NvList, NvValue};

use super::package::{Package, text};
use super::{PLAIN, failed};
use crate::ctx::Ctx;
use crate::session::why;
use crate::verb::Failure;
use crate::zfs::target::Target;

/// An encrypted dataset here.
#[derive(Debug, Clone)]
struct Local {
    name: String,
    is_root: bool,
    is_clone: bool,
}

/// A change of a dataset.
#[derive(Debug)]
enum Change {
    Inherit,
    Root,
    Location(String),
}

/// Makes the datasets at and below `top` encryption roots, or not, according to the package.
///
/// # Errors
/// If a dataset is to inherit the key of a parent that is not encrypted, or the pool cannot be changed.
pub(super) fn restore(package: &Package, top: &str, ctx: &mut Ctx) -> Result<(), Failure> {
    let target = Target::of(top, ctx)?;
    if !target.exists() {
        return Ok(());
    }
    let here = encrypted(&target)?;
    for sent in package.datasets() {
        let guids =
            sent.nvlist("snaps").into_iter().flat_map(NvList::iter).filter_map(|pair| match pair.value {
                NvValue::Uint64(guid) => Some(guid),
                _ => None,
            });
        let Some(local) = guids.filter_map(|guid| here.get(&guid)).next().cloned() else { continue };
        let is_root = sent.contains("is_encroot");
        let location = sent.nvlist("props").and_then(|props| text(props, "keylocation"));
        let changes = match (is_root, local.is_root) {
            (true, have) => {
                let root = (!have && !local.is_clone).then_some(Change::Root);
                let location = (have || root.is_some()).then_some(location).flatten();
                root.into_iter().chain(location.map(Change::Location)).collect()
            }
            // The dataset at the top has no parent with its key here.
            (false, true) if local.name != top => vec![Change::Inherit],
            (false, _) => Vec::new(),
        };
        for change in changes {
            run(&local.name, change, &target, ctx)?;
        }
    }
    Ok(())
}

fn run(name: &str, change: Change, target: &Target, ctx: &mut Ctx) -> Result<(), Failure> {
    let of = name.to_owned();
    let done = ctx.change(&target.pool, move |tasks, _| match change {
        Change::Inherit => tasks.set_encryption_root(&of, false),
        Change::Root => tasks.set_encryption_root(&of, true),
        Change::Location(location) => {
            tasks.set(&of, &[("keylocation", Some(PropValue::Text(location)))], Source::Local)
        }
    });
    done.map_err(|e| failed(PLAIN, format!("the encryption root of {name}: {}", why(&e))))
}

/// The encrypted datasets at and below the target by the guids of their snapshots.
fn encrypted(target: &Target) -> Result<BTreeMap<u64, Local>, Failure> {
    let tree = target.tree()?;
    let _quiet = target.pool.quiet();
    let mut all = BTreeMap::new();
    for dir in tree {
        let Some(root) = target.view.dsl.keys.root_of(&dir)? else { continue };
        let is_clone = match dir.phys.origin_obj {
            0 => false,
            // Datasets that are no clones have the pool's hidden snapshot as their origin.
            number => !dataset_name(&dir.dsl, number)?.contains('$'),
        };
        let local = Local { name: dir.name.clone(), is_root: root.name == dir.name, is_clone };
        for snapshot in dir.head()?.snapshots()? {
            all.insert(snapshot.phys.guid, local.clone());
        }
    }
    Ok(all)
}
