//! Formats the value of each native property.

use zcommon::props::{PropInfo, PropType, ZfsProp};
use zcommon::units::{nicebytes, nicenum};

use super::row::{Prop, Source};
use super::{nice, time};

/// A value before it is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Raw {
    /// A number, or the index of an enumeration.
    Number(u64),
    /// A text.
    Text(String),
}

/// A native dataset property, ready to print.
#[doc(alias = "zfs_prop_get")]
pub fn dataset(prop: ZfsProp, raw: &Raw, source: Source) -> Prop {
    match raw {
        Raw::Text(text) => Prop::text(text.clone(), source),
        Raw::Number(n) => {
            let (nice, literal) = dataset_number(prop, *n);
            Prop { nice, literal, number: Some(*n), source, received: None }
        }
    }
}

/// In the human-readable and the literal format.
fn dataset_number(prop: ZfsProp, n: u64) -> (String, String) {
    use ZfsProp as P;
    let plain = n.to_string();
    match prop {
        P::Creation => (time::date(n), plain),
        P::SnapshotsChanged => (time::date_with_seconds(n), plain),
        // Zero prints as a plain 0.
        P::Written if n == 0 => ("0".to_owned(), plain),
        P::Quota | P::Refquota | P::Reservation | P::Refreservation if n == 0 => ("none".into(), plain),
        P::Defaultuserquota | P::Defaultgroupquota | P::Defaultprojectquota => size_or_none(n),
        P::Defaultuserobjquota | P::Defaultgroupobjquota | P::Defaultprojectobjquota if n == 0 => {
            ("none".into(), plain)
        }
        P::FilesystemLimit | P::SnapshotLimit | P::FilesystemCount | P::SnapshotCount => limit(n),
        P::Compressratio | P::Refcompressratio => (nice::ratio(n, false), nice::ratio(n, true)),
        P::Guid | P::Keyguid | P::Ivsetguid | P::Createtxg | P::Objsetid | P::Pbkdf2iters => {
            (plain.clone(), plain)
        }
        _ if is_bytes(prop) => (nicebytes(n).to_string(), plain),
        _ => number_or_word(prop.info(), n),
    }
}

fn size_or_none(n: u64) -> (String, String) {
    match n {
        0 => ("none".into(), "0".into()),
        _ => (nicebytes(n).to_string(), n.to_string()),
    }
}

/// Without a limit the literal format is `none`, too.
fn limit(n: u64) -> (String, String) {
    match n {
        u64::MAX => ("none".into(), "none".into()),
        _ => (nicenum(n).to_string(), n.to_string()),
    }
}

fn is_bytes(prop: ZfsProp) -> bool {
    use ZfsProp as P;
    matches!(
        prop,
        P::Used
            | P::Available
            | P::Referenced
            | P::Usedbysnapshots
            | P::Usedbydataset
            | P::Usedbychildren
            | P::Usedbyrefreservation
            | P::Logicalused
            | P::Logicalreferenced
            | P::Written
            | P::Quota
            | P::Refquota
            | P::Reservation
            | P::Refreservation
    )
}

/// The word of an index property, the number of any other; an index without a word is a number.
pub fn number_or_word(info: &PropInfo, n: u64) -> (String, String) {
    match (info.data_type, info.word(n)) {
        (PropType::Index, Some(word)) => (word.to_owned(), word.to_owned()),
        _ => (nicenum(n).to_string(), n.to_string()),
    }
}

/// Numbers whose columns grow.
const UNBOUNDED: [&str; 9] = [
    "creation",
    "snapshots_changed",
    "guid",
    "load_guid",
    "createtxg",
    "objsetid",
    "keyguid",
    "ivsetguid",
    "pbkdf2iters",
];

/// The width of a property's column before any value, and whether it is fixed.
#[doc(alias = "zprop_width")]
pub fn width(info: &PropInfo) -> (usize, bool) {
    let header = info.column.len();
    match info.data_type {
        PropType::Number if info.name == "health" => (8, true),
        // Dates and ids are numbers longer than five characters.
        PropType::Number => (header.max(5), !UNBOUNDED.contains(&info.name)),
        PropType::Index => (info.index.iter().map(|row| row.0.len()).fold(header, usize::max), false),
        PropType::String => (header, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(prop: ZfsProp, n: u64) -> (String, String) {
        let p = dataset(prop, &Raw::Number(n), Source::None);
        (p.nice, p.literal)
    }

    fn texts(nice: &str, literal: &str) -> (String, String) {
        (nice.to_owned(), literal.to_owned())
    }

    #[test]
    fn each_kind_of_number_has_its_form() {
        assert_eq!(both(ZfsProp::Used, 512), texts("512B", "512"));
        assert_eq!(both(ZfsProp::Recordsize, 512), texts("512", "512"));
        assert_eq!(both(ZfsProp::Recordsize, 131_072), texts("128K", "131072"));
        assert_eq!(both(ZfsProp::Quota, 0), texts("none", "0"));
        assert_eq!(both(ZfsProp::Refquota, 1 << 20), texts("1M", "1048576"));
        assert_eq!(both(ZfsProp::FilesystemCount, u64::MAX), texts("none", "none"));
        assert_eq!(both(ZfsProp::Compressratio, 251), texts("2.51x", "2.51"));
        assert_eq!(both(ZfsProp::Guid, 1 << 40), texts("1099511627776", "1099511627776"));
        assert_eq!(both(ZfsProp::Checksum, 1), texts("on", "on"));
        assert_eq!(both(ZfsProp::Checksum, 9999), texts("9.76K", "9999"));
    }

    #[test]
    fn words_of_an_enumeration_make_room() {
        assert_eq!(width(ZfsProp::Compression.info()), (14, false));
        assert_eq!(width(ZfsProp::Used.info()), (5, true));
        assert_eq!(width(ZfsProp::Refreservation.info()), (9, true));
        assert_eq!(width(ZfsProp::Guid.info()), (5, false));
        assert_eq!(width(ZfsProp::Name.info()), (4, false));
    }
}
