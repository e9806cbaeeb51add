//! Values of dedup tables, as they are stored.

use super::{DDT_TRAD_SIZE, DdtKey, DdtPhys, DdtPhysFlat, DdtPhysTrad};
use crate::CompressType;

/// The byte order bit of a stored value: little-endian.
const LITTLE: u8 = 0x80;
/// Most literals that one head byte stands for.
const LITERALS: usize = 64;
/// Most zeros that one head byte stands for.
const ZEROS: usize = 192;

impl DdtKey {
    /// Its words, as they are the ZAP's key.
    pub fn to_words(&self) -> [u64; 5] {
        let [a, b, c, d] = self.cksum;
        [a, b, c, d, self.prop]
    }
}

/// A value of its used variants, not yet packed.
pub fn encode_value(flat: bool, phys: &[DdtPhys]) -> Vec<u8> {
    if flat {
        let first = phys.first().map(|p| DdtPhysFlat {
            dva: p.dva_words,
            refcnt: p.refcnt,
            phys_birth: p.phys_birth,
            class_start: p.class_start.unwrap_or(0),
        });
        return first.unwrap_or_default().to_bytes();
    }
    let mut all = [DdtPhysTrad::default(); 4];
    for p in phys {
        if let Some(slot) = all.get_mut(usize::from(p.variant)) {
            *slot = DdtPhysTrad { dva: p.dva_words, refcnt: p.refcnt, phys_birth: p.phys_birth };
        }
    }
    let bytes: Vec<u8> = all.iter().flat_map(DdtPhysTrad::to_bytes).collect();
    debug_assert_eq!(bytes.len(), DDT_TRAD_SIZE);
    bytes
}

/// A record of a log. `class` is the number of the class whose ZAP has the key's entry; `None`: there is none.
#[doc(alias = "ddt_log_entry")]
pub fn log_record(flat: bool, class: Option<u8>, key: &DdtKey, phys: &[DdtPhys]) -> Vec<u8> {
    // Types and classes beyond the last mean: not stored.
    let (kind, class) = class.map_or((1, 3), |class| (0, class));
    let value = encode_value(flat, phys);
    let len = (8 + DdtKey::SIZE + value.len()) as u64;
    let info: u64 = 1 | len << 8 | kind << 48 | u64::from(class) << 56;
    [info.to_le_bytes().as_slice(), &key.to_bytes(), &value].concat()
}

/// Packs a value (little-endian) as the ZAP stores it.
#[doc(alias = "ddt_zap_compress")]
pub fn compress_value(value: &[u8]) -> Vec<u8> {
    let packed = zle(value);
    let (kind, bytes) = match packed.len() < value.len() {
        true => (CompressType::Zle, packed.as_slice()),
        false => (CompressType::Off, value),
    };
    let mut stored = vec![LITTLE | kind.raw()];
    stored.extend_from_slice(bytes);
    stored
}

fn zle(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    while !bytes.is_empty() {
        let zeros = bytes.iter().take(ZEROS).take_while(|&&b| b == 0).count();
        // A single zero between literals is a literal.
        let literals = bytes.windows(2).take(LITERALS).take_while(|pair| *pair != [0, 0]).count();
        let (len, head) = match zeros {
            0 | 1 => {
                // The last byte begins no pair.
                let whole = if literals + 1 == bytes.len() { literals + 1 } else { literals };
                let len = whole.clamp(1, LITERALS);
                (len, len - 1)
            }
            _ => (zeros, zeros - 1 + LITERALS),
        };
        let (now, rest) = bytes.split_at(len);
        out.push(u8::try_from(head).unwrap_or(u8::MAX));
        if head < LITERALS {
            out.extend_from_slice(now);
        }
        bytes = rest;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{decode_value, decompress_value};
    use super::*;

    #[test]
    fn packing_and_unpacking_agree() {
        let mut seed = 7_u64;
        for len in [0, 1, 2, 63, 64, 65, 72, 191, 192, 193, 256] {
            for dense in [0, 1, 2, 3, 60] {
                let mut bytes = vec![0; len];
                for byte in &mut bytes {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *byte = if (seed >> 33) % 64 < dense { (seed >> 40) as u8 } else { 0 };
                }
                let stored = compress_value(&bytes);
                assert!(stored.len() <= len + 1);
                assert_eq!(decompress_value(&stored, len).unwrap(), bytes, "{len} bytes");
            }
        }
    }

    #[test]
    fn variants_keep_their_places() {
        let one = DdtPhys {
            variant: 2,
            dva_words: [[1, 2], [3, 4], [0, 0]],
            refcnt: 5,
            phys_birth: 6,
            class_start: None,
        };
        assert_eq!(decode_value(false, &encode_value(false, &[one])).unwrap(), [one]);
        let flat = DdtPhys { variant: 4, class_start: Some(9), ..one };
        assert_eq!(decode_value(true, &encode_value(true, &[flat])).unwrap(), [flat]);
    }
}
