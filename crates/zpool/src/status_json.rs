//! The output of `zpool status -j` for one pool, as in OpenZFS 2.3.2.
//!
//! With `--json-flat-vdevs` all vdevs, of whatever class, stand in one map, each behind its parts, and at the same
//! time in such a map of each vdev that they are part of; a vdev then names its parent, but for those right below a
//! class of their own.
//!
//! Differs from OpenZFS: a draid is described like any other vdev; 2.3 prints no more than its name and counts.

use clikit::output::json::JsonStyle;
use clikit::output::status::KnownErrors;
use serde_json::{Map, Value, json};
use zcommon::status::{MESSAGE_URL, PoolStatus, wrap};
use zcommon::vdev::{VdevKind, VdevState};
use zutil::import_listing::class_of;
use zutil::names::{NameStyle, vdev_name};
use zutil::tree::VdevNode;

use super::activity::Activity;
use super::dedup;
use super::json_form::{JsonForm, vdev_info, with_class};
use super::progress::Work;
use super::prop::PoolView;
use super::redundancy;
use super::scripts;

/// How a pool's vdevs are turned into JSON.
struct Writer<'a> {
    view: &'a PoolView<'a>,
    chosen: Chosen,
    form: JsonForm<'a>,
}

/// Options of the output.
#[derive(Debug, Clone, Copy)]
pub struct Chosen {
    /// How vdevs are called.
    pub names: NameStyle,
    /// Exact numbers.
    pub literal: bool,
    /// Only vdevs with something the matter.
    pub unhealthy: bool,
    /// How far devices are initialized.
    pub initialized: bool,
    /// How far devices are trimmed.
    pub trimmed: bool,
    /// Show the power state of devices' slots.
    pub power: bool,
    /// How many direct requests had a wrong checksum.
    pub direct: bool,
    /// Show the contents of the dedup tables; more than once: also what of them is cached.
    pub dedup: u8,
}

/// Whether `zpool status -e` shows a vdev: it is not healthy or had errors, or a descendant is or had.
#[doc(alias = "vdev_health_check_cb")]
pub fn is_unhealthy(view: &PoolView<'_>, vdev: &VdevNode) -> bool {
    let ill =
        |vdev: &VdevNode| vdev.health.state != VdevState::Healthy || view.errors_of(vdev.guid) != [0; 3];
    vdev.walk().any(ill)
}

/// The object of one pool.
pub fn pool(
    view: &PoolView<'_>,
    condition: PoolStatus,
    errors: &KnownErrors,
    chosen: Chosen,
    style: &JsonStyle,
) -> Value {
    let form = JsonForm { style, literal: chosen.literal || style.int };
    let dedup = (chosen.dedup > 0).then(|| dedup::object(view, chosen.dedup, &form));
    let mut map = super::pool_object(view, style);
    map.shift_remove("type");
    let lines = |text: &str| json!(format!("{}\n", wrap(text, "")));
    let advice = view.advice(condition);
    if let Some(mut text) = advice.status {
        if let Some(more) = redundancy::sentence(view) {
            text += &format!("\n{more}");
        }
        map.insert("status".into(), lines(&text));
    }
    if let Some(text) = advice.action {
        map.insert("action".into(), lines(&text));
    }
    if let Some(id) = advice.id {
        map.insert("msgid".into(), json!(id));
        map.insert("moreinfo".into(), json!(format!("{MESSAGE_URL}{id}")));
    }
    let writer = Writer { view, chosen, form };
    map.extend(Activity::of(view).objects(view, &writer.form));
    writer.vdevs(&mut map);
    if let Some(dedup) = dedup {
        map.insert("dedup_stats".into(), dedup);
    }
    map.insert("error_count".into(), writer.form.count(errors.count));
    if let Some(names) = errors.names.as_ref().filter(|names| !names.is_empty()) {
        map.insert("errlist".into(), json!(names));
    }
    map.into()
}

impl Writer<'_> {
    fn vdevs(&self, map: &mut Map<String, Value>) {
        let tops = self.view.tree.children.iter();
        let tops: Vec<&VdevNode> =
            tops.filter(|v| !matches!(v.kind, VdevKind::Hole | VdevKind::Indirect)).collect();
        let of =
            |class: Option<&str>| tops.iter().filter(|v| class_of(v) == class).copied().collect::<Vec<_>>();
        let pool = self.view.pool.name.as_str();
        let mut root = self.vdev(&self.view.tree, pool.to_owned(), "normal", None);
        let mut flat = self.all(&of(None), "normal", Some(pool));
        if !flat.is_empty() {
            root.insert("vdevs".into(), flat.clone().into());
        }
        let aux = |list: &[VdevNode]| list.to_vec();
        let facts = self.view.facts.as_ref();
        let (l2cache, spares) = (
            facts.map(|f| aux(&f.l2cache)).unwrap_or_default(),
            facts.map(|f| aux(&f.spares)).unwrap_or_default(),
        );
        let sections = [
            ("dedup", "dedup", of(Some("dedup"))),
            ("special", "special", of(Some("special"))),
            ("logs", "log", of(Some("logs"))),
            ("l2cache", "l2cache", l2cache.iter().collect()),
            ("spares", "spare", spares.iter().collect()),
        ];
        let sections = sections.map(|(key, class, vdevs)| (key, self.all(&vdevs, class, None)));
        if self.form.style.flat_vdevs {
            flat.insert(pool.to_owned(), root.into());
            flat.extend(sections.into_iter().flat_map(|(_, section)| section));
            map.insert("vdevs".into(), flat.into());
            return;
        }
        map.insert("vdevs".into(), json!({ pool: root }));
        for (key, section) in sections.into_iter().filter(|(_, section)| !section.is_empty()) {
            map.insert(key.into(), section.into());
        }
    }

    /// The vdevs with their children.
    fn all(&self, vdevs: &[&VdevNode], class: &str, parent: Option<&str>) -> Map<String, Value> {
        let mut all = Map::new();
        for vdev in vdevs.iter().filter(|vdev| !self.chosen.unhealthy || is_unhealthy(self.view, vdev)) {
            let name = vdev_name(vdev, self.chosen.names, true);
            let mut map = self.vdev(vdev, name.clone(), class, parent);
            let children: Vec<&VdevNode> = vdev.children.iter().collect();
            let children = self.all(&children, class, Some(&name));
            if self.form.style.flat_vdevs {
                all.extend(children.clone());
            }
            if !children.is_empty() {
                map.insert("vdevs".into(), children.into());
            }
            all.insert(name, map.into());
        }
        all
    }

    /// One vdev without its parts.
    #[doc(alias = "vdev_stats_nvlist")]
    fn vdev(&self, vdev: &VdevNode, name: String, class: &str, parent: Option<&str>) -> Map<String, Value> {
        let mut map = with_class(vdev_info(vdev, name, self.form.style), class);
        let spare = class == "spare";
        let state = match vdev.health.state {
            _ if spare && self.view.is_spare_in_use(vdev) => "INUSE",
            VdevState::Healthy if spare => "AVAIL",
            state => state.word(),
        };
        map.insert("state".into(), json!(state));
        if let Some(pool) = self.view.user_of(vdev).filter(|_| spare) {
            map.insert("used_by".into(), json!(pool));
        }
        if let Some(parent) = parent.filter(|_| self.form.style.flat_vdevs) {
            map.insert("parent".into(), json!(parent));
        }
        if !spare {
            self.sizes(vdev, &mut map);
            let names = ["read_errors", "write_errors", "checksum_errors"];
            for (name, count) in names.into_iter().zip(self.view.errors_of(vdev.guid)) {
                map.insert(name.into(), self.form.count(count));
            }
        }
        let [_, processed] = self.view.repairs(vdev.guid);
        if processed > 0 && !spare {
            map.insert("scan_processed".into(), self.form.bytes(processed));
        }
        let sizes = self.view.sizes.get(vdev.guid);
        if sizes.checkpoint > 0 {
            map.insert("checkpoint_space".into(), self.form.bytes(sizes.checkpoint));
        }
        if vdev.deferred {
            map.insert("resilver_deferred".into(), self.form.plain(1));
        }
        if vdev.is_leaf() && !spare {
            map.insert("slow_ios".into(), self.form.count(self.view.slow_ios(vdev.guid)));
        }
        if self.chosen.power && !spare {
            let state = if vdev.is_leaf() { scripts::power(vdev.path.as_deref()) } else { "-" };
            map.insert("power_state".into(), json!(state));
        }
        if self.chosen.direct {
            map.insert("dio_verify_errors".into(), self.form.count(self.view.direct_errors(vdev.guid)));
        }
        if vdev.not_present {
            map.insert("not_present".into(), self.form.plain(1));
            let path = vdev.path.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            map.insert("was".into(), json!(path));
        } else if spare && self.view.is_spare_in_use(vdev) {
            map.insert("aux".into(), json!("SPARED"));
        } else if let Some(aux) = vdev.health.aux.word() {
            map.insert("aux".into(), json!(aux));
        } else if let Some((configured, physical)) = vdev.non_native_block() {
            map.insert("configured_ashift".into(), self.form.plain(configured));
            map.insert("physical_ashift".into(), self.form.plain(physical));
        }
        if vdev.removing {
            map.insert("removing".into(), self.form.plain(1));
        } else if vdev.no_alloc {
            map.insert("noalloc".into(), self.form.plain(1));
        }
        if vdev.is_leaf() {
            self.work(vdev, &mut map);
        }
        map
    }

    /// Adds the requested operations under way on a device.
    fn work(&self, vdev: &VdevNode, map: &mut Map<String, Value>) {
        let Chosen { initialized, trimmed, .. } = self.chosen;
        if initialized {
            Work::Initialize.json(Work::Initialize.on(self.view, vdev), true, &self.form, map);
        }
        if trimmed {
            let possible = self.view.can_be_trimmed(vdev);
            Work::Trim.json(Work::Trim.on(self.view, vdev), possible, &self.form, map);
        }
    }

    fn sizes(&self, vdev: &VdevNode, map: &mut Map<String, Value>) {
        let sizes = self.view.sizes.get(vdev.guid);
        let [healed, _] = self.view.repairs(vdev.guid);
        let all = [
            ("alloc_space", sizes.allocated),
            ("total_space", sizes.size),
            ("def_space", sizes.deflated),
            ("rep_dev_size", sizes.replaceable),
            ("ex_dev_size", sizes.expandable),
            ("self_healed", healed),
            ("phys_space", sizes.physical),
        ];
        for (name, n) in all.into_iter().filter(|(_, n)| *n > 0) {
            map.insert(name.to_owned(), self.form.bytes(n));
        }
    }
}
