//! Rules for the names of pools, datasets, snapshots and bookmarks, with OpenZFS's words for faults
//! (zfs_namecheck.c and `zfs_validate_name`, libzfs, OpenZFS 2.3).
//!
//! ```text
//! POOL[/COMPONENT…][@SNAPSHOT|#BOOKMARK]
//! ```
//! A component has letters, digits and ``-_.: `` (a space too). The rules for existing names are wider than
//! those for new ones: `%` marks a temporary dataset, and may be read but not created.

mod parsed;

pub use parsed::{NamePart, ZfsName};

use thiserror::Error;

/// Bytes of the longest name and its terminating NUL, snapshot included.
#[doc(alias = "ZFS_MAX_DATASET_NAME_LEN")]
pub const MAX_NAME_LEN: usize = 256;
/// Deepest nesting of datasets: number of `/` in a name.
#[doc(alias = "zfs_max_dataset_nesting")]
pub const MAX_NESTING: usize = 50;
/// A pool's longest name leaves room for `/$ORIGIN@$ORIGIN`.
const MAX_POOL_NAME_LEN: usize = MAX_NAME_LEN - 2 - 2 * "$ORIGIN".len();

/// The fault of a name. Displays in OpenZFS's words.
#[doc(alias = "namecheck_err_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Starts with `/`.
    #[error("leading slash in name")]
    LeadingSlash,
    /// Nothing before, between or after delimiters.
    #[error("empty component or misplaced '@' or '#' delimiter in name")]
    EmptyComponent,
    /// Ends with `/`, or has one behind `@` or `#`.
    #[error("trailing slash in name")]
    TrailingSlash,
    /// A character that no name may have.
    #[error("invalid character '{0}' in name")]
    InvalidChar(char),
    /// More than one `@` or `#`.
    #[error("multiple '@' and/or '#' delimiters in name")]
    MultipleDelimiters,
    /// A pool's name starts with something else than a letter.
    #[error("name must begin with a letter")]
    NoLetter,
    /// A pool's name would be taken for a kind of vdev.
    #[error("name is reserved")]
    Reserved,
    /// Too many bytes.
    #[error("name is too long")]
    TooLong,
    /// A component is `.`.
    #[error("self reference, '.' is found in name")]
    SelfReference,
    /// A component is `..`.
    #[error("parent reference, '..' is found in name")]
    ParentReference,
    /// More `/` than [`MAX_NESTING`].
    #[error("maximum name nesting depth exceeded")]
    TooDeep,
    /// A snapshot where none may be.
    #[error("snapshot delimiter '@' is not expected here")]
    UnexpectedSnapshot,
    /// No snapshot where one must be.
    #[error("missing '@' delimiter in snapshot name")]
    MissingSnapshot,
    /// A bookmark where none may be.
    #[error("bookmark delimiter '#' is not expected here")]
    UnexpectedBookmark,
    /// No bookmark where one must be.
    #[error("missing '#' delimiter in bookmark name")]
    MissingBookmark,
}

impl NameError {
    /// The fault in the words for a pool's name.
    #[doc(alias = "zpool_name_valid")]
    pub fn of_pool(self) -> String {
        match self {
            Self::InvalidChar(c) => format!("invalid character '{c}' in pool name"),
            Self::EmptyComponent => "empty component in name".to_owned(),
            other => other.to_string(),
        }
    }
}

/// Whether a component may have this character.
fn valid_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.: ".contains(c)
}

/// Checks one component that is to be created: a dataset's own name, a snapshot's, a bookmark's.
#[doc(alias = "zfs_component_namecheck")]
pub fn check_component(name: &str) -> Result<(), NameError> {
    if name.len() >= MAX_NAME_LEN {
        return Err(NameError::TooLong);
    }
    if name.is_empty() {
        return Err(NameError::EmptyComponent);
    }
    match name.chars().find(|&c| !valid_char(c)) {
        Some(c) => Err(NameError::InvalidChar(c)),
        None => Ok(()),
    }
}

/// Checks the form of a dataset, snapshot or bookmark name.
#[doc(alias = "entity_namecheck")]
pub fn check_entity(name: &str) -> Result<(), NameError> {
    if name.len() >= MAX_NAME_LEN {
        return Err(NameError::TooLong);
    }
    if name.starts_with('/') {
        return Err(NameError::LeadingSlash);
    }
    if name.is_empty() {
        return Err(NameError::EmptyComponent);
    }
    let (mut rest, mut delimited) = (name, false);
    loop {
        let end = rest.find(['/', '@', '#']);
        let (component, tail) = end.and_then(|at| rest.split_at_checked(at)).unwrap_or((rest, ""));
        // A slash can only be the last byte here if nothing follows it: report that rather than an empty
        // component.
        if component.is_empty() && tail.is_empty() && name.ends_with('/') {
            return Err(NameError::TrailingSlash);
        }
        check_entity_component(component)?;
        let mut chars = tail.chars();
        match chars.next() {
            None => return Ok(()),
            Some('/') if delimited => return Err(NameError::TrailingSlash),
            Some('/') => {}
            Some(_) if delimited => return Err(NameError::MultipleDelimiters),
            Some(_) => delimited = true,
        }
        rest = chars.as_str();
    }
}

/// As [`check_component`], but for existing names.
fn check_entity_component(component: &str) -> Result<(), NameError> {
    match component {
        "" => return Err(NameError::EmptyComponent),
        "." => return Err(NameError::SelfReference),
        ".." => return Err(NameError::ParentReference),
        _ => {}
    }
    match component.chars().find(|&c| !valid_char(c) && c != '%') {
        Some(c) => Err(NameError::InvalidChar(c)),
        None => Ok(()),
    }
}

/// Checks a name that must have a snapshot.
#[doc(alias = "snapshot_namecheck")]
pub fn check_snapshot(name: &str) -> Result<(), NameError> {
    check_entity(name)?;
    if name.contains('@') { Ok(()) } else { Err(NameError::MissingSnapshot) }
}

/// Checks a name that must have a bookmark.
#[doc(alias = "bookmark_namecheck")]
pub fn check_bookmark(name: &str) -> Result<(), NameError> {
    check_entity(name)?;
    if name.contains('#') { Ok(()) } else { Err(NameError::MissingBookmark) }
}

/// Checks a pool's name; the words that newer versions reserve are still fine for a pool that exists.
#[doc(alias = "pool_namecheck")]
pub fn check_pool(name: &str) -> Result<(), NameError> {
    if name.len() >= MAX_POOL_NAME_LEN {
        return Err(NameError::TooLong);
    }
    if let Some(c) = name.chars().find(|&c| !valid_char(c)) {
        return Err(NameError::InvalidChar(c));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(NameError::NoLetter);
    }
    if matches!(name, "mirror" | "raidz" | "draid") { Err(NameError::Reserved) } else { Ok(()) }
}

/// Checks the name of a pool that is to be created.
#[doc(alias = "zpool_name_valid")]
pub fn check_new_pool(name: &str) -> Result<(), NameError> {
    let reserved = ["mirror", "raidz", "draid", "spare"].iter().any(|word| name.starts_with(word));
    if reserved || name == "log" {
        return Err(NameError::Reserved);
    }
    check_pool(name)
}

/// Number of `/` in the dataset part of a name.
#[doc(alias = "get_dataset_depth")]
pub fn nesting(name: &str) -> usize {
    name.bytes().take_while(|b| !b"@#".contains(b)).filter(|&b| b == b'/').count()
}

/// Checks that a dataset isn't nested too deep to be created. `most`: the limit, [`MAX_NESTING`] unless it was set.
#[doc(alias = "dataset_nestcheck")]
pub fn check_nesting(name: &str, most: usize) -> Result<(), NameError> {
    if nesting(name) < most { Ok(()) } else { Err(NameError::TooDeep) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NameError::*;

    /// Answers are those of libzpool 2.3.2's `entity_namecheck` and `pool_namecheck`.
    #[test]
    fn answers_are_those_of_libzpool() {
        type Answer = Result<(), NameError>;
        let table: &[(&str, Answer, Answer)] = &[
            ("tank", Ok(()), Ok(())),
            ("", Err(EmptyComponent), Err(NoLetter)),
            ("/a", Err(LeadingSlash), Err(InvalidChar('/'))),
            ("a/", Err(TrailingSlash), Err(InvalidChar('/'))),
            ("a//b", Err(EmptyComponent), Err(InvalidChar('/'))),
            ("a@b@c", Err(MultipleDelimiters), Err(InvalidChar('@'))),
            ("a#b@c", Err(MultipleDelimiters), Err(InvalidChar('#'))),
            ("a@b/c", Err(TrailingSlash), Err(InvalidChar('@'))),
            ("a/.", Err(SelfReference), Err(InvalidChar('/'))),
            ("a/..", Err(ParentReference), Err(InvalidChar('/'))),
            ("a/./b", Err(SelfReference), Err(InvalidChar('/'))),
            ("a%b", Ok(()), Err(InvalidChar('%'))),
            ("a b", Ok(()), Ok(())),
            ("a$b", Err(InvalidChar('$')), Err(InvalidChar('$'))),
            ("1a", Ok(()), Err(NoLetter)),
            ("c1d0", Ok(()), Ok(())),
            ("mirror", Ok(()), Err(Reserved)),
            ("mirrorx", Ok(()), Ok(())),
            ("spare", Ok(()), Ok(())),
            ("a@", Err(EmptyComponent), Err(InvalidChar('@'))),
            ("@a", Err(EmptyComponent), Err(InvalidChar('@'))),
            ("a/@b", Err(EmptyComponent), Err(InvalidChar('/'))),
            ("a.b:c-d_e", Ok(()), Ok(())),
            ("a/..b", Ok(()), Err(InvalidChar('/'))),
            ("a@.", Err(SelfReference), Err(InvalidChar('@'))),
            ("a#..", Err(ParentReference), Err(InvalidChar('#'))),
            ("é", Err(InvalidChar('é')), Err(InvalidChar('é'))),
        ];
        for &(name, entity, pool) in table {
            assert_eq!((check_entity(name), check_pool(name)), (entity, pool), "{name:?}");
        }
        for (length, entity, pool) in
            [(239, Ok(()), Ok(())), (240, Ok(()), Err(TooLong)), (256, Err(TooLong), Err(TooLong))]
        {
            let name = "a".repeat(length);
            assert_eq!((check_entity(&name), check_pool(&name)), (entity, pool), "{length}");
        }
    }

    #[test]
    fn new_pools_avoid_more_words() {
        for name in ["mirror-2", "raidz1", "draidx", "sparepool", "log"] {
            assert_eq!(check_new_pool(name), Err(Reserved), "{name}");
        }
        assert_eq!(check_new_pool("logs"), Ok(()));
    }

    #[test]
    fn nesting_counts_slashes_of_the_dataset() {
        let name = format!("tank{}", "/a".repeat(49));
        assert_eq!((nesting(&name), check_nesting(&name, 50)), (49, Ok(())));
        assert_eq!(check_nesting(&format!("{name}/a@s"), 50), Err(TooDeep));
    }

    #[test]
    fn words_are_openzfs() {
        assert_eq!(InvalidChar('$').to_string(), "invalid character '$' in name");
        assert_eq!(check_snapshot("a/b").unwrap_err().to_string(), "missing '@' delimiter in snapshot name");
        assert_eq!(check_component("").unwrap_err(), EmptyComponent);
    }
}
