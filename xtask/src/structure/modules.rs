//! The files of a crate as modules, and the edges that `use` and paths make between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{is_word, without_tests};

/// Re-exports of re-exports that are followed.
const MAX_HOPS: usize = 5;

/// Segments of a path within its crate; no segment for `lib.rs` and `main.rs`.
type Module = Vec<String>;

/// The modules of a crate.
#[derive(Default)]
pub struct Modules {
    texts: BTreeMap<Module, String>,
    /// (module, name) → the path that the module re-exports under that name.
    exports: BTreeMap<(Module, String), Vec<String>>,
}

impl Modules {
    /// The crate with the sources in `src`, without modules of tests.
    pub fn read(src: &Path) -> Self {
        let mut files = crate::layering::sources(src);
        files.sort();
        let named = |(path, text): &(PathBuf, String)| Some((module(src, path)?, text.clone()));
        Self::new(files.iter().filter_map(named))
    }

    fn new(files: impl Iterator<Item = (Module, String)>) -> Self {
        let mut modules = Self::default();
        for (module, text) in files {
            let text = without_comments(without_tests(&text));
            for path in uses(&text).filter(|(public, _)| *public).flat_map(|(_, tree)| expand(tree)) {
                if let Some(name) = path.last() {
                    modules.exports.insert((module.clone(), name.clone()), path.clone());
                }
            }
            modules.texts.entry(module).or_default().push_str(&text);
        }
        modules
    }

    /// Names of the modules, each with the modules it uses. A re-export leads to the module that it names. Neither
    /// a module's use of the modules above it in the tree nor a re-export is an edge: children extend the types of
    /// their parent, and a parent shows items of its children.
    pub fn edges(&self) -> BTreeMap<String, BTreeSet<String>> {
        let edges = |(module, text): (&Module, &String)| {
            let used = paths(text).into_iter().filter_map(|path| self.owner(module, &path, 0));
            let used = used.filter(|owner| !module.starts_with(owner)).map(|owner| name(&owner));
            (name(module), used.collect())
        };
        self.texts.iter().map(edges).collect()
    }

    /// The module that defines `path` as `module` sees it.
    fn owner(&self, module: &[String], path: &[String], hops: usize) -> Option<Module> {
        let path = self.absolute(module, path)?;
        let split = |at| path.split_at_checked(at).filter(|(head, _)| self.texts.contains_key(*head));
        let (owner, rest) = (0..=path.len()).rev().find_map(split)?;
        let exported = rest.first().and_then(|name| self.exports.get(&(owner.to_vec(), name.clone())));
        let beyond = exported.filter(|_| hops < MAX_HOPS).and_then(|p| self.owner(owner, p, hops + 1));
        Some(beyond.unwrap_or_else(|| owner.to_vec()))
    }

    /// `path` from the root of the crate; nothing if it is of another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        let supers = path.iter().take_while(|s| *s == "super").count();
        let (base, rest) = match first.as_str() {
            "crate" => (&[][..], rest),
            "self" => (module, rest),
            "super" => (module.get(..module.len().checked_sub(supers)?)?, path.get(supers..)?),
            _ => (module, path),
        };
        let whole = [base, rest].concat();
        let child = whole.get(..=module.len()).is_some_and(|head| self.texts.contains_key(head));
        (rest.len() < path.len() || child).then_some(whole)
    }
}

fn name(module: &[String]) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("::") }
}

/// The module of a file; nothing for files of tests.
fn module(src: &Path, file: &Path) -> Option<Module> {
    let relative = file.strip_prefix(src).ok()?.with_extension("");
    let mut module: Module = relative.iter().map(|s| s.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") || ["lib", "main"].map(Path::new).contains(&&*relative)
    {
        module.pop();
    }
    let of_tests = module.iter().any(|s| s == "tests") || module.last().is_some_and(|l| l.ends_with("tests"));
    (!of_tests).then_some(module)
}

fn without_comments(text: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned() + "\n";
    text.lines().map(code).collect()
}

/// The trees of the `use` items of a text, and if the item is visible outside its module.
fn uses(text: &str) -> impl Iterator<Item = (bool, &str)> {
    text.match_indices("use ").filter_map(|(at, word)| {
        let (before, after) = (text.get(..at)?, text.get(at + word.len()..)?);
        if before.ends_with(is_word) {
            return None;
        }
        let line = before.rsplit('\n').next().unwrap_or_default();
        Some((line.trim_start().starts_with("pub"), after.split(';').next()?))
    })
}

/// The paths of a `use` tree, by segments, without new names.
fn expand(tree: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for part in split_list(tree) {
        let part = part.trim();
        if let Some((prefix, list)) = part.split_once('{') {
            let prefix = segments(prefix);
            let list = list.trim_end().strip_suffix('}').unwrap_or(list);
            paths.extend(expand(list).into_iter().map(|rest| [prefix.clone(), rest].concat()));
        } else if !part.is_empty() {
            paths.push(segments(part.split_whitespace().next().unwrap_or_default()));
        }
    }
    paths
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

/// Parts between the commas outside braces.
fn split_list(list: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let outside = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    list.split(outside).collect()
}

/// The paths that make edges: of private imports, and those with `crate`, `super` or `self` in code.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut paths: Vec<_> =
        uses(text).filter(|(public, _)| !public).flat_map(|(_, tree)| expand(tree)).collect();
    for root in ["crate", "super", "self"] {
        for (at, _) in text.match_indices(&format!("{root}::")) {
            let inside = text.get(..at).unwrap_or_default().ends_with(|c: char| is_word(c) || c == ':');
            let rest = text.get(at..).unwrap_or_default();
            if !inside && !in_use(text, at) {
                paths
                    .push(segments(rest.split(|c: char| !is_word(c) && c != ':').next().unwrap_or_default()));
            }
        }
    }
    paths
}

/// If the byte at `at` belongs to a `use` item.
fn in_use(text: &str, at: usize) -> bool {
    let item = text.get(..at).unwrap_or_default().rsplit(';').next().unwrap_or_default();
    uses(item).next().is_some()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A crate of the given files: path within `src`, text.
    pub fn toy(files: &[(&str, &str)]) -> Modules {
        let src = Path::new("/src");
        let named = |(path, text): &(&str, &str)| Some((module(src, &src.join(path))?, (*text).to_owned()));
        Modules::new(files.iter().filter_map(named))
    }

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let edges = toy(files).edges();
        edges.iter().flat_map(|(from, to)| to.iter().map(move |to| format!("{from} {to}"))).collect()
    }

    #[test]
    fn imports_and_paths_are_edges() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;"),
            ("a/mod.rs", "use crate::{b::{B, deep::Deep}, c};\n// use crate::d::D;\nfn f() { c::g() }"),
            ("b.rs", "struct B; fn f(x: &crate::d::D) { self::g(); }"),
            ("c.rs", "use std::fmt;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
            ("d.rs", "use super::a;"),
            ("d/tests.rs", "use crate::b;"),
        ];
        assert_eq!(edges(&files), ["a b", "a c", "b d", "d a"]);
    }

    #[test]
    fn a_re_export_leads_to_its_module_and_parents_are_no_edge() {
        let files = [
            ("lib.rs", "pub mod a;"),
            ("a.rs", "mod b;\nmod c;\npub(crate) use b::B;\npub use c::{C as Other, D};\nuse c::D;"),
            ("a/b.rs", "use super::{A, D};\nimpl A {}"),
            ("a/c.rs", "use crate::a::B as Renamed;"),
        ];
        assert_eq!(edges(&files), ["a a::c", "a::b a::c", "a::c a::b"]);
    }
}
