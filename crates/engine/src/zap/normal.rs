//! Compares names under the ZAP's normalisation, or without case.
//!
//! Differs from OpenZFS: its tables are Unicode 5.0's, ours the current ones. A name that hashes differently for
//! that reason is still found by file systems, which then scan the directory.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

/// Upper case before comparing (`U8_TEXTPREP_TOUPPER`).
#[doc(alias = "U8_TEXTPREP_TOUPPER")]
pub const TOUPPER: u64 = 0x2;
const CANON_DECOMP: u64 = 0x10;
const COMPAT_DECOMP: u64 = 0x20;
const CANON_COMP: u64 = 0x40;
/// The bits that select a normal form.
pub const FORM: u64 = CANON_DECOMP | COMPAT_DECOMP | CANON_COMP;

/// The comparison of a name with the stored ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "matchtype_t")]
pub enum Match {
    /// Byte for byte.
    Exact,
    /// Under the ZAP's normalisation.
    Normalized,
    /// Under the ZAP's normalisation, but with case.
    NormalizedCase,
}

impl Match {
    /// The compared form of a name in a ZAP with these `normflags`.
    pub fn fold(self, name: &[u8], normflags: u64) -> Cow<'_, [u8]> {
        match self {
            Self::Exact => name.into(),
            Self::Normalized => fold(name, normflags),
            Self::NormalizedCase => fold(name, normflags & !TOUPPER),
        }
    }
}

/// `name` as hashed and compared under `flags` (a ZAP's `normflags`). Bytes that are not UTF-8 stay unchanged.
#[doc(alias = "u8_textprep_str")]
pub fn fold(name: &[u8], flags: u64) -> Cow<'_, [u8]> {
    if flags & (TOUPPER | FORM) == 0 {
        return name.into();
    }
    if name.is_ascii() {
        return if flags & TOUPPER != 0 { name.to_ascii_uppercase().into() } else { name.into() };
    }
    let mut folded = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        folded.extend_from_slice(fold_text(chunk.valid(), flags).as_bytes());
        folded.extend_from_slice(chunk.invalid());
    }
    folded.into()
}

fn fold_text(text: &str, flags: u64) -> String {
    let upper: String =
        if flags & TOUPPER != 0 { text.chars().map(simple_upper).collect() } else { text.to_owned() };
    match (flags & FORM != 0, flags & COMPAT_DECOMP != 0, flags & CANON_COMP != 0) {
        (false, ..) => upper,
        (true, false, false) => upper.nfd().collect(),
        (true, false, true) => upper.nfc().collect(),
        (true, true, false) => upper.nfkd().collect(),
        (true, true, true) => upper.nfkc().collect(),
    }
}

/// Maps one character to one: Unicode's simple case mapping.
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
        assert_eq!(*fold(b"ReadMe", TOUPPER), *b"README");
        assert_eq!(*fold(b"ReadMe", 0), *b"ReadMe");
        let composed = "caf\u{e9}".as_bytes();
        let decomposed = "cafe\u{301}".as_bytes();
        assert_eq!(*fold(composed, CANON_DECOMP), *decomposed);
        assert_eq!(*fold(decomposed, CANON_DECOMP | CANON_COMP), *composed);
        assert_eq!(*fold(b"\xff\xfe", TOUPPER | CANON_DECOMP), *b"\xff\xfe");
        assert_eq!(*fold(b"a\xffb", TOUPPER), *b"A\xffB");
        assert_eq!(*fold("\u{fb01}".as_bytes(), COMPAT_DECOMP), *b"fi");
    }

    #[test]
    fn letters_without_a_single_capital_stay() {
        assert_eq!(*fold("stra\u{df}e".as_bytes(), TOUPPER), *"STRA\u{df}E".as_bytes());
    }
}
