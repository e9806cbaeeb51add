//! Building bonus buffers and spill blocks of system attributes.
//!
//! Attributes keep their order. While all of them fit the bonus buffer, that holds them. Otherwise those that
//! the spill block's pointer (the last 128 bytes of the dnode) would touch, and all behind them, go to the
//! spill block. Whether the lengths of variable-sized attributes fit the header counts, too, and OpenZFS's way
//! of counting decides which attribute is the first to go: a buffer must not be laid out in two ways.

use super::{SA_MAGIC, SaAttr};
use crate::Malformed;

/// Bytes that a spill block's pointer takes of the bonus space.
const SPILL_POINTER: usize = 128;
/// Bytes of a header: it has room for one length.
#[doc(alias = "sa_hdr_phys_t")]
const MIN_HEADER: usize = 8;
/// Most bytes of attributes in a buffer.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
const MAX_BYTES: usize = 128 << 10;

/// An attribute with its bytes (little-endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaValue<'a> {
    /// The attribute.
    pub attr: SaAttr,
    /// Its bytes: as many as registered, or up to 65,535.
    pub bytes: &'a [u8],
}

/// How attributes are divided between bonus buffer and spill block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaSplit {
    /// Bytes of the bonus buffer's header.
    pub bonus_header: usize,
    /// Bytes of the bonus buffer.
    pub bonus_len: usize,
    /// The first attribute in the spill block; `None`: there is no spill block.
    pub spill_at: Option<usize>,
    /// Bytes of the spill block's header.
    pub spill_header: usize,
    /// Bytes used in the spill block.
    pub spill_len: usize,
}

/// Sizes of the attributes of one buffer.
struct Sizes {
    header: usize,
    total: usize,
    spill_at: Option<usize>,
}

impl SaSplit {
    /// Divides `values` when the bonus buffer may have `space` bytes without a spill block (320 in a dnode of
    /// 512 bytes).
    #[doc(alias = "sa_find_sizes")]
    pub fn of(values: &[SaValue<'_>], space: usize) -> Result<Self, Malformed> {
        values.iter().try_for_each(check)?;
        let bonus = sizes(values, Some(space));
        if bonus.total > MAX_BYTES {
            return Err(Malformed::new("sa", format!("attributes of {} bytes", bonus.total)));
        }
        let full = bonus.total + bonus.header;
        let Some(at) = bonus.spill_at else {
            return Ok(Self {
                bonus_header: bonus.header,
                bonus_len: full,
                spill_at: None,
                spill_header: 0,
                spill_len: 0,
            });
        };
        let spill = sizes(values.get(at..).unwrap_or_default(), None);
        Ok(Self {
            bonus_header: bonus.header,
            bonus_len: full.min(space.saturating_sub(SPILL_POINTER)),
            spill_at: Some(at),
            spill_header: spill.header,
            spill_len: spill.header + spill.total,
        })
    }
}

fn check(value: &SaValue<'_>) -> Result<(), Malformed> {
    let len = value.bytes.len();
    let fits = if value.attr.len == 0 { len <= 0xffff } else { len == usize::from(value.attr.len) };
    if fits {
        return Ok(());
    }
    Err(Malformed::new("sa", format!("attribute {} of {len} bytes", value.attr.num)))
}

/// Header and total size of `values` in one buffer, and where they would have to be cut: `space` is a bonus
/// buffer's, `None` for a spill block, which is never cut.
fn sizes(values: &[SaValue<'_>], space: Option<usize>) -> Sizes {
    let full = space.unwrap_or(usize::MAX);
    let (mut header, mut total, mut variable, mut given_back) = (MIN_HEADER, 0usize, 0, 0);
    let (mut cut, mut spills): (Option<usize>, bool) = (None, false);
    for (i, value) in values.iter().enumerate() {
        total = total.next_multiple_of(8) + value.bytes.len();
        if spills {
            continue;
        }
        variable += usize::from(value.attr.len == 0);
        let more = if value.attr.len == 0 && variable > 1 { 2 } else { 0 };
        let touches = space.is_some_and(|space| {
            cut.is_none() && total + (header + more).next_multiple_of(8) > space.saturating_sub(SPILL_POINTER)
        });
        if more > 0 {
            if header + more + total >= full {
                cut = cut.or(Some(i));
                spills = true;
                continue;
            }
            header += more;
            if cut.is_some() || touches {
                given_back += more;
            }
        }
        if touches {
            cut = Some(i);
        }
        spills = total + header.next_multiple_of(8) > full;
    }
    if spills {
        header -= given_back;
    }
    Sizes { header: header.next_multiple_of(8), total, spill_at: cut.filter(|_| spills) }
}

/// Writes one buffer of `len` bytes: header, lengths, attributes. `header` is as [`SaSplit`] gave it.
pub fn encode(values: &[SaValue<'_>], layout: u16, header: usize, len: usize) -> Vec<u8> {
    let info = (header as u16 >> 3) << 10 | layout & 0x3ff;
    let mut out = Vec::with_capacity(len);
    out.extend(SA_MAGIC.to_le_bytes());
    out.extend(info.to_le_bytes());
    for value in values.iter().filter(|v| v.attr.len == 0) {
        out.extend((value.bytes.len() as u16).to_le_bytes());
    }
    out.resize(header.max(out.len()), 0);
    for value in values {
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend_from_slice(value.bytes);
    }
    out.resize(len.max(out.len()), 0);
    out
}

#[cfg(test)]
mod tests {
    use super::super::{SaByteswap, SaHeader};
    use super::*;

    const WORD: SaAttr = SaAttr { num: 1, len: 8, byteswap: SaByteswap::Uint64Array };
    const TEXT: SaAttr = SaAttr { num: 2, len: 0, byteswap: SaByteswap::Uint8Array };
    static BYTES: [u8; 70_000] = [7; 70_000];

    fn values(lens: &[usize]) -> Vec<SaValue<'static>> {
        let attr = |len| if len == 8 { WORD } else { TEXT };
        lens.iter().map(|&len| SaValue { attr: attr(len), bytes: &BYTES[..len] }).collect()
    }

    #[test]
    fn attributes_that_fit_stay_in_the_bonus_buffer() {
        let split = SaSplit::of(&values(&[8, 8, 5]), 320).unwrap();
        assert_eq!((split.bonus_header, split.bonus_len, split.spill_at), (8, 29, None));
        // The pointer's space may be used as long as there is no pointer.
        let split = SaSplit::of(&values(&[8; 39]), 320).unwrap();
        assert_eq!((split.bonus_len, split.spill_at), (320, None));
    }

    #[test]
    fn attributes_that_the_pointer_touches_go_to_the_spill_block() {
        let split = SaSplit::of(&values(&[8; 40]), 320).unwrap();
        assert_eq!((split.bonus_len, split.spill_at), (192, Some(23)));
        assert_eq!((split.spill_header, split.spill_len), (8, 8 + 17 * 8));
        let split = SaSplit::of(&values(&[8, 1000]), 320).unwrap();
        assert_eq!((split.bonus_len, split.spill_at, split.spill_len), (192, Some(1), 1008));
    }

    #[test]
    fn more_lengths_need_a_longer_header() {
        let split = SaSplit::of(&values(&[8, 3, 5]), 320).unwrap();
        assert_eq!((split.bonus_header, split.bonus_len), (16, 16 + 8 + 8 + 5));
        let bytes = encode(&values(&[8, 3, 5]), 9, split.bonus_header, split.bonus_len);
        assert_eq!(bytes.len(), 37);
        let header = SaHeader::from_bytes(&bytes).unwrap();
        assert_eq!((header.layout, header.size), (9, 16));
        let lens: Vec<usize> = header.attrs(&[WORD, TEXT, TEXT]).map(|attr| attr.unwrap().1.len()).collect();
        assert_eq!(lens, [8, 3, 5]);
        // The second length goes with its attribute when that goes.
        let split = SaSplit::of(&values(&[8, 3, 500]), 320).unwrap();
        assert_eq!((split.bonus_header, split.spill_at, split.spill_header), (8, Some(2), 8));
    }

    #[test]
    fn values_that_cannot_be_stored_are_refused() {
        let wrong = SaValue { attr: WORD, bytes: &BYTES[..7] };
        assert!(SaSplit::of(&[wrong], 320).is_err());
        assert!(SaSplit::of(&values(&[66_000]), 320).is_err());
        assert!(SaSplit::of(&values(&[60_000, 60_000, 60_000]), 320).is_err());
    }
}
