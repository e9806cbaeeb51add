//! `zpool get PROPERTY POOL VDEV…` and `… POOL all-vdevs`: properties of vdevs.
//!
//! Operations and errors are counted from an import on, so all are 0 for a pool that is not imported. A vdev
//! with children has the sum of their operations, and no errors of its own.
//!
//! Differs from OpenZFS: a flush is no operation that counts. A draid is found by its name, too.

use clikit::output::row::{Prop, Source};
use clikit::output::value::number_or_word;
use engine::spa::layout::config::find;
use engine::spa::vdev_props;
use engine::vdev::config::VdevConfig;
use engine::zap::Zap;
use zcommon::props::{PropDefault, PropType, VdevProp};
use zcommon::units::nicenum;
use zcommon::vdev::VdevKind;
use zutil::import_listing::class_of;
use zutil::names::{NameStyle, vdev_name};
use zutil::tree::VdevNode;
use zutil::words;

use super::prop::{PoolView, dash};

/// Vdevs above a vdev at most.
const MAX_DEPTH: usize = 16;

/// A vdev, and its ancestors.
pub struct VdevView<'a> {
    view: &'a PoolView<'a>,
    /// The vdev.
    pub node: &'a VdevNode,
    /// Its parent; `None`: it is the root.
    parent: Option<&'a VdevNode>,
    /// The top-level vdev that it is part of.
    top: Option<&'a VdevNode>,
    config: Option<VdevConfig>,
}

/// All vdevs of a pool, the root first; remains of removed ones have no properties.
pub fn all<'a>(view: &'a PoolView<'a>) -> Vec<VdevView<'a>> {
    let mut found = Vec::new();
    collect(view, &view.tree, &mut Vec::new(), &mut found);
    found
}

fn collect<'a>(
    view: &'a PoolView<'a>,
    node: &'a VdevNode,
    above: &mut Vec<&'a VdevNode>,
    found: &mut Vec<VdevView<'a>>,
) {
    if above.len() > MAX_DEPTH || node.is_virtual() {
        return;
    }
    let top = above.get(1).copied().or((above.len() == 1).then_some(node));
    // The tree of devices knows nothing of ZAPs that came to be after it was built.
    let root = view.pool.config.nvlist("vdev_tree");
    let config = root.and_then(|root| find(root, node.guid)).and_then(|list| VdevConfig::parse(list).ok());
    found.push(VdevView { view, node, parent: above.last().copied(), top, config });
    above.push(node);
    node.children.iter().for_each(|child| collect(view, child, above, found));
    above.pop();
}

/// The name with a number of a vdev that is no device, as the kernel makes it: without parity.
#[doc(alias = "vdev_name")]
fn kernel_name(vdev: &VdevNode) -> String {
    match &vdev.path {
        Some(path) => String::from_utf8_lossy(path).into_owned(),
        None => format!("{}-{}", vdev.kind.name(), vdev.id),
    }
}

fn none(text: impl Into<String>) -> Prop {
    Prop::text(text, Source::None)
}

/// A number for people and for programs.
fn number(n: u64) -> Prop {
    Prop { literal: n.to_string(), number: Some(n), ..none(nicenum(n).to_string()) }
}

impl VdevView<'_> {
    /// The name that `zpool get` prints, and takes.
    pub fn name(&self) -> String {
        vdev_name(self.node, NameStyle::default(), true)
    }

    /// Whether a user's word means this vdev: its name, its path or its guid.
    pub fn is_called(&self, word: &str) -> bool {
        (word == "root" && self.parent.is_none()) || words::is_called(self.node, word)
    }

    /// The class of the top-level vdev that it is part of.
    pub fn class(&self) -> &'static str {
        match self.top.and_then(class_of) {
            Some("logs") => "log",
            Some("special") => "special",
            Some("dedup") => "dedup",
            _ => "normal",
        }
    }

    /// All properties of this kind of vdev, and its user properties.
    pub fn all(&self) -> Vec<(String, Prop)> {
        let visible = VdevProp::ALL.iter().filter(|p| p.info().visible && **p != VdevProp::Name);
        let native = visible.filter(|p| !self.lacks(p.name()));
        let native = native.map(|p| (p.name().to_owned(), self.native(*p)));
        native.chain(self.user()).collect()
    }

    /// The property of a user's word; `None`: there is no such property.
    pub fn named(&self, word: &str) -> Option<(String, Prop)> {
        if let Some(prop) = VdevProp::from_user(word) {
            return Some((prop.name().to_owned(), self.native(prop)));
        }
        word.contains(':').then(|| {
            let found = self.user().into_iter().find(|(name, _)| name == word);
            let set = |(_, prop)| Prop { source: Source::Local, ..prop };
            (word.to_owned(), found.map_or_else(|| Prop::text("-", Source::Default), set))
        })
    }

    /// Whether only other kinds of vdevs have the property.
    pub fn lacks(&self, word: &str) -> bool {
        match VdevProp::from_user(word) {
            Some(VdevProp::RaidzExpanding) => !self.is_raidz_top(),
            Some(VdevProp::SitOut) => !self.may_sit_out(),
            _ => false,
        }
    }

    fn is_top(&self) -> bool {
        self.top.is_some_and(|top| top.guid == self.node.guid)
    }

    /// Whether it is a disk that reads can do without while all disks are there.
    pub fn may_sit_out(&self) -> bool {
        self.node.is_leaf()
            && self.top.is_some_and(|top| matches!(top.kind, VdevKind::Raidz | VdevKind::Draid))
    }

    /// Whether its disks may sit out.
    pub fn has_parity(&self) -> bool {
        matches!(self.node.kind, VdevKind::Raidz | VdevKind::Draid)
    }

    fn is_raidz_top(&self) -> bool {
        self.is_top() && self.node.kind == VdevKind::Raidz
    }

    /// The vdev's ZAP with its settings.
    fn zap(&self) -> Option<Zap> {
        let number = vdev_props::object(&self.config.as_ref()?.nvlist)?;
        Zap::open(&self.view.pool.mos.object(number).ok()?).ok()
    }

    /// Texts of users' own.
    fn user(&self) -> Vec<(String, Prop)> {
        let entries = self.zap().into_iter().flat_map(|zap| zap.entries().flatten().collect::<Vec<_>>());
        let texts = entries.filter(|e| e.value.width == 1 && e.name().contains(&b':'));
        texts.map(|e| (e.name_lossy(), Prop::text(e.value.string(), Source::Default))).collect()
    }

    /// A native property.
    #[doc(alias = "vdev_prop_get")]
    fn native(&self, prop: VdevProp) -> Prop {
        use VdevProp as P;
        let sizes = self.view.sizes.get(self.node.guid);
        match prop {
            P::Name => none(self.name()),
            P::Capacity => {
                let percent = sizes.allocated.saturating_mul(100).checked_div(sizes.deflated).unwrap_or(0);
                Prop { literal: percent.to_string(), ..none(format!("{percent}%")) }
            }
            P::State => {
                let health = self.node.health;
                Prop { literal: (health.state as u64).to_string(), ..none(health.name()) }
            }
            P::Guid => none(self.node.guid.to_string()),
            P::Asize => number(sizes.usable),
            P::Psize => number(sizes.physical),
            P::Ashift => number(sizes.ashift),
            P::Size => number(sizes.deflated),
            P::Free => number(sizes.deflated.saturating_sub(sizes.allocated)),
            P::Allocated => number(sizes.allocated),
            P::Expandsize if sizes.expandable == 0 => dash(),
            P::Expandsize => number(sizes.expandable),
            P::Fragmentation => self.fragmentation(sizes.fragmentation),
            P::SitOut if !self.may_sit_out() => none("-"),
            P::SitOut => none(on_off(self.view.sits_out(self.node.guid))),
            P::Autosit if !self.has_parity() => none("-"),
            P::Parity if self.has_parity() => number(self.node.nparity),
            P::Parity => number(0),
            P::Path | P::Devid | P::Physpath | P::Encpath | P::Fru => self.recorded(prop),
            P::Parent => self.parent(),
            P::Children => self.children(),
            P::Numchildren => number(u64::try_from(self.node.children.len()).unwrap_or(0)),
            P::Removing => none(on_off(self.config.as_ref().is_some_and(|c| c.removing))),
            P::RaidzExpanding => none(on_off(self.config.as_ref().is_some_and(|c| c.expanding))),
            P::Allocating if self.is_part() => none("-"),
            P::TrimSupport => self.trim_support(),
            P::ReadErrors | P::WriteErrors | P::ChecksumErrors => number(self.errors(prop)),
            P::ReadOps | P::WriteOps | P::ReadBytes | P::WriteBytes => number(self.traffic(prop)),
            P::TrimOps => number(self.view.trims_of(self.node)[0]),
            P::TrimBytes => number(self.view.trims_of(self.node)[1]),
            P::SlowIos => number(self.view.slow_ios(self.node.guid)),
            _ => self.setting(prop),
        }
    }

    /// Whether it is part of a top-level vdev.
    fn is_part(&self) -> bool {
        self.parent.is_some() && !self.is_top()
    }

    /// Percent also for programs.
    fn fragmentation(&self, known: Option<u64>) -> Prop {
        match known {
            None if self.is_top() => dash(),
            known => none(format!("{}%", known.unwrap_or(0))),
        }
    }

    fn recorded(&self, prop: VdevProp) -> Prop {
        let key = match prop {
            VdevProp::Physpath => "phys_path",
            VdevProp::Encpath => "vdev_enc_sysfs_path",
            other => other.name(),
        };
        if prop == VdevProp::Path
            && let Some(path) = &self.node.path
        {
            return none(String::from_utf8_lossy(path));
        }
        let text = self.config.as_ref().and_then(|config| config.nvlist.str(key));
        text.map_or_else(|| Prop::text("-", Source::Default), none)
    }

    fn parent(&self) -> Prop {
        match self.parent {
            None => Prop::text("-", Source::Default),
            Some(root) if root.guid == self.view.tree.guid => none(self.view.pool.name.clone()),
            Some(parent) => none(kernel_name(parent)),
        }
    }

    fn children(&self) -> Prop {
        let names: Vec<String> = self.node.children.iter().map(kernel_name).collect();
        if names.is_empty() { Prop::text("-", Source::Default) } else { none(names.join(",")) }
    }

    fn trim_support(&self) -> Prop {
        if self.node.is_leaf() { none(on_off(self.view.can_be_trimmed(self.node))) } else { dash() }
    }

    #[doc(alias = "vs_read_errors")]
    fn errors(&self, prop: VdevProp) -> u64 {
        let [read, write, checksum] = self.view.errors_of(self.node.guid);
        match prop {
            VdevProp::ReadErrors => read,
            VdevProp::WriteErrors => write,
            _ => checksum,
        }
    }

    #[doc(alias("vs_ops", "vs_bytes"))]
    fn traffic(&self, prop: VdevProp) -> u64 {
        let [reads, read, writes, written] = self.view.traffic_of(self.node);
        match prop {
            VdevProp::ReadOps => reads,
            VdevProp::ReadBytes => read,
            VdevProp::WriteOps => writes,
            _ => written,
        }
    }

    /// The setting, or the default. Operations that never happen, or are not counted, have the count 0.
    fn setting(&self, prop: VdevProp) -> Prop {
        let info = prop.info();
        let stored = self.zap().and_then(|zap| zap.lookup(info.name.as_bytes()).ok().flatten());
        match (info.data_type, stored) {
            (PropType::String, Some(value)) => return Prop::text(value.string(), Source::Local),
            (PropType::Number, Some(value)) if value.first() == Some(u64::MAX) => {
                return Prop::text("-", Source::Local);
            }
            (_, Some(value)) => {
                let n = value.first().unwrap_or(0);
                let (nice, literal) = number_or_word(info, n);
                return Prop { nice, literal, number: Some(n), source: Source::Local, received: None };
            }
            _ => {}
        }
        let is_count = matches!(info.values, Some("<errors>" | "<operations>" | "<bytes>" | "<slowios>"));
        match info.default {
            PropDefault::Number(_) if is_count => number(0),
            PropDefault::Number(u64::MAX) => Prop::text("-", Source::Default),
            PropDefault::Number(n) => {
                let (nice, literal) = number_or_word(info, n);
                Prop { nice, literal, number: Some(n), source: Source::Default, received: None }
            }
            PropDefault::String(text) if !text.is_empty() => Prop::text(text, Source::Default),
            _ => Prop::text("-", Source::Default),
        }
    }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
