//! The package's run files: the tests of each group, its setup and cleanup, and the timeouts.

use std::fs;
use std::path::{Path, PathBuf};

use super::PACKAGE;

/// A folder of tests as a run file lists it.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// Folder below `tests/functional`.
    pub name: String,
    /// Names without their ending.
    pub tests: Vec<String>,
    /// Script before the tests, if any.
    pub pre: String,
    /// Script after the tests, if any.
    pub post: String,
    /// The user that runs the tests.
    pub user: String,
    /// Seconds for one test.
    pub timeout: u64,
}

impl Group {
    /// Adds the tests of another run file, which begin like a new group: after a cleanup and a setup.
    fn join(&mut self, tests: Vec<String>) {
        let between = [&self.post, &self.pre].into_iter().filter(|script| !script.is_empty()).cloned();
        let between: Vec<String> = between.collect();
        self.tests.extend(between.into_iter().chain(tests));
    }

    /// The tests, without the cleanups and setups between them.
    pub fn real_tests(&self) -> impl Iterator<Item = &String> {
        self.tests.iter().filter(|test| **test != self.pre && **test != self.post)
    }
}

/// The path of a run file of the package in `tree`.
pub fn path(tree: &Path, name: &str) -> PathBuf {
    tree.join(PACKAGE.trim_start_matches('/')).join("runfiles").join(name)
}

/// Reads run files of the package in `tree`. A group in two of them has the tests of both.
pub fn read(tree: &Path, names: &[&str]) -> Result<Vec<Group>, String> {
    let mut groups: Vec<Group> = Vec::new();
    for name in names {
        let path = path(tree, name);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        for group in parse(&text) {
            match groups.iter_mut().find(|known| known.name == group.name) {
                Some(known) => known.join(group.tests),
                None => groups.push(group),
            }
        }
    }
    Ok(groups)
}

/// The groups selected by a word: a whole path, its last part, or either followed by `/TEST`.
pub fn select(groups: &[Group], word: &str) -> Vec<Group> {
    let named = |group: &Group, word: &str| {
        group.name == word || group.name.rsplit_once('/').is_some_and(|(_, last)| last == word)
    };
    let whole: Vec<Group> = groups.iter().filter(|group| named(group, word)).cloned().collect();
    if !whole.is_empty() {
        return whole;
    }
    let Some((folder, test)) = word.rsplit_once('/') else { return Vec::new() };
    let one = |group: &Group| {
        let has = group.tests.iter().any(|known| known == test);
        (named(group, folder) && has).then(|| Group { tests: vec![test.to_owned()], ..group.clone() })
    };
    groups.iter().filter_map(one).collect()
}

/// Sections of `key = value` lines; indented lines continue a value.
fn parse(text: &str) -> Vec<Group> {
    let mut defaults = Group {
        pre: "setup".into(),
        post: "cleanup".into(),
        user: "root".into(),
        timeout: 600,
        ..Group::default()
    };
    let mut groups: Vec<Group> = Vec::new();
    let mut entry: Option<(String, String)> = None;
    for line in text.lines().chain(["[end]"]).filter(|line| !line.starts_with('#')) {
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = &mut entry {
                value.push_str(line.trim());
            }
            continue;
        }
        if let Some((key, value)) = entry.take() {
            set(groups.last_mut().unwrap_or(&mut defaults), &key, &value);
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let section = section.split(':').next().unwrap_or(section);
            if let Some(name) = section.strip_prefix("tests/functional/") {
                groups.push(Group { name: name.to_owned(), ..defaults.clone() });
            }
        } else if let Some((key, value)) = line.split_once('=') {
            entry = Some((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    groups
}

fn set(group: &mut Group, key: &str, value: &str) {
    match key {
        "tests" => {
            let words = value.trim_matches(['[', ']']).split(',');
            let names = words.map(|word| word.trim().trim_matches(['\'', '"']));
            let bare = |name: &str| name.trim_end_matches(".ksh").trim_end_matches(".sh").to_owned();
            group.tests = names.filter(|name| !name.is_empty()).map(bare).collect();
        }
        "pre" => group.pre = value.to_owned(),
        "post" => group.post = value.to_owned(),
        "user" => group.user = value.to_owned(),
        "timeout" => group.timeout = value.parse().unwrap_or(group.timeout),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, select};

    const TEXT: &str = "[DEFAULT]\npre = setup\ntimeout = 180\n\n[tests/functional/cli_root/zfs_get]\n\
        tests = ['a_001', 'b.ksh',\n    'c']\n\n[tests/functional/atime:Linux]\ntests = ['d']\npost =\n";

    #[test]
    fn groups_have_their_tests_and_defaults() {
        let groups = parse(TEXT);
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].name, "cli_root/zfs_get");
        assert_eq!(groups[0].tests, ["a_001", "b", "c"]);
        assert_eq!((groups[0].timeout, groups[0].post.as_str()), (180, "cleanup"));
        assert_eq!((groups[1].name.as_str(), groups[1].post.as_str()), ("atime", ""));
    }

    #[test]
    fn the_tests_of_another_file_begin_anew() {
        let mut group = parse(TEXT).remove(0);
        group.join(vec!["d".into()]);
        assert_eq!(group.tests, ["a_001", "b", "c", "cleanup", "setup", "d"]);
        assert_eq!(group.real_tests().count(), 4);
    }

    #[test]
    fn a_word_names_a_group_or_one_test() {
        let groups = parse(TEXT);
        assert_eq!(select(&groups, "zfs_get")[0].tests.len(), 3);
        assert_eq!(select(&groups, "zfs_get/b")[0].tests, ["b"]);
        assert!(select(&groups, "zfs_get/x").is_empty());
    }
}
