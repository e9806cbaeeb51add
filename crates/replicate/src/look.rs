//! State of a side: datasets with their snapshots and bookmarks, from one `zfs list`.

use std::collections::BTreeMap;

use crate::host::{Failed, Host};

/// Columns of the list.
const COLUMNS: &str =
    "name,type,guid,createtxg,creation,origin,encryption,receive_resume_token,written,userrefs";

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Its name after the `@`.
    pub name: String,
    pub guid: u64,
    pub createtxg: u64,
    /// Seconds since 1970.
    pub creation: u64,
    /// Holds.
    pub userrefs: u64,
}

/// A bookmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bookmark {
    /// Its name after the `#`.
    pub name: String,
    pub guid: u64,
    pub createtxg: u64,
}

/// A file system or volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Dataset {
    /// The snapshot that it was cloned from, by its whole name.
    pub origin: Option<String>,
    pub is_encrypted: bool,
    /// Resume token of an interrupted receive.
    pub token: Option<String>,
    /// Bytes written since its newest snapshot.
    pub written: u64,
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Oldest first.
    pub bookmarks: Vec<Bookmark>,
}

impl Dataset {
    /// The snapshot with a guid.
    pub fn by_guid(&self, guid: u64) -> Option<&Snapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.guid == guid)
    }
}

/// A dataset and all below it, by names relative to it: `` (itself), `/a`, `/a/b`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    pub root: String,
    pub datasets: BTreeMap<String, Dataset>,
}

impl Tree {
    /// The whole name of one of its datasets.
    pub fn whole(&self, relative: &str) -> String {
        format!("{}{relative}", self.root)
    }

    /// Looks at a side; `None` when there is no such dataset.
    ///
    /// # Errors
    /// The message of `zfs list`.
    pub fn look(host: &Host, root: &str, recursive: bool) -> Result<Option<Self>, Failed> {
        let types = "filesystem,volume,snapshot,bookmark";
        let mut words = vec!["list", "-Hp", "-t", types, "-o", COLUMNS];
        words.extend(if recursive { &["-r"][..] } else { &["-d", "1"] });
        words.push(root);
        match host.run(&words) {
            Ok(text) => Self::of_list(&text, root, recursive).map(Some),
            Err(e) if e.is_missing() => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn of_list(text: &str, root: &str, recursive: bool) -> Result<Self, Failed> {
        let mut tree = Self { root: root.to_owned(), datasets: BTreeMap::new() };
        for line in text.lines() {
            let bad = || Failed::new(format!("zfs list wrote '{line}'"));
            let cells: Vec<&str> = line.split('\t').collect();
            let [name, _, guid, createtxg, creation, origin, encryption, token, written, userrefs] =
                cells[..]
            else {
                return Err(bad());
            };
            let dataset = name.split(['@', '#']).next().unwrap_or_default();
            let relative = dataset.strip_prefix(root).ok_or_else(bad)?;
            if !recursive && !relative.is_empty() {
                continue;
            }
            // A receive's hidden child.
            if relative.split('/').any(|part| part.starts_with('%')) {
                continue;
            }
            let (guid, createtxg) = (number(guid).ok_or_else(bad)?, number(createtxg).ok_or_else(bad)?);
            let creation = number(creation).unwrap_or(0);
            let known = tree.datasets.entry(relative.to_owned()).or_default();
            let part = name.get(dataset.len() + 1..).unwrap_or_default().to_owned();
            if name.contains('@') {
                let userrefs = number(userrefs).unwrap_or(0);
                known.snapshots.push(Snapshot { name: part, guid, createtxg, creation, userrefs });
            } else if name.contains('#') {
                known.bookmarks.push(Bookmark { name: part, guid, createtxg });
            } else {
                known.origin = text_of(origin);
                known.is_encrypted = text_of(encryption).is_some_and(|value| value != "off");
                known.token = text_of(token);
                known.written = number(written).unwrap_or(0);
            }
        }
        for dataset in tree.datasets.values_mut() {
            dataset.snapshots.sort_by_key(|snapshot| snapshot.createtxg);
            dataset.bookmarks.sort_by_key(|bookmark| bookmark.createtxg);
        }
        Ok(tree)
    }
}

fn number(cell: &str) -> Option<u64> {
    cell.parse().ok()
}

fn text_of(cell: &str) -> Option<String> {
    (!matches!(cell, "-" | "")).then(|| cell.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_becomes_a_tree() {
        let text = "\
t/a\tfilesystem\t1\t10\t100\t-\taes-256-gcm\t1-token\t4096\t-
t/a@new\tsnapshot\t3\t30\t300\t-\taes-256-gcm\t-\t0\t2
t/a@old\tsnapshot\t2\t20\t200\t-\taes-256-gcm\t-\t0\t0
t/a#mark\tbookmark\t2\t20\t200\t-\t-\t-\t-\t-
t/a/b\tfilesystem\t4\t11\t100\tt/a@old\toff\t-\t0\t-
";
        let tree = Tree::of_list(text, "t/a", true).unwrap();
        let a = &tree.datasets[""];
        assert_eq!((a.is_encrypted, a.token.as_deref(), a.written), (true, Some("1-token"), 4096));
        assert_eq!(a.snapshots.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["old", "new"]);
        assert_eq!((a.snapshots[1].userrefs, a.bookmarks[0].name.as_str()), (2, "mark"));
        assert_eq!(tree.datasets["/b"].origin.as_deref(), Some("t/a@old"));
        assert_eq!(Tree::of_list(text, "t/a", false).unwrap().datasets.len(), 1);
        assert!(Tree::of_list("oops\n", "t/a", true).is_err());
    }
}
