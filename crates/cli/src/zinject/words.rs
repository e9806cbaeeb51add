//! The words of `zinject`'s options.

use clikit::verb::Failure;
use engine::inject::{ALWAYS, FaultError, IoType};
use ondisk::ObjectType;
use ondisk::label::{BOOTENV_OFFSET, BOOTENV_SIZE, PHYS_OFFSET, PHYS_SIZE, RING_OFFSET, RING_SIZE};

/// Errors by name.
pub(super) const ERRORS: [(&str, FaultError); 8] = [
    ("io", FaultError::Io),
    ("checksum", FaultError::Checksum),
    ("decompress", FaultError::Decompress),
    ("decrypt", FaultError::Decrypt),
    ("nxio", FaultError::Nxio),
    ("dtl", FaultError::Dtl),
    ("corrupt", FaultError::Corrupt),
    ("noop", FaultError::Noop),
];

/// Requests by name.
pub(super) const IOS: [(&str, IoType); 8] = [
    ("read", IoType::Read),
    ("write", IoType::Write),
    ("free", IoType::Free),
    ("claim", IoType::Claim),
    ("flush", IoType::Flush),
    ("trim", IoType::Trim),
    ("probe", IoType::Probe),
    ("all", IoType::All),
];

/// Types of blocks of the MOS.
pub(super) const MOS: [(&str, Option<ObjectType>); 7] = [
    ("mos", None),
    ("mosdir", Some(ObjectType::OBJECT_DIRECTORY)),
    ("metaslab", Some(ObjectType::OBJECT_ARRAY)),
    ("config", Some(ObjectType::PACKED_NVLIST)),
    ("bpobj", Some(ObjectType::BPOBJ)),
    ("spacemap", Some(ObjectType::SPACE_MAP)),
    ("errlog", Some(ObjectType::ERROR_LOG)),
];

/// A state that a device is put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Degrade,
    Fault,
}

pub(super) fn find<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    table.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, value)| *value)
}

pub(super) fn error(word: &str) -> Result<FaultError, Failure> {
    let known = "io decompress decrypt nxio dtl corrupt noop";
    let invalid = || Failure::usage(format!("invalid error type '{word}': must be one of: {known}"));
    find(&ERRORS, word).ok_or_else(invalid)
}

pub(super) fn io(word: &str) -> Result<IoType, Failure> {
    let known = "must be 'read', 'write', 'free', 'claim', 'flush' or 'all'";
    find(&IOS, word).ok_or_else(|| Failure::usage(format!("invalid I/O type '{word}': {known}")))
}

pub(super) fn change(word: &str) -> Result<Change, Failure> {
    let invalid = || Failure::usage(format!("invalid action '{word}': must be 'degrade' or 'fault'"));
    find(&[("degrade", Change::Degrade), ("fault", Change::Fault)], word).ok_or_else(invalid)
}

/// First and last byte of a part of the label.
pub(super) fn label(word: &str) -> Result<(u64, u64), Failure> {
    let parts = [
        ("pad1", (0, BOOTENV_OFFSET)),
        ("pad2", (BOOTENV_OFFSET, BOOTENV_SIZE)),
        ("nvlist", (PHYS_OFFSET, PHYS_SIZE)),
        ("uber", (RING_OFFSET, RING_SIZE)),
    ];
    let (start, len) =
        find(&parts, word).ok_or_else(|| Failure::usage(format!("invalid label type '{word}'")))?;
    Ok((start, start + len - 1))
}

/// Millionths of a percentage.
#[doc(alias = "parse_frequency")]
pub(super) fn frequency(word: &str) -> Result<u64, Failure> {
    let percent = word.parse::<f64>().map_err(|_| Failure::usage(format!("invalid value: {word}")))?;
    if !(0.0001..=100.0).contains(&percent) {
        return Err(Failure::usage("out of range: frequency value must be in the range [0.0001, 100.0]"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 1 to ALWAYS")]
    let millionths = (percent / 100.0 * 1_000_000.0).round() as u64;
    Ok(millionths.clamp(1, ALWAYS))
}

/// Milliseconds and lanes.
#[doc(alias = "parse_delay")]
pub(super) fn delay(word: &str) -> Result<(u64, usize), Failure> {
    let invalid = || Failure::usage(format!("invalid i/o delay value: '{word}'"));
    let (latency, lanes) = word.split_once(':').ok_or_else(invalid)?;
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|&n| n > 0);
    let latency = number(latency).filter(|&n| n <= 86_400_000).ok_or_else(invalid)?;
    let lanes = number(lanes).filter(|&n| n < 65_535).ok_or_else(invalid)?;
    Ok((latency, usize::try_from(lanes).unwrap_or(1)))
}

/// The mask of a list of DVAs.
#[doc(alias = "parse_dvas")]
pub(super) fn dvas(word: &str) -> Result<u32, Failure> {
    let what = "DVAs should be 0 indexed and separated by commas.";
    let bit = |text: &str| text.parse::<u32>().ok().filter(|&index| index < 3).map(|index| 1 << index);
    let bits: Option<Vec<u32>> = word.split(',').map(bit).collect();
    let mask = bits.map(|bits| bits.iter().fold(0, |mask, bit| mask | bit)).filter(|&mask| mask != 0);
    mask.ok_or_else(|| Failure::usage(format!("invalid DVA list '{word}': {what}")))
}

/// `start[,end]`, in bytes; the end of one number is that number.
#[doc(alias = "parse_range")]
pub(super) fn range(word: &str) -> Result<(u64, u64), Failure> {
    let form = "must be a numeric range of the form 'start[,end]'";
    let number = |text: &str| {
        let text = text.trim();
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
    };
    let parsed = match word.split_once(',') {
        None => number(word).map(|start| (start, start)),
        Some((start, end)) => number(start).zip(number(end)),
    };
    parsed
        .filter(|(start, end)| start <= end)
        .ok_or_else(|| Failure::usage(format!("invalid range '{word}': {form}")))
}

/// `objset:object:level:start[-end]`, hexadecimal; OpenZFS's `…:start:end`, too.
#[doc(alias = "translate_raw")]
pub(super) fn bookmark(word: &str) -> Result<(u64, u64, i64, (u64, u64)), Failure> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let parsed = (|| {
        let mut words = word.split([':', '-']);
        let mut next = || number(words.next()?);
        let (objset, object, level, start) = (next()?, next()?, next()?, next()?);
        let end = match words.next() {
            None => start,
            Some(text) => number(text)?,
        };
        let level = i64::try_from(level).ok()?;
        (words.next().is_none() && start <= end).then_some((objset, object, level, (start, end)))
    })();
    let form = "must be of the form 'objset:object:level:blkid'";
    parsed.ok_or_else(|| Failure::usage(format!("bad raw spec '{word}': {form}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_options() {
        assert_eq!(frequency("100").unwrap(), ALWAYS);
        assert_eq!(frequency("0.0001").unwrap(), 1);
        assert_eq!(frequency("0.25").unwrap(), 2500);
        assert!(frequency("0").is_err() && frequency("101").is_err() && frequency("NaN").is_err());
        assert_eq!(delay("10:2").unwrap(), (10, 2));
        assert!(
            delay("10").is_err()
                && delay("0:1").is_err()
                && delay("1:0").is_err()
                && delay("1:65535").is_err()
        );
        assert_eq!(dvas("0,2").unwrap(), 5);
        assert!(dvas("3").is_err() && dvas("").is_err());
        assert_eq!(range("0x10,32").unwrap(), (16, 32));
        assert!(range("9,1").is_err());
        assert_eq!(bookmark("36:80:0:3fff").unwrap(), (0x36, 0x80, 0, (0x3fff, 0x3fff)));
        assert_eq!(bookmark("36:80:1:0-f").unwrap(), (0x36, 0x80, 1, (0, 15)));
        assert!(bookmark("36:80:1").is_err() && bookmark("36:80:1:0:1:2").is_err());
        assert_eq!(label("uber").unwrap(), (128 << 10, (256 << 10) - 1));
    }
}
