//! Packed name-value lists, arrays of words, the history's header.

use engine::dmu::Object;
use nvpair::NvList;
use ondisk::pool::SpaHistory;

use super::dump::{Done, Dump, out};

/// Maximum size of a packed list.
const MAX_LIST: u64 = 16 << 20;
/// Maximum printed bytes of an array.
const MAX_ARRAY: u64 = 1 << 20;

/// A packed list; its length is in the bonus buffer.
pub fn packed_nvlist(dump: &mut Dump<'_>, object: &Object) -> Done {
    let size = object.dnode.bonus().first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
    let size = usize::try_from(size.min(MAX_LIST).min(object.max_offset())).unwrap_or(0);
    let Some(bytes) = dump.read(object.read_vec(0, size)) else { return Ok(()) };
    match NvList::decode(&bytes) {
        Ok(list) => out!(dump, "{}", list.dump(8)),
        Err(e) => dump.problem(format_args!("object {}: {e}", object.number)),
    }
    Ok(())
}

/// An object of words, with `-dddddd`.
pub fn array(dump: &mut Dump<'_>, object: &Object) -> Done {
    if dump.d < 6 {
        return Ok(());
    }
    let size = usize::try_from(object.max_offset().min(MAX_ARRAY)).unwrap_or(0);
    let Some(bytes) = dump.read(object.read_vec(0, size)) else { return Ok(()) };
    list(dump, &bytes)?;
    let more = if object.max_offset() > MAX_ARRAY { ", ... " } else { "" };
    out!(dump, "{more}]\n");
    Ok(())
}

/// Words, four per line, with `-dddddd`.
pub fn words(dump: &mut Dump<'_>, bytes: &[u8]) -> Done {
    if dump.d < 6 {
        return Ok(());
    }
    list(dump, bytes)?;
    out!(dump, "]\n");
    Ok(())
}

fn list(dump: &mut Dump<'_>, bytes: &[u8]) -> Done {
    let words = bytes.as_chunks::<8>().0;
    out!(dump, "\t\t[");
    for (i, word) in words.iter().enumerate() {
        let sep = match i {
            0 => "",
            _ if i % 4 == 0 => ",\n\t\t",
            _ => ", ",
        };
        out!(dump, "{sep}{:x}", u64::from_le_bytes(*word));
    }
    Ok(())
}

/// The history's header.
pub fn history_offsets(dump: &mut Dump<'_>, bonus: &[u8]) -> Done {
    let Ok(history) = SpaHistory::from_bytes(bonus) else { return Ok(()) };
    out!(dump, "\t\tpool_create_len = {}\n", history.pool_create_len);
    out!(dump, "\t\tphys_max_off = {}\n", history.phys_max_off);
    out!(dump, "\t\tbof = {}\n\t\teof = {}\n", history.bof, history.eof);
    out!(dump, "\t\trecords_lost = {}\n", history.records_lost);
    Ok(())
}
