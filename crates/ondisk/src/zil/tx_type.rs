//! Types of records.

/// Type of a record, with the flag for case-insensitive names in the highest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TxType(pub u64);

macro_rules! tx_types {
    ($($konst:ident = $num:literal;)*) => {
        #[expect(missing_docs, reason = "the names are ZFS's own")]
        impl TxType { $(pub const $konst: u64 = $num;)* }

        impl TxType {
            /// OpenZFS's name, without `TX_`.
            pub fn name(self) -> &'static str {
                match self.raw() { $($num => stringify!($konst),)* _ => "UNKNOWN" }
            }
        }
    };
}

tx_types! {
    COMMIT = 0;
    CREATE = 1;
    MKDIR = 2;
    MKXATTR = 3;
    SYMLINK = 4;
    REMOVE = 5;
    RMDIR = 6;
    LINK = 7;
    RENAME = 8;
    WRITE = 9;
    TRUNCATE = 10;
    SETATTR = 11;
    ACL_V0 = 12;
    ACL = 13;
    CREATE_ACL = 14;
    CREATE_ATTR = 15;
    CREATE_ACL_ATTR = 16;
    MKDIR_ACL = 17;
    MKDIR_ATTR = 18;
    MKDIR_ACL_ATTR = 19;
    WRITE2 = 20;
    SETSAXATTR = 21;
    RENAME_EXCHANGE = 22;
    RENAME_WHITEOUT = 23;
    CLONE_RANGE = 24;
}

impl TxType {
    /// The type without its flag.
    pub fn raw(self) -> u64 {
        self.0 & !(1 << 63)
    }

    /// Names are to be looked up case-insensitively.
    #[doc(alias = "TX_CI")]
    pub fn is_case_insensitive(self) -> bool {
        self.0 >> 63 != 0
    }

    pub(super) fn has_attrs(self) -> bool {
        matches!(
            self.raw(),
            Self::CREATE_ATTR | Self::CREATE_ACL_ATTR | Self::MKDIR_ATTR | Self::MKDIR_ACL_ATTR
        )
    }
}
