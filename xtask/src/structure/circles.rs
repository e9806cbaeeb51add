//! Circles of files: files of one crate of which each uses each other one, directly or through others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use super::modules::Modules;

/// Files that may use each other in a circle without being recorded.
const SMALL: usize = 3;

const HEAD: &str = "\
# Circles of more than three files that exist: a crate, then the modules of the circle.
# `cargo test -p xtask` fails on a new module and on one that has left; the list only shrinks.
";

/// A crate, and the modules of one circle.
pub type Circle = (String, BTreeSet<String>);

/// Every circle of more than three files below `root`.
pub fn find(root: &Path) -> BTreeSet<Circle> {
    let large = |(package, src): (String, std::path::PathBuf)| {
        let circles = of(&Modules::read(&src)).into_iter().filter(|c| c.len() > SMALL);
        circles.map(|circle| (package.clone(), circle)).collect::<Vec<_>>()
    };
    super::packages(root).into_iter().flat_map(large).collect()
}

/// The circles of a crate, of two files and more.
pub fn of(modules: &Modules) -> Vec<BTreeSet<String>> {
    let edges = modules.edges();
    let reached: BTreeMap<&String, BTreeSet<&String>> = edges.keys().map(|m| (m, reach(&edges, m))).collect();
    let mut circles = BTreeSet::new();
    for (module, far) in &reached {
        let back = |other: &&String| reached.get(*other).is_some_and(|r| r.contains(module));
        let circle: BTreeSet<String> = far.iter().copied().filter(back).cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

fn reach<'a>(edges: &'a BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&String> = edges.get(from).into_iter().flatten().collect();
    while let Some(module) = open.pop() {
        if found.insert(module) {
            open.extend(edges.get(module).into_iter().flatten());
        }
    }
    found
}

/// The circles of a list as [`print`] writes it.
pub fn parse(list: &str) -> BTreeSet<Circle> {
    let mut circles: Vec<Circle> = Vec::new();
    for line in list.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
        if let Some(module) = line.strip_prefix("  ") {
            circles.last_mut().map(|(_, circle)| circle.insert(module.to_owned()));
        } else {
            circles.push((line.to_owned(), BTreeSet::new()));
        }
    }
    circles.into_iter().collect()
}

/// The list of `circles`.
pub fn print(circles: &BTreeSet<Circle>) -> String {
    let mut list = HEAD.to_owned();
    for (package, circle) in circles {
        let modules: String = circle.iter().map(|m| format!("  {m}\n")).collect();
        let _ = write!(list, "\n{package}\n{modules}");
    }
    list
}

/// A line for each circle that is not as recorded.
pub fn compare(recorded: &BTreeSet<Circle>, found: &BTreeSet<Circle>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut known = BTreeSet::new();
    for circle in found {
        let (package, modules) = circle;
        let size = modules.len();
        let Some(old) = nearest(recorded, circle) else {
            faults.push(format!("{package}: new circle of {size} files: {}", list(modules.iter())));
            continue;
        };
        known.insert(old);
        let (new, gone) = (list(modules.difference(&old.1)), list(old.1.difference(modules)));
        if !new.is_empty() {
            faults.push(format!("{package}: a circle has grown to {size} files: {new}"));
        }
        if !gone.is_empty() {
            faults.push(format!(
                "{package}: files have left a circle, remove them from {}: {gone}",
                super::CIRCLES
            ));
        }
    }
    for old in recorded.iter().filter(|old| !known.contains(old)) {
        faults.push(format!(
            "{}: a circle has gone, remove it from {}: {}",
            old.0,
            super::CIRCLES,
            list(old.1.iter())
        ));
    }
    faults
}

/// The recorded circle that shares most modules with `circle`.
fn nearest<'a>(recorded: &'a BTreeSet<Circle>, circle: &Circle) -> Option<&'a Circle> {
    let shared = |old: &Circle| old.1.intersection(&circle.1).count();
    let same = recorded.iter().filter(|old| old.0 == circle.0 && shared(old) > 0);
    same.max_by_key(|old| shared(old))
}

fn list<'a>(modules: impl Iterator<Item = &'a String>) -> String {
    modules.map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::modules::tests::toy;
    use super::*;

    fn circle(modules: &[&str]) -> Circle {
        ("toy".to_owned(), modules.iter().map(|m| (*m).to_owned()).collect())
    }

    #[test]
    fn a_circle_is_found_through_other_files() {
        let modules = toy(&[
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::d::D;\nuse crate::e::E;"),
            ("d.rs", "use crate::a::A;"),
            ("e.rs", "use crate::f::F;"),
            ("f.rs", "use crate::e::E;"),
        ]);
        assert_eq!(of(&modules), [circle(&["a", "b", "c", "d"]).1, circle(&["e", "f"]).1]);
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let circles = BTreeSet::from([circle(&["a", "b", "c", "d"]), circle(&["e", "f", "g", "h"])]);
        assert_eq!(parse(&print(&circles)), circles);
    }

    #[test]
    fn new_grown_shrunk_and_gone_circles_are_faults() {
        let old = BTreeSet::from([circle(&["a", "b", "c", "d", "e"]), circle(&["p", "q", "r", "s"])]);
        assert!(compare(&old, &old).is_empty());
        let now = BTreeSet::from([circle(&["a", "b", "c", "d", "n"]), circle(&["w", "x", "y", "z"])]);
        let faults = compare(&old, &now);
        let begins = [
            "toy: a circle has grown to 5 files: n",
            "toy: files have left",
            "toy: new circle of 4 files: w",
        ];
        assert!(faults.iter().zip(begins).all(|(fault, begin)| fault.starts_with(begin)), "{faults:?}");
        assert!(faults[3].starts_with("toy: a circle has gone") && faults[3].ends_with("p, q, r, s"));
    }
}
