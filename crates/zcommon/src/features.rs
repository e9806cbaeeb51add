//! Feature flags: the optional parts of a pool of version 5000.
//!
//! The MOS keeps three ZAPs by feature guid: `features_for_read` and `features_for_write` count the uses of
//! each (0: enabled, more: active), `feature_descriptions` has their descriptions. A program that doesn't
//! know an active feature of the first kind must not open the pool; of the second kind it may open it
//! read-only. Labels repeat the active features that are needed to find the MOS.

mod compatibility;
mod table;

pub use compatibility::{compatibility_set, compatibility_sets};
pub use table::{FEATURES, Feature};

/// Prefix of the pool property of a feature.
pub const FEATURE_PROPERTY_PREFIX: &str = "feature@";
/// Prefix of the pool property of a feature that is in use but unknown.
pub const UNSUPPORTED_PROPERTY_PREFIX: &str = "unsupported@";

/// The effect of a feature in use on software without it, and the place of its reference count.
#[doc(alias = "zfeature_flags_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureFlags(u8);

impl FeatureFlags {
    /// Required to open the pool; its reference count is in the MOS only.
    pub const NONE: Self = Self(0);
    /// A program that doesn't know the feature may still open the pool read-only.
    #[doc(alias = "ZFEATURE_FLAG_READONLY_COMPAT")]
    pub const READ_ONLY_COMPATIBLE: Self = Self(1);
    /// Needed to read the MOS itself, hence named in the labels when active.
    #[doc(alias = "ZFEATURE_FLAG_MOS")]
    pub const MOS: Self = Self(2);
    /// Active from the moment it is enabled.
    #[doc(alias = "ZFEATURE_FLAG_ACTIVATE_ON_ENABLE")]
    pub const ACTIVATE_ON_ENABLE: Self = Self(4);
    /// Each dataset that uses the feature has an entry, and counts once.
    #[doc(alias = "ZFEATURE_FLAG_PER_DATASET")]
    pub const PER_DATASET: Self = Self(8);
    /// Enabled when a pool is created or on request, never by a general upgrade.
    #[doc(alias = "ZFEATURE_FLAG_NO_UPGRADE")]
    pub const NO_UPGRADE: Self = Self(16);

    /// Both sets of flags.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other`'s flags are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Type of the entry under the feature's guid in a dataset's ZAP.
#[doc(alias = "zfeature_type_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureType {
    /// Presence is the value.
    Boolean,
    /// Snapshot guids, for redacted datasets.
    Uint64Array,
}

/// One feature.
#[doc(alias = "zfeature_info_t")]
#[derive(Clone, Copy, Debug)]
pub struct FeatureInfo {
    /// Which one.
    pub feature: Feature,
    /// Short name, as in the property `feature@name`.
    pub name: &'static str,
    /// Name in the MOS and in labels, unique in the world.
    pub guid: &'static str,
    /// OpenZFS' description in `zpool upgrade -v` and in the MOS.
    pub description: &'static str,
    /// Flags of the feature.
    pub flags: FeatureFlags,
    /// Type of its entry in a dataset's ZAP.
    pub data_type: FeatureType,
    /// Features that must be enabled before it.
    pub depends: &'static [Feature],
    /// Effect on readers where it is active.
    pub reading: &'static str,
}

impl FeatureInfo {
    /// Whether a program that doesn't know the feature may open a pool where it is active, read-only.
    pub const fn read_only_compatible(&self) -> bool {
        self.flags.contains(FeatureFlags::READ_ONLY_COMPATIBLE)
    }
}

impl Feature {
    /// The feature of this short name.
    #[doc(alias = "zfeature_lookup_name")]
    pub fn from_name(name: &str) -> Option<Self> {
        FEATURES.iter().copied().find(|feature| feature.info().name == name)
    }

    /// The feature of this guid.
    #[doc(alias = "zfeature_lookup_guid")]
    pub fn from_guid(guid: &str) -> Option<Self> {
        FEATURES.iter().copied().find(|feature| feature.info().guid == guid)
    }

    /// Whether `other` must be enabled before this one can be, directly or through another.
    #[doc(alias = "zfeature_depends_on")]
    pub fn depends_on(self, other: Self) -> bool {
        self.info().depends.iter().any(|&needed| needed == other || needed.depends_on(other))
    }
}

/// Features that came with OpenZFS 2.4.
const SINCE_2_4: [Feature; 3] =
    [Feature::PhysicalRewrite, Feature::DynamicGangHeader, Feature::BlockCloningEndian];

/// The features that OpenZFS 2.4 enables when it upgrades a pool. A new pool gets all of [`FEATURES`].
pub fn by_upgrade() -> Vec<Feature> {
    let is_enabled = |feature: &Feature| !feature.info().flags.contains(FeatureFlags::NO_UPGRADE);
    FEATURES.iter().copied().filter(is_enabled).collect()
}

/// Features that OpenZFS 2.3 enables on a new pool.
pub fn of_openzfs_2_3() -> Vec<Feature> {
    FEATURES.iter().copied().filter(|feature| !SINCE_2_4.contains(feature)).collect()
}

/// Whether this is the form of a feature guid: reversed domain, one colon, short name.
#[doc(alias = "zfeature_is_valid_guid")]
pub fn is_valid_guid(guid: &str) -> bool {
    let Some((domain, name)) = guid.split_once(':') else {
        return false;
    };
    let common = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    domain.chars().all(|c| common(c) || c == '.' || c == '-') && name.chars().all(|c| common(c) || c == '_')
}

/// Declares [`Feature`] and its table.
macro_rules! features {
    ($($variant:ident {
        name: $name:literal,
        guid: $guid:literal,
        description: $description:literal,
        flags: $flags:expr,
        data_type: $data_type:expr,
        depends: [$($depends:ident),*],
        reading: $reading:literal,
    })*) => {
        /// A feature that we know; ordered as OpenZFS orders them, in `zpool get all` too.
        #[doc(alias = "spa_feature_t")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Feature {
            $(#[doc = $reading] $variant,)*
        }

        impl Feature {
            /// Facts about the feature.
            pub const fn info(self) -> &'static $crate::features::FeatureInfo {
                match self {
                    $(Self::$variant => const { &$crate::features::FeatureInfo {
                        feature: Self::$variant,
                        name: $name,
                        guid: $guid,
                        description: $description,
                        flags: $flags,
                        data_type: $data_type,
                        depends: &[$(Self::$depends),*],
                        reading: $reading,
                    } },)*
                }
            }
        }

        /// Every feature, in the order of [`Feature`].
        #[doc(alias = "spa_feature_table")]
        pub const FEATURES: &[Feature] = &[$(Feature::$variant),*];
    };
}
use features;

#[cfg(test)]
mod tests {
    use super::*;

    fn infos() -> impl Iterator<Item = &'static FeatureInfo> {
        FEATURES.iter().map(|feature| feature.info())
    }

    #[test]
    fn there_are_47_and_none_twice() {
        assert_eq!(FEATURES.len(), 47);
        for (i, info) in infos().enumerate() {
            assert_eq!(info.feature as usize, i);
            assert_eq!(Feature::from_name(info.name), Some(info.feature));
            assert_eq!(Feature::from_guid(info.guid), Some(info.feature));
            assert!(is_valid_guid(info.guid));
        }
        assert_eq!(Feature::from_guid("com.example:unknown"), None);
    }

    #[test]
    fn flags_agree_with_each_other() {
        for info in infos() {
            // A reader can't ignore a feature that the MOS needs; a feature counted per dataset needs
            // datasets that are ZAPs.
            assert!(
                !(info.read_only_compatible() && info.flags.contains(FeatureFlags::MOS)),
                "{}",
                info.name
            );
            if info.flags.contains(FeatureFlags::PER_DATASET) {
                assert!(info.depends.contains(&Feature::ExtensibleDataset), "{}", info.name);
            }
            assert!(!info.feature.depends_on(info.feature), "{} needs itself", info.name);
        }
        assert!(Feature::LargeMicrozap.depends_on(Feature::ExtensibleDataset));
        assert!(Feature::RedactionListSpill.depends_on(Feature::BookmarkV2));
    }

    #[test]
    fn guids_have_one_colon() {
        assert!(is_valid_guid("org.open-zfs:large_blocks"));
        assert!(!is_valid_guid("large_blocks"));
        assert!(!is_valid_guid("a:b:c"));
        assert!(!is_valid_guid("Org.example:x"));
    }
}
