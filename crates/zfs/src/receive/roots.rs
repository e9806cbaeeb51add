//! Encryption roots after a raw package: each raw stream makes its dataset an encryption root, because it is received before
//! its place in the tree is final. Datasets that inherit their key on the sending side inherit it here, too, once all have
//! arrived.
//!
//! Source: `recv_fix_encryption_hierarchy`, libzfs_sendrecv.c, OpenZFS 2.4.

use std::collections::BTreeMap;
use std::io::Write;

use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::Failure;
use engine::dsl::props::PropValue;
use engine::dsl::props::names::dataset_name;
use engine::dsl::write::props::SettingSource;
use nvpair::{NvList, NvValue};

use super::one::Received;
use super::package::{Package, text};
use super::permissions::may_change_key;
use super::{PLAIN, failed};

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

/// Makes the datasets at and below `top` encryption roots, or not, according to the package. Only datasets of `received`, the
/// streams of the package by guid, are changed: the keys of others did not come.
///
/// # Errors
/// If a dataset is to inherit the key of a parent that is not encrypted, if the caller may not change the key of a dataset that
/// this package did not create, or if the pool cannot be changed.
pub(super) fn restore(
    package: &Package,
    top: &str,
    received: &[(u64, Received)],
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let target = Target::of(top, ctx)?;
    if !target.exists() {
        return Ok(());
    }
    let here = encrypted(&target)?;
    for sent in package.datasets() {
        let Some(head) = head_of(sent, received) else { continue };
        let Some(local) = here.get(&head) else { continue };
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
        let is_new = received.iter().any(|(_, done)| done.head == head && done.is_new);
        for change in changes {
            if is_admitted(local, (&change, is_new), ctx)? {
                run(&local.name, change, &target, ctx)?;
            }
        }
    }
    Ok(())
}

/// The head that received a stream of the dataset `sent`.
fn head_of(sent: &NvList, received: &[(u64, Received)]) -> Option<u64> {
    let mut guids = sent.nvlist("snaps")?.iter().filter_map(|pair| match pair.value {
        NvValue::Uint64(guid) => Some(guid),
        _ => None,
    });
    guids.find_map(|guid| received.iter().find(|(of, _)| *of == guid)).map(|(_, done)| done.head)
}

/// Whether the caller may make a change: returns false for one that is left out, which is reported.
///
/// The location of a key is the owner's to set: keys are read from it with the owner's rights.
fn is_admitted(local: &Local, (change, is_new): (&Change, bool), ctx: &mut Ctx) -> Result<bool, Failure> {
    let name = &local.name;
    if ctx.session()?.delegated.is_none() {
        return Ok(true);
    }
    if matches!(change, Change::Location(_)) {
        writeln!(ctx.err, "cannot receive keylocation property on {name}: permission denied")?;
        return Ok(false);
    }
    match is_new || may_change_key(name, ctx)? {
        true => Ok(true),
        false => Err(failed(PLAIN, format!("the encryption root of {name}: permission denied"))),
    }
}

fn run(name: &str, change: Change, target: &Target, ctx: &mut Ctx) -> Result<(), Failure> {
    let of = name.to_owned();
    let done = ctx.change(&target.pool, move |tasks, _| match change {
        Change::Inherit => tasks.set_encryption_root(&of, false),
        Change::Root => tasks.set_encryption_root(&of, true),
        Change::Location(location) => {
            tasks.set(&of, &[("keylocation", Some(PropValue::Text(location)))], SettingSource::Local)
        }
    });
    done.map_err(|e| failed(PLAIN, format!("the encryption root of {name}: {}", why(&e))))
}

/// The encrypted datasets at and below the target by the numbers of their heads.
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
        let head = dir.head()?.number;
        all.insert(head, Local { is_root: root.name == dir.name, name: dir.name, is_clone });
    }
    Ok(all)
}
