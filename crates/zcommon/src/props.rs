//! Properties of datasets, pools and vdevs: name, type, default, source of the value, possible values.
//!
//! A property's value is kept on disk as a string or a 64-bit number; an index property shows its number by a word. The
//! order of each table is the order in which `get all` prints. Tables are OpenZFS 2.3.2's (`zfs_prop_table`,
//! `zpool_prop_table`, `vdev_prop_table`), read out of libzpool.

mod index;
mod name;
mod vdev;
mod zfs;
mod zpool;

pub use name::{PropName, UserQuotaProp, is_user_property};
pub use vdev::VdevProp;
pub use zfs::ZfsProp;
pub use zpool::ZpoolProp;

use std::fmt;

/// Type of a property's value.
#[doc(alias = "zprop_type_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropType {
    /// A number.
    Number,
    /// A string.
    String,
    /// A number that stands for one of a few words.
    Index,
}

/// The source of a property's value.
#[doc(alias = "zprop_attr_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropAttr {
    /// Settable; children don't inherit it.
    Default,
    /// Computed.
    ReadOnly,
    /// Settable; children inherit it.
    Inherit,
    /// Set at creation or never.
    OneTime,
    /// Set at creation or never; shown with a default where it wasn't set.
    OneTimeDefault,
}

/// The default value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropDefault {
    /// No value at all.
    None,
    /// Default of a string property.
    String(&'static str),
    /// Default of a number or index property.
    Number(u64),
}

/// Set of things that have properties.
#[doc(alias = "zfs_type_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetTypes(u8);

impl DatasetTypes {
    /// No type.
    pub const NONE: Self = Self(0);
    /// File systems.
    pub const FILESYSTEM: Self = Self(0x01);
    /// Snapshots.
    pub const SNAPSHOT: Self = Self(0x02);
    /// Volumes.
    pub const VOLUME: Self = Self(0x04);
    /// Pools.
    pub const POOL: Self = Self(0x08);
    /// Bookmarks.
    pub const BOOKMARK: Self = Self(0x10);
    /// Vdevs.
    pub const VDEV: Self = Self(0x20);
    /// File systems, snapshots and volumes.
    #[doc(alias = "ZFS_TYPE_DATASET")]
    pub const DATASET: Self = Self(0x07);

    /// Both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether some of `other` is in this set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// A word and the number that it stands for.
#[doc(alias = "zprop_index_t")]
pub type IndexRow = (&'static str, u64);

/// Facts about a property.
#[doc(alias = "zprop_desc_t")]
#[derive(Clone, Copy, Debug)]
pub struct PropInfo {
    /// Name.
    pub name: &'static str,
    /// Type of the value.
    pub data_type: PropType,
    /// The default value.
    pub default: PropDefault,
    /// The source of the value.
    pub attr: PropAttr,
    /// The objects that have this property.
    pub types: DatasetTypes,
    /// Its possible values, in the usage text's words; `None` for hidden properties.
    pub values: Option<&'static str>,
    /// Column header.
    pub column: &'static str,
    /// Whether columns align it right.
    pub right_aligned: bool,
    /// Whether `get all` shows it.
    pub visible: bool,
    /// Words of an index property. Of several words for one number, the first is shown.
    pub index: &'static [IndexRow],
}

impl PropInfo {
    const fn new(name: &'static str, data_type: PropType, default: PropDefault) -> Self {
        Self {
            name,
            data_type,
            default,
            attr: PropAttr::Default,
            types: DatasetTypes::NONE,
            values: None,
            column: "",
            right_aligned: matches!(data_type, PropType::Number),
            visible: true,
            index: &[],
        }
    }

    const fn number(name: &'static str, default: u64) -> Self {
        Self::new(name, PropType::Number, PropDefault::Number(default))
    }

    const fn string(name: &'static str) -> Self {
        Self::new(name, PropType::String, PropDefault::None)
    }

    const fn string_or(name: &'static str, default: &'static str) -> Self {
        Self::new(name, PropType::String, PropDefault::String(default))
    }

    const fn index(name: &'static str, default: u64, index: &'static [IndexRow]) -> Self {
        let mut info = Self::new(name, PropType::Index, PropDefault::Number(default));
        info.index = index;
        info
    }

    const fn of(mut self, attr: PropAttr, types: DatasetTypes) -> Self {
        self.attr = attr;
        self.types = types;
        self
    }

    const fn shown(mut self, column: &'static str, values: &'static str) -> Self {
        self.column = column;
        self.values = Some(values);
        self
    }

    const fn hidden(mut self, column: &'static str) -> Self {
        self.column = column;
        self.visible = false;
        self
    }

    /// Aligned left though a number.
    const fn left(mut self) -> Self {
        self.right_aligned = false;
        self
    }

    /// Whether children inherit it.
    pub const fn inheritable(&self) -> bool {
        matches!(self.attr, PropAttr::Inherit | PropAttr::OneTime)
    }

    /// Whether it is read-only.
    pub const fn read_only(&self) -> bool {
        matches!(self.attr, PropAttr::ReadOnly)
    }

    /// Whether it can be set at creation only.
    pub const fn set_once(&self) -> bool {
        matches!(self.attr, PropAttr::OneTime | PropAttr::OneTimeDefault)
    }

    /// The word for a number of an index property.
    #[doc(alias = "zprop_index_to_string")]
    pub fn word(&self, number: u64) -> Option<&'static str> {
        self.index.iter().find(|row| row.1 == number).map(|row| row.0)
    }

    /// The number that a word of an index property stands for.
    #[doc(alias = "zprop_string_to_index")]
    pub fn number_of(&self, word: &str) -> Option<u64> {
        self.index.iter().find(|row| row.0 == word).map(|row| row.1)
    }

    /// Whether the user's word names this property: its name, or its column header in any case.
    fn is_called(&self, word: &str) -> bool {
        word == self.name || (!word.is_empty() && word.eq_ignore_ascii_case(self.column) && is_lower(word))
    }
}

fn is_lower(word: &str) -> bool {
    !word.bytes().any(|b| b.is_ascii_uppercase())
}

/// Where a value comes from; shows as the SOURCE column does.
#[doc(alias = "zprop_source_t")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropSource {
    /// Computed: there is no source.
    None,
    /// The default.
    Default,
    /// For as long as the file system is mounted.
    Temporary,
    /// Set on the dataset itself.
    Local,
    /// Set on the named ancestor.
    Inherited(String),
    /// Came with a send stream.
    Received,
}

impl fmt::Display for PropSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::Default => f.write_str("default"),
            Self::Temporary => f.write_str("temporary"),
            Self::Local => f.write_str("local"),
            Self::Inherited(from) => write!(f, "inherited from {from}"),
            Self::Received => f.write_str("received"),
        }
    }
}

/// Declares an enum of properties and its table.
macro_rules! properties {
    ($(#[$doc:meta])* $name:ident { $($variant:ident: $info:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "each is the property of its name; zfsprops(7), zpoolprops(7) and vdevprops(7) say what it means")]
        pub enum $name {
            $($variant,)*
        }

        impl $name {
            /// Every property, in the order in which `get all` prints.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Facts about the property.
            pub const fn info(self) -> &'static $crate::props::PropInfo {
                match self {
                    $(Self::$variant => const { &$info },)*
                }
            }

            /// The property's name.
            pub const fn name(self) -> &'static str {
                self.info().name
            }

            /// The property of this name, as it is stored.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|prop| prop.info().name == name)
            }

            /// The property that a user means: by its name or by its column header in lower case (`avail`, `refer`).
            #[doc(alias = "zprop_name_to_prop")]
            pub fn from_user(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|prop| prop.info().is_called(word))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
use properties;

#[cfg(test)]
mod tests;
