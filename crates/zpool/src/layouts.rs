//! The layout of a pool that does not exist yet, for `zpool create -n` and `zpool add -n`.

use std::fmt::Write as _;

use engine::vdev::config::AllocBias;

use super::vdevs::{Group, Kind, Leaf, Vdevs};

/// A line: how far it is indented, and a name.
pub type LayoutLine = (usize, String);

/// The sections of the report, each with its lines.
#[doc(alias = "print_vdev_tree")]
#[derive(Debug, Default)]
pub struct Sections {
    data: Vec<LayoutLine>,
    dedup: Vec<LayoutLine>,
    special: Vec<LayoutLine>,
    logs: Vec<LayoutLine>,
    cache: Vec<LayoutLine>,
    spares: Vec<LayoutLine>,
}

impl Sections {
    /// Adds the lines of a top-level vdev.
    pub fn add(&mut self, class: AllocBias, lines: Vec<LayoutLine>) {
        let section = match class {
            AllocBias::Normal => &mut self.data,
            AllocBias::Dedup => &mut self.dedup,
            AllocBias::Special => &mut self.special,
            AllocBias::Log => &mut self.logs,
        };
        section.extend(lines);
    }

    /// Adds a cache device.
    pub fn add_cache(&mut self, name: String) {
        self.cache.push((0, name));
    }

    /// Adds a spare.
    pub fn add_spare(&mut self, name: String) {
        self.spares.push((0, name));
    }

    /// Adds the vdevs of the command line.
    pub fn add_new(&mut self, new: &Vdevs) {
        new.tops.iter().for_each(|top| self.add(top.class, lines_of(top)));
        new.cache.iter().for_each(|leaf| self.add_cache(shown(leaf)));
        new.spares.iter().for_each(|leaf| self.add_spare(shown(leaf)));
    }

    /// The report for a pool of this name.
    pub fn text(&self, pool: &str) -> String {
        let mut text = section(pool, &self.data);
        let others = [
            ("dedup", &self.dedup),
            ("special", &self.special),
            ("logs", &self.logs),
            ("cache", &self.cache),
            ("spares", &self.spares),
        ];
        for (title, lines) in others.into_iter().filter(|(_, lines)| !lines.is_empty()) {
            text += &section(title, lines);
        }
        text
    }
}

fn section(title: &str, lines: &[LayoutLine]) -> String {
    let mut text = format!("\t{title}\n");
    for (indent, name) in lines {
        // Writing to a string can't fail.
        let _ = writeln!(text, "\t  {:indent$}{name}", "");
    }
    text
}

fn shown(leaf: &Leaf) -> String {
    leaf.path.display().to_string()
}

fn lines_of(top: &Group) -> Vec<LayoutLine> {
    let name = match top.kind {
        Kind::Single => None,
        Kind::Mirror => Some("mirror".to_owned()),
        Kind::Raidz(parity) => Some(format!("raidz{parity}")),
        Kind::Draid(config) => Some(config.to_string()),
    };
    let indent = if name.is_some() { 2 } else { 0 };
    let leaves = top.leaves.iter().map(|leaf| (indent, shown(leaf)));
    name.map(|name| (0, name)).into_iter().chain(leaves).collect()
}
