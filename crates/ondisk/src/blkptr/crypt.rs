//! Block pointers of encrypted datasets.

use super::FILL;
use super::dva::bits;
use crate::{Blkptr, ObjectType};

impl Blkptr {
    /// Encrypted, authenticated, or a checksum of MACs (levels above 0).
    pub fn uses_crypt(&self) -> bool {
        self.prop_bits(61, 1) != 0
    }

    /// The block's bytes are ciphertext.
    pub fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && self.object_type().is_encrypted()
    }

    /// The block's bytes are clear, with a MAC.
    pub fn is_authenticated(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && !self.object_type().is_encrypted()
    }

    /// Either of the two above.
    pub fn is_protected(&self) -> bool {
        self.uses_crypt() && self.level() == 0
    }

    /// An indirect block of an encrypted dataset: its MAC words are a checksum of the MACs below.
    pub fn has_indirect_mac(&self) -> bool {
        self.uses_crypt() && self.level() > 0
    }

    /// Salt of an encrypted block, as a word.
    pub fn crypt_salt(&self) -> u64 {
        self.word::<4>()
    }

    /// First 64 bits of the IV of an encrypted block, as a word.
    pub fn crypt_iv1(&self) -> u64 {
        self.word::<5>()
    }

    /// Last 32 bits of the IV of an encrypted block, as a word.
    pub fn crypt_iv2(&self) -> u32 {
        bits(self.word::<FILL>(), 32, 32) as u32
    }

    fn ordered(&self, word: u64) -> [u8; 8] {
        if self.byteorder_is_little() { word.to_le_bytes() } else { word.to_be_bytes() }
    }

    /// The salt as the bytes that key derivation wants.
    pub fn salt_bytes(&self) -> [u8; 8] {
        self.ordered(self.crypt_salt())
    }

    /// The 96-bit IV as bytes.
    pub fn iv_bytes(&self) -> [u8; 12] {
        let iv2 = self.crypt_iv2();
        let tail = if self.byteorder_is_little() { iv2.to_le_bytes() } else { iv2.to_be_bytes() };
        let mut out = [0; 12];
        for (to, from) in out.iter_mut().zip(self.ordered(self.crypt_iv1()).into_iter().chain(tail)) {
            *to = from;
        }
        out
    }

    /// Puts salt and IV of an encrypted block, as words, where they belong: the third address and the upper half
    /// of the fill count.
    #[doc(alias = "zio_crypt_encode_params_bp")]
    pub fn set_crypt_params(&mut self, [salt, iv1]: [u64; 2], iv2: u32) {
        let fill = bits(self.word::<FILL>(), 0, 32);
        self.set_word(4, salt);
        self.set_word(5, iv1);
        self.set_word(FILL, u64::from(iv2) << 32 | fill);
    }

    /// The 128-bit MAC of a protected block (or checksum of MACs); zero for an objset, which has its own.
    pub fn mac(&self) -> [u8; 16] {
        let mut out = [0; 16];
        if self.object_type() == ObjectType::OBJSET {
            return out;
        }
        let bytes = [self.word::<14>(), self.word::<15>()].map(|w| self.ordered(w));
        for (to, from) in out.iter_mut().zip(bytes.as_flattened()) {
            *to = *from;
        }
        out
    }
}
