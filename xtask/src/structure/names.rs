//! Names of types that more than one visible type of a crate has.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::{is_word, without_tests};

const HEAD: &str = "\
# Names that more than one visible type of a crate has: crate, name, number of types.
# `cargo test -p xtask` fails when a number grows and when it shrinks; the list only shrinks.
";

/// (crate, name) → where types of that name are defined.
pub type Places = BTreeMap<(String, String), Vec<String>>;

/// The names below `root` that more than one type of a crate has, private types aside.
pub fn find(root: &Path) -> Places {
    let mut places = of(root);
    places.retain(|_, places| places.len() > 1);
    places
}

/// All names of visible types below `root`.
pub fn of(root: &Path) -> Places {
    let mut places = Places::new();
    for (package, src) in super::packages(root) {
        for (file, text) in crate::layering::sources(&src) {
            let file = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
            if file.ends_with("tests.rs") || file.contains("/tests/") {
                continue;
            }
            for (line, name) in types(&text) {
                places.entry((package.clone(), name.to_owned())).or_default().push(format!("{file}:{line}"));
            }
        }
    }
    places.values_mut().for_each(|places| places.sort());
    places
}

/// The types of a text that are visible outside their module, with their lines; unit tests are left out.
fn types(text: &str) -> Vec<(usize, &str)> {
    let lines = without_tests(text).lines().enumerate();
    lines.filter_map(|(at, line)| Some((at + 1, visible_type(line)?))).collect()
}

fn visible_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = rest.strip_prefix('(').and_then(|r| r.split_once(')')).map_or(rest, |(_, r)| r);
    let (keyword, rest) = rest.strip_prefix(' ')?.split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "union"].contains(&keyword)
        || line.starts_with("pub") && keyword == "type";
    let name = rest.split(|c| !is_word(c)).next()?;
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

/// The numbers of a list as [`print`] writes it.
pub fn parse(list: &str) -> BTreeMap<(String, String), usize> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        Some(((words.next()?.to_owned(), words.next()?.to_owned()), words.next()?.parse().ok()?))
    };
    list.lines().filter(|l| !l.starts_with('#')).filter_map(entry).collect()
}

/// The list of `places`.
pub fn print(places: &Places) -> String {
    let mut list = HEAD.to_owned();
    for ((package, name), places) in places {
        let _ = writeln!(list, "{package} {name} {}", places.len());
    }
    list
}

/// A line for each name whose number is not as recorded.
pub fn compare(recorded: &BTreeMap<(String, String), usize>, found: &Places) -> Vec<String> {
    let mut faults = Vec::new();
    for (key @ (package, name), places) in found {
        let (now, before) = (places.len(), recorded.get(key).copied().unwrap_or(1));
        if now > before {
            let places = places.join(", ");
            faults.push(format!(
                "{package}: {now} visible types are named {name}, rename the new one: {places}"
            ));
        }
    }
    for (key @ (package, name), before) in recorded {
        let now = found.get(key).map_or(1, Vec::len);
        if now < *before {
            let list = super::NAMES;
            faults.push(format!(
                "{package}: fewer types are named {name}: {now}, not {before}; correct {list}"
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(name: &str, count: usize) -> Places {
        let places = (0..count).map(|n| format!("crates/toy/src/{n}.rs:1")).collect();
        Places::from([(("toy".to_owned(), name.to_owned()), places)])
    }

    #[test]
    fn visible_types_are_found() {
        let text = "pub struct A;\n    pub(crate) enum B {}\nstruct C;\npub(in crate::x) trait D {}\n\
                    pub type E = A;\n    pub type F = A;\npub fn f() {}\n#[cfg(test)]\nmod tests {\npub struct G;\n}\n";
        assert_eq!(types(text), [(1, "A"), (2, "B"), (4, "D"), (5, "E")]);
    }

    #[test]
    fn a_name_that_comes_and_one_that_goes_are_faults() {
        let recorded = parse(&print(&places("Found", 3)));
        assert!(compare(&recorded, &places("Found", 3)).is_empty());
        let faults = compare(&recorded, &places("Found", 4));
        assert!(faults.len() == 1 && faults[0].contains("4 visible types are named Found"), "{faults:?}");
        assert!(compare(&recorded, &places("Found", 2))[0].contains("fewer types"));
        let faults = compare(&recorded, &places("Place", 2));
        assert!(faults.len() == 2 && faults[0].contains("named Place"), "{faults:?}");
        assert!(faults[1].contains("named Found: 1, not 3"), "{faults:?}");
    }
}
