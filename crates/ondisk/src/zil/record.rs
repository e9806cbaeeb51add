//! Records of the log.
//!
//! Each has a common head (type, length, txg, sequence), fixed words ([`super::layout`]), and then
//! names, attributes, ACL entries or data.

use super::layout::{
    LrAclCreate, LrAclV0, LrCloneRange, LrCreate, LrLink, LrRemove, LrRename, LrRenameWhiteout, LrSetattr,
    LrSetsaxattr, LrTruncate, LrWrite,
};
use super::tx_type::TxType;
use crate::acl::{Ace, is_abstract, is_object};
use crate::fields::Field;
use crate::{Blkptr, Cursor, Endian, Malformed};

/// Optional attributes of a create or setattr.
#[doc(alias = "lr_attr_t")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LrAttr {
    /// Which attributes count.
    pub bitmap: Vec<u32>,
    /// Flags (`XAT0_*`).
    pub attrs: u64,
    /// Time of creation.
    pub crtime: [u64; 2],
    /// Scan stamp, or project id in its first word.
    pub scanstamp: [u8; 32],
}

impl LrAttr {
    fn read(at: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let masksize = at.u32()?;
        let words = usize::try_from(masksize).unwrap_or(usize::MAX);
        // OpenZFS always writes three.
        if words == 0 || words > at.remaining() / 4 {
            return Err(Malformed::new("log record", format!("attribute bitmap of {masksize} words")));
        }
        let bitmap = (0..words).map(|_| at.u32()).collect::<Result<_, _>>()?;
        Ok(Self { bitmap, attrs: at.u64()?, crtime: at.u64s()?, scanstamp: at.array()? })
    }
}

/// TX_CREATE, TX_MKDIR, TX_MKXATTR, TX_SYMLINK and the forms with attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// Fixed fields.
    pub lr: LrCreate,
    /// Optional attributes.
    pub attr: Option<LrAttr>,
    /// Domains of owner and group, if they are FUIDs.
    pub domains: Vec<&'a [u8]>,
    /// Name.
    pub name: &'a [u8],
    /// Target of a symbolic link.
    pub link: Option<&'a [u8]>,
}

/// The forms of create with an ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateAcl<'a> {
    /// Fixed fields.
    pub lr: LrCreate,
    /// Optional attributes.
    pub attr: Option<LrAttr>,
    /// The ACL and its tables.
    pub acl: AclRecord<'a>,
    /// Name.
    pub name: &'a [u8],
}

/// An ACL in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclRecord<'a> {
    /// File, in TX_ACL.
    pub foid: u64,
    /// Sizes and flags.
    pub lr: LrAclCreate,
    /// Entries; see [`decode_log_aces`].
    pub aces: &'a [u8],
    /// FUIDs of the entries.
    pub fuids: Vec<u64>,
    /// Domains.
    pub domains: Vec<&'a [u8]>,
}

/// TX_ACL_V0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclV0Record<'a> {
    /// Fixed fields.
    pub lr: LrAclV0,
    /// Entries; see [`decode_log_aces`].
    pub aces: &'a [u8],
}

/// TX_REMOVE, TX_RMDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remove<'a> {
    /// Fixed fields.
    pub lr: LrRemove,
    /// Name.
    pub name: &'a [u8],
}

/// TX_LINK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// Fixed fields.
    pub lr: LrLink,
    /// Name.
    pub name: &'a [u8],
}

/// TX_RENAME, TX_RENAME_EXCHANGE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    /// Fixed fields.
    pub lr: LrRename,
    /// Name before.
    pub source: &'a [u8],
    /// Name after.
    pub target: &'a [u8],
}

/// TX_RENAME_WHITEOUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenameWhiteout<'a> {
    /// The rename.
    pub rename: Rename<'a>,
    /// The whiteout.
    pub whiteout: LrRenameWhiteout,
}

/// TX_WRITE, TX_WRITE2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// Fixed fields.
    pub lr: LrWrite,
    /// The data, when they are in the record; else they are in the block that the pointer names.
    pub data: Option<&'a [u8]>,
}

impl Write<'_> {
    /// Offset and length of the bytes that a replay writes for a record without data: those of the whole block that its
    /// pointer names, hole or not, because later writes to the block in the same txg have records without a pointer
    /// (`zfs_replay_write`, 2.4). A pointer of zeros names no block: the result is the range of the write.
    ///
    /// Both values come from disk, and their sum can exceed 64 bits.
    pub fn block_range(&self) -> (u64, u64) {
        let LrWrite { offset, length, blkptr, .. } = self.lr;
        let size = if blkptr == Blkptr::default() { length } else { blkptr.lsize() };
        match offset.checked_rem(size) {
            Some(within) if length < size => (offset - within, size),
            _ if blkptr.is_hole() => (offset, length),
            _ => (offset, size),
        }
    }
}

/// TX_SETATTR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setattr<'a> {
    /// Fixed fields.
    pub lr: LrSetattr,
    /// Optional attributes, if flagged in the mask of Linux.
    pub attr: Option<LrAttr>,
    /// The rest: domains of new owner and group.
    pub rest: &'a [u8],
}

/// TX_SETSAXATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setsaxattr<'a> {
    /// Fixed fields.
    pub lr: LrSetsaxattr,
    /// Name.
    pub name: &'a [u8],
    /// Value; empty: removed.
    pub value: &'a [u8],
}

/// TX_CLONE_RANGE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneRange {
    /// Fixed fields.
    pub lr: LrCloneRange,
    /// The blocks.
    pub bps: Vec<Blkptr>,
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each names its structure")]
pub enum LogRecord<'a> {
    Commit,
    Create(Create<'a>),
    CreateAcl(CreateAcl<'a>),
    Remove(Remove<'a>),
    Link(Link<'a>),
    Rename(Rename<'a>),
    RenameExchange(Rename<'a>),
    RenameWhiteout(RenameWhiteout<'a>),
    Write(Write<'a>),
    Write2(Write<'a>),
    Truncate(LrTruncate),
    Setattr(Setattr<'a>),
    Setsaxattr(Setsaxattr<'a>),
    AclV0(AclV0Record<'a>),
    Acl(AclRecord<'a>),
    CloneRange(CloneRange),
    /// A type that OpenZFS 2.4 doesn't know; the bytes after the common head.
    Unknown(&'a [u8]),
}

/// Bit of a setattr's mask for following optional attributes, as Linux writes it.
const ATTR_XVATTR: u64 = 1 << 31;
/// Set in each mask of Linux's kernel; a bit that no other system uses here.
const ATTR_CTIME: u64 = 1 << 6;
/// The bits of the attributes on FreeBSD and illumos (`AT_*`), and on Linux (`ATTR_*`).
const ATTRS: [(u64, u64); 7] = [
    (1 << 1, 1),
    (1 << 2, 1 << 1),
    (1 << 3, 1 << 2),
    (1 << 7, 1 << 3),
    (1 << 8, 1 << 4),
    (1 << 9, 1 << 5),
    (1 << 16, ATTR_XVATTR),
];
/// Bits that Linux never sets: sizes, times, and optional attributes elsewhere.
const FOREIGN: u64 = 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 16;
/// FreeBSD's value of an id that is not set.
const NO_ID: u64 = u32::MAX as u64;

impl LrSetattr {
    /// The attributes that the record sets, in the bits of Linux. Each system writes the bits of its own; a record is another
    /// system's if its mask has bits that Linux never sets, or if Linux's meaning would set a value that says that nothing is
    /// set.
    pub fn linux_mask(&self) -> u64 {
        let sets = |bit: u64, none: bool| self.mask & bit != 0 && none;
        let sets_nothing = sets(1 << 1, self.uid == NO_ID)
            || sets(1 << 2, self.gid == NO_ID)
            || sets(1 << 3, self.size == u64::MAX);
        let is_foreign = self.mask & ATTR_CTIME == 0 && (self.mask & FOREIGN != 0 || sets_nothing);
        match is_foreign {
            true => {
                ATTRS.iter().filter(|(bit, _)| self.mask & bit != 0).fold(0, |mask, (_, linux)| mask | linux)
            }
            false => self.mask,
        }
    }
}

impl<'a> LogRecord<'a> {
    /// Decodes the part after the common head.
    pub fn decode(txtype: TxType, body: &'a [u8], endian: Endian) -> Result<Self, Malformed> {
        use TxType as T;
        let at = &mut Cursor::with_endian("log record", body, endian);
        Ok(match txtype.raw() {
            T::COMMIT => Self::Commit,
            T::CREATE | T::MKDIR | T::MKXATTR | T::SYMLINK | T::CREATE_ATTR | T::MKDIR_ATTR => {
                Self::Create(create(txtype, at)?)
            }
            T::CREATE_ACL | T::CREATE_ACL_ATTR | T::MKDIR_ACL | T::MKDIR_ACL_ATTR => {
                Self::CreateAcl(create_acl(txtype, at)?)
            }
            T::REMOVE | T::RMDIR => Self::Remove(Remove { lr: Field::read(at)?, name: at.c_str()? }),
            T::LINK => Self::Link(Link { lr: Field::read(at)?, name: at.c_str()? }),
            T::RENAME => Self::Rename(rename(at)?),
            T::RENAME_EXCHANGE => Self::RenameExchange(rename(at)?),
            T::RENAME_WHITEOUT => Self::RenameWhiteout(rename_whiteout(at)?),
            T::WRITE => Self::Write(write(at)?),
            T::WRITE2 => Self::Write2(write(at)?),
            T::TRUNCATE => Self::Truncate(Field::read(at)?),
            T::SETATTR => Self::Setattr(setattr(at)?),
            T::SETSAXATTR => Self::Setsaxattr(setsaxattr(at)?),
            T::ACL_V0 => Self::AclV0(acl_v0(at)?),
            T::ACL => {
                let foid = at.u64()?;
                Self::Acl(acl_tables(foid, Field::read(at)?, at)?)
            }
            T::CLONE_RANGE => Self::CloneRange(clone_range(at)?),
            _ => Self::Unknown(body),
        })
    }
}

// Owner and group that are FUIDs of a domain have the domain's index in their high half.
fn owner_domains(uid: u64, gid: u64) -> u64 {
    let (uid, gid) = (uid >> 32, gid >> 32);
    u64::from(uid != 0) + u64::from(gid != 0 && gid != uid)
}

fn strings<'a>(at: &mut Cursor<'a>, count: u64) -> Result<Vec<&'a [u8]>, Malformed> {
    // A string takes a byte at least: no allocation beyond the record's size.
    (0..count).map(|_| at.c_str()).collect()
}

fn create<'a>(txtype: TxType, at: &mut Cursor<'a>) -> Result<Create<'a>, Malformed> {
    let lr = LrCreate::read(at)?;
    let attr = txtype.has_attrs().then(|| LrAttr::read(at)).transpose()?;
    if txtype.raw() == TxType::SYMLINK {
        let (name, link) = (at.c_str()?, Some(at.c_str()?));
        return Ok(Create { lr, attr, domains: Vec::new(), name, link });
    }
    let domains = strings(at, owner_domains(lr.uid, lr.gid))?;
    // The extended-attribute directory has an empty name, possibly without its NUL.
    let name = if txtype.raw() == TxType::MKXATTR { at.c_str().unwrap_or(&[]) } else { at.c_str()? };
    Ok(Create { lr, attr, domains, name, link: None })
}

fn create_acl<'a>(txtype: TxType, at: &mut Cursor<'a>) -> Result<CreateAcl<'a>, Malformed> {
    let (lr, sizes) = (LrCreate::read(at)?, LrAclCreate::read(at)?);
    let attr = txtype.has_attrs().then(|| LrAttr::read(at)).transpose()?;
    let acl = acl_tables(0, sizes, at)?;
    Ok(CreateAcl { lr, attr, acl, name: at.c_str()? })
}

fn acl_tables<'a>(foid: u64, lr: LrAclCreate, at: &mut Cursor<'a>) -> Result<AclRecord<'a>, Malformed> {
    let bytes = usize::try_from(lr.acl_bytes).unwrap_or(usize::MAX);
    let aces = at.bytes(bytes)?;
    at.skip(bytes.next_multiple_of(8) - bytes)?;
    let fuids = (0..lr.fuidcnt).map(|_| at.u64()).collect::<Result<_, _>>()?;
    Ok(AclRecord { foid, lr, aces, fuids, domains: strings(at, lr.domcnt)? })
}

fn acl_v0<'a>(at: &mut Cursor<'a>) -> Result<AclV0Record<'a>, Malformed> {
    let lr = LrAclV0::read(at)?;
    let bytes = lr.aclcnt.checked_mul(12).and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    Ok(AclV0Record { lr, aces: at.bytes(bytes)? })
}

fn rename<'a>(at: &mut Cursor<'a>) -> Result<Rename<'a>, Malformed> {
    Ok(Rename { lr: Field::read(at)?, source: at.c_str()?, target: at.c_str()? })
}

fn rename_whiteout<'a>(at: &mut Cursor<'a>) -> Result<RenameWhiteout<'a>, Malformed> {
    let (lr, whiteout) = (Field::read(at)?, Field::read(at)?);
    let rename = Rename { lr, source: at.c_str()?, target: at.c_str()? };
    Ok(RenameWhiteout { rename, whiteout })
}

fn write<'a>(at: &mut Cursor<'a>) -> Result<Write<'a>, Malformed> {
    let lr = LrWrite::read(at)?;
    if at.remaining() == 0 {
        return Ok(Write { lr, data: None });
    }
    let data = usize::try_from(lr.length).ok().and_then(|len| at.rest().get(..len));
    let data = data.ok_or_else(|| Malformed::new("log record", format!("write of {} bytes", lr.length)))?;
    Ok(Write { lr, data: Some(data) })
}

fn setattr<'a>(at: &mut Cursor<'a>) -> Result<Setattr<'a>, Malformed> {
    let lr = LrSetattr::read(at)?;
    let attr =
        (lr.linux_mask() & ATTR_XVATTR != 0 && at.remaining() > 0).then(|| LrAttr::read(at)).transpose()?;
    Ok(Setattr { lr, attr, rest: at.rest() })
}

fn setsaxattr<'a>(at: &mut Cursor<'a>) -> Result<Setsaxattr<'a>, Malformed> {
    let (lr, name) = (LrSetsaxattr::read(at)?, at.c_str()?);
    let value = at.bytes(usize::try_from(lr.size).unwrap_or(usize::MAX))?;
    Ok(Setsaxattr { lr, name, value })
}

fn clone_range(at: &mut Cursor<'_>) -> Result<CloneRange, Malformed> {
    let lr = LrCloneRange::read(at)?;
    let bps = (0..lr.nbps).map(|_| Blkptr::read(at)).collect::<Result<_, _>>()?;
    Ok(CloneRange { lr, bps })
}

/// The entries of an ACL record; see [`decode_log_aces`].
pub fn encode_log_aces(aces: &[Ace]) -> Vec<u8> {
    let mut out = Vec::new();
    for ace in aces {
        out.extend(u32::try_from(ace.who).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(ace.access_mask.to_le_bytes());
        out.extend(ace.flags.to_le_bytes());
        out.extend(ace.ace_type.to_le_bytes());
        if let Some((kind, inherited)) = ace.object {
            out.extend(kind);
            out.extend(inherited);
        }
    }
    out
}

/// Decodes the entries in an ACL record: who:32 mask:32 flags:16 type:16, and 32 bytes more in object
/// entries. Ephemeral owners are indices into the record's FUIDs.
#[doc(alias = "ace_t")]
pub fn decode_log_aces(bytes: &[u8], endian: Endian) -> Result<Vec<Ace>, Malformed> {
    let mut at = Cursor::with_endian("log acl", bytes, endian);
    let mut aces = Vec::new();
    while at.remaining() > 0 {
        let (who, access_mask, flags, ace_type) = (at.u32()?.into(), at.u32()?, at.u16()?, at.u16()?);
        let who = if is_abstract(flags) { u64::MAX } else { who };
        let object = is_object(ace_type).then(|| Ok((at.array()?, at.array()?))).transpose()?;
        aces.push(Ace { ace_type, flags, access_mask, who, object });
    }
    Ok(aces)
}
