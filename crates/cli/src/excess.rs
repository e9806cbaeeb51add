//! Limits the length of command lines of users other than the owner.
//!
//! The daemon processes them with memory and locks shared by all users. Elements of lists multiply with datasets,
//! words do not.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Maximum number of words.
const WORDS: usize = 16_384;
/// Maximum number of commas between list elements, over all words.
const COMMAS: usize = 1024;

/// Whether the daemon refuses the command line.
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
