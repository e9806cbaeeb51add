//! The sets of features that the pool property `compatibility` names.
//!
//! OpenZFS installs a file for each; this table serves machines that have none.

use super::Feature;

const SETS: &str = include_str!("compatibility.txt");

/// Sets that build on each other, at most: the table is shorter.
const MAX_STEPS: usize = 32;

/// Returns the features of the built-in set `name`, or `None` when there is no such set.
pub fn compatibility_set(name: &str) -> Option<Vec<Feature>> {
    features_of(name, MAX_STEPS)
}

/// Returns the names of all built-in sets.
pub fn compatibility_sets() -> impl Iterator<Item = &'static str> {
    lines().flat_map(|(names, _)| names.split_ascii_whitespace())
}

fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
    SETS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": "))
}

fn features_of(name: &str, steps: usize) -> Option<Vec<Feature>> {
    if name == "none" || steps == 0 {
        return (steps > 0).then(Vec::new);
    }
    let (_, words) = lines().find(|(names, _)| names.split_ascii_whitespace().any(|word| word == name))?;
    let mut words = words.split_ascii_whitespace();
    let mut features = features_of(words.next()?, steps - 1)?;
    for word in words {
        match word.strip_prefix('-') {
            Some(lacks) => features.retain(|feature| feature.info().name != lacks),
            None => features.push(Feature::from_name(word)?),
        }
    }
    Some(features)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::{FEATURES, of_openzfs_2_3};

    fn sorted(mut features: Vec<Feature>) -> Vec<Feature> {
        features.sort();
        features
    }

    #[test]
    fn every_set_resolves() {
        for name in compatibility_sets() {
            let features = compatibility_set(name).unwrap();
            assert!(features.contains(&Feature::AsyncDestroy), "{name}");
            let mut once = sorted(features.clone());
            once.dedup();
            assert_eq!(once.len(), features.len(), "{name}: a feature stands twice");
        }
        assert_eq!(compatibility_set("openzfs-9"), None);
    }

    #[test]
    fn the_newest_sets_are_what_releases_support() {
        let without = |features: Vec<Feature>, lacks: &[Feature]| {
            sorted(features.into_iter().filter(|feature| !lacks.contains(feature)).collect())
        };
        assert_eq!(sorted(compatibility_set("openzfs-2.4-linux").unwrap()), sorted(FEATURES.to_vec()));
        assert_eq!(sorted(compatibility_set("openzfs-2.3").unwrap()), without(of_openzfs_2_3(), &[]));
        assert!(!compatibility_set("grub2").unwrap().contains(&Feature::Encryption));
        assert!(!compatibility_set("openzfs-2.0-freebsd").unwrap().contains(&Feature::Edonr));
    }

    /// The files of an installed OpenZFS have the same sets.
    #[test]
    fn sets_are_those_of_installed_files() {
        for name in compatibility_sets() {
            let Ok(text) = std::fs::read_to_string(format!("/usr/share/zfs/compatibility.d/{name}")) else {
                continue;
            };
            let words = text.lines().map(|line| line.split('#').next().unwrap_or_default());
            let named: Vec<_> =
                words.flat_map(|line| line.split([' ', '\t', ','])).filter_map(Feature::from_name).collect();
            assert_eq!(sorted(compatibility_set(name).unwrap()), sorted(named), "{name}");
        }
    }
}
