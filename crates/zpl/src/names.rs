//! How a file system compares names: exactly, normalised, or without case.
//!
//! Differs from OpenZFS: its tables are Unicode 5.0's, ours the current ones. A name that hashes
//! differently for that reason is still found, by a scan of the directory.

use unicode_normalization::UnicodeNormalization;

/// Upper case before comparing (`U8_TEXTPREP_TOUPPER`).
pub(crate) const TOUPPER: u64 = 0x2;
const CANON_DECOMP: u64 = 0x10;
const COMPAT_DECOMP: u64 = 0x20;
const CANON_COMP: u64 = 0x40;
/// The bits that choose a normal form.
pub(crate) const FORM: u64 = CANON_DECOMP | COMPAT_DECOMP | CANON_COMP;

/// `name` as it is hashed and compared under `flags`. What is not UTF-8 stays as it is.
pub(crate) fn fold(name: &[u8], flags: u64) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name) else { return name.to_vec() };
    let upper: String =
        if flags & TOUPPER != 0 { text.chars().map(simple_upper).collect() } else { text.to_owned() };
    if upper.is_ascii() {
        return upper.into_bytes();
    }
    let (compat, compose) = (flags & COMPAT_DECOMP != 0, flags & CANON_COMP != 0);
    let folded: String = match (flags & FORM != 0, compat, compose) {
        (false, ..) => upper,
        (true, false, false) => upper.nfd().collect(),
        (true, false, true) => upper.nfc().collect(),
        (true, true, false) => upper.nfkd().collect(),
        (true, true, true) => upper.nfkc().collect(),
    };
    folded.into_bytes()
}

/// One character to one: what Unicode calls simple case mapping.
fn simple_upper(c: char) -> char {
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_follows_the_flags() {
        assert_eq!(fold(b"ReadMe", TOUPPER), b"README");
        assert_eq!(fold(b"ReadMe", 0), b"ReadMe");
        let composed = "caf\u{e9}".as_bytes();
        let decomposed = "cafe\u{301}".as_bytes();
        assert_eq!(fold(composed, CANON_DECOMP), decomposed);
        assert_eq!(fold(decomposed, CANON_DECOMP | CANON_COMP), composed);
        assert_eq!(fold(b"\xff\xfe", TOUPPER | CANON_DECOMP), b"\xff\xfe");
        assert_eq!(fold("\u{fb01}".as_bytes(), COMPAT_DECOMP), b"fi");
    }

    #[test]
    fn letters_without_a_single_capital_stay() {
        assert_eq!(fold("stra\u{df}e".as_bytes(), TOUPPER), "STRA\u{df}E".as_bytes());
    }
}
