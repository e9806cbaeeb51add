//! What `zpool status -j` says of one pool.

use serde_json::{Map, Value, json};
use zcommon::status::{MESSAGE_URL, PoolStatus, pool_action, pool_status};
use zcommon::units::nicebytes;
use zutil::import_listing::class_of;
use zutil::names::{NameStyle, vdev_name};
use zutil::tree::VdevNode;

use super::prop::PoolView;
use crate::output::json::JsonStyle;
use crate::output::status::KnownErrors;

/// How a pool's vdevs are turned into JSON.
struct Writer<'a> {
    view: &'a PoolView<'a>,
    names: NameStyle,
    style: &'a JsonStyle,
    literal: bool,
}

/// The object of one pool.
pub fn pool(
    view: &PoolView<'_>,
    condition: PoolStatus,
    errors: &KnownErrors,
    names: NameStyle,
    literal: bool,
    style: &JsonStyle,
) -> Value {
    let mut map = super::pool_object(view, style);
    map.shift_remove("type");
    let one_line = |text: &str| json!(text.replace('\n', " "));
    if let Some(text) = pool_status(condition) {
        map.insert("status".into(), one_line(text));
    }
    if let Some(text) = pool_action(condition) {
        map.insert("action".into(), one_line(text));
    }
    if let Some(id) = condition.message_id() {
        map.insert("msgid".into(), json!(id));
        map.insert("moreinfo".into(), json!(format!("{MESSAGE_URL}{id}")));
    }
    let writer = Writer { view, names, style, literal: literal || style.int };
    writer.vdevs(&mut map);
    let count = match errors {
        KnownErrors::Count(n) => *n,
        KnownErrors::Listed(names) => u64::try_from(names.len()).unwrap_or(u64::MAX),
    };
    map.insert("error_count".into(), style.number(count));
    map.into()
}

impl Writer<'_> {
    fn vdevs(&self, map: &mut Map<String, Value>) {
        let tops = self.view.tree.children.iter();
        let tops: Vec<&VdevNode> = tops.filter(|v| !matches!(v.kind.as_str(), "hole" | "indirect")).collect();
        let of =
            |class: Option<&str>| tops.iter().filter(|v| class_of(v) == class).copied().collect::<Vec<_>>();
        let mut root = self.vdev(&self.view.tree, self.view.pool.name.clone(), "normal");
        let normal = of(None);
        if self.style.flat_vdevs {
            let mut flat = Map::new();
            flat.insert(self.view.pool.name.clone(), root.into());
            self.flat(&normal, "normal", &mut flat);
            map.insert("vdevs".into(), flat.into());
        } else {
            root.insert("vdevs".into(), self.tree(&normal, "normal").into());
            map.insert("vdevs".into(), json!({ self.view.pool.name.as_str(): root }));
        }
        for (key, class) in [("dedup", "dedup"), ("special", "special"), ("logs", "log")] {
            self.section(map, key, &of(Some(key)), class);
        }
        if let Some(facts) = &self.view.facts {
            self.section(map, "l2cache", &facts.l2cache.iter().collect::<Vec<_>>(), "l2cache");
            self.section(map, "spares", &facts.spares.iter().collect::<Vec<_>>(), "spare");
        }
    }

    fn section(&self, map: &mut Map<String, Value>, key: &str, vdevs: &[&VdevNode], class: &str) {
        if vdevs.is_empty() {
            return;
        }
        let mut section = Map::new();
        match self.style.flat_vdevs {
            true => self.flat(vdevs, class, &mut section),
            false => section = self.tree(vdevs, class),
        }
        map.insert(key.into(), section.into());
    }

    fn tree(&self, vdevs: &[&VdevNode], class: &str) -> Map<String, Value> {
        let object = |vdev: &&VdevNode| {
            let name = vdev_name(vdev, self.names, true);
            let mut map = self.vdev(vdev, name.clone(), class);
            if !vdev.children.is_empty() {
                let children: Vec<&VdevNode> = vdev.children.iter().collect();
                map.insert("vdevs".into(), self.tree(&children, class).into());
            }
            (name, map.into())
        };
        vdevs.iter().map(object).collect()
    }

    fn flat(&self, vdevs: &[&VdevNode], class: &str, into: &mut Map<String, Value>) {
        for vdev in vdevs {
            let name = vdev_name(vdev, self.names, true);
            into.insert(name.clone(), self.vdev(vdev, name, class).into());
            self.flat(&vdev.children.iter().collect::<Vec<_>>(), class, into);
        }
    }

    /// One vdev without its parts.
    #[doc(alias = "fill_vdev_info")]
    fn vdev(&self, vdev: &VdevNode, name: String, class: &str) -> Map<String, Value> {
        let mut map = Map::new();
        let spare = class == "spare";
        map.insert("name".into(), json!(name));
        map.insert("vdev_type".into(), json!(vdev.kind));
        map.insert("guid".into(), self.style.number(vdev.guid));
        if let Some(path) = &vdev.path {
            map.insert("path".into(), json!(String::from_utf8_lossy(path)));
        }
        map.insert("class".into(), json!(class));
        let state = match vdev.health.name() {
            "ONLINE" if spare => "AVAIL",
            name => name,
        };
        map.insert("state".into(), json!(state));
        self.sizes(vdev, &mut map);
        if !spare {
            for name in ["read_errors", "write_errors", "checksum_errors"] {
                map.insert(name.into(), self.style.number(0));
            }
        }
        map
    }

    fn sizes(&self, vdev: &VdevNode, map: &mut Map<String, Value>) {
        let mut put = |name: &str, n: u64| {
            let value = if self.literal { self.style.number(n) } else { json!(nicebytes(n).to_string()) };
            map.insert(name.to_owned(), value);
        };
        let space = &self.view.space;
        let top = space.vdevs.iter().find(|s| s.id == vdev.id && self.is_top(vdev));
        if vdev.guid == self.view.tree.guid {
            put("alloc_space", space.allocated());
            put("total_space", space.size());
            put("def_space", space.dspace());
        } else if let Some(top) = top {
            put("alloc_space", top.allocated());
            put("total_space", top.size());
            put("def_space", top.deflated(top.size()));
        }
        let leaf =
            self.view.pool.tree().leaf(vdev.guid).and_then(|leaf| leaf.device().map(|d| d.geometry().size));
        if let Some(size) = leaf {
            put("phys_space", size);
        }
    }

    fn is_top(&self, vdev: &VdevNode) -> bool {
        self.view.tree.children.iter().any(|top| top.guid == vdev.guid)
    }
}
