//! Inherent methods of types: a type with hundreds of them is several subjects under one name.

use std::collections::BTreeMap;
use std::path::Path;

use super::{is_word, without_tests};

/// The most inherent methods that a type has. `Blkptr` has this many: an accessor for each field of an on-disk structure. The
/// number only falls.
const MOST: usize = 82;

/// (crate, type) → number of inherent methods.
type Counts = BTreeMap<(String, String), usize>;

/// A line for each type below `root` with more methods than any had before, or one when the limit can fall.
pub fn check(root: &Path) -> Vec<String> {
    let mut counts = Counts::new();
    for (package, src) in super::packages(root) {
        for (file, text) in crate::layering::sources(&src) {
            let file = file.to_string_lossy();
            if file.ends_with("tests.rs") || file.contains("/tests/") {
                continue;
            }
            for (name, methods) in methods(&text) {
                *counts.entry((package.clone(), name)).or_default() += methods;
            }
        }
    }
    compare(MOST, &counts)
}

fn compare(most: usize, counts: &Counts) -> Vec<String> {
    let above = counts.iter().filter(|(_, count)| **count > most);
    let mut faults: Vec<_> = above
        .map(|((package, name), count)| {
            format!("{package}: {name} has {count} inherent methods, more than {most}: make a subject of some a type")
        })
        .collect();
    let largest = counts.values().max().copied().unwrap_or(0);
    if largest < most {
        faults.push(format!("no type has more than {largest} inherent methods: lower the limit of {most}"));
    }
    faults
}

/// The types of the inherent `impl` blocks of a formatted text, each with the number of its methods there; unit tests are
/// left out.
fn methods(text: &str) -> Vec<(String, usize)> {
    let mut found: Vec<(String, usize)> = Vec::new();
    let mut inside = false;
    for line in without_tests(text).lines() {
        if let Some(header) = line.strip_prefix("impl") {
            let name = inherent(header);
            inside = name.is_some();
            found.extend(name.map(|name| (name.to_owned(), 0)));
        } else if line == "}" {
            inside = false;
        } else if inside && is_method(line) {
            found.iter_mut().rev().take(1).for_each(|(_, count)| *count += 1);
        }
    }
    found
}

/// The type of an inherent `impl` block, given what follows `impl`.
fn inherent(header: &str) -> Option<&str> {
    let rest = without_generics(header).trim_start();
    let path = rest.split(|c: char| !is_word(c) && c != ':').next()?;
    let is_inherent = !rest.get(path.len()..)?.contains(" for ");
    path.rsplit("::").next().filter(|name| is_inherent && !name.is_empty())
}

/// What follows the generic parameters that `text` begins with.
fn without_generics(text: &str) -> &str {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return text.get(at + usize::from(c == '>')..).unwrap_or_default();
        }
        before = c;
    }
    text
}

fn is_method(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("    ").filter(|rest| !rest.starts_with([' ', '/', '#'])) else {
        return false;
    };
    let words = rest.split_once("fn ").map(|(before, _)| before);
    words.is_some_and(|words| {
        words.split_whitespace().all(|word| {
            word.starts_with("pub")
                || ["in", "const", "async", "unsafe", "extern", "\"C\""].contains(&word)
                || word.ends_with(')')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherent_methods_are_counted() {
        let text = "impl A {\n    pub fn a() {}\n    pub(in crate::x) const fn b() {\n        fn inner() {}\n    }\n    \
                    const F: fn() = a;\n}\nimpl<F: Fn() -> u8> super::B<F> {\n    // fn no\n    fn c() {}\n}\n\
                    impl Debug for A {\n    fn d() {}\n}\nfn e() {}\nimpl A {\n    unsafe fn f() {}\n}\n\
                    #[cfg(test)]\nmod tests {\n}\nimpl A {\n    fn g() {}\n}\n";
        let expected = [("A", 2), ("B", 1), ("A", 1)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(methods(text), expected);
    }

    #[test]
    fn a_type_that_grows_and_a_limit_that_can_fall_are_faults() {
        let counts = |count| Counts::from([(("toy".to_owned(), "A".to_owned()), count)]);
        assert!(compare(9, &counts(9)).is_empty());
        assert!(compare(9, &counts(10))[0].contains("toy: A has 10 inherent methods"));
        assert!(compare(9, &counts(8))[0].contains("lower the limit"));
    }
}
