//! `xtask figures`: sizes of the sources, as ARCHITECTURE.md shows them.

use std::collections::BTreeSet;
use std::path::Path;

use super::modules::Modules;
use super::{circles, names};

/// Lines above which a file is counted as long.
const LONG_FILE: usize = 600;

/// Counts of a set of files.
#[derive(Default)]
struct Counts {
    files: usize,
    lines: usize,
    public: usize,
    long: usize,
}

impl Counts {
    fn add(&mut self, text: &str) {
        let lines = text.lines().count();
        self.files += 1;
        self.lines += lines;
        self.public += text.lines().filter(|l| is_public_item(l)).count();
        self.long += usize::from(lines > LONG_FILE);
    }

    fn of(dir: &Path) -> Self {
        let mut counts = Self::default();
        crate::layering::sources(dir).iter().for_each(|(_, text)| counts.add(text));
        counts
    }
}

/// Prints the figures of the tree at `root`.
pub fn print(root: &Path) {
    let mut all = Counts::of(&root.join("crates"));
    let xtask = Counts::of(&root.join("xtask"));
    all.files += xtask.files;
    all.lines += xtask.lines;
    all.long += xtask.long;
    println!("lines {}, files {}, of more than {LONG_FILE} lines {}", all.lines, all.files, all.long);
    for package in ["engine", "cli"] {
        let counts = Counts::of(&root.join("crates").join(package).join("src"));
        println!(
            "{package}/src: lines {}, files {}, pub items {}",
            counts.lines, counts.files, counts.public
        );
    }
    println!("pub items of all crates {}", all.public);
    let packages = super::packages(root);
    let small: usize = packages.iter().map(|(_, src)| circles::of(&Modules::read(src)).len()).sum();
    println!("circles {small}, of more than three files {}", circles::find(root).len());
    let visible = names::of(root);
    let distinct: BTreeSet<_> = visible.keys().map(|(_, name)| name).collect();
    println!(
        "names of visible types {}, more than once in a crate {}",
        distinct.len(),
        names::find(root).len()
    );
}

/// If a line defines an item that other crates may see.
fn is_public_item(line: &str) -> bool {
    const ITEMS: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union"];
    let mut words = line.trim_start().strip_prefix("pub ").unwrap_or_default().split_whitespace();
    words.find(|w| !["async", "unsafe"].contains(w)).is_some_and(|w| ITEMS.contains(&w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_items_are_counted() {
        let text = "pub fn a() {}\npub const fn b() {}\npub const C: u8 = 0;\npub(crate) struct D;\npub use e::F;\n\
                    pub struct G {\n    pub field: u8,\n}\n";
        let mut counts = Counts::default();
        counts.add(text);
        assert_eq!((counts.public, counts.lines, counts.files), (4, 8, 1));
    }
}
