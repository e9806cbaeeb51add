//! MACs of blocks that are not encrypted: authenticated types and indirect blocks
//! (`spa_do_crypt_mac_abd`, dsl_crypt.c; `zio_crypt_do_indirect_mac_checksum`, zio_crypt.c).

use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;

use crate::Mac;
use crate::bp::{BpAuth, ByteOrder};
use crate::error::{Error, Result};
use crate::key::DatasetKey;
use crate::suite::CURRENT_VERSION;

impl DatasetKey {
    /// The MAC of a block of an authenticated type: HMAC-SHA512, cut to 16 bytes. `block` is the on-disk
    /// form: physical size, still compressed, not byte-swapped.
    #[doc(alias = "spa_do_crypt_mac_abd")]
    pub fn authenticated_mac(&self, block: &[u8]) -> Mac {
        self.hmac_parts([block]).first_chunk().copied().unwrap_or_default()
    }

    /// Checks a block of an authenticated type against the MAC in its pointer.
    pub fn verify_authenticated(&self, block: &[u8], mac: &Mac) -> Result<()> {
        check(&self.authenticated_mac(block), mac)
    }
}

fn check(computed: &Mac, stored: &Mac) -> Result<()> {
    if bool::from(computed.ct_eq(stored)) { Ok(()) } else { Err(Error::BadMac) }
}

/// The MAC of an indirect block: SHA-512 of the authenticated part of each pointer in it, cut to 16
/// bytes. `block` is decompressed, not byte-swapped, written in `order`; `version` is the key's.
#[doc(alias = "zio_crypt_do_indirect_mac_checksum")]
pub fn indirect_mac(version: u64, order: ByteOrder, block: &[u8]) -> Mac {
    let mut hash = Sha512::new();
    let (pointers, _) = block.as_chunks();
    for bp in pointers {
        hash.update(BpAuth::new(version, order, bp).bytes());
    }
    let digest: [u8; 64] = hash.finalize().into();
    digest.first_chunk().copied().unwrap_or_default()
}

/// Checks an indirect block of an encrypted dataset against the MAC in its pointer. Needs no key, and
/// tries both versions of the format, because without a key the version may be unknown.
pub fn verify_indirect(order: ByteOrder, block: &[u8], mac: &Mac) -> Result<()> {
    check(&indirect_mac(CURRENT_VERSION, order, block), mac)
        .or_else(|_| check(&indirect_mac(0, order, block), mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_verify_and_damage_does_not() {
        let mut block = vec![0; 1024];
        block[8] = 1;
        block[48..56].copy_from_slice(&(1_u64 << 63 | 255).to_le_bytes());
        for version in [0, 1] {
            let mac = indirect_mac(version, ByteOrder::Little, &block);
            assert_eq!(verify_indirect(ByteOrder::Little, &block, &mac), Ok(()));
            let mut bad = block.clone();
            bad[48] = 0;
            assert_eq!(verify_indirect(ByteOrder::Little, &bad, &mac), Err(Error::BadMac));
        }
    }
}
