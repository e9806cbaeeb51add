//! Properties of pools.

use super::PropAttr::{Default, OneTime, ReadOnly};
use super::{DatasetTypes, PropInfo as Info, index, properties};

const POOL: DatasetTypes = DatasetTypes::POOL;

properties! {
    /// A pool property. Features are properties too, named `feature@NAME`, and not in this table.
    #[doc(alias = "zpool_prop_t")]
    ZpoolProp {
        Name: Info::string("name").of(ReadOnly, POOL).hidden("NAME"),
        Size: Info::number("size", 0).of(ReadOnly, POOL).shown("SIZE", "<size>"),
        Capacity: Info::number("capacity", 0).of(ReadOnly, POOL).shown("CAP", "<percent>"),
        Altroot: Info::string("altroot").of(Default, POOL).shown("ALTROOT", "<path>"),
        Health: Info::number("health", 0).of(ReadOnly, POOL).shown("HEALTH", "<state>"),
        Guid: Info::number("guid", 0).of(ReadOnly, POOL).shown("GUID", "<guid>"),
        Version: Info::number("version", 0x1388).of(Default, POOL).shown("VERSION", "<version>"),
        Bootfs: Info::string("bootfs").of(Default, POOL).shown("BOOTFS", "<filesystem>"),
        Delegation: Info::index("delegation", 1, index::BOOLEAN).of(Default, POOL).shown("DELEGATION", "on | off"),
        Autoreplace: Info::index("autoreplace", 0, index::BOOLEAN).of(Default, POOL).shown("REPLACE", "on | off"),
        Cachefile: Info::string("cachefile").of(Default, POOL).shown("CACHEFILE", "<file> | none"),
        Failmode: Info::index("failmode", 0, index::FAILMODE).of(Default, POOL).shown("FAILMODE", "wait | continue | panic"),
        Listsnapshots: Info::index("listsnapshots", 0, index::BOOLEAN).of(Default, POOL).shown("LISTSNAPS", "on | off"),
        Autoexpand: Info::index("autoexpand", 0, index::BOOLEAN).of(Default, POOL).shown("EXPAND", "on | off"),
        Dedupditto: Info::number("dedupditto", 0).of(Default, POOL).hidden("DEDUPDITTO"),
        Dedupratio: Info::number("dedupratio", 0).of(ReadOnly, POOL).shown("DEDUP", "<1.00x or higher if deduped>"),
        Free: Info::number("free", 0).of(ReadOnly, POOL).shown("FREE", "<size>"),
        Allocated: Info::number("allocated", 0).of(ReadOnly, POOL).shown("ALLOC", "<size>"),
        Readonly: Info::index("readonly", 0, index::BOOLEAN).of(Default, POOL).shown("RDONLY", "on | off"),
        Ashift: Info::number("ashift", 0).of(Default, POOL).shown("ASHIFT", "<ashift, 9-16, or 0=default>"),
        Comment: Info::string("comment").of(Default, POOL).shown("COMMENT", "<comment-string>"),
        Expandsize: Info::number("expandsize", 0).of(ReadOnly, POOL).shown("EXPANDSZ", "<size>"),
        Freeing: Info::number("freeing", 0).of(ReadOnly, POOL).shown("FREEING", "<size>"),
        Fragmentation: Info::number("fragmentation", 0).of(ReadOnly, POOL).shown("FRAG", "<percent>"),
        Leaked: Info::number("leaked", 0).of(ReadOnly, POOL).shown("LEAKED", "<size>"),
        Maxblocksize: Info::number("maxblocksize", 0).of(ReadOnly, POOL).hidden("MAXBLOCKSIZE"),
        Tname: Info::string("tname").of(OneTime, POOL).hidden("TNAME"),
        Maxdnodesize: Info::number("maxdnodesize", 0).of(ReadOnly, POOL).hidden("MAXDNODESIZE"),
        Multihost: Info::index("multihost", 0, index::BOOLEAN).of(Default, POOL).shown("MULTIHOST", "on | off"),
        Checkpoint: Info::number("checkpoint", 0).of(ReadOnly, POOL).shown("CKPOINT", "<size>"),
        LoadGuid: Info::number("load_guid", 0).of(ReadOnly, POOL).shown("LOAD_GUID", "<load_guid>"),
        Autotrim: Info::index("autotrim", 0, index::BOOLEAN).of(Default, POOL).shown("AUTOTRIM", "on | off"),
        Compatibility: Info::string_or("compatibility", "off").of(Default, POOL).shown("COMPATIBILITY", "<file[,file...]> | off | legacy"),
        Bcloneused: Info::number("bcloneused", 0).of(ReadOnly, POOL).shown("BCLONE_USED", "<size>"),
        Bclonesaved: Info::number("bclonesaved", 0).of(ReadOnly, POOL).shown("BCLONE_SAVED", "<size>"),
        Bcloneratio: Info::number("bcloneratio", 0).of(ReadOnly, POOL).shown("BCLONE_RATIO", "<1.00x or higher if cloned>"),
        DedupTableSize: Info::number("dedup_table_size", 0).of(ReadOnly, POOL).shown("DDTSIZE", "<size>"),
        DedupTableQuota: Info::number("dedup_table_quota", u64::MAX).of(Default, POOL).shown("DDTQUOTA", "<size>"),
        Dedupcached: Info::number("dedupcached", 0).of(ReadOnly, POOL).hidden("DEDUPCACHED"),
        LastScrubbedTxg: Info::number("last_scrubbed_txg", 0).of(ReadOnly, POOL).shown("LAST_SCRUBBED_TXG", "<txg>"),
    }
}
