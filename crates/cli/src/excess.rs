//! How long a command line of a user who is not the owner may be.
//!
//! The daemon works on it with the memory and the locks of all. Pieces of lists multiply with datasets, words do not.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Words.
const WORDS: usize = 16_384;
/// Commas between the pieces of lists, in all words.
const COMMAS: usize = 1024;

/// Whether the daemon refuses it.
pub fn is_excessive(argv: &[OsString]) -> bool {
    let commas = |word: &OsString| word.as_bytes().iter().filter(|byte| **byte == b',').count();
    argv.len() > WORDS || argv.iter().map(commas).sum::<usize>() > COMMAS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_pieces_are_counted() {
        assert!(!is_excessive(&vec!["a,b".into(); COMMAS]));
        assert!(is_excessive(&vec!["a,b".into(); COMMAS + 1]));
        assert!(!is_excessive(&vec!["a".into(); WORDS]));
        assert!(is_excessive(&vec!["a".into(); WORDS + 1]));
    }
}
