//! Output for terminals: control characters in names and values do not reach the terminal.
//!
//! Dataset names, property values, the history and device paths come from anyone able to write to a pool.

use std::io::{self, Write};

/// First byte of the control characters from U+0080 to U+009F in UTF-8.
const LEAD: u8 = 0xc2;

/// A terminal writer that replaces each control character except newlines and tabs with `?`.
#[derive(Debug)]
pub struct Clean<W> {
    out: W,
    /// Whether the last byte was [`LEAD`] and is not written yet.
    led: bool,
}

/// Removes control characters from terminal output.
pub fn cleaned(out: Box<dyn Write>, is_terminal: bool) -> Box<dyn Write> {
    if is_terminal { Box::new(Clean::new(out)) } else { out }
}

impl<W: Write> Clean<W> {
    /// Wraps a terminal.
    pub fn new(out: W) -> Self {
        Self { out, led: false }
    }
}

impl<W: Write> Write for Clean<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shown = Vec::with_capacity(bytes.len() + 1);
        for &byte in bytes {
            let led = std::mem::take(&mut self.led);
            match byte {
                0x80..=0x9f if led => shown.push(b'?'),
                _ => {
                    shown.extend(led.then_some(LEAD));
                    match byte {
                        LEAD => self.led = true,
                        b'\n' | b'\t' => shown.push(byte),
                        0..0x20 | 0x7f => shown.push(b'?'),
                        _ => shown.push(byte),
                    }
                }
            }
        }
        self.out.write_all(&shown)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.led) {
            self.out.write_all(&[LEAD])?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_question_marks_and_text_stays() {
        let mut out = Clean::new(Vec::new());
        for piece in [&b"a\x1b[31m\r\x7fb\tc\n\xc2"[..], b"\x9b2J\xc2\xa7 \xc3\x9f\xc2"] {
            out.write_all(piece).unwrap();
        }
        out.flush().unwrap();
        assert_eq!(out.out, b"a?[31m??b\tc\n?2J\xc2\xa7 \xc3\x9f\xc2");
    }
}
