//! Puts the columns of scripts into a report: where it has marks, or into JSON's objects of devices.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use clikit::output::json::print;
use serde_json::{Map, Value, json};

use super::mark::{Mark, Piece, pieces};
use super::run::{self, Said};

/// Columns with the widths of their widest cells.
type Columns = Vec<(String, usize)>;

/// Reads reports as they come, and writes them with columns.
#[derive(Debug)]
pub struct Filler {
    scripts: Vec<PathBuf>,
    json: bool,
    /// Bytes since the end of the last report.
    kept: Vec<u8>,
}

impl Filler {
    /// With these scripts.
    pub fn new(scripts: Vec<PathBuf>, json: bool) -> Self {
        Self { scripts, json, kept: Vec::new() }
    }

    /// Takes more bytes; passes complete reports on.
    pub fn add(&mut self, bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        self.kept.extend_from_slice(bytes);
        let end = Mark::End.text().into_bytes();
        while let Some(at) = self.kept.windows(end.len()).position(|window| window == end) {
            let rest = self.kept.split_off(at + end.len());
            self.kept.truncate(at);
            let report = std::mem::replace(&mut self.kept, rest);
            self.report(&String::from_utf8_lossy(&report), out)?;
        }
        Ok(())
    }

    /// Passes the rest on.
    pub fn finish(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let rest = std::mem::take(&mut self.kept);
        if rest.is_empty() { Ok(()) } else { self.report(&String::from_utf8_lossy(&rest), out) }
    }

    fn report(&self, text: &str, out: &mut dyn Write) -> io::Result<()> {
        if !self.json {
            return self.text(text, out);
        }
        let Ok(mut doc) = serde_json::from_str::<Value>(text) else { return out.write_all(text.as_bytes()) };
        let mut paths = Vec::new();
        each_leaf(&mut doc, &mut |_, path| paths.push(path.to_owned()));
        let said = run::all(&self.scripts, &paths);
        let columns = columns(&said);
        each_leaf(&mut doc, &mut |leaf, path| {
            if let Some(said) = said.get(path) {
                columns.iter().for_each(|(name, _)| drop(leaf.insert(name.clone(), json!(cell(said, name)))));
            }
        });
        print(out, &doc)
    }

    fn text(&self, text: &str, out: &mut dyn Write) -> io::Result<()> {
        let pieces = pieces(text);
        let leaf = |piece: &Piece<'_>| match piece {
            Piece::Mark(Mark::Leaf(path)) => Some(path.clone()),
            _ => None,
        };
        let paths: Vec<String> = pieces.iter().filter_map(leaf).collect();
        let said = run::all(&self.scripts, &paths);
        let columns = columns(&said);
        for piece in pieces {
            match piece {
                Piece::Text(text) => out.write_all(text.as_bytes())?,
                Piece::Mark(Mark::Heads) => {
                    columns.iter().try_for_each(|(name, width)| write!(out, "  {name:>width$}"))?;
                }
                Piece::Mark(Mark::Rule) => {
                    columns.iter().try_for_each(|(_, width)| write!(out, "  {}", "-".repeat(*width)))?;
                }
                Piece::Mark(Mark::Leaf(path)) => {
                    said.get(&path).map_or(Ok(()), |said| cells(said, &columns, out))?;
                }
                Piece::Mark(Mark::End) => {}
            }
        }
        Ok(())
    }
}

/// All columns, each as wide as its content.
#[doc(alias = "process_unique_cmd_columns")]
fn columns(said: &BTreeMap<String, Said>) -> Columns {
    let mut columns = Columns::new();
    for (name, value) in said.values().flat_map(|said| &said.cells) {
        let width = name.chars().count().max(value.chars().count());
        match columns.iter_mut().find(|(known, _)| known == name) {
            Some((_, widest)) => *widest = width.max(*widest),
            None => columns.push((name.clone(), width)),
        }
    }
    columns
}

/// A device's cell; an empty one is a dash.
fn cell<'a>(said: &'a Said, name: &str) -> &'a str {
    let value = said.cells.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str());
    if value.trim().is_empty() { "-" } else { value }
}

#[doc(alias = "zpool_print_cmd")]
fn cells(said: &Said, columns: &Columns, out: &mut dyn Write) -> io::Result<()> {
    let cells = columns.iter().map(|(name, width)| format!("{:>width$}", cell(said, name)));
    let all: Vec<String> = cells.chain(said.others.iter().cloned()).collect();
    write!(out, "  {}", all.join("  "))
}

/// The objects of devices, with their paths.
fn each_leaf(value: &mut Value, work: &mut dyn FnMut(&mut Map<String, Value>, &str)) {
    let Value::Object(map) = value else { return };
    if map.contains_key("vdev_type")
        && let Some(path) = map.get("path").and_then(Value::as_str).map(str::to_owned)
    {
        work(map, &path);
        return;
    }
    map.values_mut().for_each(|value| each_leaf(value, work));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn fill(script: &str, text: &str, json: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut filler = Filler::new(vec![path], json);
        let mut out = Vec::new();
        // However the text comes in pieces.
        text.as_bytes().chunks(7).for_each(|piece| filler.add(piece, &mut out).unwrap());
        filler.finish(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_in_each_report() {
        let leaf = |path: &str| Mark::Leaf(path.to_owned()).text();
        let (heads, rule, end) = (Mark::Heads.text(), Mark::Rule.text(), Mark::End.text());
        let text = format!(
            "NAME{heads}\n----{rule}\nm\n a{}\n b{}\n{end}c{}\n{end}",
            leaf("/a"),
            leaf("/bb"),
            leaf("/c")
        );
        let want = "NAME    p   q\n----  ---  --\nm\n a   /a  10  x\n b  /bb   -  x\nc  /c  -  x\n";
        let script = "echo p=$VDEV_PATH\n[ $VDEV_PATH = /a ] && echo q=10 || echo 'q= '\necho x";
        assert_eq!(fill(script, &text, false), want);
        assert_eq!(fill("exit 1", &text, false), "NAME\n----\nm\n a  \n b  \nc  \n");
    }

    #[test]
    fn objects_of_devices_have_cells_in_json() {
        let text = r#"{"pools":{"t":{"vdevs":{"t":{"vdev_type":"root","vdevs":{"a":{"vdev_type":"file","path":"/a","x":"1"}}}}}}}"#;
        let want = text.replace(r#""x":"1""#, r#""x":"1","p":"/a""#);
        let got = fill("echo p=$VDEV_PATH", &format!("{text}\n{}", Mark::End.text()), true);
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(parse(&got), parse(&want), "{got}");
    }
}
