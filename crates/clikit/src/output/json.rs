//! The output of `-j`: OpenZFS 2.3's JSON, on one line.
//!
//! Numbers are strings unless `--json-int` is given; then every string of digits is a number.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::row::{DatasetKind, DatasetRow, Prop, Source, source_word};

/// The options of `-j`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JsonStyle {
    /// `--json-int`: numbers as numbers.
    pub int: bool,
    /// `--json-flat-vdevs`: vdevs in one map, not as a tree.
    pub flat_vdevs: bool,
    /// `--json-pool-key-guid`: pools keyed by guid, not by name.
    pub pool_key_guid: bool,
}

impl JsonStyle {
    /// A number in the requested style.
    pub fn number(&self, n: u64) -> Value {
        if self.int { json!(n) } else { json!(n.to_string()) }
    }

    /// A text; with `--json-int` a number if it looks like one.
    pub fn text(&self, text: &str) -> Value {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(n) if self.int && digits => json!(n),
            _ => json!(text),
        }
    }

    /// A property: value and source.
    pub fn prop(&self, prop: &Prop, literal: bool) -> Value {
        self.valued(prop.value(literal), &prop.source, prop.received(literal))
    }

    /// A value and its source.
    pub fn valued(&self, value: &str, source: &Source, received: Option<&str>) -> Value {
        let data = match source {
            Source::Inherited(from) => from.as_str(),
            Source::Received => received.unwrap_or("-"),
            _ => "-",
        };
        let kind = source_word(source).to_uppercase();
        json!({ "value": self.text(value), "source": { "type": kind, "data": data } })
    }

    /// The members of a dataset before its properties.
    pub fn dataset(&self, row: &DatasetRow) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("name".into(), json!(row.name));
        map.insert("type".into(), json!(row.kind.word().to_uppercase()));
        map.insert("pool".into(), json!(row.pool()));
        map.insert("createtxg".into(), self.number(row.createtxg));
        if row.kind == DatasetKind::Snapshot {
            map.insert("dataset".into(), json!(row.filesystem()));
            map.insert("snapshot_name".into(), json!(row.snapshot_name()));
        }
        map
    }
}

/// The outermost object: the command, and the version of the output format.
pub fn document(command: &str) -> Map<String, Value> {
    let version = json!({ "command": command, "vers_major": 0, "vers_minor": 1 });
    Map::from_iter([("output_version".to_owned(), version)])
}

/// Prints a document on one line whose last member is a map of many members, one member at a time.
#[derive(Debug)]
pub struct Members {
    first: bool,
}

impl Members {
    /// Begins the document and the member.
    pub fn begin(out: &mut dyn Write, document: &Map<String, Value>, member: &str) -> io::Result<Self> {
        out.write_all(b"{")?;
        for (key, value) in document {
            write_string(out, key)?;
            out.write_all(b":")?;
            write_value(out, value)?;
            out.write_all(b",")?;
        }
        write_string(out, member)?;
        out.write_all(b":{")?;
        Ok(Self { first: true })
    }

    /// Prints the next one.
    pub fn print(&mut self, out: &mut dyn Write, key: &str, value: &Value) -> io::Result<()> {
        out.write_all(if std::mem::take(&mut self.first) { b"" } else { b"," })?;
        write_string(out, key)?;
        out.write_all(b":")?;
        write_value(out, value)
    }

    /// Ends the document.
    pub fn end(self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"}}\n")
    }
}

/// Prints a value on one line.
pub fn print(out: &mut dyn Write, value: &Value) -> io::Result<()> {
    write_value(out, value)?;
    writeln!(out)
}

fn write_value(out: &mut dyn Write, value: &Value) -> io::Result<()> {
    match value {
        Value::String(s) => write_string(out, s),
        Value::Array(items) => {
            out.write_all(b"[")?;
            for (i, item) in items.iter().enumerate() {
                out.write_all(if i == 0 { b"" } else { b"," })?;
                write_value(out, item)?;
            }
            out.write_all(b"]")
        }
        Value::Object(map) => {
            out.write_all(b"{")?;
            for (i, (key, item)) in map.iter().enumerate() {
                out.write_all(if i == 0 { b"" } else { b"," })?;
                write_string(out, key)?;
                out.write_all(b":")?;
                write_value(out, item)?;
            }
            out.write_all(b"}")
        }
        plain => write!(out, "{plain}"),
    }
}

/// Escapes everything beyond printable ASCII, as libnvpair does.
fn write_string(out: &mut dyn Write, text: &str) -> io::Result<()> {
    out.write_all(b"\"")?;
    for c in text.chars() {
        match c {
            '"' => out.write_all(b"\\\"")?,
            '\\' => out.write_all(b"\\\\")?,
            '\n' => out.write_all(b"\\n")?,
            '\r' => out.write_all(b"\\r")?,
            '\t' => out.write_all(b"\\t")?,
            '\u{8}' => out.write_all(b"\\b")?,
            '\u{c}' => out.write_all(b"\\f")?,
            ' '..='~' => write!(out, "{c}")?,
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
    }
    out.write_all(b"\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &Value) -> String {
        let mut out = Vec::new();
        print(&mut out, value).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn members_one_by_one_are_those_of_a_whole_document() {
        for count in 0..3 {
            let mut members = Map::new();
            for n in 0..count {
                members.insert(format!("tank/\"{n}"), json!({ "n": n }));
            }
            let mut out = Vec::new();
            let mut doc = document("zfs list");
            let mut streamed = Members::begin(&mut out, &doc, "datasets").unwrap();
            members.iter().for_each(|(key, value)| streamed.print(&mut out, key, value).unwrap());
            streamed.end(&mut out).unwrap();
            doc.insert("datasets".into(), members.into());
            assert_eq!(String::from_utf8(out).unwrap(), text(&Value::Object(doc)));
        }
    }

    #[test]
    fn numbers_are_strings_unless_asked() {
        let p = Prop { literal: "4096".into(), ..Prop::text("4K", Source::Inherited("tank".into())) };
        let plain = JsonStyle::default();
        assert_eq!(
            text(&plain.prop(&p, true)),
            "{\"value\":\"4096\",\"source\":{\"type\":\"INHERITED\",\"data\":\"tank\"}}\n"
        );
        let int = JsonStyle { int: true, ..plain };
        assert!(text(&int.prop(&p, true)).starts_with("{\"value\":4096,"));
        assert!(text(&int.prop(&p, false)).starts_with("{\"value\":\"4K\","));
        assert_eq!((int.text(""), int.text("-1")), (json!(""), json!("-1")));
    }

    #[test]
    fn snapshots_name_both_halves() {
        let row = DatasetRow {
            name: "tank/a@one".into(),
            kind: DatasetKind::Snapshot,
            createtxg: 7,
            props: Default::default(),
        };
        assert_eq!(
            text(&JsonStyle::default().dataset(&row).into()),
            "{\"name\":\"tank/a@one\",\"type\":\"SNAPSHOT\",\"pool\":\"tank\",\"createtxg\":\"7\",\
             \"dataset\":\"tank/a\",\"snapshot_name\":\"one\"}\n"
        );
    }

    #[test]
    fn strings_are_ascii() {
        assert_eq!(text(&json!("a\"\\\n\u{1}é")), "\"a\\\"\\\\\\n\\u0001\\u00e9\"\n");
        assert_eq!(
            text(&document("zfs list").into()),
            "{\"output_version\":{\"command\":\"zfs list\",\"vers_major\":0,\"vers_minor\":1}}\n"
        );
    }
}
