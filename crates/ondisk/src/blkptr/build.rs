//! Making block pointers.

use super::{Blkptr, DVAS_PER_BP, Dva, EMBEDDED_PAYLOAD_SIZE, PROP};
use crate::{ChecksumType, CompressType, EmbeddedType, Endian, MIN_BLOCK_SHIFT, ObjectType};

/// The fields of a stored block's property word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Logical bytes: a multiple of 512.
    pub lsize: u64,
    /// Stored bytes: a multiple of 512.
    pub psize: u64,
    /// How it is compressed.
    pub compress: CompressType,
    /// How it is checked.
    pub checksum: ChecksumType,
    /// The type of its content.
    pub object_type: ObjectType,
    /// 0 for data.
    pub level: u8,
    /// Encrypted or authenticated.
    pub crypt: bool,
    /// Listed in the dedup table.
    pub dedup: bool,
}

const LITTLE_ENDIAN: u64 = 1 << 63;
const EMBEDDED: u64 = 1 << 39;

fn sectors(bytes: u64) -> u64 {
    assert!(bytes > 0 && bytes.is_multiple_of(1 << MIN_BLOCK_SHIFT), "a block is made of whole sectors");
    (bytes >> MIN_BLOCK_SHIFT) - 1
}

impl Blkptr {
    /// A pointer to a stored block, without copies, births, fill and checksum yet.
    pub fn stored(props: &Properties) -> Self {
        let (lsize, psize) = (sectors(props.lsize), sectors(props.psize));
        assert!(lsize < 1 << 16 && psize < 1 << 16 && props.level < 32, "a block's size fits its pointer");
        let word = lsize
            | psize << 16
            | u64::from(props.compress.raw()) << 32
            | u64::from(props.checksum.raw()) << 40
            | u64::from(props.object_type.raw()) << 48
            | u64::from(props.level) << 56
            | u64::from(props.crypt) << 61
            | u64::from(props.dedup) << 62
            | LITTLE_ENDIAN;
        let mut bp = Self::default();
        bp.set_prop(word);
        bp
    }

    /// A hole that remembers when it came to be (feature `hole_birth`).
    pub fn hole(lsize: u64, object_type: ObjectType, level: u8, birth: u64) -> Self {
        let mut bp = Self::default();
        bp.set_prop(sectors(lsize) | u64::from(object_type.raw()) << 48 | u64::from(level) << 56);
        bp.set_births(birth, birth);
        bp
    }

    /// A block of `lsize` bytes that a redacted stream left out.
    #[doc(alias("BP_SET_REDACTED", "dmu_buf_redact"))]
    pub fn redacted(lsize: u64, object_type: ObjectType, birth: u64) -> Self {
        let size = lsize.clamp(1, 1 << 25) - 1;
        let kind = u64::from(object_type.raw()) << 48;
        let mut bp = Self::default();
        bp.set_prop(size | EMBEDDED | (EmbeddedType::Redacted as u64) << 40 | kind);
        bp.set_births(birth, birth);
        bp
    }

    /// A block embedded in its pointer: `stored` is the result of compressing `lsize` bytes with `compress`,
    /// at most 112 bytes.
    #[doc(alias = "encode_embedded_bp_compressed")]
    pub fn embedded(
        stored: &[u8],
        lsize: u64,
        compress: CompressType,
        object_type: ObjectType,
        level: u8,
        birth: u64,
    ) -> Self {
        assert!((1..=EMBEDDED_PAYLOAD_SIZE).contains(&stored.len()), "an embedded payload fits its pointer");
        assert!((1..=1 << 25).contains(&lsize), "an embedded block's size fits its pointer");
        let psize = stored.len() as u64;
        let word = (lsize - 1)
            | (psize - 1) << 25
            | u64::from(compress.raw()) << 32
            | EMBEDDED
            | (EmbeddedType::Data as u64) << 40
            | u64::from(object_type.raw()) << 48
            | u64::from(level) << 56
            | LITTLE_ENDIAN;
        let mut payload = stored.chunks(8).map(|chunk| {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            u64::from_le_bytes(bytes)
        });
        let mut words = [0; 16];
        for (i, to) in words.iter_mut().enumerate() {
            *to = match i {
                6 => word,
                10 => birth,
                _ => payload.next().unwrap_or(0),
            };
        }
        Self::from_words(words)
    }

    /// The same pointer to content of this byte order.
    #[doc(alias = "BP_SET_BYTEORDER")]
    #[must_use]
    pub fn with_order(mut self, endian: Endian) -> Self {
        let order = if endian == Endian::Little { LITTLE_ENDIAN } else { 0 };
        self.set_prop(self.word::<PROP>() & !LITTLE_ENDIAN | order);
        self
    }

    /// Sets the copies; those beyond `dvas` are cleared. Of an encrypted block the third is not touched.
    pub fn set_dvas(&mut self, dvas: &[Dva]) {
        let usable = if self.is_encrypted() { DVAS_PER_BP - 1 } else { DVAS_PER_BP };
        assert!(dvas.len() <= usable, "a pointer names three copies at most, of an encrypted block two");
        for i in 0..usable {
            let [a, b] = dvas.get(i).map_or([0; 2], |dva| dva.to_words());
            self.set_word(2 * i, a);
            self.set_word(2 * i + 1, b);
        }
    }

    /// Sets the logical and the physical birth txg.
    #[doc(alias = "BP_SET_BIRTH")]
    pub fn set_births(&mut self, logical: u64, physical: u64) {
        self.set_word(9, if logical == physical { 0 } else { physical });
        self.set_word(10, logical);
    }

    /// Makes the pointer another reference, of txg `logical`, to the same block: it is not a moved one.
    pub fn set_cloned(&mut self, logical: u64) {
        if self.is_embedded() {
            // The other words have data.
            return self.set_word(10, logical);
        }
        self.set_births(logical, self.physical_birth());
        self.set_word(7, self.words()[7] & !(1 << 63));
    }

    /// Makes the pointer that of a block which was moved: written again in txg `physical` with the bytes of txg `logical`.
    /// Source: `BP_SET_REWRITE`, spa.h, OpenZFS 2.4.
    #[doc(alias = "BP_SET_REWRITE")]
    pub fn set_moved(&mut self, logical: u64, physical: u64) {
        assert!(!self.is_embedded(), "an embedded block is nowhere to be moved from");
        self.set_births(logical, physical);
        self.set_word(7, self.words()[7] | 1 << 63);
    }

    /// Sets the fill count; of an encrypted level-0 block only the lower half of the word.
    pub fn set_fill(&mut self, fill: u64) {
        let iv2 = if self.is_encrypted() { self.words()[11] & !0xffff_ffff } else { 0 };
        self.set_word(11, iv2 | fill);
    }

    /// Sets whether the block is listed in the dedup table.
    #[doc(alias = "BP_SET_DEDUP")]
    pub fn set_dedup(&mut self, dedup: bool) {
        self.set_word(6, self.prop() & !(1 << 62) | u64::from(dedup) << 62);
    }

    /// Sets the four checksum words.
    pub fn set_checksum(&mut self, words: [u64; 4]) {
        for (i, word) in words.into_iter().enumerate() {
            self.set_word(12 + i, word);
        }
    }

    /// Sets one of the sixteen words.
    pub fn set_word(&mut self, index: usize, word: u64) {
        let mut words = *self.words();
        if let Some(to) = words.get_mut(index) {
            *to = word;
        }
        *self = Self::from_words(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_pointer_says_what_it_was_given() {
        let props = Properties {
            lsize: 131_072,
            psize: 4096,
            compress: CompressType::Lz4,
            checksum: ChecksumType::Fletcher4,
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            level: 2,
            crypt: false,
            dedup: true,
        };
        let mut bp = Blkptr::stored(&props);
        let dva = Dva { vdev: 3, asize: 8192, offset: 1 << 20, ..Dva::default() };
        bp.set_dvas(&[dva]);
        bp.set_births(9, 9);
        bp.set_fill(5);
        bp.set_checksum([1, 2, 3, 4]);
        assert_eq!((bp.lsize(), bp.psize(), bp.level(), bp.dedup()), (131_072, 4096, 2, true));
        assert_eq!((bp.compress(), bp.checksum()), (Some(CompressType::Lz4), Some(ChecksumType::Fletcher4)));
        assert_eq!((bp.dva(0), bp.ndvas(), bp.physical_birth(), bp.fill()), (Some(dva), 1, 9, 5));
        assert!(bp.byteorder_is_little() && !bp.is_hole() && !bp.is_embedded());
    }

    #[test]
    fn an_encrypted_pointer_keeps_salt_and_iv_when_its_places_change() {
        let props = Properties {
            lsize: 512,
            psize: 512,
            compress: CompressType::Off,
            checksum: ChecksumType::Fletcher4,
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            level: 0,
            crypt: true,
            dedup: false,
        };
        let mut bp = Blkptr::stored(&props);
        bp.set_crypt_params([5, 6], 7);
        bp.set_dvas(&[Dva { vdev: 1, asize: 512, offset: 4096, ..Dva::default() }]);
        bp.set_fill(3);
        assert_eq!((bp.crypt_salt(), bp.crypt_iv1(), bp.crypt_iv2(), bp.fill()), (5, 6, 7, 3));
        assert_eq!((bp.ndvas(), bp.dva(2)), (1, None));
        let mut again = bp;
        again.set_crypt_params([8, 9], 10);
        assert!(bp.same_block(&again) && bp != again);
    }

    #[test]
    fn an_embedded_pointer_gives_its_bytes_back() {
        let bytes: Vec<u8> = (1..=112).collect();
        let bp = Blkptr::embedded(&bytes, 512, CompressType::Lz4, ObjectType::PLAIN_FILE_CONTENTS, 0, 77);
        assert_eq!(bp.embedded_payload().to_vec(), bytes);
        assert_eq!((bp.embedded_psize(), bp.embedded_lsize(), bp.logical_birth()), (112, 512, 77));
        assert!(bp.is_embedded() && !bp.is_hole());
    }

    #[test]
    fn a_hole_keeps_its_birth() {
        let bp = Blkptr::hole(4096, ObjectType::DNODE, 1, 8);
        assert!(bp.is_hole());
        assert_eq!((bp.logical_birth(), bp.lsize(), bp.level()), (8, 4096, 1));
    }
}
