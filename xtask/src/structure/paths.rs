//! Paths and functions that a page names exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Directories to which the paths of the page are relative.
const BASES: [&str; 3] = ["", "crates/engine/src", "crates"];

/// A line for each path in backquotes of `page` (a word with `/` that ends in `.rs`, `.md` or `.txt`) of which no file
/// exists below `root`.
pub fn missing(root: &Path, page: &str) -> Vec<String> {
    let absent = |path: &&str| !BASES.iter().any(|base| root.join(base).join(path).is_file());
    let missing = named(page).into_iter().filter(absent);
    missing.map(|path| format!("ARCHITECTURE.md names {path}, which does not exist")).collect()
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
        let faults = missing(&crate::layering::root(), "`xtask/src/main.rs` `gone/away.rs`");
        assert_eq!(faults, ["ARCHITECTURE.md names gone/away.rs, which does not exist"]);
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
