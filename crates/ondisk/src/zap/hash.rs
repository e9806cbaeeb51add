//! The ZAP hash: a reflected CRC-64 seeded with the ZAP's salt.

use super::ZapFlags;

/// The polynomial (ECMA-182, reflected).
#[doc(alias = "ZFS_CRC64_POLY")]
pub const HASH_POLY: u64 = 0xC96C_5795_D787_0F42;

static TABLE: [u64; 256] = table();

#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const fn table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ HASH_POLY } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[inline]
fn step(crc: u64, byte: u8) -> u64 {
    #[expect(clippy::indexing_slicing, reason = "a byte indexes a table of 256")]
    let mixed = TABLE[usize::from((crc as u8) ^ byte)];
    (crc >> 8) ^ mixed
}

fn keep_high(hash: u64, bits: u32) -> u64 {
    hash & !(u64::MAX >> bits)
}

/// Hash of a string key: `name` without its NUL, already normalised if the ZAP asks for that.
///
/// Micro ZAPs have no flags: 28 bits.
pub fn hash_name(salt: u64, name: &[u8], flags: ZapFlags) -> u64 {
    keep_high(name.iter().fold(salt, |crc, &b| step(crc, b)), flags.hash_bits())
}

/// Hash of an integer-array key ([`ZapFlags::UINT64_KEY`]).
pub fn hash_words(salt: u64, key: &[u64], flags: ZapFlags) -> u64 {
    let hash = if flags.has(ZapFlags::PRE_HASHED_KEY) {
        key.first().copied().unwrap_or(0)
    } else {
        key.iter().flat_map(|w| w.to_le_bytes()).fold(salt, step)
    };
    keep_high(hash, flags.hash_bits())
}

/// The pointer-table slot of a hash, for a table indexed by `shift` bits.
#[doc(alias = "ZAP_HASH_IDX")]
pub fn table_index(hash: u64, shift: u32) -> u64 {
    if shift == 0 { 0 } else { hash >> 64u32.saturating_sub(shift) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_matches_the_polynomial() {
        assert_eq!(TABLE[128], HASH_POLY);
        assert_eq!(TABLE[1], 0xb32e_4cbe_03a7_5f6f);
    }

    #[test]
    fn only_the_high_bits_count() {
        let short = hash_name(0x1234, b"lost+found", ZapFlags::default());
        let long = hash_name(0x1234, b"lost+found", ZapFlags::HASH64);
        assert_eq!(short & ((1 << 36) - 1), 0);
        assert_eq!(long & 0xffff, 0);
        assert_eq!(short >> 36, long >> 36);
        let prehashed = ZapFlags(7);
        assert_eq!(hash_words(99, &[0x1122_3344_5566_7788, 5], prehashed), 0x1122_3344_5566_0000);
    }

    #[test]
    fn word_keys_hash_like_their_little_endian_bytes() {
        let flags = ZapFlags(3);
        let key = [0x0807_0605_0403_0201];
        assert_eq!(hash_words(7, &key, flags), hash_name(7, &[1, 2, 3, 4, 5, 6, 7, 8], flags));
    }
}
