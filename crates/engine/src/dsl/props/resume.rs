//! The token with which an interrupted receive goes on.
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
use crate::dsl::Dataset;
use crate::error::{Error, Result};
use crate::zap::Zap;

/// Name of the hidden child that an interrupted incremental receive fills.
const RECEIVE_CHILD: &str = "%recv";
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
