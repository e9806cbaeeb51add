//! The vdevs of `zpool list -v`: as lines and as JSON.

use clikit::output::json::JsonStyle;
use clikit::output::row::Source;
use serde_json::{Map, Value, json};
use zcommon::props::ZpoolProp;
use zcommon::units::nicenum;
use zcommon::vdev::{VdevKind, VdevState};
use zutil::import_listing::class_of;
use zutil::names::{NameStyle, vdev_name};
use zutil::tree::VdevNode;

use super::json_form::{vdev_info, with_class};
use super::list::Line;
use super::prop::PoolView;

/// The vdevs of one pool.
pub struct VdevCells<'a> {
    /// The pool.
    pub view: &'a PoolView<'a>,
    /// How vdevs are called.
    pub names: NameStyle,
    /// Exact numbers.
    pub literal: bool,
    /// The columns besides the name: what each is called, and its property if it is a native one.
    pub columns: Vec<(String, Option<ZpoolProp>)>,
}

/// Vdevs below a heading of their own: the heading, its name in JSON and the class of its vdevs in JSON.
struct Section<'a> {
    heading: &'static str,
    key: &'static str,
    class: &'static str,
    vdevs: Vec<&'a VdevNode>,
}

impl VdevCells<'_> {
    /// A line for each vdev, with headings.
    pub fn lines(&self, lines: &mut Vec<Line>) {
        self.tops(None).into_iter().for_each(|top| self.line(top, 2, lines));
        for section in self.sections() {
            lines.push(Line::Class(section.heading));
            section.vdevs.into_iter().for_each(|vdev| self.line(vdev, 2, lines));
        }
    }

    /// The vdevs as JSON: those of the normal class, then a map for each other class.
    #[doc(alias = "collect_list_stats")]
    pub fn json(&self, style: &JsonStyle) -> Map<String, Value> {
        let mut map = self.objects(&self.tops(None), "normal", style);
        for section in self.sections() {
            map.insert(section.key.into(), self.objects(&section.vdevs, section.class, style).into());
        }
        map
    }

    fn tops(&self, class: Option<&str>) -> Vec<&VdevNode> {
        let shown = |v: &&VdevNode| v.kind != VdevKind::Hole && class_of(v) == class;
        self.view.tree.children.iter().filter(shown).collect()
    }

    fn sections(&self) -> Vec<Section<'_>> {
        let of_class =
            |heading, class| Section { heading, key: heading, class, vdevs: self.tops(Some(heading)) };
        let mut all =
            vec![of_class("dedup", "dedup"), of_class("special", "special"), of_class("logs", "log")];
        if let Some(facts) = &self.view.facts {
            all.push(Section {
                heading: "cache",
                key: "l2cache",
                class: "l2cache",
                vdevs: facts.l2cache.iter().collect(),
            });
            all.push(Section {
                heading: "spare",
                key: "spares",
                class: "spare",
                vdevs: facts.spares.iter().collect(),
            });
        }
        all.retain(|section| !section.vdevs.is_empty());
        all
    }

    fn line(&self, vdev: &VdevNode, depth: usize, lines: &mut Vec<Line>) {
        let name = format!("{:depth$}{}", "", vdev_name(vdev, self.names, true));
        lines.push(Line::Vdev(name, self.columns.iter().map(|(_, prop)| self.cell(vdev, *prop)).collect()));
        vdev.children.iter().for_each(|child| self.line(child, depth + 2, lines));
    }

    fn objects(&self, vdevs: &[&VdevNode], class: &str, style: &JsonStyle) -> Map<String, Value> {
        let object = |vdev: &&VdevNode| {
            let name = vdev_name(vdev, self.names, true);
            let mut map = with_class(vdev_info(vdev, name.clone(), style), class);
            // As the kernel opens such a spare.
            let is_used = self.is_spare(vdev) && self.view.is_spare_in_use(vdev);
            let state = if is_used { VdevState::CantOpen } else { vdev.health.state };
            map.insert("state".into(), json!(state.word()));
            let props = self.columns.iter().map(|(name, prop)| {
                (name.clone(), style.valued(&self.cell(vdev, *prop), &Source::None, None))
            });
            map.insert("properties".into(), Map::from_iter(props).into());
            if !vdev.children.is_empty() {
                let children: Vec<&VdevNode> = vdev.children.iter().collect();
                map.insert("vdevs".into(), self.objects(&children, class, style).into());
            }
            (name, map.into())
        };
        vdevs.iter().map(object).collect()
    }

    /// The value of a property for one vdev, a dash for one that only pools have; space is that of top-level vdevs, the size
    /// also that of devices.
    #[doc(alias = "print_list_stats")]
    fn cell(&self, vdev: &VdevNode, prop: Option<ZpoolProp>) -> String {
        use ZpoolProp as P;
        let Some(prop) = prop else { return "-".to_owned() };
        let sizes = self.view.sizes.get(vdev.guid);
        let number = |n: u64| if self.literal { n.to_string() } else { nicenum(n).to_string() };
        let nonzero = |n: u64| (n > 0).then(|| number(n));
        let top = sizes.size > 0;
        let cell = match prop {
            P::Size => nonzero(if sizes.physical > 0 { sizes.physical } else { sizes.size }),
            P::Allocated => top.then(|| number(sizes.allocated)),
            P::Free => top.then(|| number(sizes.size.saturating_sub(sizes.allocated))),
            P::Checkpoint => nonzero(sizes.checkpoint),
            P::Expandsize => nonzero(sizes.expandable),
            P::Fragmentation => {
                sizes.fragmentation.map(|n| if self.literal { n.to_string() } else { format!("{n}%") })
            }
            P::Capacity => top.then(|| self.capacity(sizes.allocated, sizes.size)),
            P::Health => Some(self.health(vdev).to_owned()),
            _ => None,
        };
        cell.unwrap_or_else(|| "-".to_owned())
    }

    /// Percent with as many decimals as fit.
    fn capacity(&self, allocated: u64, size: u64) -> String {
        let parts = allocated.saturating_mul(10_000).checked_div(size).unwrap_or(0);
        let percent = parts as f64 / 100.0;
        match parts {
            _ if self.literal => (parts / 100).to_string(),
            0..1000 => format!("{percent:.2}%"),
            1000..10_000 => format!("{percent:.1}%"),
            _ => format!("{percent:.0}%"),
        }
    }

    /// Whether it is an entry of the list of spares. A spare in use stands in the tree, too, as an ordinary disk.
    fn is_spare(&self, vdev: &VdevNode) -> bool {
        self.view.facts.as_ref().is_some_and(|f| f.spares.iter().any(|s| std::ptr::eq(s, vdev)))
    }

    fn health(&self, vdev: &VdevNode) -> &'static str {
        let is_spare = self.is_spare(vdev);
        match vdev.health.state {
            _ if is_spare && self.view.is_spare_in_use(vdev) => "INUSE",
            VdevState::Healthy if is_spare => "AVAIL",
            _ => vdev.health.name(),
        }
    }
}
