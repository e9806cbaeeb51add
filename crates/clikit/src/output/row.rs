//! The rows of listings.

use std::sync::Arc;

pub use zcommon::props::PropSource as Source;

/// The word of `zfs get -s` for a source.
pub fn source_word(source: &Source) -> &'static str {
    match source {
        Source::None => "none",
        Source::Default => "default",
        Source::Local => "local",
        Source::Temporary => "temporary",
        Source::Inherited(_) => "inherited",
        Source::Received => "received",
    }
}

/// A property's value in every format of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prop {
    /// Human-readable: `10.2M`, `2.51x`.
    pub nice: String,
    /// With `-p`: `10743808`, `2.51`.
    pub literal: String,
    /// The sort key of a numeric property.
    pub number: Option<u64>,
    /// Its source.
    pub source: Source,
    /// The received value, which a local one may override: human-readable and with `-p`.
    pub received: Option<(String, String)>,
}

impl Prop {
    /// A text that is the same in both formats.
    pub fn text(value: impl Into<String>, source: Source) -> Self {
        let value = value.into();
        Self { nice: value.clone(), literal: value, number: None, source, received: None }
    }

    /// The value in the requested format.
    pub fn value(&self, literal: bool) -> &str {
        if literal { &self.literal } else { &self.nice }
    }

    /// The received value in the requested format.
    pub fn received(&self, literal: bool) -> Option<&str> {
        self.received.as_ref().map(|(nice, exact)| if literal { exact.as_str() } else { nice.as_str() })
    }
}

/// The type of a dataset (`zfs_type_t`).
#[doc(alias = "zfs_type_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// A bookmark: a point in time without data.
    Bookmark,
}

impl DatasetKind {
    /// The value of the `type` property.
    pub fn word(self) -> &'static str {
        match self {
            DatasetKind::Filesystem => "filesystem",
            DatasetKind::Volume => "volume",
            DatasetKind::Snapshot => "snapshot",
            DatasetKind::Bookmark => "bookmark",
        }
    }
}

/// A dataset with the requested properties; inapplicable ones are absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRow {
    /// The full name: `tank/a@one`.
    pub name: String,
    /// Its type.
    pub kind: DatasetKind,
    /// The txg that created it.
    pub createtxg: u64,
    /// Property by name.
    pub props: PropList,
}

/// The properties of a row: a listing may have a million of them, so there is no space for more than it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PropList(Box<[(Arc<str>, Prop)]>);

impl PropList {
    /// The property of that name.
    pub fn get(&self, name: &str) -> Option<&Prop> {
        let at = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.0.get(at).map(|(_, prop)| prop)
    }

    /// Keeps at most `len` bytes of each value in the literal format, and none of other formats.
    pub fn shorten(&mut self, len: usize) {
        for (_, prop) in &mut self.0 {
            (prop.nice, prop.received) = (String::new(), None);
            let text = &prop.literal;
            let end = (0..=len.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            prop.literal.truncate(end.unwrap_or(0));
            prop.literal.shrink_to_fit();
        }
    }

    /// The approximate memory of the properties, in bytes.
    pub fn bytes(&self) -> usize {
        let texts = |prop: &Prop| prop.nice.capacity() + prop.literal.capacity();
        self.0.iter().map(|(_, prop)| size_of::<(Arc<str>, Prop)>() + texts(prop)).sum()
    }
}

impl FromIterator<(Arc<str>, Prop)> for PropList {
    /// Of equal names the last one is kept.
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Prop)>>(props: I) -> Self {
        let mut all: Vec<_> = props.into_iter().collect();
        all.reverse();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.dedup_by(|a, b| a.0 == b.0);
        Self(all.into_boxed_slice())
    }
}

impl DatasetRow {
    /// The name up to the `@` or `#`.
    pub fn filesystem(&self) -> &str {
        self.name.split(['@', '#']).next().unwrap_or(&self.name)
    }

    /// The first component of the name.
    pub fn pool(&self) -> &str {
        self.name.split(['/', '@', '#']).next().unwrap_or(&self.name)
    }

    /// The name after the `@`.
    pub fn snapshot_name(&self) -> Option<&str> {
        self.name.split_once('@').map(|(_, s)| s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shortened_between_characters() {
        let prop = Prop { received: Some(("r".into(), "r".into())), ..Prop::text("aäö", Source::Local) };
        for (len, kept) in [(0, ""), (1, "a"), (2, "a"), (3, "aä"), (4, "aä"), (5, "aäö"), (99, "aäö")]
        {
            let mut props: PropList = [("x:y".into(), prop.clone())].into_iter().collect();
            props.shorten(len);
            let short = props.get("x:y").unwrap();
            assert_eq!((&*short.literal, &*short.nice, &short.received), (kept, "", &None), "{len}");
        }
    }
}
