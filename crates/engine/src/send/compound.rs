//! The records around the streams of several snapshots, or of one with its properties.
//!
//! ```text
//! BEGIN (compound), a packed list: names, properties, snapshots   END with its checksum
//! stream, stream, …
//! END of zeros
//! ```
//!
//! Source: `send_prelim_records`, `send_conclusion_record`, libzfs_sendrecv.c, OpenZFS 2.3.

use std::io::Write;

use checksum::Fletcher4;
use nvpair::NvList;
use ondisk::drr::{DRR_MAGIC, Drr, DrrBegin, DrrBody, DrrEnd};
use ondisk::{Endian, Raw};

use super::output;
use crate::error::{Error, Kind, Result};

/// Kind of stream: others follow.
#[doc(alias = "DMU_COMPOUNDSTREAM")]
const COMPOUND: u64 = 2;

/// Writes the records before the streams. `features` are bits of [`ondisk::drr::stream_feature`]; `toname` is
/// the snapshot that was asked for; `list` is packed as XDR. `None` writes the records without a list.
///
/// # Errors
/// `TooLong` for a name of more than 255 bytes, and errors of `out`.
pub fn begin(out: &mut dyn Write, toname: &str, features: u64, list: Option<&NvList>) -> Result<()> {
    let mut name = [0; 256];
    let room = name.get_mut(..toname.len()).filter(|_| toname.len() < 256);
    room.ok_or_else(|| Error::new(Kind::TooLong, "the dataset's name is too long"))?
        .copy_from_slice(toname.as_bytes());
    let packed = match list {
        Some(list) => list.encode_xdr().map_err(|e| Error::corrupt(e.to_string()))?,
        None => Vec::new(),
    };
    let versioninfo = COMPOUND | features << 2;
    let begin = DrrBegin { magic: DRR_MAGIC, versioninfo, toname: Raw(name), ..DrrBegin::default() };
    let payloadlen = u32::try_from(packed.len()).map_err(|_| Error::corrupt("the list is too long"))?;
    let bytes = Drr { payloadlen, body: DrrBody::Begin(begin), checksum: None }.to_bytes(Endian::Little);
    let mut sum = Fletcher4::new(false);
    sum.update(&bytes);
    sum.update(&packed);
    let written = out.write_all(&bytes).and_then(|()| out.write_all(&packed));
    written.map_err(output)?;
    end_with(out, sum.finish())
}

/// Writes the records after the streams.
///
/// # Errors
/// Errors of `out`.
pub fn end(out: &mut dyn Write) -> Result<()> {
    end_with(out, [0; 4])?;
    out.flush().map_err(output)
}

fn end_with(out: &mut dyn Write, checksum: [u64; 4]) -> Result<()> {
    let body = DrrBody::End(DrrEnd { checksum, toguid: 0 });
    let bytes = Drr { payloadlen: 0, body, checksum: Some([0; 4]) }.to_bytes(Endian::Little);
    out.write_all(&bytes).map_err(output)
}
