//! Properties of vdevs.

use super::PropAttr::{Default, ReadOnly};
use super::{DatasetTypes, PropInfo as Info, index, properties};

const VDEV: DatasetTypes = DatasetTypes::VDEV;

properties! {
    /// A vdev property.
    #[doc(alias = "vdev_prop_t")]
    VdevProp {
        Name: Info::string("name").of(ReadOnly, VDEV).hidden("NAME"),
        Capacity: Info::number("capacity", 0).of(ReadOnly, VDEV).shown("CAP", "<size>"),
        State: Info::number("state", 0).of(ReadOnly, VDEV).shown("STATE", "<state>"),
        Guid: Info::number("guid", 0).of(ReadOnly, VDEV).shown("GUID", "<guid>"),
        Asize: Info::number("asize", 0).of(ReadOnly, VDEV).shown("ASIZE", "<asize>"),
        Psize: Info::number("psize", 0).of(ReadOnly, VDEV).shown("PSIZE", "<psize>"),
        Ashift: Info::number("ashift", 0).of(ReadOnly, VDEV).shown("ASHIFT", "<ashift>"),
        Size: Info::number("size", 0).of(ReadOnly, VDEV).shown("SIZE", "<size>"),
        Free: Info::number("free", 0).of(ReadOnly, VDEV).shown("FREE", "<size>"),
        Allocated: Info::number("allocated", 0).of(ReadOnly, VDEV).shown("ALLOC", "<size>"),
        Comment: Info::string("comment").of(Default, VDEV).shown("COMMENT", "<comment-string>"),
        Expandsize: Info::number("expandsize", 0).of(ReadOnly, VDEV).shown("EXPANDSZ", "<size>"),
        Fragmentation: Info::number("fragmentation", 0).of(ReadOnly, VDEV).shown("FRAG", "<percent>"),
        Bootsize: Info::number("bootsize", 0).of(ReadOnly, VDEV).shown("BOOTSIZE", "<size>"),
        Parity: Info::number("parity", 0).of(ReadOnly, VDEV).shown("PARITY", "<parity>"),
        Path: Info::string("path").of(Default, VDEV).shown("PATH", "<device-path>"),
        Devid: Info::string("devid").of(ReadOnly, VDEV).shown("DEVID", "<devid>"),
        Physpath: Info::string("physpath").of(ReadOnly, VDEV).shown("PHYSPATH", "<physpath>"),
        Encpath: Info::string("encpath").of(ReadOnly, VDEV).shown("ENCPATH", "<encpath>"),
        Fru: Info::string("fru").of(ReadOnly, VDEV).shown("FRU", "<fru>"),
        Parent: Info::string("parent").of(ReadOnly, VDEV).shown("PARENT", "<parent>"),
        Children: Info::string("children").of(ReadOnly, VDEV).shown("CHILDREN", "<child[,...]>"),
        Numchildren: Info::number("numchildren", 0).of(ReadOnly, VDEV).shown("NUMCHILD", "<number-of-children>"),
        ReadErrors: Info::number("read_errors", 0).of(ReadOnly, VDEV).shown("RDERR", "<errors>"),
        WriteErrors: Info::number("write_errors", 0).of(ReadOnly, VDEV).shown("WRERR", "<errors>"),
        ChecksumErrors: Info::number("checksum_errors", 0).of(ReadOnly, VDEV).shown("CKERR", "<errors>"),
        InitializeErrors: Info::number("initialize_errors", 0).of(ReadOnly, VDEV).shown("INITERR", "<errors>"),
        NullOps: Info::number("null_ops", 0).of(ReadOnly, VDEV).shown("NULLOP", "<operations>"),
        ReadOps: Info::number("read_ops", 0).of(ReadOnly, VDEV).shown("READOP", "<operations>"),
        WriteOps: Info::number("write_ops", 0).of(ReadOnly, VDEV).shown("WRITEOP", "<operations>"),
        FreeOps: Info::number("free_ops", 0).of(ReadOnly, VDEV).shown("FREEOP", "<operations>"),
        ClaimOps: Info::number("claim_ops", 0).of(ReadOnly, VDEV).shown("CLAIMOP", "<operations>"),
        TrimOps: Info::number("trim_ops", 0).of(ReadOnly, VDEV).shown("TRIMOP", "<operations>"),
        NullBytes: Info::number("null_bytes", 0).of(ReadOnly, VDEV).shown("NULLBYTE", "<bytes>"),
        ReadBytes: Info::number("read_bytes", 0).of(ReadOnly, VDEV).shown("READBYTE", "<bytes>"),
        WriteBytes: Info::number("write_bytes", 0).of(ReadOnly, VDEV).shown("WRITEBYTE", "<bytes>"),
        FreeBytes: Info::number("free_bytes", 0).of(ReadOnly, VDEV).shown("FREEBYTE", "<bytes>"),
        ClaimBytes: Info::number("claim_bytes", 0).of(ReadOnly, VDEV).shown("CLAIMBYTE", "<bytes>"),
        TrimBytes: Info::number("trim_bytes", 0).of(ReadOnly, VDEV).shown("TRIMBYTE", "<bytes>"),
        Removing: Info::index("removing", 0, index::BOOLEAN).of(ReadOnly, VDEV).shown("REMOVING", "on | off"),
        Allocating: Info::index("allocating", 1, index::BOOLEAN_OR_NOT_APPLICABLE).of(Default, VDEV).shown("ALLOCATING", "on | off"),
        Failfast: Info::index("failfast", 1, index::BOOLEAN).of(Default, VDEV).shown("FAILFAST", "on | off"),
        ChecksumN: Info::number("checksum_n", u64::MAX).of(Default, VDEV).shown("CKSUM_N", "<events>"),
        ChecksumT: Info::number("checksum_t", u64::MAX).of(Default, VDEV).shown("CKSUM_T", "<seconds>"),
        IoN: Info::number("io_n", u64::MAX).of(Default, VDEV).shown("IO_N", "<events>"),
        IoT: Info::number("io_t", u64::MAX).of(Default, VDEV).shown("IO_T", "<seconds>"),
        RaidzExpanding: Info::index("raidz_expanding", 0, index::BOOLEAN).of(ReadOnly, VDEV).shown("RAIDZ_EXPANDING", "on | off"),
        SlowIoN: Info::number("slow_io_n", u64::MAX).of(Default, VDEV).shown("SLOW_IO_N", "<events>"),
        SlowIoT: Info::number("slow_io_t", u64::MAX).of(Default, VDEV).shown("SLOW_IO_T", "<seconds>"),
        TrimSupport: Info::index("trim_support", 0, index::BOOLEAN).of(ReadOnly, VDEV).shown("TRIMSUP", "on | off"),
        TrimErrors: Info::number("trim_errors", 0).of(ReadOnly, VDEV).shown("TRIMERR", "<errors>"),
        SlowIos: Info::number("slow_ios", 0).of(ReadOnly, VDEV).shown("SLOW", "<slowios>"),
        SitOut: Info::index("sit_out", 0, index::BOOLEAN).of(Default, VDEV).shown("SIT_OUT", "on | off"),
        Autosit: Info::index("autosit", 0, index::BOOLEAN).of(Default, VDEV).shown("AUTOSIT", "on | off"),
        SlowIoEvents: Info::index("slow_io_events", 1, index::BOOLEAN).of(Default, VDEV).shown("SLOW_IO_EVENTS", "on | off"),
    }
}
