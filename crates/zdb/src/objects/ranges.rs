//! Objects and ranges of objects on the command line: `7`, `0:100`, `0:-1:A-f`.

use clikit::verb::Failure;
use ondisk::{Byteswap, ObjectType};

use crate::options::parse_number;

/// A range of object numbers, and the selected types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First object.
    pub start: u64,
    /// Last object.
    pub end: u64,
    types: Types,
}

/// Selectable types of objects; none means all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Types(u8);

impl Types {
    const DIRECTORY: u8 = 1;
    const FILE: u8 = 2;
    const SPACE_MAP: u8 = 4;
    const ZAP: u8 = 8;
    const OTHERS: u8 = 16;
    const ALL: u8 = 31;

    fn letter(letter: char) -> Option<u8> {
        Some(match letter {
            'A' => Self::ALL,
            'd' => Self::DIRECTORY,
            'f' => Self::FILE,
            'm' => Self::SPACE_MAP,
            'z' => Self::ZAP,
            _ => return None,
        })
    }

    /// Parses letters that add types, or after a minus remove them.
    fn parse(text: &str) -> Option<Self> {
        let (mut set, mut negate) = (0, false);
        for letter in text.chars() {
            if letter == '-' && !negate {
                negate = true;
                continue;
            }
            let bits = Self::letter(letter)?;
            set = if negate { set & !bits } else { set | bits };
            negate = false;
        }
        (!negate).then_some(Self(set))
    }
}

impl Range {
    /// Whether the range is a single object.
    pub fn is_single(&self) -> bool {
        self.start == self.end
    }

    /// Whether objects of this type are selected.
    pub fn matches(&self, object_type: ObjectType) -> bool {
        let zap = object_type.is_newtype() && object_type.byteswap() == Some(Byteswap::Zap);
        let bit = match object_type {
            ObjectType::DIRECTORY_CONTENTS => Types::DIRECTORY,
            ObjectType::PLAIN_FILE_CONTENTS => Types::FILE,
            ObjectType::SPACE_MAP => Types::SPACE_MAP,
            _ if zap => Types::ZAP,
            _ => Types::OTHERS,
        };
        self.types.0 == 0 || self.types.0 & bit != 0
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let bad = || Failure::failed(format!("zdb: Bad object or range: '{text}'"));
        let number = |text: &str| match text.strip_prefix('-') {
            Some(rest) => parse_number(rest).map(u64::wrapping_neg),
            None => parse_number(text),
        };
        let mut parts = text.split(':');
        let start = parts.next().and_then(number).ok_or_else(bad)?;
        let end = parts.next().map_or(Some(start), number).ok_or_else(bad)?;
        let types = parts.next().map_or(Some(Types::default()), Types::parse).ok_or_else(bad)?;
        if parts.next().is_some() || start > end {
            return Err(bad());
        }
        Ok(Self { start, end, types })
    }
}

/// All operands.
pub fn parse_all(words: &[String]) -> Result<Vec<Range>, Failure> {
    words.iter().map(|word| Range::parse(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_ranges() {
        let one = Range::parse("0x10").unwrap();
        assert_eq!((one.start, one.end, one.is_single()), (16, 16, true));
        let all = Range::parse("0:-1").unwrap();
        assert_eq!((all.start, all.end), (0, u64::MAX));
        assert_eq!(Range::parse("-2").unwrap().start, u64::MAX - 1);
        for bad in ["", "x", "1:2:q", "5:4", "1:2:A:1", "1:2:-"] {
            assert!(Range::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn types_can_be_added_and_taken_away() {
        let files = Range::parse("0:9:f").unwrap();
        assert!(files.matches(ObjectType::PLAIN_FILE_CONTENTS) && !files.matches(ObjectType::DNODE));
        let others = Range::parse("0:9:A-f").unwrap();
        assert!(!others.matches(ObjectType::PLAIN_FILE_CONTENTS) && others.matches(ObjectType::DNODE));
        let zap = ObjectType::newtype(Byteswap::Zap, true, false);
        assert!(Range::parse("0:9:z").unwrap().matches(zap));
    }
}
