//! Object sets: the block that a dataset's or the pool's root pointer leads to.
//!
//! ```text
//! 0     meta dnode, 512 bytes          704   type:64 flags:64
//! 512   intent log header, 192 bytes   720   portable MAC, local MAC, 32 bytes each
//! 1024  user-used dnode   1536  group-used dnode   2048  project-used dnode
//! ```
//!
//! 1,024 bytes before pool version 15, then 2,048, and 4,096 with project quotas. The first kind
//! has no accounting dnodes. Source: `objset_phys_t`, dmu_objset.h, OpenZFS 2.3.

use crate::dnode::DNODE_MIN_SIZE;
use crate::{Blkptr, Cursor, Dnode, Malformed};

/// Bytes of the three generations.
pub const OBJSET_SIZES: [usize; 3] = [1024, 2048, 4096];

/// Type of an object set. Source: `dmu_objset_type_t`, fs/zfs.h.
#[doc(alias = "dmu_objset_type_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum ObjsetType {
    /// None yet.
    None = 0,
    /// The pool's own (MOS).
    Meta = 1,
    /// A file system.
    Zfs = 2,
    /// A volume.
    Zvol = 3,
    /// Made by tests.
    Other = 4,
    /// Any, in requests only.
    Any = 5,
}

impl ObjsetType {
    /// The type with this number.
    pub fn from_raw(raw: u64) -> Option<Self> {
        [Self::None, Self::Meta, Self::Zfs, Self::Zvol, Self::Other, Self::Any]
            .into_iter()
            .find(|t| *t as u64 == raw)
    }

    /// zdb's name in brackets.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Meta => "META",
            Self::Zfs => "ZPL",
            Self::Zvol => "ZVOL",
            Self::Other => "OTHER",
            Self::Any => "ANY",
        }
    }
}

/// Flag bits of an object set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjsetFlags(pub u64);

impl ObjsetFlags {
    /// Space is counted for every user and group.
    pub const USERACCOUNTING_COMPLETE: Self = Self(1);
    /// Objects are counted too.
    pub const USEROBJACCOUNTING_COMPLETE: Self = Self(2);
    /// Every object has a project.
    pub const PROJECTQUOTA_COMPLETE: Self = Self(4);

    /// Whether all bits of `flag` are set.
    pub fn has(self, flag: Self) -> bool {
        self.0 & flag.0 == flag.0
    }
}

/// The head of an object set's intent log. Source: `zil_header_t`, zil.h.
#[doc(alias = "zil_header_t")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZilHeader {
    /// Txg in which the blocks were claimed at import; 0: not claimed.
    pub claim_txg: u64,
    /// Highest sequence number replayed.
    pub replay_seq: u64,
    /// First block of the chain; a hole when there is no log.
    pub log: Blkptr,
    /// Highest claimed block sequence number.
    pub claim_blk_seq: u64,
    /// [`Self::REPLAY_NEEDED`] and [`Self::CLAIM_LR_SEQ_VALID`].
    pub flags: u64,
    /// Highest claimed record sequence number, if valid.
    pub claim_lr_seq: u64,
    /// Reserved; kept verbatim.
    pub pad: [u64; 3],
}

impl ZilHeader {
    /// Bytes on disk.
    pub const SIZE: usize = 192;
    /// Flag: replay is needed.
    pub const REPLAY_NEEDED: u64 = 1;
    /// Flag: `claim_lr_seq` is set.
    pub const CLAIM_LR_SEQ_VALID: u64 = 2;

    /// Decodes the header at the cursor.
    pub fn read(at: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            claim_txg: at.u64()?,
            replay_seq: at.u64()?,
            log: Blkptr::from_words(at.u64s()?),
            claim_blk_seq: at.u64()?,
            flags: at.u64()?,
            claim_lr_seq: at.u64()?,
            pad: at.u64s()?,
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let head = [self.claim_txg, self.replay_seq];
        let tail = [self.claim_blk_seq, self.flags, self.claim_lr_seq];
        let words = head.into_iter().chain(*self.log.words()).chain(tail).chain(self.pad);
        let mut out = [0; Self::SIZE];
        for (chunk, word) in out.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        out
    }
}

/// An object set in core.
#[doc(alias = "objset_phys_t")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objset {
    /// The object that holds the array of dnodes.
    pub meta_dnode: Dnode,
    /// The intent log.
    pub zil_header: ZilHeader,
    /// File system, volume or the pool's own.
    pub objset_type: ObjsetType,
    /// Flags.
    pub flags: ObjsetFlags,
    /// MAC over the parts that a raw send carries.
    pub portable_mac: [u8; 32],
    /// MAC over the rest.
    pub local_mac: [u8; 32],
    /// Space by user; `None` in the oldest generation. Free until the first use.
    pub userused: Option<Dnode>,
    /// Space by group.
    pub groupused: Option<Dnode>,
    /// Space by project; only in the newest generation.
    pub projectused: Option<Dnode>,
}

impl Objset {
    /// Decodes and checks an object set of any generation.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut at = Cursor::new("objset", bytes);
        let meta_dnode = one_slot(at.bytes(DNODE_MIN_SIZE)?)?;
        let zil_header = ZilHeader::read(&mut at)?;
        let raw_type = at.u64()?;
        let objset_type = ObjsetType::from_raw(raw_type)
            .ok_or_else(|| Malformed::new("objset", format!("unknown type {raw_type}")))?;
        let flags = ObjsetFlags(at.u64()?);
        let (portable_mac, local_mac) = (at.array()?, at.array()?);
        let accounting = |start: usize, needs: usize| {
            if bytes.len() < needs {
                return Ok(None);
            }
            bytes.get(start..start + DNODE_MIN_SIZE).map(one_slot).transpose()
        };
        let [v1, v2, v3] = OBJSET_SIZES;
        Ok(Self {
            meta_dnode,
            zil_header,
            objset_type,
            flags,
            portable_mac,
            local_mac,
            userused: accounting(v1, v2)?,
            groupused: accounting(v1 + DNODE_MIN_SIZE, v2)?,
            projectused: accounting(v2, v3)?,
        })
    }
}

impl Objset {
    /// An object set without objects. `size` is one of [`OBJSET_SIZES`].
    pub fn new(objset_type: ObjsetType, meta_dnode: Dnode, size: usize) -> Self {
        let [_, v2, v3] = OBJSET_SIZES;
        let accounting = |needs: usize| (size >= needs).then(Dnode::default);
        Self {
            meta_dnode,
            zil_header: ZilHeader::default(),
            objset_type,
            flags: ObjsetFlags::default(),
            portable_mac: [0; 32],
            local_mac: [0; 32],
            userused: accounting(v2),
            groupused: accounting(v2),
            projectused: accounting(v3),
        }
    }

    /// Bytes of its generation.
    pub fn size(&self) -> usize {
        let [v1, v2, v3] = OBJSET_SIZES;
        match (&self.userused, &self.projectused) {
            (None, _) => v1,
            (Some(_), None) => v2,
            (Some(_), Some(_)) => v3,
        }
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.size()];
        let [v1, v2, _] = OBJSET_SIZES;
        let mut put = |at: usize, dnode: Option<&Dnode>| {
            if let Some((dnode, slot)) = dnode.zip(out.get_mut(at..at + DNODE_MIN_SIZE)) {
                dnode.write_to(slot);
            }
        };
        put(0, Some(&self.meta_dnode));
        put(v1, self.userused.as_ref());
        put(v1 + DNODE_MIN_SIZE, self.groupused.as_ref());
        put(v2, self.projectused.as_ref());
        let words = [self.objset_type as u64, self.flags.0].map(u64::to_le_bytes);
        let head = self.zil_header.to_bytes().into_iter().chain(words.into_iter().flatten());
        let macs = self.portable_mac.into_iter().chain(self.local_mac);
        for (to, from) in out.iter_mut().skip(DNODE_MIN_SIZE).zip(head.chain(macs)) {
            *to = from;
        }
        out
    }
}

// These dnodes have no room for more slots.
fn one_slot(bytes: &[u8]) -> Result<Dnode, Malformed> {
    Dnode::from_bytes(bytes)
}
