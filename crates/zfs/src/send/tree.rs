//! The list at the head of a package: datasets by guid, each with its properties, snapshots, holds and origin.
//!
//! ```text
//! fromsnap, tosnap, not_recursive, raw
//! fss → 0x<guid> → name, parentfromsnap, origin, props, is_encroot, snaps, snapprops, snapholds
//! ```
//!
//! Datasets come as `zfs list` of OpenZFS finds them: parents first, siblings in the order of their ZAP.
//!
//! Source: `gather_nvlist`, `send_iterate_fs`, `send_iterate_snap`, `send_iterate_prop`, libzfs_sendrecv.c, OpenZFS 2.4.

use clikit::ctx::Ctx;
use clikit::verb::Failure;
use engine::dsl::props::holds::holds;
use engine::dsl::props::{PropValue, Setpoint, Settings};
use engine::dsl::{Dataset, Dir};
use nvpair::{NvList, NvValue};
use ondisk::drr::stream_feature;
use zcommon::props::{PropType, ZfsProp};

use super::Options;
use super::scene::Scene;
use crate::prop::RULES;

/// End of the name of a received property's entry.
const RECEIVED: &str = "$recvd";

/// A package's first record.
#[derive(Debug)]
pub(super) struct Head {
    /// The snapshot that was asked for.
    pub toname: String,
    /// Bits of [`stream_feature`].
    pub features: u64,
    /// The list.
    pub list: NvList,
}

/// Parameters of gathering the list.
pub(super) struct Gather<'a> {
    /// The pool.
    pub scene: &'a Scene,
    /// The command's options.
    pub options: &'a Options,
    /// The dataset at the top.
    pub top: &'a str,
    /// Part after the `@` of the snapshot that the package builds on.
    pub from: Option<&'a str>,
    /// The same of the last one.
    pub to: &'a str,
    /// All snapshots up to the last one.
    pub all: bool,
    /// Whether a dataset of this name is wanted.
    pub wanted: &'a dyn Fn(&str) -> bool,
}

/// Facts inherited from the datasets above.
#[derive(Clone, Copy, Default)]
struct Above {
    from_guid: u64,
    to_txg: u64,
}

/// The head of a stream of one snapshot with its properties.
pub(super) fn single(scene: &Scene, o: &Options, to: &Dataset, ctx: &mut Ctx) -> Result<Head, Failure> {
    let (top, snap) = to.name.split_once('@').unwrap_or((&to.name, ""));
    let wanted = |_: &str| true;
    let gather = Gather { scene, options: o, top, from: None, to: snap, all: false, wanted: &wanted };
    gather.head(ctx)
}

/// Part of a snapshot's name after the `@`.
fn part_of(snapshot: &Dataset) -> String {
    snapshot.name.split_once('@').map(|(_, part)| part.to_owned()).unwrap_or_default()
}

impl Gather<'_> {
    /// Reads everything that the package describes.
    ///
    /// # Errors
    /// A dataset that lacks the snapshot, or is encrypted and not sent raw.
    pub(super) fn head(&self, ctx: &mut Ctx) -> Result<Head, Failure> {
        let toname = format!("{}@{}", self.top, self.to);
        let features = if self.options.holds { stream_feature::HOLDS } else { 0 };
        let mut list = NvList::new();
        if let Some(from) = self.from {
            list.add("fromsnap", from.to_owned());
        }
        list.add("tosnap", self.to.to_owned());
        if !self.options.replicate {
            list.add("not_recursive", NvValue::Boolean);
        }
        if self.options.raw {
            list.add("raw", NvValue::Boolean);
        }
        let mut fss = NvList::new();
        let dir = {
            let _quiet = self.scene.quiet();
            self.scene.pool.dsl.dir(self.top)?
        };
        let done = self.filesystem(&dir, Above::default(), &mut fss, ctx);
        if let Err(why) = done {
            if let Failure::Failed(what) = why {
                ctx.warn(what);
            }
            return Err(Failure::failed(format!("warning: cannot send '{toname}': backup failed")));
        }
        list.add("fss", NvValue::List(fss));
        Ok(Head { toname, features, list })
    }

    fn filesystem(&self, dir: &Dir, above: Above, fss: &mut NvList, ctx: &mut Ctx) -> Result<(), Failure> {
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        let quiet = self.scene.quiet();
        let head = dir.head()?;
        let snapshots = head.snapshots()?;
        let txg_of =
            |wanted: &str| snapshots.iter().find(|s| part_of(s) == wanted).map(|s| s.phys.creation_txg);
        let to_txg = txg_of(self.to);
        // The list has excluded datasets, too, or `receive -F` would destroy them at the target. Unlike in OpenZFS one that
        // could not be sent is no reason to fail.
        let is_wanted = (self.wanted)(&dir.name);
        if !is_wanted && to_txg.is_none() {
            return Ok(());
        }
        if to_txg.is_none() {
            drop(quiet);
            return self.without_snapshot(&head, above, ctx);
        }
        let mut below = Above { from_guid: 0, to_txg: to_txg.unwrap_or(above.to_txg) };
        let mut entry = NvList::new();
        entry.add("name", dir.name.clone());
        entry.add("parentfromsnap", above.from_guid);
        if let Some(origin) = self.scene.origin(&head)? {
            entry.add("origin", origin.phys.guid);
        }
        let o = self.options;
        if o.props || o.backup || o.replicate {
            entry.add("props", NvValue::List(self.props(&head)?));
        }
        if let Some(root) = dir.dsl.keys.root_of(dir)? {
            if root.name == dir.name {
                entry.add("is_encroot", NvValue::Boolean);
            }
            if !o.raw && is_wanted {
                return Err(Failure::failed(format!(
                    "cannot send {}@{}: encrypted dataset {} may not be sent with properties without the raw flag",
                    self.top, self.to, dir.name
                )));
            }
        }
        let range = (self.from.and_then(txg_of).unwrap_or(0), to_txg.unwrap_or(u64::MAX));
        self.snapshots(&snapshots, range, &mut below, &mut entry, ctx)?;
        fss.add(format!("{:#x}", head.phys.guid), NvValue::List(entry));
        if !o.replicate {
            return Ok(());
        }
        let children = dir.children_as_stored()?;
        drop(quiet);
        for (name, number) in children {
            let child = Dir::open(&dir.dsl, number, format!("{}/{name}", dir.name))?;
            if !child.is_internal() {
                self.filesystem(&child, below, fss, ctx)?;
            }
        }
        Ok(())
    }

    /// Adds the snapshots of one dataset to its `entry`; `range`: the txgs of the first and last one that a package without
    /// `-R` names. Sets `below.from_guid`.
    fn snapshots(
        &self,
        snapshots: &[Dataset],
        range: (u64, u64),
        below: &mut Above,
        entry: &mut NvList,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        let o = self.options;
        let (mut snaps, mut snapprops, mut snapholds) = (NvList::new(), NvList::new(), NvList::new());
        let (mut seen_from, mut seen_to) = (self.all && self.from.is_none(), false);
        for snapshot in snapshots {
            let name = part_of(snapshot);
            let (is_from, is_to) = (self.from == Some(name.as_str()), name == self.to);
            let txg = snapshot.phys.creation_txg;
            let is_wanted = match (o.replicate, self.all) {
                (true, _) => true,
                (false, true) => txg >= range.0 && txg <= range.1,
                (false, false) => is_to,
            };
            if !is_wanted {
                continue;
            }
            if txg > below.to_txg {
                if o.verbosity() > 0 {
                    ctx.err_line(&format!(
                        "skipping snapshot {} because it was created after the destination snapshot ({})",
                        snapshot.name, self.to
                    ));
                }
                continue;
            }
            snaps.add(name.clone(), snapshot.phys.guid);
            if is_from || (below.from_guid == 0 && is_to) {
                below.from_guid = snapshot.phys.guid;
            }
            if !o.replicate {
                if !seen_from && is_from {
                    seen_from = true;
                    continue;
                }
                if (seen_to || !seen_from) && !(is_to && self.from.is_none()) {
                    continue;
                }
                seen_to |= is_to;
            }
            snapprops.add(name.clone(), NvValue::List(self.props(snapshot)?));
            if o.holds {
                let mut list = NvList::new();
                for hold in holds(snapshot)? {
                    list.add(hold.tag, hold.time);
                }
                snapholds.add(name, NvValue::List(list));
            }
        }
        entry.add("snaps", NvValue::List(snaps));
        entry.add("snapprops", NvValue::List(snapprops));
        if o.holds {
            entry.add("snapholds", NvValue::List(snapholds));
        }
        Ok(())
    }

    fn without_snapshot(&self, head: &Dataset, above: Above, ctx: &mut Ctx) -> Result<(), Failure> {
        let (name, snap) = (&head.name, self.to);
        if above.to_txg != 0 && head.phys.creation_txg > above.to_txg {
            if self.options.verbosity() > 0 {
                ctx.warn(format!("skipping dataset {name}: snapshot {snap} does not exist"));
            }
            return Ok(());
        }
        if self.options.skip_missing {
            ctx.warn(format!(
                "WARNING: skipping dataset {name} and its children: snapshot {snap} does not exist"
            ));
            return Ok(());
        }
        let recursively = if self.options.replicate { " recursively" } else { "" };
        Err(Failure::failed(format!(
            "cannot send {}@{snap}{recursively}: snapshot {name}@{snap} does not exist",
            self.top
        )))
    }

    /// The properties that were set on the dataset itself, or came with a stream.
    fn props(&self, dataset: &Dataset) -> Result<NvList, Failure> {
        let mut list = NvList::new();
        if self.options.backup {
            for (name, value) in received(dataset)? {
                add(&mut list, &name, &value, dataset);
            }
            return Ok(list);
        }
        for (name, setting) in Settings::of(dataset, RULES)?.iter() {
            let is_own = match &setting.setpoint {
                Setpoint::Dataset(at) => *at == dataset.name,
                Setpoint::Received => true,
            };
            if is_own {
                add(&mut list, name, &setting.value, dataset);
            }
        }
        Ok(list)
    }
}

/// Properties that came with a stream, in the order of the ZAP that has them.
fn received(dataset: &Dataset) -> Result<Vec<(String, PropValue)>, Failure> {
    let number = match dataset.is_snapshot() {
        true => dataset.phys.props_obj,
        false => dataset.dir()?.phys.props_zapobj,
    };
    let Some(zap) = dataset.dsl.zap(number)? else { return Ok(Vec::new()) };
    let entries = zap.to_vec()?;
    let of = |entry: &engine::zap::ZapEntry| {
        let name = entry.name_lossy();
        Some((name.strip_suffix(RECEIVED)?.to_owned(), PropValue::from_zap(&entry.value)))
    };
    Ok(entries.iter().filter_map(of).collect())
}

fn add(list: &mut NvList, name: &str, value: &PropValue, dataset: &Dataset) {
    let prop = ZfsProp::from_name(name);
    let is_text = match prop.map(ZfsProp::info) {
        // Another release's.
        None if !name.contains(':') => return,
        None => true,
        Some(info) if info.read_only() => return,
        Some(info) => info.data_type == PropType::String,
    };
    let limits = [ZfsProp::Quota, ZfsProp::Reservation, ZfsProp::Refquota, ZfsProp::Refreservation];
    if dataset.is_snapshot() && prop.is_some_and(|prop| limits.contains(&prop)) {
        return;
    }
    match (is_text, value) {
        (true, PropValue::Text(text)) => drop(list.add(name.to_owned(), text.clone())),
        (true, PropValue::Number(number)) => drop(list.add(name.to_owned(), number.to_string())),
        (false, PropValue::Number(number)) => drop(list.add(name.to_owned(), *number)),
        (false, PropValue::Text(_)) => {}
    }
}
