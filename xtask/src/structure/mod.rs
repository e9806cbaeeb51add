//! The shape of the sources: circles of files, names of types that stand more than once, methods of types, figures.
//!
//! Circles and names that exist are recorded in `circles.txt` and `names.txt`. A new one is a fault, and so is a
//! recorded one that no longer exists, so the lists only shrink. `xtask layering --record` writes both anew.

mod circles;
mod figures;
mod methods;
mod modules;
mod names;
mod paths;

use std::fs;
use std::path::{Path, PathBuf};

pub use self::figures::print as figures;

const CIRCLES: &str = "xtask/src/structure/circles.txt";
const NAMES: &str = "xtask/src/structure/names.txt";

/// Every difference between the sources below `root` and the recorded lists, and every missing path, a line each.
pub fn check(root: &Path) -> Vec<String> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut faults = circles::compare(&circles::parse(&read(CIRCLES)), &circles::find(root));
    faults.extend(methods::check(root));
    faults.extend(names::compare(&names::parse(&read(NAMES)), &names::find(root)));
    for page in paths::pages(root) {
        faults.extend(paths::missing(root, &page, &read(&page)));
    }
    faults.extend(paths::functions(root, &read("ARCHITECTURE.md")));
    faults
}

/// Writes the lists of what exists now; returns what could not be written.
pub fn record(root: &Path) -> Vec<String> {
    let lists = [(CIRCLES, circles::print(&circles::find(root))), (NAMES, names::print(&names::find(root)))];
    let write =
        |(path, text): &(&str, String)| Some(format!("{path}: {}", fs::write(root.join(path), text).err()?));
    lists.iter().filter_map(write).collect()
}

/// The packages: their names and the directories of their sources.
fn packages(root: &Path) -> Vec<(String, PathBuf)> {
    let dirs = fs::read_dir(root.join("crates")).into_iter().flatten().flatten().map(|e| e.path());
    let named = |dir: PathBuf| Some((dir.file_name()?.to_str()?.to_owned(), dir.join("src")));
    let mut packages: Vec<_> = dirs.chain([root.join("xtask")]).filter_map(named).collect();
    packages.sort();
    packages
}

/// A file's text without its unit tests, which stand at its end.
fn without_tests(text: &str) -> &str {
    text.match_indices("#[cfg(test)]")
        .find(|(at, attribute)| {
            let rest = text.get(at + attribute.len()..).unwrap_or_default().trim_start();
            rest.strip_prefix("mod ").is_some_and(|r| r.trim_start_matches(is_word).starts_with(" {"))
        })
        .map_or(text, |(at, _)| text.get(..at).unwrap_or_default())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_names_and_paths_are_as_recorded() {
        let faults = check(&crate::layering::root());
        let step = "mend them, or record them: cargo run -p xtask -- layering --record";
        assert!(faults.is_empty(), "{}\n{step}", faults.join("\n"));
    }

    #[test]
    fn only_unit_tests_at_the_end_are_cut_off() {
        let text = "#[cfg(test)]\nmod tests;\nstruct A;\n#[cfg(test)]\nmod tests {\nstruct B;\n}\n";
        assert_eq!(without_tests(text), "#[cfg(test)]\nmod tests;\nstruct A;\n");
        assert_eq!(without_tests("struct A;"), "struct A;");
    }
}
