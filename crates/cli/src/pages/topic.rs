//! Pages on a subject rather than a command: one text, printed as a man page and as plain text.

use std::io;

use clap_mangen::roff::{Roff, bold, roman};

use super::man::{MANUAL, Page, SOURCE};

/// Columns of plain text.
const WIDTH: usize = 78;

/// A paragraph: its term, which may be empty, and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paragraph {
    /// A word or two; empty for plain text.
    pub term: String,
    /// Sentences.
    pub text: String,
}

/// A page of section 7.
#[derive(Debug, Clone)]
pub struct Topic {
    /// Its name: `zfsprops`.
    pub name: &'static str,
    /// The word after `zpool help` or `zfs help`, beside its name.
    pub word: &'static str,
    /// A short description.
    pub about: &'static str,
    /// Headings and their paragraphs.
    pub sections: Vec<(&'static str, Vec<Paragraph>)>,
}

/// A paragraph on a term.
pub fn on(term: impl Into<String>, text: impl Into<String>) -> Paragraph {
    Paragraph { term: term.into(), text: text.into() }
}

/// A paragraph of text only.
pub fn plain(text: impl Into<String>) -> Paragraph {
    on("", text)
}

impl Topic {
    /// The page in roff.
    pub(super) fn page(&self) -> io::Result<Page> {
        let mut roff = Roff::new();
        roff.control("TH", [self.name.to_uppercase().as_str(), "7", "", SOURCE, MANUAL]);
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{} - {}", self.name, self.about))]);
        for (heading, paragraphs) in &self.sections {
            roff.control("SH", [*heading]);
            for paragraph in paragraphs {
                if paragraph.term.is_empty() {
                    roff.control("PP", []);
                } else {
                    roff.control("TP", []);
                    roff.text([bold(&*paragraph.term)]);
                }
                roff.text([roman(&*paragraph.text)]);
            }
        }
        let mut text = Vec::new();
        roff.to_writer(&mut text)?;
        Ok(Page { name: self.name.to_owned(), section: "7", text })
    }

    /// The page as plain text.
    pub fn text(&self) -> String {
        let mut text = format!("{} - {}\n", self.name, self.about);
        for (heading, paragraphs) in &self.sections {
            text += &format!("\n{heading}\n");
            for Paragraph { term, text: words } in paragraphs {
                if !term.is_empty() {
                    text += &format!("  {term}\n");
                }
                text += &wrapped(words, if term.is_empty() { 2 } else { 6 });
            }
        }
        text
    }
}

/// Text in lines of [`WIDTH`] columns, indented.
fn wrapped(words: &str, indent: usize) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in words.split_whitespace() {
        if !line.is_empty() && indent + line.len() + 1 + word.len() > WIDTH {
            lines += &format!("{:indent$}{line}\n", "");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines + &format!("{:indent$}{line}\n", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_a_page_and_text() {
        let long = "word ".repeat(40);
        let sections = vec![("DESCRIPTION", vec![plain("One."), on("term", long)])];
        let topic = Topic { name: "x-topic", word: "x", about: "an example", sections };
        let text = topic.text();
        assert!(
            text.starts_with("x-topic - an example\n\nDESCRIPTION\n  One.\n  term\n      word word"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        let page = String::from_utf8(topic.page().unwrap().text).unwrap();
        assert!(page.contains(".SH NAME") && page.contains("\\fBterm\\fR"), "{page}");
    }
}
