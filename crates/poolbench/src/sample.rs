//! The bytes that are written: the user's own, generated text, and incompressible bytes.

use std::fs;
use std::io::Read;
use std::path::Path;

use clikit::verb::{Failure, strerror};
use stdx::rng::Rng;

/// Size of one write.
pub const PIECE: usize = 1 << 20;
/// Bytes of a sample in memory; a longer file or directory is cut there.
const MOST: u64 = 64 << 20;
/// Files of a directory that are read at most.
const FILES: usize = 10_000;

/// Bytes to write, repeated with a shift for as long as needed.
#[derive(Debug)]
pub struct Sample {
    /// Its name in tables.
    pub name: String,
    bytes: Vec<u8>,
}

impl Sample {
    /// Incompressible bytes.
    pub fn random() -> Self {
        let mut bytes = vec![0; 8 << 20];
        Rng::new(1).fill(&mut bytes);
        Self { name: "random".to_owned(), bytes }
    }

    /// Text of made-up words in lines, about as compressible as prose.
    pub fn text() -> Self {
        let mut random = Rng::new(2);
        let letters: Vec<char> = "etaoinshrdlucmfwypvbgk".chars().collect();
        let word = |random: &mut Rng| -> String {
            let len = 2 + random.below(8);
            let letter = |random: &mut Rng| {
                // Two draws make frequent letters likelier.
                let at = random.below(letters.len() as u64).min(random.below(letters.len() as u64));
                usize::try_from(at).ok().and_then(|at| letters.get(at)).copied().unwrap_or('e')
            };
            (0..len).map(|_| letter(random)).collect()
        };
        let words: Vec<String> = (0..4000).map(|_| word(&mut random)).collect();
        let mut bytes = Vec::with_capacity(8 << 20);
        while bytes.len() < 8 << 20 {
            let at = random.below(4000).min(random.below(4000));
            let at = usize::try_from(at).unwrap_or(0);
            bytes.extend_from_slice(words.get(at).map_or(b"the", |word| word.as_bytes()));
            bytes.push(if random.below(12) == 0 { b'\n' } else { b' ' });
        }
        Self { name: "text".to_owned(), bytes }
    }

    /// The user's file, or the files of a directory in the order of their names.
    ///
    /// # Errors
    /// If it cannot be read, or has no bytes.
    pub fn of_user(path: &Path) -> Result<Self, Failure> {
        let cannot = |e: std::io::Error| Failure::cannot("read", path.display(), strerror(&e));
        let mut bytes = Vec::new();
        if fs::metadata(path).map_err(cannot)?.is_dir() {
            let mut left = FILES;
            gather(path, &mut bytes, &mut left).map_err(cannot)?;
        } else {
            fs::File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes)).map_err(cannot)?;
        }
        if bytes.is_empty() {
            return Err(Failure::cannot("use", path.display(), "the sample has no bytes"));
        }
        let name = path.file_name().map_or_else(|| "sample".into(), |name| name.to_string_lossy());
        let name = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        // At least two pieces, so that a shifted piece is always whole.
        while bytes.len() < 2 * PIECE {
            bytes.extend_from_within(..bytes.len().min(PIECE));
        }
        Ok(Self { name, bytes })
    }

    /// The piece for offset `at` of a file, `len` bytes (at most [`PIECE`]). Each turn through the sample starts one byte
    /// later, so blocks do not repeat exactly.
    pub fn piece(&self, at: u64, len: usize) -> &[u8] {
        let room = self.bytes.len().saturating_sub(PIECE).max(1) as u64;
        let shift = usize::try_from((at + at / room) % room).unwrap_or(0);
        self.bytes.get(shift..).and_then(|rest| rest.get(..len)).unwrap_or(&self.bytes)
    }
}

/// Appends the regular files below `dir`. Unreadable ones and links are skipped.
fn gather(dir: &Path, bytes: &mut Vec<u8>, left: &mut usize) -> std::io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let room = MOST.saturating_sub(bytes.len() as u64);
        if room == 0 || *left == 0 {
            return Ok(());
        }
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            // A directory that is not permitted is skipped like a file.
            let _ = gather(&entry.path(), bytes, left);
        } else if kind.is_file() {
            *left -= 1;
            let _ = fs::File::open(entry.path()).and_then(|file| file.take(room).read_to_end(bytes));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_anywhere_and_differ() {
        for sample in [Sample::random(), Sample::text()] {
            for at in [0, 1, PIECE as u64, 7 << 20, 123 << 30] {
                assert_eq!(sample.piece(at, PIECE).len(), PIECE, "{} {at}", sample.name);
            }
            assert_ne!(sample.piece(0, PIECE), sample.piece(PIECE as u64, PIECE));
            assert_ne!(sample.piece(0, 512), sample.piece(7 << 20, 512));
        }
    }

    #[test]
    fn samples_of_users_are_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Sample::of_user(dir.path()).unwrap_err().message().unwrap().contains("no bytes"));
        fs::create_dir(dir.path().join("b")).unwrap();
        fs::write(dir.path().join("a"), "one").unwrap();
        fs::write(dir.path().join("b/c"), "two").unwrap();
        let sample = Sample::of_user(dir.path()).unwrap();
        assert!(sample.piece(0, PIECE).starts_with(b"onetwoone"));
        assert!(Sample::of_user(&dir.path().join("none")).is_err());
    }
}
