//! Printed output that is not written yet: the first part in memory, the rest in a file without a name.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Error, ErrorKind, Read, Seek, Write};
use std::path::PathBuf;

/// The first folder for the file: `/tmp` may be in memory. If nothing can be written there, that of temporary files is next.
const FOLDER: &str = "/var/tmp";
/// Bytes that are read back at once.
const PART: usize = 1 << 20;

/// Output in the order in which it was printed.
#[derive(Debug)]
pub struct KeptOutput {
    text: Vec<u8>,
    /// The output before `text`, and its length: one part for each folder that was needed.
    earlier: Vec<(File, u64)>,
    /// Folders that were not needed yet.
    folders: VecDeque<PathBuf>,
}

impl Default for KeptOutput {
    fn default() -> Self {
        let folders = [PathBuf::from(FOLDER), std::env::temp_dir()].into();
        Self { text: Vec::new(), earlier: Vec::new(), folders }
    }
}

impl KeptOutput {
    /// Bytes in memory and in files.
    pub fn len(&self) -> u64 {
        self.earlier.iter().map(|(_, length)| length).sum::<u64>() + self.text.len() as u64
    }

    /// Appends `bytes` in memory.
    pub fn push(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    /// Moves the text in memory to a file if it is longer than `most` bytes.
    ///
    /// # Errors
    /// If no folder accepts it; the text stays in memory.
    pub fn spill_above(&mut self, most: usize) -> io::Result<()> {
        if self.text.len() <= most {
            return Ok(());
        }
        // A folder may be full, or read-only.
        let mut why = None;
        loop {
            if let Some((file, length)) = self.earlier.last_mut() {
                match file.write_all(&self.text) {
                    Ok(()) => {
                        *length += self.text.len() as u64;
                        self.text.clear();
                        return Ok(());
                    }
                    Err(e) => why = Some(e),
                }
            }
            match self.folders.pop_front().map(tempfile::tempfile_in) {
                Some(Ok(file)) => self.earlier.push((file, 0)),
                Some(Err(e)) => why = why.or(Some(e)),
                None => {
                    let why = why.unwrap_or_else(|| ErrorKind::NotFound.into());
                    let what = format!("the output cannot be kept for its reader: {why}");
                    return Err(Error::new(why.kind(), what));
                }
            }
        }
    }

    /// Passes everything to `write`, in parts.
    ///
    /// # Errors
    /// Of `write`, and of reading the file.
    pub fn write_to(self, write: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        for (mut file, length) in self.earlier {
            file.rewind()?;
            // The last write may have failed in its middle.
            let mut file = file.take(length);
            let mut part = vec![0; PART];
            loop {
                match file.read(&mut part)? {
                    0 => break,
                    length => write(part.get(..length).unwrap_or_default())?,
                }
            }
        }
        write(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_waits_in_a_file() {
        let mut out = KeptOutput::default();
        // The first file cannot be written, and the first folder does not exist.
        let kept = tempfile::tempdir().unwrap();
        let full = File::open(tempfile::NamedTempFile::new_in(kept.path()).unwrap().path()).unwrap();
        out.folders = [kept.path().join("none"), kept.path().to_owned()].into();
        out.earlier = vec![(full, 0)];
        let lines: Vec<u8> = (0..400_000_u32).flat_map(|n| format!("{n}\n").into_bytes()).collect();
        for piece in lines.chunks(100_001) {
            out.push(piece);
            out.spill_above(PART).unwrap();
            assert!(out.text.capacity() <= 4 * PART);
        }
        assert!(out.len() == lines.len() as u64 && out.text.len() < lines.len());
        let mut got = Vec::new();
        out.write_to(&mut |part| {
            got.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
        assert!(got == lines);
    }

    #[test]
    fn text_without_a_folder_stays_in_memory() {
        let mut out = KeptOutput { folders: VecDeque::new(), ..KeptOutput::default() };
        out.push(b"text");
        out.spill_above(4).unwrap();
        assert!(out.spill_above(3).is_err());
        assert_eq!(out.text, b"text");
    }
}
