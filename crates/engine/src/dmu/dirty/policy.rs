//! The write policy of an object set's blocks.

use ondisk::{ChecksumType, CompressType, Dnode, DnodeFlags, ObjectType};

use crate::zio::alloc::MetaslabClass;
use crate::zio::dedup::Dedup;
use crate::zio::write::WriteProps;

/// Copies of metadata in addition to those of data, and the level from which they apply.
#[doc(alias = "zfs_redundant_metadata_type_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedundantMetadata {
    /// All metadata.
    All,
    /// Metadata whose loss affects many blocks.
    Most,
    /// Only metadata whose loss affects whole objects.
    Some,
    /// None.
    None,
}

/// The blocks of an object set that are kept in memory: the property `primarycache`.
#[doc(alias = "zfs_cache_type_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Cached {
    /// None.
    None,
    /// Metadata.
    Metadata,
    /// All.
    #[default]
    All,
}

impl Cached {
    /// From the property's number.
    pub(crate) fn from_number(number: u64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Metadata,
            _ => Self::All,
        }
    }

    /// Whether blocks are kept that are metadata, or are not.
    #[doc(alias = "DBUF_IS_CACHEABLE")]
    pub(crate) fn keeps(self, metadata: bool) -> bool {
        self == Self::All || self == Self::Metadata && metadata
    }
}

/// The properties and features that apply to an object set's blocks.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// Checksum of data.
    pub(crate) checksum: ChecksumType,
    /// Compression of data.
    pub(crate) compress: CompressType,
    /// Its level; 0 for the default.
    pub(crate) level: u8,
    /// Copies of data.
    pub(crate) copies: u8,
    /// Copies of metadata: the property `redundant_metadata`.
    pub(crate) redundant: RedundantMetadata,
    /// Blocks of at most this size, compressed, go to the special class.
    pub(crate) special_small: u64,
    /// This is the meta object set: the maximum number of copies.
    pub(crate) meta: bool,
    /// Compression of metadata: lz4, or lzjb in old pools.
    pub(crate) meta_compress: CompressType,
    /// Small blocks are embedded in their pointers (feature `embedded_data`).
    pub(crate) embed: bool,
    /// Holes record their birth (feature `hole_birth`).
    pub(crate) hole_birth: bool,
    /// An unchanged block is not rewritten (requires a strong checksum).
    pub(crate) nopwrite: bool,
    /// Data is deduplicated under this checksum, which takes the place of the other; true: blocks are compared.
    pub(crate) dedup: Option<(ChecksumType, bool)>,
    /// Its blocks are encrypted or authenticated.
    pub(crate) encrypt: bool,
    /// The blocks that are kept in memory.
    pub(crate) cached: Cached,
    /// In a file system: the flags of objects that are included in the accounting of users (see module `sa`).
    pub(crate) accounted: DnodeFlags,
}

impl Policy {
    /// The policy of the meta object set, in a pool with the current features.
    pub(crate) fn meta() -> Self {
        Self {
            checksum: ChecksumType::Fletcher4,
            compress: CompressType::Lz4,
            level: 0,
            copies: 3,
            redundant: RedundantMetadata::All,
            special_small: 0,
            meta: true,
            meta_compress: CompressType::Lz4,
            embed: true,
            hole_birth: true,
            nopwrite: false,
            dedup: None,
            encrypt: false,
            cached: Cached::All,
            accounted: DnodeFlags::default(),
        }
    }

    /// The policy of a dataset with default properties.
    #[cfg(test)]
    pub(crate) fn dataset() -> Self {
        let both = DnodeFlags::USERUSED_ACCOUNTED.0 | DnodeFlags::USEROBJUSED_ACCOUNTED.0;
        Self { copies: 1, meta: false, accounted: DnodeFlags(both), ..Self::meta() }
    }

    /// The policy of blocks that are deduplicated, or are not, whatever the property says. Without the property, blocks have
    /// the dataset's checksum if that is strong enough, else SHA-256.
    pub(crate) fn deduplicating(&self, dedup: bool) -> Self {
        let own = if self.checksum.is_dedup_strong() { self.checksum } else { ChecksumType::Sha256 };
        let dedup = if dedup { self.dedup.or(Some((own, false))) } else { None };
        Self { dedup, ..self.clone() }
    }

    /// The write properties of a block of `object`: `level` 0 for data.
    #[doc(alias = "dmu_write_policy")]
    pub(crate) fn block(&self, object: &Dnode, level: u8) -> WriteProps {
        self.props(object.object_type, level, (object.checksum, object.compress), object.datablksz())
    }

    /// The write properties of an object's spill block.
    pub(crate) fn spill(&self, object: &Dnode) -> WriteProps {
        let kind = if object.bonustype == ObjectType::SA { ObjectType::SA } else { object.bonustype };
        let mut props = self.props(kind, 0, (object.checksum, object.compress), 0);
        props.embed = false;
        props
    }

    /// The write properties of the root block.
    pub(crate) fn root(&self) -> WriteProps {
        let mut props = self.props(ObjectType::OBJSET, 0, (0, 0), 0);
        props.embed = false;
        props
    }

    fn props(&self, kind: ObjectType, level: u8, own: (u8, u8), size: u64) -> WriteProps {
        let metadata = level > 0 || kind.is_metadata();
        let (mut checksum, mut compress, mut complevel) = (self.checksum, self.compress, self.level);
        if let Some(own) = ChecksumType::from_raw(own.0).filter(|c| *c != ChecksumType::Inherit) {
            checksum = own;
        }
        if let Some(own) = CompressType::from_raw(own.1).filter(|c| *c != CompressType::Inherit) {
            (compress, complevel) = (own, 0);
        }
        if metadata {
            (compress, complevel) = (self.meta_compress, 0);
            // Metadata always has a checksum that detects more than single bit flips.
            if matches!(checksum, ChecksumType::Off | ChecksumType::NoParity | ChecksumType::Fletcher2) {
                checksum = ChecksumType::Fletcher4;
            }
        }
        let mut checksum = if checksum == ChecksumType::On { ChecksumType::Fletcher4 } else { checksum };
        let mut compress = if compress == CompressType::On { self.meta_compress } else { compress };
        let mut dedup = Dedup::Off;
        // A spill block has no size of its own here.
        if let Some((own, compare)) = self.dedup.filter(|_| !metadata && size > 0) {
            checksum = own;
            // A table entry of many references to zeros would cost more than holes.
            if compress == CompressType::Off {
                compress = CompressType::Empty;
            }
            let clear = self.encrypt && !kind.is_encrypted();
            dedup = match (clear, compare) {
                (true, _) => Dedup::Off,
                (false, true) => Dedup::Verify,
                (false, false) => Dedup::On,
            };
        }
        if self.encrypt && level == 0 && kind.has_fill() {
            // Authenticated plaintext has fixed positions: only blocks of zeros become holes.
            compress = CompressType::Empty;
        }
        WriteProps {
            object_type: kind,
            level,
            checksum,
            compress,
            complevel,
            copies: self.copies_of(kind, level, metadata),
            gang_copies: self.gang_copies_of(kind, metadata),
            narrow_gang: self.meta,
            uncached: !self.cached.keeps(metadata),
            paged: false,
            small: if metadata || size == 0 { 0 } else { self.special_small },
            evens_out: false,
            class: self.class(kind, metadata),
            embed: self.embed && !self.encrypt,
            hole_birth: self.hole_birth,
            encrypt: self.encrypt,
            dedup,
            nopwrite: self.nopwrite
                && dedup == Dedup::Off
                && level == 0
                && !metadata
                && checksum.is_nopwrite_strong(),
        }
    }

    fn copies_of(&self, kind: ObjectType, level: u8, metadata: bool) -> u8 {
        if self.meta {
            return 3;
        }
        let extra = metadata
            && match self.redundant {
                RedundantMetadata::All => true,
                RedundantMetadata::Most => level >= 2 || kind.is_metadata(),
                RedundantMetadata::Some => is_critical(kind, level),
                RedundantMetadata::None => false,
            };
        (self.copies + u8::from(extra)).min(self.most_copies(kind))
    }

    /// Copies of the header, if the block becomes a gang.
    fn gang_copies_of(&self, kind: ObjectType, metadata: bool) -> u8 {
        if self.meta {
            return 3;
        }
        let extra = match self.redundant {
            RedundantMetadata::All => true,
            RedundantMetadata::Most => metadata,
            RedundantMetadata::Some => kind.is_metadata(),
            RedundantMetadata::None => false,
        };
        (self.copies + u8::from(extra)).min(self.most_copies(kind))
    }

    fn most_copies(&self, kind: ObjectType) -> u8 {
        // The third DVA of an encrypted block's pointer holds salt and IV.
        if self.encrypt && kind.is_encrypted() { 2 } else { 3 }
    }

    #[doc(alias = "spa_preferred_class")]
    fn class(&self, kind: ObjectType, metadata: bool) -> MetaslabClass {
        match (kind, metadata) {
            (ObjectType::DDT_ZAP, _) => MetaslabClass::Dedup,
            (_, true) => MetaslabClass::Special,
            (_, false) => MetaslabClass::Normal,
        }
    }
}

/// Whether the loss of a block of this type makes a whole object set unusable.
#[doc(alias = "DMU_OT_IS_CRITICAL")]
fn is_critical(kind: ObjectType, level: u8) -> bool {
    kind.is_metadata()
        && (kind != ObjectType::DNODE || level > 0)
        && !matches!(kind, ObjectType::DIRECTORY_CONTENTS | ObjectType::SA)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies of the block and of its header as a gang, by OpenZFS's `dmu_write_policy`.
    #[test]
    fn copies_of_metadata_follow_the_property() {
        use ObjectType as T;
        use RedundantMetadata::{All, Most, None, Some};
        for (redundant, kind, level, expected) in [
            (All, T::PLAIN_FILE_CONTENTS, 0, (1, 2)),
            (All, T::PLAIN_FILE_CONTENTS, 1, (2, 2)),
            (Most, T::PLAIN_FILE_CONTENTS, 0, (1, 1)),
            (Most, T::PLAIN_FILE_CONTENTS, 1, (1, 2)),
            (Most, T::PLAIN_FILE_CONTENTS, 2, (2, 2)),
            (Most, T::DNODE, 1, (2, 2)),
            (Most, T::DIRECTORY_CONTENTS, 0, (2, 2)),
            (Some, T::MASTER_NODE, 0, (2, 2)),
            (Some, T::DNODE, 0, (1, 2)),
            (Some, T::DNODE, 1, (2, 2)),
            (Some, T::OBJSET, 0, (2, 2)),
            (Some, T::DIRECTORY_CONTENTS, 0, (1, 2)),
            (Some, T::SA, 0, (1, 2)),
            (Some, T::PLAIN_FILE_CONTENTS, 2, (1, 1)),
            (None, T::DNODE, 1, (1, 1)),
        ] {
            let props = Policy { redundant, ..Policy::dataset() }.props(kind, level, (0, 0), 512);
            assert_eq!((props.copies, props.gang_copies), expected, "{redundant:?} {kind:?} {level}");
        }
    }
}
