//! Entries of ZAPs: in general, and as directories and attribute tables.

use engine::dmu::Object;
use engine::zap::{Value, Zap, ZapEntry, ZapKey};
use ondisk::names::{crypto_key, mos};
use ondisk::sa::SaAttr;
use ondisk::znode::{dirent_object, dirent_type};

use super::dump::{Done, Dump, out};
use super::zap_stats;

/// Names of the types in a directory entry.
const KINDS: [&str; 16] = [
    "not specified",
    "FIFO",
    "Character Device",
    "3 (invalid)",
    "Directory",
    "5 (invalid)",
    "Block Device",
    "7 (invalid)",
    "Regular File",
    "9 (invalid)",
    "Symbolic Link",
    "11 (invalid)",
    "Socket",
    "Door",
    "Event Port",
    "15 (invalid)",
];

/// Entries with binary values.
const BINARY: [&str; 5] =
    [crypto_key::MASTER_KEY, crypto_key::HMAC_KEY, crypto_key::IV, crypto_key::MAC, mos::CHECKSUM_SALT];

/// Statistics only.
pub fn stats_only(dump: &mut Dump<'_>, object: &Object) -> Done {
    zap_stats::print(dump, object)
}

/// Statistics, then each entry as `line` prints it.
fn each(
    dump: &mut Dump<'_>,
    object: &Object,
    mut line: impl FnMut(&mut Dump<'_>, &ZapEntry) -> Done,
) -> Done {
    zap_stats::print(dump, object)?;
    out!(dump, "\n");
    let Ok(zap) = Zap::open(object) else { return Ok(()) };
    for entry in zap.entries() {
        dump.poll()?;
        let Some(entry) = dump.read(entry) else { continue };
        line(dump, &entry)?;
    }
    Ok(())
}

fn name(dump: &mut Dump<'_>, entry: &ZapEntry) -> Done {
    match &entry.key {
        ZapKey::Name(name) => {
            out!(dump, "\t\t");
            dump.out().write_all(name)?;
            out!(dump, " = ");
        }
        ZapKey::Words(words) => out!(dump, "\t\t0x{:010}x = ", words.first().copied().unwrap_or(0)),
    }
    Ok(())
}

/// Any ZAP: `name = value`.
pub fn entries(dump: &mut Dump<'_>, object: &Object) -> Done {
    each(dump, object, |dump, entry| {
        name(dump, entry)?;
        let words = matches!(entry.key, ZapKey::Words(_));
        if entry.value.width == 1 && !words {
            bytes(dump, entry)?;
        } else {
            numbers(dump, &entry.value)?;
        }
        out!(dump, "\n");
        Ok(())
    })
}

fn bytes(dump: &mut Dump<'_>, entry: &ZapEntry) -> Done {
    let bytes = entry.value.bytes();
    if BINARY.iter().any(|name| name.as_bytes() == entry.name()) {
        for byte in bytes {
            out!(dump, "{byte:02x}");
        }
        return Ok(());
    }
    let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
    dump.out().write_all(text)?;
    Ok(())
}

fn numbers(dump: &mut Dump<'_>, value: &Value) -> Done {
    for n in &value.ints {
        if value.width == 8 {
            out!(dump, "{} ", n.cast_signed());
        } else {
            out!(dump, "{n} ");
        }
    }
    Ok(())
}

/// A directory: the object and type of each name.
pub fn directory(dump: &mut Dump<'_>, object: &Object) -> Done {
    each(dump, object, |dump, entry| {
        let value = entry.value.first().unwrap_or(0);
        name(dump, entry)?;
        let kind = KINDS.get(usize::from(dirent_type(value))).copied().unwrap_or("");
        out!(dump, "{} (type: {kind})\n", dirent_object(value));
        Ok(())
    })
}

/// The registry of system attributes: `[length:byte swap:number]`.
pub fn sa_attrs(dump: &mut Dump<'_>, object: &Object) -> Done {
    each(dump, object, |dump, entry| {
        name(dump, entry)?;
        let Some(value) = entry.value.first() else {
            out!(dump, "\n");
            return Ok(());
        };
        let (len, swap, num) = match SaAttr::from_registry(value) {
            Ok(attr) => (attr.len, attr.byteswap as u8, attr.num),
            Err(_) => ((value >> 24) as u16, (value >> 16) as u8, value as u16),
        };
        out!(dump, " {value:x} : [{len}:{swap}:{num}]\n");
        Ok(())
    })
}

/// Layouts of system attributes: the numbers of their attributes.
pub fn sa_layouts(dump: &mut Dump<'_>, object: &Object) -> Done {
    each(dump, object, |dump, entry| {
        name(dump, entry)?;
        out!(dump, "[");
        for n in &entry.value.ints {
            out!(dump, " {n} ");
        }
        out!(dump, "]\n");
        Ok(())
    })
}
