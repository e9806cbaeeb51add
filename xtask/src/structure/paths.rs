//! Paths that a page names exist.

use std::collections::BTreeSet;
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
}
