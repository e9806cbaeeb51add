//! Paths and functions that a page names exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Directories to which the paths of the page are relative.
const BASES: [&str; 3] = ["", "crates/engine/src", "crates"];

/// The pages whose paths are checked: ARCHITECTURE.md and those of `docs`.
pub fn pages(root: &Path) -> Vec<String> {
    let docs = fs::read_dir(root.join("docs")).into_iter().flatten().flatten();
    let docs = docs.filter_map(|entry| Some(format!("docs/{}", entry.file_name().to_str()?)));
    let mut pages: Vec<_> = docs.filter(|page| page.ends_with(".md")).collect();
    pages.push("ARCHITECTURE.md".to_owned());
    pages.sort();
    pages
}

/// A line for each path in backquotes of `text` (a word with `/` that ends in `.rs`, `.md` or `.txt`) without a file
/// below `root`.
pub fn missing(root: &Path, page: &str, text: &str) -> Vec<String> {
    let missing = named(text).into_iter().filter(|path| !exists(root, path));
    missing.map(|path| format!("{page} names {path}, which does not exist")).collect()
}

/// If there is a file of the path: relative to one of [`BASES`], or to the tests of the crate that is its first part
/// (`sim/crash.rs`).
fn exists(root: &Path, path: &str) -> bool {
    let (package, rest) = path.split_once('/').unwrap_or(("", path));
    let of_tests = root.join("crates").join(package).join("tests").join(rest);
    of_tests.is_file() || BASES.iter().any(|base| root.join(base).join(path).is_file())
}

/// A line for each file of the table `where` without the function that the table names.
pub fn functions(root: &Path, page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for row in crate::layering::rows(page, "where") {
        let [question, files, function] = row.as_slice() else {
            faults.push(format!("ARCHITECTURE.md: the row `{}` has not three cells", row.join(" | ")));
            continue;
        };
        let function = function.trim_matches('`');
        for file in named(files) {
            let text = fs::read_to_string(root.join("crates").join(file)).unwrap_or_default();
            if !defines(&text, function) {
                faults.push(format!("ARCHITECTURE.md: {question}: {file} has no `{function}`"));
            }
        }
    }
    faults
}

/// If `text` has the function; a name of several words stands there as it is.
fn defines(text: &str, function: &str) -> bool {
    let heads = ["(", "<"].map(|end| format!("fn {function}{end}"));
    if function.contains(' ') {
        text.contains(function)
    } else {
        heads.iter().any(|head| text.contains(head))
    }
}

fn named(page: &str) -> BTreeSet<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| {
        let end = word.rsplit('.').next().unwrap_or_default();
        word.contains('/') && !word.contains([' ', '*']) && ["rs", "md", "txt"].contains(&end)
    };
    quoted.filter(is_path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_a_file_is_a_fault() {
        let page = "See `xtask/src/main.rs`, `spa/mod.rs`, `gone/away.rs` and `zio::seal` or `a b/c.rs`.";
        assert_eq!(named(page), BTreeSet::from(["gone/away.rs", "spa/mod.rs", "xtask/src/main.rs"]));
        let faults = missing(
            &crate::layering::root(),
            "docs/a.md",
            "`xtask/src/main.rs` `sim/crash.rs` `sim/gone.rs`",
        );
        assert_eq!(faults, ["docs/a.md names sim/gone.rs, which does not exist"]);
        let pages = pages(&crate::layering::root());
        assert!(["ARCHITECTURE.md", "docs/testing.md"].iter().all(|page| pages.iter().any(|p| p == page)));
    }

    #[test]
    fn a_function_that_has_left_its_file_is_a_fault() {
        assert!(defines("pub fn scan<T>(x: T) {}", "scan") && !defines("fn scanner() {}", "scan"));
        assert!(defines("impl Filesystem for Live {", "impl Filesystem for Live"));
        let page = "<!-- where -->\n| question | file | function |\n|---|---|---|\n\
                    | a | `stdx/src/lib.rs` | `no_such_function` |\n<!-- /where -->\n";
        let faults = functions(&crate::layering::root(), page);
        assert_eq!(faults, ["ARCHITECTURE.md: a: stdx/src/lib.rs has no `no_such_function`"]);
    }
}
