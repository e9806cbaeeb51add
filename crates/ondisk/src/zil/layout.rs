//! The fixed parts of records, in the order of their words.

use crate::Blkptr;
use crate::fields::field_struct;

field_struct! {
    /// Head of every record.
    #[doc(alias = "lr_t")]
    LrCommon, 32 bytes {
        /// See [`crate::zil::TxType`].
        txtype: u64,
        /// Bytes of the record, head included.
        reclen: u64,
        /// Txg of the change; replay is needed when it was not synced.
        txg: u64,
        /// Sequence number of the record.
        seq: u64,
    }
}

field_struct! {
    /// A new file, directory or link.
    #[doc(alias = "_lr_create_t")]
    LrCreate, 72 bytes {
        /// Directory.
        doid: u64,
        /// New object, with the number of extra dnode slots in the high 8 bits.
        foid: u64,
        /// Mode.
        mode: u64,
        /// Owner.
        uid: u64,
        /// Group.
        gid: u64,
        /// Txg of creation.
        r#gen: u64,
        /// Time of creation.
        crtime: [u64; 2],
        /// Device number.
        rdev: u64,
    }
}

field_struct! {
    /// Sizes of an ACL and of the FUID tables behind it.
    #[doc(alias = "lr_acl_create_t")]
    LrAclCreate, 40 bytes {
        /// Entries.
        aclcnt: u64,
        /// Domains.
        domcnt: u64,
        /// FUIDs.
        fuidcnt: u64,
        /// Bytes of the entries.
        acl_bytes: u64,
        /// Flags of the ACL.
        acl_flags: u64,
    }
}

field_struct! {
    /// An old ACL set on a file.
    #[doc(alias = "lr_acl_v0_t")]
    LrAclV0, 16 bytes {
        /// File.
        foid: u64,
        /// Entries.
        aclcnt: u64,
    }
}

field_struct! {
    /// A name removed.
    #[doc(alias = "lr_remove_t")]
    LrRemove, 8 bytes {
        /// Directory.
        doid: u64,
    }
}

field_struct! {
    /// A hard link.
    #[doc(alias = "lr_link_t")]
    LrLink, 16 bytes {
        /// Directory.
        doid: u64,
        /// File.
        link_obj: u64,
    }
}

field_struct! {
    /// A rename.
    #[doc(alias = "_lr_rename_t")]
    LrRename, 16 bytes {
        /// Source directory.
        sdoid: u64,
        /// Target directory.
        tdoid: u64,
    }
}

field_struct! {
    /// The whiteout that a rename leaves.
    #[doc(alias = "lr_rename_whiteout_t")]
    LrRenameWhiteout, 64 bytes {
        /// Object.
        wfoid: u64,
        /// Mode.
        wmode: u64,
        /// Owner.
        wuid: u64,
        /// Group.
        wgid: u64,
        /// Txg of creation.
        wgen: u64,
        /// Time of creation.
        wcrtime: [u64; 2],
        /// Device number 0.
        wrdev: u64,
    }
}

field_struct! {
    /// A write.
    #[doc(alias = "lr_write_t")]
    LrWrite, 160 bytes {
        /// File.
        foid: u64,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Unused.
        blkoff: u64,
        /// The block with the data, unless the data follow.
        blkptr: Blkptr,
    }
}

field_struct! {
    /// A range freed; length 0 frees to the end.
    #[doc(alias = "lr_truncate_t")]
    LrTruncate, 24 bytes {
        /// File.
        foid: u64,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
    }
}

field_struct! {
    /// Attributes set. The mask is the one of the writer's operating system.
    #[doc(alias = "lr_setattr_t")]
    LrSetattr, 80 bytes {
        /// File.
        foid: u64,
        /// Which of the following count.
        mask: u64,
        /// Mode.
        mode: u64,
        /// Owner.
        uid: u64,
        /// Group.
        gid: u64,
        /// Size.
        size: u64,
        /// Access time.
        atime: [u64; 2],
        /// Modification time.
        mtime: [u64; 2],
    }
}

field_struct! {
    /// An extended attribute set in the system attributes.
    #[doc(alias = "lr_setsaxattr_t")]
    LrSetsaxattr, 16 bytes {
        /// File.
        foid: u64,
        /// Bytes of the value; 0: removed.
        size: u64,
    }
}

field_struct! {
    /// Blocks cloned into a file.
    #[doc(alias = "lr_clone_range_t")]
    LrCloneRange, 40 bytes {
        /// File.
        foid: u64,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Block size of the file.
        blksz: u64,
        /// Number of pointers that follow.
        nbps: u64,
    }
}
