//! Compares names under the ZAP's normalisation, or without case.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

use super::unicode5;

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
        if flags & TOUPPER != 0 { text.chars().map(unicode5::capital).collect() } else { text.to_owned() };
    if flags & FORM == 0 {
        return upper;
    }
    let mut out = String::with_capacity(upper.len());
    let mut rest = &*upper;
    while let Some(at) = rest.find(unicode5::is_newer) {
        let (old, newer) = rest.split_at(at);
        form(old, flags, &mut out);
        let mut chars = newer.chars();
        out.extend(chars.next());
        rest = chars.as_str();
    }
    form(rest, flags, &mut out);
    out
}

/// Appends the normal form of text without characters that decompose since a newer version only.
fn form(text: &str, flags: u64, out: &mut String) {
    // A composition to such a character is taken apart again.
    let composed = |out: &mut String, c: char| match unicode5::is_newer(c) {
        true => out.extend(std::iter::once(c).nfd()),
        false => out.push(c),
    };
    match (flags & COMPAT_DECOMP != 0, flags & CANON_COMP != 0) {
        (false, false) => out.extend(text.nfd()),
        (false, true) => text.nfc().for_each(|c| composed(out, c)),
        (true, false) => out.extend(text.nfkd()),
        (true, true) => text.nfkc().for_each(|c| composed(out, c)),
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

    /// The values are those of OpenZFS's own function for these strings.
    #[test]
    fn letters_fold_as_in_unicode_5() {
        // Georgian and Cherokee letters have capitals since later versions; these Greek ones have a capital of one character.
        for (name, folded) in [
            ("\u{10d0}\u{10d1}", "\u{10d0}\u{10d1}"),
            ("\u{ab70}", "\u{ab70}"),
            ("\u{1fb3}\u{1f80}", "\u{1fbc}\u{1f88}"),
            ("\u{e9}\u{ff}", "\u{c9}\u{178}"),
            ("\u{101}\u{102}", "\u{100}\u{102}"),
        ] {
            assert_eq!(*fold(name.as_bytes(), TOUPPER), *folded.as_bytes(), "{name}");
        }
        let newer = "\u{11131}\u{11127}\u{fa2e}\u{1f14f}";
        for form in [CANON_DECOMP, CANON_DECOMP | CANON_COMP, COMPAT_DECOMP, COMPAT_DECOMP | CANON_COMP] {
            assert_eq!(*fold(newer.as_bytes(), form), *newer.as_bytes());
        }
    }
}
