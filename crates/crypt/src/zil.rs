//! Intent-log blocks in encrypted datasets (`zil_chain_t`, `lr_t`, `lr_write_t`, `lr_clone_range_t`,
//! zil.h; `zio_crypt_init_uios_zil`, OpenZFS 2.3).
//!
//! ```text
//! zil_chain_t 184 bytes: pad, next pointer, nused authenticated; trailer (magic, checksum with the MAC
//!                        in its words 2 and 3) not
//! each record: lr_t 32 bytes authenticated, body encrypted; but
//!   TX_WRITE        32 bytes encrypted, block pointer 128 authenticated, data encrypted
//!   TX_CLONE_RANGE  32 bytes encrypted, count and block pointers authenticated
//! ```
//!
//! Only the chained form with the header in front exists here: the older one is older than encryption.

use crate::bp::ByteOrder;
use crate::error::{Error, Result};
use crate::segments::Segments;
use crate::{Mac, bytes};

/// Size of the chain header.
const CHAIN_SIZE: usize = 184;
/// The header without its trailer.
const CHAIN_AUTH: usize = 144;
const CHAIN_NUSED: usize = 136;
const CHAIN_MAC: usize = 168;
/// Size of the header of every record.
const RECORD_SIZE: usize = 32;
const RECORD_LEN: usize = 8;
/// Size of a write record without data.
const WRITE_SIZE: usize = 192;
/// Where the clear part of a write or clone record starts.
const CLEAR_START: usize = 64;
const TX_WRITE: u64 = 9;
const TX_CLONE_RANGE: u64 = 24;

/// The MAC inside an intent-log block as read from disk; `None` when the block is too short.
#[doc(alias = "zio_crypt_decode_mac_zil")]
pub fn zil_mac(block: &[u8]) -> Option<Mac> {
    bytes::array(block, CHAIN_MAC)
}

/// Puts the MAC into an intent-log block; false when the block is too short.
#[doc(alias = "zio_crypt_encode_mac_zil")]
pub fn set_zil_mac(block: &mut [u8], mac: &Mac) -> bool {
    bytes::put(block, CHAIN_MAC, mac)
}

/// Finds the parts of an intent-log block, and how many bytes of it are used.
pub(crate) fn parse(order: ByteOrder, block: &[u8]) -> Result<(Segments, usize)> {
    let bad = |offset| Error::Malformed { what: "intent log", offset };
    let number = |at: usize| bytes::array(block, at).map(|b| order.read(b)).ok_or(bad(at));
    let used = usize::try_from(number(CHAIN_NUSED)?).map_err(|_| bad(CHAIN_NUSED))?;
    if used < CHAIN_SIZE || used > block.len() {
        return Err(bad(CHAIN_NUSED));
    }
    let mut parts = Segments::default();
    parts.aad.extend_from_slice(block.get(..CHAIN_AUTH).ok_or(bad(0))?);
    let mut offset = CHAIN_SIZE;
    while offset < used {
        let kind = number(offset)?;
        let len = usize::try_from(number(offset + RECORD_LEN)?).map_err(|_| bad(offset))?;
        let end = offset.checked_add(len).filter(|end| *end <= block.len()).ok_or(bad(offset))?;
        let record = block.get(offset..end).ok_or(bad(offset))?;
        add_record(&mut parts, kind, record, offset).ok_or(bad(offset))?;
        offset = end;
    }
    Ok((parts, offset))
}

/// `None` when the record is shorter than its kind must be.
fn add_record(parts: &mut Segments, kind: u64, record: &[u8], offset: usize) -> Option<()> {
    let mut encrypt = |from: usize, to: usize| parts.encrypted.push(offset + from..offset + to);
    parts.aad.extend_from_slice(record.get(..RECORD_SIZE)?);
    // The transaction type's top bit says "case-insensitive"; OpenZFS compares the whole word too.
    match kind {
        TX_WRITE => {
            parts.aad.extend_from_slice(record.get(CLEAR_START..WRITE_SIZE)?);
            encrypt(RECORD_SIZE, CLEAR_START);
            if record.len() > WRITE_SIZE {
                encrypt(WRITE_SIZE, record.len());
            }
        }
        TX_CLONE_RANGE => {
            parts.aad.extend_from_slice(record.get(CLEAR_START..)?);
            encrypt(RECORD_SIZE, CLEAR_START);
        }
        _ => encrypt(RECORD_SIZE, record.len()),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(records: &[(u64, usize)], order: ByteOrder) -> Vec<u8> {
        let mut block = vec![0; CHAIN_SIZE];
        for (kind, len) in records {
            let mut record = vec![0; *len];
            record[..8].copy_from_slice(&order.write(*kind));
            record[8..16].copy_from_slice(&order.write(*len as u64));
            block.extend(record);
        }
        let used = block.len() as u64;
        block[CHAIN_NUSED..CHAIN_NUSED + 8].copy_from_slice(&order.write(used));
        block.resize(4096, 0);
        block
    }

    #[test]
    fn parts_by_kind_in_both_orders() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let b =
                block(&[(TX_WRITE, 192), (TX_WRITE, 200), (TX_CLONE_RANGE, 64 + 8 + 128), (1, 40)], order);
            let (parts, used) = parse(order, &b).unwrap();
            let (w, w2, c, o) = (184, 376, 576, 776);
            assert_eq!(
                parts.encrypted,
                [w + 32..w + 64, w2 + 32..w2 + 64, w2 + 192..w2 + 200, c + 32..c + 64, o + 32..o + 40]
            );
            assert_eq!(parts.aad.len(), 144 + (32 + 128) * 2 + 32 + 136 + 32);
            assert_eq!(used, 816);
        }
    }

    #[test]
    fn records_that_do_not_fit_are_errors() {
        let order = ByteOrder::Little;
        for bad in [(TX_WRITE, 191), (TX_CLONE_RANGE, 63), (1, 31), (1, 16)] {
            assert!(parse(order, &block(&[bad], order)).is_err(), "{bad:?}");
        }
        let mut endless = block(&[(1, 40)], order);
        endless[CHAIN_SIZE + 8..CHAIN_SIZE + 16].fill(0); // a record of no length
        assert!(parse(order, &endless).is_err());
        endless[CHAIN_SIZE + 8..CHAIN_SIZE + 16].fill(0xff);
        assert!(parse(order, &endless).is_err());
        assert!(parse(order, &[0; 100]).is_err());
    }

    #[test]
    fn mac_lies_in_the_trailer() {
        let mut b = vec![0; 4096];
        assert!(set_zil_mac(&mut b, &[5; 16]));
        assert_eq!(b.iter().position(|x| *x == 5), Some(168));
        assert_eq!(zil_mac(&b), Some([5; 16]));
        assert_eq!(zil_mac(&b[..180]), None);
    }
}
