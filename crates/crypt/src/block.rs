//! Encrypting and decrypting blocks (`zio_do_crypt_data`, zio_crypt.c, OpenZFS 2.3).

use crate::bp::{BlockParams, ByteOrder};
use crate::error::Result;
use crate::key::DatasetKey;
use crate::{Iv, Mac, Salt, dnode, zil};

/// How an encrypted block is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// Encrypted as a whole.
    Data,
    /// A level 0 block of the dnode object: bonus buffers are encrypted.
    Dnode,
    /// An intent-log block: record bodies are encrypted.
    Zil,
}

impl BlockKind {
    /// The layout for the object type in a block pointer (`DMU_OT_*`).
    pub fn of_type(object_type: u8) -> Self {
        match object_type {
            9 => Self::Zil,
            10 => Self::Dnode,
            _ => Self::Data,
        }
    }
}

impl DatasetKey {
    /// Decrypts a block in place. `block` holds the bytes on disk (physical size, still compressed, not
    /// byte-swapped); `order` is the order it was written in. For [`BlockKind::Zil`], `params.mac` is
    /// [`zil_mac`](crate::zil_mac) of the block; MAC and chain header stay as they are.
    ///
    /// When it fails the contents of `block` are undefined and no plaintext.
    pub fn decrypt(
        &self,
        kind: BlockKind,
        order: ByteOrder,
        params: &BlockParams,
        block: &mut [u8],
    ) -> Result<()> {
        let aead = self.block_cipher(&params.salt)?;
        match kind {
            BlockKind::Data => aead.open(&params.iv, &[], block, &params.mac),
            BlockKind::Dnode => {
                dnode::parse(self.version(), order, block)?.open(&aead, &params.iv, &params.mac, block)
            }
            BlockKind::Zil => zil::parse(order, block)?.0.open(&aead, &params.iv, &params.mac, block),
        }
    }

    /// Encrypts a block in place and returns its MAC. `iv` must never have been used with this salt
    /// before, except for equal plaintext ([`dedup_params`](DatasetKey::dedup_params)). An intent-log
    /// block also gets its MAC in its trailer, and its unused part is cleared.
    pub fn encrypt(
        &self,
        kind: BlockKind,
        order: ByteOrder,
        salt: &Salt,
        iv: &Iv,
        block: &mut [u8],
    ) -> Result<Mac> {
        let aead = self.block_cipher(salt)?;
        match kind {
            BlockKind::Data => aead.seal(iv, &[], block),
            BlockKind::Dnode => dnode::parse(self.version(), order, block)?.seal(&aead, iv, block),
            BlockKind::Zil => {
                let (parts, used) = zil::parse(order, block)?;
                let mac = parts.seal(&aead, iv, block)?;
                if let Some(unused) = block.get_mut(used..) {
                    unused.fill(0);
                }
                zil::set_zil_mac(block, &mac);
                Ok(mac)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Suite, zil_mac};

    fn key(suite: Suite) -> DatasetKey {
        DatasetKey::new(suite, 1, 1, &vec![9; suite.key_len()], &[8; 64]).unwrap()
    }

    #[test]
    fn data_round_trips_in_every_suite() {
        for suite in Suite::ALL {
            let key = key(suite);
            let plain: Vec<u8> = (0..5000).map(|n| n as u8).collect();
            let mut block = plain.clone();
            let mac = key.encrypt(BlockKind::Data, ByteOrder::Little, &[1; 8], &[2; 12], &mut block).unwrap();
            assert_ne!(block, plain);
            let params = BlockParams { salt: [1; 8], iv: [2; 12], mac };
            let mut bad = block.clone();
            bad[4999] ^= 1;
            let got = key.decrypt(BlockKind::Data, ByteOrder::Little, &params, &mut bad);
            assert_eq!(got, Err(Error::BadMac));
            key.decrypt(BlockKind::Data, ByteOrder::Little, &params, &mut block).unwrap();
            assert_eq!(block, plain);
        }
    }

    #[test]
    fn dnodes_keep_all_but_the_bonus_in_the_clear() {
        let mut block = vec![0; 1024];
        block[..8].copy_from_slice(&[19, 17, 1, 1, 44, 0, 0, !4]);
        block[10] = 168;
        block[192..512].fill(7);
        let plain = block.clone();
        let key = key(Suite::Aes192Gcm);
        let mac = key.encrypt(BlockKind::Dnode, ByteOrder::Little, &[1; 8], &[2; 12], &mut block).unwrap();
        assert_eq!(block[..192], plain[..192]);
        assert_ne!(block[192..512], plain[192..512]);
        // Fields that are not portable may change; portable ones may not.
        (block[24], block[7]) = (99, 0);
        let params = BlockParams { salt: [1; 8], iv: [2; 12], mac };
        let mut bad = block.clone();
        bad[16] = 1; // dn_maxblkid
        assert_eq!(key.decrypt(BlockKind::Dnode, ByteOrder::Little, &params, &mut bad), Err(Error::BadMac));
        key.decrypt(BlockKind::Dnode, ByteOrder::Little, &params, &mut block).unwrap();
        assert_eq!(block[192..], plain[192..]);
    }

    #[test]
    fn log_blocks_carry_their_mac() {
        let mut block = vec![0; 4096];
        block[136..144].copy_from_slice(&(184_u64 + 192 + 8).to_le_bytes());
        block[184] = 9; // TX_WRITE
        block[192] = 200;
        block[216..384].fill(5);
        block[4000] = 1; // beyond the used part
        let plain = block.clone();
        let key = key(Suite::Aes128Ccm);
        key.encrypt(BlockKind::Zil, ByteOrder::Little, &[1; 8], &[2; 12], &mut block).unwrap();
        assert_eq!((block[4000], &block[248..376]), (0, &plain[248..376]));
        assert_ne!(block[376..384], plain[376..384]);
        let params = BlockParams { salt: [1; 8], iv: [2; 12], mac: zil_mac(&block).unwrap() };
        key.decrypt(BlockKind::Zil, ByteOrder::Little, &params, &mut block).unwrap();
        assert_eq!(block[184..384], plain[184..384]);
    }

    proptest::proptest! {
        #[test]
        fn hostile_blocks_never_panic(mut bytes: Vec<u8>, big: bool) {
            let order = if big { ByteOrder::Big } else { ByteOrder::Little };
            bytes.resize(bytes.len() * 16, 3);
            for kind in [BlockKind::Data, BlockKind::Dnode, BlockKind::Zil] {
                let got = key(Suite::Aes128Gcm).decrypt(kind, order, &BlockParams::default(), &mut bytes.clone());
                assert!(got.is_err());
            }
        }
    }
}
