//! Pools of the daemon's cache file that could not be imported, in the listings of imported pools: a pool whose disks did not
//! come up must not look as if there were none.
//!
//! Differs from OpenZFS: the reason stands in the report, and `zpool import` finds such a pool, too.

use clikit::output::json::JsonStyle;
use clikit::output::status::{StatusReport, StatusVdev};
use daemon::Unavailable;
use serde_json::{Map, Value, json};
use zcommon::vdev::{VdevKind, VdevState};
use zutil::PoolCandidate;
use zutil::assess::assess;
use zutil::import_listing::class_of;
use zutil::names::{NameStyle, vdev_name};
use zutil::tree::VdevNode;

const ACTION: &str = "Connect its devices and use 'zpool clear', or look at it with 'zpool import'.\n'zpool export' forgets it.";

/// A pool that is not imported, with its devices as they are now.
pub struct Absent {
    name: String,
    why: String,
    candidate: PoolCandidate,
    tree: VdevNode,
}

impl Absent {
    /// Looks at the pool's devices.
    pub fn new(name: &str, pool: &Unavailable) -> Self {
        let candidate = pool.candidate();
        let tree = candidate.config.nvlist("vdev_tree").and_then(VdevNode::from_config);
        let has_all = |tree: &VdevNode| tree.children.iter().all(|top| top.kind != VdevKind::Missing);
        let tree = tree.filter(has_all).or_else(|| pool.vdevs());
        let mut tree = tree.unwrap_or_else(|| VdevNode::empty_root(candidate.guid));
        assess(&mut tree, &|leaf| candidate.locate(leaf));
        Self { name: name.to_owned(), why: pool.why.clone(), candidate, tree }
    }

    /// Its guid.
    pub const fn guid(&self) -> u64 {
        self.candidate.guid
    }

    /// The word for its state. All its devices may be there: then it was refused for another reason.
    pub fn state(&self) -> &'static str {
        match self.tree.health.state {
            VdevState::CantOpen => self.tree.health.name(),
            _ => "UNAVAIL",
        }
    }

    /// The fields of its object in every listing.
    pub fn object(&self, style: &JsonStyle) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("name".into(), json!(self.name));
        map.insert("type".into(), json!("POOL"));
        map.insert("state".into(), json!(self.state()));
        map.insert("pool_guid".into(), style.number(self.guid()));
        map
    }

    /// Its key in the map of all pools.
    pub fn key(&self, style: &JsonStyle) -> String {
        if style.pool_key_guid { self.guid().to_string() } else { self.name.clone() }
    }

    /// The object of `zpool status -j`.
    pub fn status_object(&self, style: &JsonStyle) -> Value {
        let mut map = self.object(style);
        map.shift_remove("type");
        map.insert("status".into(), json!(format!("{}\n", self.sentence())));
        map.insert("action".into(), json!(format!("{ACTION}\n")));
        map.into()
    }

    fn sentence(&self) -> String {
        format!("The pool could not be imported when the daemon started: {}", self.why)
    }

    /// The report of `zpool status`.
    pub fn report(&self, names: NameStyle, literal: bool) -> StatusReport {
        let of_class = |class: Option<&str>| -> Vec<StatusVdev> {
            let tops = self.tree.children.iter().filter(|top| class_of(top) == class);
            tops.filter(|top| !matches!(top.kind, VdevKind::Hole | VdevKind::Indirect))
                .map(|top| branch(top, names))
                .collect()
        };
        let classes = ["dedup", "special", "logs"].map(|class| (class.to_owned(), of_class(Some(class))));
        StatusReport {
            pool: self.name.clone(),
            state: self.state().to_owned(),
            status: Some(self.sentence()),
            action: Some(ACTION.replace('\n', "\n\t")),
            see: None,
            activity: Vec::new(),
            root: StatusVdev { children: of_class(None), ..line(self.name.clone(), &self.tree) },
            classes: classes.into_iter().filter(|(_, vdevs)| !vdevs.is_empty()).collect(),
            cache: Vec::new(),
            spares: Vec::new(),
            errors: None,
            more_heads: String::new(),
            literal,
        }
    }
}

fn branch(vdev: &VdevNode, names: NameStyle) -> StatusVdev {
    let children = vdev.children.iter().map(|child| branch(child, names)).collect();
    StatusVdev { children, ..line(vdev_name(vdev, names, true), vdev) }
}

fn line(name: String, vdev: &VdevNode) -> StatusVdev {
    let text = vdev.health.aux.text();
    StatusVdev {
        name,
        state: vdev.health.name().to_owned(),
        errors: Some([0; 3]),
        slow: None,
        power: None,
        direct: None,
        note: if text.is_empty() { String::new() } else { format!("  {text}") },
        is_hidden: false,
        children: Vec::new(),
    }
}
