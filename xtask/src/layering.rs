//! Checks that imports match the tables of ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Every fault, a line each.
pub fn check(root: &Path) -> Vec<String> {
    let Ok(page) = fs::read_to_string(root.join("ARCHITECTURE.md")) else {
        return vec!["ARCHITECTURE.md cannot be read".to_owned()];
    };
    let mut faults = crates(root, &rows(&page, "crates"));
    faults.extend(engine(root, &rows(&page, "engine")));
    faults
}

/// The cells of the table between `<!-- name -->` and `<!-- /name -->`, without its head.
pub fn rows(page: &str, name: &str) -> Vec<Vec<String>> {
    let after = page.split_once(&format!("<!-- {name} -->")).map_or("", |(_, rest)| rest);
    let table = after.split_once(&format!("<!-- /{name} -->")).map_or("", |(table, _)| table);
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect::<Vec<_>>();
    table.lines().filter(|l| l.starts_with('|')).skip(2).map(cells).collect()
}

fn crates(root: &Path, table: &[Vec<String>]) -> Vec<String> {
    let mut faults = Vec::new();
    let allowed: BTreeMap<&str, BTreeSet<&str>> = table
        .iter()
        .filter_map(|r| Some((r.first()?.as_str(), r.get(2)?.split_whitespace().collect())))
        .collect();
    for (name, manifest) in manifests(root) {
        let Some(may) = allowed.get(name.as_str()) else {
            faults.push(format!("crate {name} is not in the table of ARCHITECTURE.md"));
            continue;
        };
        for import in dependencies(&manifest) {
            if allowed.contains_key(import.as_str()) && !may.contains(import.as_str()) {
                faults.push(format!("crate {name} imports {import}, which ARCHITECTURE.md does not allow"));
            }
        }
    }
    faults
}

fn manifests(root: &Path) -> Vec<(String, String)> {
    let mut dirs: Vec<PathBuf> = fs::read_dir(root.join("crates"))
        .map_or_else(|_| Vec::new(), |d| d.flatten().map(|e| e.path()).collect());
    dirs.push(root.join("xtask"));
    let read = |dir: &PathBuf| {
        let name = dir.file_name()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(dir.join("Cargo.toml")).ok()?))
    };
    dirs.iter().filter_map(read).collect()
}

/// Names in the `[dependencies]` table of a manifest.
fn dependencies(manifest: &str) -> Vec<String> {
    let start = manifest.lines().skip_while(|l| l.trim() != "[dependencies]").skip(1);
    let body = start.take_while(|l| !l.starts_with('['));
    let name = |line: &str| line.split(['=', '.', ' ']).next().map(str::to_owned).filter(|n| !n.is_empty());
    body.filter_map(name).collect()
}

fn engine(root: &Path, table: &[Vec<String>]) -> Vec<String> {
    let order: Vec<&str> = table.iter().filter_map(|r| r.first().map(String::as_str)).collect();
    let place = |module: &str| order.iter().position(|m| *m == module);
    let src = root.join("crates/engine/src");
    let mut faults = Vec::new();
    for (file, text) in sources(&src) {
        let module = module_of(&src, &file);
        if module == "lib" {
            continue;
        }
        let Some(own) = place(&module) else {
            faults.push(format!("engine module {module} is not in the table of ARCHITECTURE.md"));
            continue;
        };
        for import in imports(&text) {
            if place(&import).is_some_and(|at| at > own) {
                faults.push(format!(
                    "engine: {} imports {import}, which stands above {module}",
                    file.display()
                ));
            }
        }
    }
    faults.sort();
    faults.dedup();
    faults
}

/// Every `.rs` file below `dir`, with its text.
pub fn sources(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs")
            && let Ok(text) = fs::read_to_string(&path)
        {
            found.push((path, text));
        }
    }
    found
}

fn module_of(src: &Path, file: &Path) -> String {
    let first = file.strip_prefix(src).ok().and_then(|p| p.components().next());
    let name = first.map(|c| c.as_os_str().to_string_lossy().into_owned()).unwrap_or_default();
    name.trim_end_matches(".rs").to_owned()
}

/// First path segments after `crate::`, except in tests, which may import upwards.
fn imports(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let segment =
        |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    code.split("crate::").skip(1).map(segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_as_architecture_says() {
        let faults = check(&root());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn compat_names_every_feature() {
        let page = fs::read_to_string(root().join("docs/compat.md")).unwrap();
        for feature in zcommon::features::FEATURES {
            let info = feature.info();
            let row = format!("| {} | `{}` |", info.name, info.guid);
            assert!(page.contains(&row), "docs/compat.md lacks {}", info.name);
        }
    }

    #[test]
    fn a_forbidden_edge_is_seen() {
        let table = |name: &str, may: &str| vec![name.to_owned(), String::new(), may.to_owned()];
        let faults = crates(&root(), &[table("engine", ""), table("stdx", "")]);
        assert!(
            faults.iter().any(|f| f == "crate engine imports stdx, which ARCHITECTURE.md does not allow")
        );
        assert_eq!(
            imports("use crate::zio::Zio;\n#[cfg(test)] use crate::spa::X;"),
            BTreeSet::from(["zio".to_owned()])
        );
    }
}
