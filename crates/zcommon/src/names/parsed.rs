//! A name taken apart.

use std::fmt;
use std::str::FromStr;

use super::{NameError, check_entity};

/// The part of a name behind its dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NamePart<'a> {
    /// Nothing: the dataset itself.
    Dataset,
    /// `@SNAPSHOT`.
    Snapshot(&'a str),
    /// `#BOOKMARK`.
    Bookmark(&'a str),
}

/// A well-formed name of a dataset, snapshot or bookmark.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ZfsName(String);

impl FromStr for ZfsName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        check_entity(name)?;
        Ok(Self(name.into()))
    }
}

impl fmt::Display for ZfsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ZfsName {
    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The dataset, without snapshot or bookmark.
    pub fn dataset(&self) -> &str {
        self.0.split(['@', '#']).next().unwrap_or_default()
    }

    /// The pool.
    pub fn pool(&self) -> &str {
        self.dataset().split('/').next().unwrap_or_default()
    }

    /// The dataset's components, the pool first.
    pub fn components(&self) -> std::str::Split<'_, char> {
        self.dataset().split('/')
    }

    /// The part after the dataset.
    pub fn part(&self) -> NamePart<'_> {
        if let Some((_, snapshot)) = self.0.split_once('@') {
            return NamePart::Snapshot(snapshot);
        }
        match self.0.split_once('#') {
            Some((_, bookmark)) => NamePart::Bookmark(bookmark),
            None => NamePart::Dataset,
        }
    }

    /// The snapshot's own name.
    pub fn snapshot(&self) -> Option<&str> {
        match self.part() {
            NamePart::Snapshot(name) => Some(name),
            _ => None,
        }
    }

    /// The dataset that this is in: a snapshot's or bookmark's dataset, a dataset's parent, nothing for a pool.
    pub fn parent(&self) -> Option<&str> {
        match self.part() {
            NamePart::Dataset => self.0.rsplit_once('/').map(|(parent, _)| parent),
            _ => Some(self.dataset()),
        }
    }

    /// Refuses a name with a snapshot or bookmark.
    pub fn expect_dataset(self) -> Result<Self, NameError> {
        match self.part() {
            NamePart::Dataset => Ok(self),
            NamePart::Snapshot(_) => Err(NameError::UnexpectedSnapshot),
            NamePart::Bookmark(_) => Err(NameError::UnexpectedBookmark),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart() {
        let name: ZfsName = "tank/home/ann@monday".parse().unwrap();
        assert_eq!((name.pool(), name.dataset(), name.snapshot()), ("tank", "tank/home/ann", Some("monday")));
        assert_eq!(name.parent(), Some("tank/home/ann"));
        assert_eq!(name.components().collect::<Vec<_>>(), ["tank", "home", "ann"]);
        assert_eq!(name.expect_dataset(), Err(NameError::UnexpectedSnapshot));
        let name: ZfsName = "tank#mark".parse().unwrap();
        assert_eq!((name.part(), name.pool()), (NamePart::Bookmark("mark"), "tank"));
        let name: ZfsName = "tank/home".parse().unwrap();
        assert_eq!((name.parent(), name.part()), (Some("tank"), NamePart::Dataset));
        assert_eq!("tank".parse::<ZfsName>().unwrap().parent(), None);
        assert!("tank//home".parse::<ZfsName>().is_err());
    }
}
