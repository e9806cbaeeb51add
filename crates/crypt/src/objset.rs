//! The two MACs inside an objset of an encrypted dataset (`objset_phys_t`, dmu_objset.h;
//! `zio_crypt_do_objset_hmacs`, zio_crypt.c, OpenZFS 2.3).
//!
//! ```text
//! 0          512         704    712     720           752         1024      1536       2048      2560
//! metadnode  zil header  type   flags   portable mac  local mac   userused  groupused  projectused
//! ```
//!
//! Always over little-endian values (the type: big-endian), because a pool may rewrite an objset
//! without having the key, in its own byte order.

use subtle::ConstantTimeEq;

use crate::bp::ByteOrder;
use crate::bytes;
use crate::dnode::{self, DNODE_SIZE};
use crate::error::{Error, Result};
use crate::key::DatasetKey;
use crate::suite::OBJSET_MAC_LEN;

const METADNODE: usize = 0;
const TYPE: usize = 704;
const FLAGS: usize = 712;
const PORTABLE_MAC: usize = 720;
const LOCAL_MAC: usize = 752;
const USERUSED: usize = 1024;
const GROUPUSED: usize = 1536;
const PROJECTUSED: usize = 2048;
/// Size of an objset without user accounting, and with it but without projects.
const SIZE_V1: usize = 1024;
const SIZE_V2: usize = 2048;
const SIZE_V3: usize = 4096;
/// `OBJSET_FLAG_USERACCOUNTING_COMPLETE`.
const USER_ACCOUNTING_COMPLETE: u64 = 1;
/// No flag is carried over by a raw send so far.
#[doc(alias = "OBJSET_CRYPT_PORTABLE_FLAGS_MASK")]
const PORTABLE_FLAGS: u64 = 0;

/// An objset's MACs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjsetMacs {
    /// Protects the metadnode; sent with a raw send.
    pub portable: [u8; OBJSET_MAC_LEN],
    /// Protects user, group and project accounting; zero when there is none.
    pub local: [u8; OBJSET_MAC_LEN],
}

impl ObjsetMacs {
    /// The MACs stored in an objset block; `None` when it is too short.
    pub fn stored(block: &[u8]) -> Option<Self> {
        Some(Self { portable: bytes::array(block, PORTABLE_MAC)?, local: bytes::array(block, LOCAL_MAC)? })
    }

    /// Writes the MACs into an objset block; false when it is too short.
    pub fn store(&self, block: &mut [u8]) -> bool {
        bytes::put(block, PORTABLE_MAC, &self.portable) && bytes::put(block, LOCAL_MAC, &self.local)
    }
}

impl DatasetKey {
    /// The MACs that belong into this objset. `block` is decompressed, not byte-swapped, and was
    /// written in `order`.
    #[doc(alias = "zio_crypt_do_objset_hmacs")]
    pub fn objset_macs(&self, order: ByteOrder, block: &[u8]) -> Result<ObjsetMacs> {
        let object_type = number(order, block, TYPE)?;
        let flags = number(order, block, FLAGS)?;
        let mut input = object_type.to_be_bytes().to_vec();
        input.extend_from_slice(&(flags & PORTABLE_FLAGS).to_le_bytes());
        self.add_dnode(order, block, METADNODE, &mut input)?;
        let portable = self.objset_hmac(&input);
        if !has_accounting(block, flags) {
            return Ok(ObjsetMacs { portable, local: [0; OBJSET_MAC_LEN] });
        }
        let mut input = (flags & !PORTABLE_FLAGS).to_le_bytes().to_vec();
        for dnode in accounting_dnodes(block) {
            self.add_dnode(order, block, dnode, &mut input)?;
        }
        Ok(ObjsetMacs { portable, local: self.objset_hmac(&input) })
    }

    /// Checks an objset's own MACs. Where there is no accounting any local MAC passes: old versions
    /// left one behind.
    pub fn verify_objset(&self, order: ByteOrder, block: &[u8]) -> Result<()> {
        let computed = self.objset_macs(order, block)?;
        let stored = ObjsetMacs::stored(block).ok_or(too_short(PORTABLE_MAC))?;
        let portable = !bool::from(computed.portable.ct_eq(&stored.portable));
        let no_accounting = computed.local == [0; OBJSET_MAC_LEN];
        let local = !no_accounting && !bool::from(computed.local.ct_eq(&stored.local));
        if portable || local { Err(Error::BadObjsetMac { portable, local }) } else { Ok(()) }
    }

    fn objset_hmac(&self, input: &[u8]) -> [u8; OBJSET_MAC_LEN] {
        self.hmac_parts([input]).first_chunk().copied().unwrap_or([0; OBJSET_MAC_LEN])
    }

    fn add_dnode(&self, order: ByteOrder, block: &[u8], offset: usize, input: &mut Vec<u8>) -> Result<()> {
        let dnode: [u8; DNODE_SIZE] = bytes::array(block, offset).ok_or(too_short(offset))?;
        dnode::objset_auth(self.version(), order, &dnode, |part| input.extend_from_slice(part))
    }
}

fn number(order: ByteOrder, block: &[u8], offset: usize) -> Result<u64> {
    bytes::array(block, offset).map(|b| order.read(b)).ok_or(too_short(offset))
}

fn too_short(offset: usize) -> Error {
    Error::Malformed { what: "objset", offset }
}

/// The accounting dnodes that exist, as offsets.
fn accounting_dnodes(block: &[u8]) -> impl Iterator<Item = usize> {
    let projects = block.len() >= SIZE_V3;
    [USERUSED, GROUPUSED, PROJECTUSED]
        .into_iter()
        .filter(move |at| *at != PROJECTUSED || projects)
        .filter(|at| block.get(*at).is_some_and(|object_type| *object_type != 0))
}

/// Projects alone don't count.
fn has_accounting(block: &[u8], flags: u64) -> bool {
    let users = accounting_dnodes(block).any(|at| at != PROJECTUSED);
    flags & USER_ACCOUNTING_COMPLETE != 0 && block.len() > SIZE_V1 && (users || block.len() < SIZE_V2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Suite;

    fn key() -> DatasetKey {
        DatasetKey::new(Suite::ON, 1, 1, &[9; 32], &[8; 64]).unwrap()
    }

    fn objset() -> Vec<u8> {
        let mut b = vec![0; SIZE_V3];
        (b[0], b[3]) = (10, 3);
        (b[TYPE], b[FLAGS]) = (2, 1);
        (b[USERUSED], b[USERUSED + 3]) = (39, 1);
        assert!(key().objset_macs(ByteOrder::Little, &b).unwrap().store(&mut b));
        b
    }

    #[test]
    fn says_which_part_is_wrong() {
        let order = ByteOrder::Little;
        assert_eq!(key().verify_objset(order, &objset()), Ok(()));
        let with = |at: usize| {
            let mut b = objset();
            b[at] ^= 1;
            key().verify_objset(order, &b)
        };
        assert_eq!(with(16), Err(Error::BadObjsetMac { portable: true, local: false }));
        assert_eq!(with(USERUSED + 16), Err(Error::BadObjsetMac { portable: false, local: true }));
        assert_eq!(with(FLAGS + 1), Err(Error::BadObjsetMac { portable: false, local: true }));
        assert_eq!(with(600), Ok(()), "the log header is not protected");
        assert_eq!(with(METADNODE + 24), Ok(()), "nor is dn_used");
    }

    #[test]
    fn without_accounting_the_local_mac_is_zero_and_any_passes() {
        let mut b = objset();
        b[FLAGS] = 0;
        assert_eq!(key().objset_macs(ByteOrder::Little, &b).unwrap().local, [0; 32]);
        assert_eq!(key().verify_objset(ByteOrder::Little, &b), Ok(()));
        assert!(key().objset_macs(ByteOrder::Little, &b[..700]).is_err());
    }
}
