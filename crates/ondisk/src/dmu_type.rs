//! DMU object types: what an object's blocks contain, and how to swap their byte order.
//!
//! Types 0 to 53 are a fixed table. Anything newer has bit 7 set and describes itself: bit 6
//! metadata, bit 5 encrypted, bits 4..0 the way to swap bytes. Source: `dmu_object_type_t` and
//! `dmu_ot`, dmu.h and dmu.c, OpenZFS 2.3.

use std::fmt;

/// How a block's contents are byte-swapped. Source: `dmu_object_byteswap_t`.
#[doc(alias = "dmu_object_byteswap")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub enum Byteswap {
    Uint8 = 0,
    Uint16 = 1,
    Uint32 = 2,
    Uint64 = 3,
    Zap = 4,
    Dnode = 5,
    Objset = 6,
    Znode = 7,
    OldAcl = 8,
    Acl = 9,
}

impl Byteswap {
    const ALL: [Self; 10] = [
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Zap,
        Self::Dnode,
        Self::Objset,
        Self::Znode,
        Self::OldAcl,
        Self::Acl,
    ];

    /// The kind with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.get(usize::from(raw)).copied()
    }

    /// The name that zdb prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Zap => "zap",
            Self::Dnode => "dnode",
            Self::Objset => "objset",
            Self::Znode => "znode",
            Self::OldAcl => "oldacl",
            Self::Acl => "acl",
        }
    }
}

/// A DMU object type, any byte; [`ObjectType::is_valid`] returns whether OpenZFS knows it.
#[doc(alias = "dmu_object_type_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjectType(pub u8);

struct Row {
    byteswap: Byteswap,
    metadata: bool,
    cached: bool,
    encrypted: bool,
    name: &'static str,
}

macro_rules! object_types {
    ($($konst:ident = $num:literal, $swap:ident, $meta:literal, $cached:literal, $enc:literal, $name:literal;)*) => {
        #[expect(missing_docs, reason = "the names are ZFS's own")]
        impl ObjectType { $(pub const $konst: Self = Self($num);)* }

        static TABLE: [Row; 54] = [$(
            Row { byteswap: Byteswap::$swap, metadata: $meta, cached: $cached, encrypted: $enc, name: $name },
        )*];
    };
}

// Columns: byte swap, metadata, kept in the metadata dbuf cache, encrypted.
object_types! {
    NONE = 0, Uint8, true, false, false, "unallocated";
    OBJECT_DIRECTORY = 1, Zap, true, true, false, "object directory";
    OBJECT_ARRAY = 2, Uint64, true, true, false, "object array";
    PACKED_NVLIST = 3, Uint8, true, false, false, "packed nvlist";
    PACKED_NVLIST_SIZE = 4, Uint64, true, false, false, "packed nvlist size";
    BPOBJ = 5, Uint64, true, false, false, "bpobj";
    BPOBJ_HDR = 6, Uint64, true, false, false, "bpobj header";
    SPACE_MAP_HEADER = 7, Uint64, true, false, false, "SPA space map header";
    SPACE_MAP = 8, Uint64, true, false, false, "SPA space map";
    INTENT_LOG = 9, Uint64, true, false, true, "ZIL intent log";
    DNODE = 10, Dnode, true, false, true, "DMU dnode";
    OBJSET = 11, Objset, true, true, false, "DMU objset";
    DSL_DIR = 12, Uint64, true, true, false, "DSL directory";
    DSL_DIR_CHILD_MAP = 13, Zap, true, true, false, "DSL directory child map";
    DSL_DS_SNAP_MAP = 14, Zap, true, true, false, "DSL dataset snap map";
    DSL_PROPS = 15, Zap, true, true, false, "DSL props";
    DSL_DATASET = 16, Uint64, true, true, false, "DSL dataset";
    ZNODE = 17, Znode, true, false, false, "ZFS znode";
    OLDACL = 18, OldAcl, true, false, true, "ZFS V0 ACL";
    PLAIN_FILE_CONTENTS = 19, Uint8, false, false, true, "ZFS plain file";
    DIRECTORY_CONTENTS = 20, Zap, true, false, true, "ZFS directory";
    MASTER_NODE = 21, Zap, true, false, false, "ZFS master node";
    UNLINKED_SET = 22, Zap, true, false, true, "ZFS delete queue";
    ZVOL = 23, Uint8, false, false, true, "zvol object";
    ZVOL_PROP = 24, Zap, true, false, false, "zvol prop";
    PLAIN_OTHER = 25, Uint8, false, false, true, "other uint8[]";
    UINT64_OTHER = 26, Uint64, false, false, true, "other uint64[]";
    ZAP_OTHER = 27, Zap, true, false, false, "other ZAP";
    ERROR_LOG = 28, Zap, true, false, false, "persistent error log";
    SPA_HISTORY = 29, Uint8, true, false, false, "SPA history";
    SPA_HISTORY_OFFSETS = 30, Uint64, true, false, false, "SPA history offsets";
    POOL_PROPS = 31, Zap, true, true, false, "Pool properties";
    DSL_PERMS = 32, Zap, true, true, false, "DSL permissions";
    ACL = 33, Acl, true, false, true, "ZFS ACL";
    SYSACL = 34, Uint8, true, false, true, "ZFS SYSACL";
    FUID = 35, Uint8, true, false, true, "FUID table";
    FUID_SIZE = 36, Uint64, true, false, false, "FUID table size";
    NEXT_CLONES = 37, Zap, true, true, false, "DSL dataset next clones";
    SCAN_QUEUE = 38, Zap, true, false, false, "scan work queue";
    USERGROUP_USED = 39, Zap, true, false, true, "ZFS user/group/project used";
    USERGROUP_QUOTA = 40, Zap, true, false, true, "ZFS user/group/project quota";
    USERREFS = 41, Zap, true, true, false, "snapshot refcount tags";
    DDT_ZAP = 42, Zap, true, false, false, "DDT ZAP algorithm";
    DDT_STATS = 43, Zap, true, false, false, "DDT statistics";
    SA = 44, Uint8, true, false, true, "System attributes";
    SA_MASTER_NODE = 45, Zap, true, false, true, "SA master node";
    SA_ATTR_REGISTRATION = 46, Zap, true, false, true, "SA attr registration";
    SA_ATTR_LAYOUTS = 47, Zap, true, false, true, "SA attr layouts";
    SCAN_XLATE = 48, Zap, true, false, false, "scan translations";
    DEDUP = 49, Uint8, false, false, true, "deduplicated block";
    DEADLIST = 50, Zap, true, true, false, "DSL deadlist map";
    DEADLIST_HDR = 51, Uint64, true, true, false, "DSL deadlist map hdr";
    DSL_CLONES = 52, Zap, true, true, false, "DSL dir clones";
    BPOBJ_SUBOBJ = 53, Uint64, true, false, false, "bpobj subobj";
}

const NEWTYPE: u8 = 0x80;
const METADATA: u8 = 0x40;
const ENCRYPTED: u8 = 0x20;
const BYTESWAP_MASK: u8 = 0x1f;

impl ObjectType {
    /// Number of types in the fixed table.
    #[doc(alias = "DMU_OT_NUMTYPES")]
    pub const NUMTYPES: u8 = 54;

    /// A self-describing type.
    #[doc(alias = "DMU_OT")]
    pub const fn newtype(byteswap: Byteswap, metadata: bool, encrypted: bool) -> Self {
        let mut raw = NEWTYPE | byteswap as u8;
        if metadata {
            raw |= METADATA;
        }
        if encrypted {
            raw |= ENCRYPTED;
        }
        Self(raw)
    }

    /// The raw number.
    pub fn raw(self) -> u8 {
        self.0
    }

    fn row(self) -> Option<&'static Row> {
        TABLE.get(usize::from(self.0))
    }

    /// Whether this is a self-describing type (`DMU_OTN_*`).
    pub fn is_newtype(self) -> bool {
        self.0 & NEWTYPE != 0
    }

    /// Whether OpenZFS knows the type.
    pub fn is_valid(self) -> bool {
        self.byteswap().is_some()
    }

    /// How to swap the bytes of a block of this type; `None` for an unknown type.
    pub fn byteswap(self) -> Option<Byteswap> {
        if self.is_newtype() {
            Byteswap::from_raw(self.0 & BYTESWAP_MASK)
        } else {
            Some(self.row()?.byteswap)
        }
    }

    /// Whether its level-0 blocks count as metadata.
    pub fn is_metadata(self) -> bool {
        if self.is_newtype() { self.0 & METADATA != 0 } else { self.row().is_some_and(|r| r.metadata) }
    }

    /// Whether OpenZFS keeps its buffers in the metadata dbuf cache.
    pub fn is_metadata_cached(self) -> bool {
        self.is_newtype() || self.row().is_some_and(|r| r.cached)
    }

    /// Whether its level-0 blocks are encrypted in an encrypted dataset (else only authenticated).
    pub fn is_encrypted(self) -> bool {
        if self.is_newtype() { self.0 & ENCRYPTED != 0 } else { self.row().is_some_and(|r| r.encrypted) }
    }

    /// Whether level-0 pointers count more than one in their fill (so never hold embedded data).
    pub fn has_fill(self) -> bool {
        self == Self::DNODE || self == Self::OBJSET
    }

    /// The table's name; `None` for self-describing and unknown types, which `Display` spells out.
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|r| r.name)
    }
}

/// The text of `snprintf_blkptr`: the table's name, or `bswap metadata zap` for new types.
impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            return f.pad(name);
        }
        match self.byteswap() {
            Some(swap) => {
                let kind = if self.is_metadata() { "metadata" } else { "data" };
                f.pad(&format!("bswap {kind} {}", swap.name()))
            }
            None => f.pad("UNKNOWN"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_ends_where_it_should() {
        assert_eq!(ObjectType::BPOBJ_SUBOBJ.0, 53);
        assert_eq!(ObjectType(53).name(), Some("bpobj subobj"));
        assert!(!ObjectType(54).is_valid());
        assert!(!ObjectType(0x7f).is_valid());
    }

    #[test]
    fn new_types_describe_themselves() {
        let zap = ObjectType::newtype(Byteswap::Zap, true, false);
        assert_eq!(zap.0, 0xc4);
        assert_eq!(zap.to_string(), "bswap metadata zap");
        assert!(zap.is_metadata() && !zap.is_encrypted() && zap.is_valid());
        assert!(!ObjectType(0x80 | 10).is_valid());
    }
}
