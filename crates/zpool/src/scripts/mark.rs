//! Marks in a report where columns of scripts belong.
//!
//! ```text
//! RS heads RS      behind the heads of other columns          RS rule RS   behind a rule below them
//! RS leaf "path" RS   behind the cells of a device            RS end RS    behind the whole report
//! ```
//! RS is the control character of that name; a path is a JSON text, which has none. Other text between two RS is no mark.

use serde_json::json;

/// The character around a mark.
const RS: char = '\u{1e}';

/// Where columns belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// Heads of columns.
    Heads,
    /// A rule below them.
    Rule,
    /// Cells of the device with this path.
    Leaf(String),
    /// The report ends.
    End,
}

impl Mark {
    /// As it stands in the report.
    pub fn text(&self) -> String {
        let word = match self {
            Self::Heads => "heads".to_owned(),
            Self::Rule => "rule".to_owned(),
            Self::Leaf(path) => format!("leaf {}", json!(path)),
            Self::End => "end".to_owned(),
        };
        format!("{RS}{word}{RS}")
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "heads" => Some(Self::Heads),
            "rule" => Some(Self::Rule),
            "end" => Some(Self::End),
            _ => serde_json::from_str(word.strip_prefix("leaf ")?).ok().map(Self::Leaf),
        }
    }
}

/// A piece of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text as it is.
    Text(&'a str),
    /// Columns.
    Mark(Mark),
}

/// The pieces of a text.
pub fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(RS) {
        let (before, from) = rest.split_at(at);
        found.push(Piece::Text(before));
        let inner = from.strip_prefix(RS).unwrap_or_default();
        let mark = inner.split_once(RS).and_then(|(word, after)| Some((Mark::parse(word)?, after)));
        match mark {
            Some((mark, after)) => {
                found.push(Piece::Mark(mark));
                rest = after;
            }
            None => {
                found.push(Piece::Text(from.get(..RS.len_utf8()).unwrap_or_default()));
                rest = inner;
            }
        }
    }
    found.push(Piece::Text(rest));
    found.retain(|piece| *piece != Piece::Text(""));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_not_pass_for_a_mark() {
        let leaf = Mark::Leaf("/a\u{1e}end\u{1e}\"".to_owned());
        let text = format!("x\u{1e}y{}{}z\u{1e}", leaf.text(), Mark::End.text());
        let want = [
            Piece::Text("x"),
            Piece::Text("\u{1e}"),
            Piece::Text("y"),
            Piece::Mark(leaf),
            Piece::Mark(Mark::End),
            Piece::Text("z"),
            Piece::Text("\u{1e}"),
        ];
        assert_eq!(pieces(&text), want);
    }
}
