//! The token with which an interrupted receive is resumed.
//!
//! ```text
//! 1-9d9a479bc-b8-789c63…
//! │ │         │  └ packed list, gzip, in hex
//! │ │         └ its size when packed
//! │ └ first word of fletcher4 over the compressed bytes
//! └ version
//! ```
//!
//! Differs from OpenZFS: another implementation of gzip may give other bytes for the same list, so a token
//! may read differently and mean the same.

use std::fmt::Write;

use nvpair::{NvList, NvValue};
use ondisk::names::dsl_dataset as field;
use ondisk::names::special_dir;

use super::stats::REDACTED;
use crate::dsl::{Dataset, RECEIVE_CHILD};
use crate::error::{Error, Result};
use crate::zap::Zap;

/// The version of tokens that there is.
#[doc(alias = "ZFS_SEND_RESUME_TOKEN_VERSION")]
const VERSION: u32 = 1;
/// Largest list that a token is unpacked to. Those of OpenZFS have some hundred bytes, with the guids of redaction
/// snapshots some thousand.
const MOST: usize = 16 << 20;
/// Level of gzip that OpenZFS uses for tokens.
const LEVEL: u8 = 6;

/// The token of a head dataset into which a receive was interrupted.
#[doc(alias = "get_receive_resume_token")]
pub fn token(head: &Dataset) -> Result<Option<String>> {
    if head.name.contains(special_dir::MOS) {
        return Ok(None);
    }
    if let Some(state) = state(head)? {
        return encode(&state).map(Some);
    }
    let Some(child) = head.dir()?.child(RECEIVE_CHILD)? else { return Ok(None) };
    state(&child.head()?)?.map(|state| encode(&state)).transpose()
}

/// Where a receive into `head` stopped, as a token's list has it; `None` when none was interrupted.
pub fn state(head: &Dataset) -> Result<Option<NvList>> {
    let Some(zap) = head.extras()? else { return Ok(None) };
    if zap.lookup(field::RESUME_TOGUID.as_bytes())?.is_none() {
        return Ok(None);
    }
    let mut list = NvList::new();
    let numbers = [
        ("fromguid", field::RESUME_FROMGUID),
        ("object", field::RESUME_OBJECT),
        ("offset", field::RESUME_OFFSET),
        ("bytes", field::RESUME_BYTES),
        ("toguid", field::RESUME_TOGUID),
    ];
    for (name, entry) in numbers {
        if let Some(value) = zap.u64(entry)? {
            list.add(name, value);
        }
    }
    if let Some(name) = zap.lookup(field::RESUME_TONAME.as_bytes())? {
        list.add("toname", name.string());
    }
    add_flags(&zap, &mut list)?;
    let arrays = [("redact_snaps", REDACTED), ("book_redact_snaps", field::RESUME_REDACT_BOOKMARK_SNAPS)];
    for (name, entry) in arrays {
        if let Some(value) = zap.lookup(entry.as_bytes())? {
            list.add(name, NvValue::Uint64Array(value.ints));
        }
    }
    Ok(Some(list))
}

fn add_flags(zap: &Zap, list: &mut NvList) -> Result<()> {
    let flags = [
        ("largeblockok", field::RESUME_LARGEBLOCK),
        ("embedok", field::RESUME_EMBEDOK),
        ("compressok", field::RESUME_COMPRESSOK),
        ("rawok", field::RESUME_RAWOK),
    ];
    for (name, entry) in flags {
        if zap.lookup(entry.as_bytes())?.is_some() {
            list.add(name, NvValue::Boolean);
        }
    }
    Ok(())
}

fn encode(state: &NvList) -> Result<String> {
    let packed = state.encode_native().map_err(|e| Error::corrupt(format!("resume state: {e}")))?;
    let gzip = compress::Algorithm::Gzip;
    let room = packed.len().saturating_add(64);
    let small = compress::compress(gzip, LEVEL, &packed, room)
        .ok_or_else(|| Error::corrupt("the resume state does not compress"))?;
    let words = small.len() - small.len() % 4;
    let sum = checksum::fletcher::fletcher4(small.get(..words).unwrap_or_default(), false);
    let mut token = format!("1-{:x}-{:x}-", sum.first().copied().unwrap_or(0), packed.len());
    small.iter().for_each(|byte| {
        let _ = write!(token, "{byte:02x}");
    });
    Ok(token)
}

/// Unpacks a token: `1-FLETCHER4-SIZE-ZLIB`, numbers and bytes in hexadecimal.
///
/// # Errors
/// The fault of the token, in the words of `zfs send -t`.
pub fn decode(token: &str) -> std::result::Result<NvList, String> {
    let corrupt = |what: &str| format!("resume token is corrupt ({what})");
    let mut fields = token.splitn(4, '-');
    let mut field = |what: &str| fields.next().ok_or_else(|| corrupt(what));
    let version: u32 = field("invalid version")?.parse().map_err(|_| corrupt("invalid version"))?;
    if version != VERSION {
        return Err(corrupt("invalid version"));
    }
    let bad = "payload is not valid";
    let sum = u64::from_str_radix(field(bad)?, 16).map_err(|_| corrupt(bad))?;
    let size = usize::from_str_radix(field(bad)?, 16).ok().filter(|size| *size <= MOST);
    let size = size.ok_or_else(|| corrupt("size of the list"))?;
    let packed = bytes(field(bad)?).ok_or_else(|| corrupt("payload is not hex-encoded"))?;
    // The checksum covers whole words only.
    let words = packed.get(..packed.len() - packed.len() % 4).unwrap_or_default();
    if checksum::fletcher::fletcher4(words, false).first() != Some(&sum) {
        return Err(corrupt("incorrect checksum"));
    }
    let mut list = vec![0; size];
    compress::decompress(compress::Algorithm::Gzip, &packed, &mut list)
        .map_err(|e| corrupt(&format!("decompression failed: {e}")))?;
    NvList::decode(&list).map_err(|e| corrupt(&format!("the list can't be read: {e}")))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    hex.as_bytes().chunks(2).map(pair).collect()
}
