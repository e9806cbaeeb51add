//! The settings file: `NAME = VALUE` per line, or in modprobe's format `options zfs NAME=VALUE …`.
//!
//! Settings have the names of OpenZFS's module parameters ([`engine::memory::limits`]). An invalid line is reported
//! and ignored: a typing error must not prevent the import of pools.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use engine::memory::limits::MINUS_ONE;
use engine::memory::{Limit, Limits};
use zcommon::units::parse_nicenum;

/// Parses one `NAME=VALUE`; sizes may have letters (`4G`), and 0x begins a hexadecimal number.
///
/// # Errors
/// A message.
pub fn parse(word: &str) -> Result<(Limit, u64), String> {
    let (name, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is not NAME=VALUE"))?;
    let (name, value) = (name.trim(), value.trim());
    let limit = Limit::from_name(name).ok_or_else(|| format!("there is no setting '{name}'"))?;
    let hex = value.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let number = hex.or_else(|| match limit.info().bytes {
        true => parse_nicenum(value).ok(),
        false if value == "-1" && limit.info().takes_minus_one() => Some(MINUS_ONE),
        false => value.parse().ok(),
    });
    Ok((limit, number.ok_or_else(|| format!("'{value}' is not a value of {name}"))?))
}

/// Applies the settings in the text; returns a message for each invalid line.
pub fn apply(text: &str, limits: &Limits) -> Vec<String> {
    let mut complaints = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let words: Vec<String> = match line.strip_prefix("options") {
            Some(rest) if rest.starts_with([' ', '\t']) => match rest.trim().split_once([' ', '\t']) {
                Some(("zfs" | "spl", words)) => words.split_whitespace().map(str::to_owned).collect(),
                // A setting of another module.
                _ => continue,
            },
            _ if line.is_empty() => continue,
            _ => vec![line.to_owned()],
        };
        for word in words {
            let done = parse(&word).and_then(|(limit, value)| limits.set(limit, value));
            complaints.extend(done.err().map(|why| format!("line {}: {why}", at + 1)));
        }
    }
    complaints
}

/// Like [`apply`], from a file, which may be missing.
pub fn load(path: &Path, limits: &Limits) -> Vec<String> {
    let complaints = match fs::read_to_string(path) {
        Ok(text) => apply(&text, limits),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => vec![e.to_string()],
    };
    complaints.into_iter().map(|why| format!("{}: {why}", path.display())).collect()
}

/// The text with this setting: its line is replaced wherever it stands alone, or added.
fn with(text: &str, limit: Limit, value: u64) -> String {
    let name = limit.info().name;
    let is_it =
        |line: &&str| parse(line.split('#').next().unwrap_or_default()).is_ok_and(|(l, _)| l == limit);
    let new = format!("{name} = {}", limit.info().digits(value));
    let mut lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().rposition(is_it);
    match at.and_then(|at| lines.get_mut(at)) {
        Some(line) => *line = &new,
        None => lines.push(&new),
    }
    lines.join("\n") + "\n"
}

/// Writes a setting into the file, which may be new; the file is replaced as a whole.
///
/// # Errors
/// If the file cannot be read or written.
pub fn save(path: &Path, limit: Limit, value: u64) -> io::Result<()> {
    let text = match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    if let Some(dir) = path.parent() {
        // The run folder is the daemon's alone.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let new = path.with_extension("conf.new");
    fs::write(&new, with(&text, limit, value))?;
    fs::File::open(&new)?.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The daemon refuses a run folder that others may enter.
    #[test]
    fn a_folder_for_the_file_is_its_owners() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        save(&run.join("aquifer.conf"), Limit::TxgTimeout, 7).unwrap();
        assert_eq!(fs::metadata(&run).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn both_forms_are_read_and_slips_are_told() {
        let limits = Limits::default();
        let text = "# memory\nzfs_arc_max = 1G # a comment\noptions zfs zfs_arc_min=0x1000 zfs_txg_timeout=7\n\
                    options nvme poll=1\nzfs_nonsense=1\nzfs_txg_timeout=0\njust words\n";
        let said = apply(text, &limits);
        assert_eq!(limits.get(Limit::ArcMax), 1 << 30);
        assert_eq!((limits.get(Limit::ArcMin), limits.get(Limit::TxgTimeout)), (4096, 7));
        let lines =
            ["line 5: there is no setting", "line 6: zfs_txg_timeout is from 1", "line 7: 'just words'"];
        assert_eq!(said.len(), 3);
        assert!(said.iter().zip(lines).all(|(said, line)| said.starts_with(line)), "{said:?}");
    }

    #[test]
    fn a_saved_setting_takes_the_place_of_its_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/aquifer.conf");
        save(&path, Limit::ArcMax, 5).unwrap();
        save(&path, Limit::TxgTimeout, 6).unwrap();
        save(&path, Limit::ArcMax, 7).unwrap();
        let (limit, never) = parse("zfs_livelist_min_percent_shared=-1").unwrap();
        save(&path, limit, never).unwrap();
        let text = "zfs_arc_max = 7\nzfs_txg_timeout = 6\nzfs_livelist_min_percent_shared = -1\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        let limits = Limits::default();
        assert!(load(&path, &limits).is_empty());
        assert_eq!(limits.get(limit), never);
        assert!(parse("zfs_txg_timeout=-1").is_err());
        assert_eq!(limits.get(Limit::ArcMax), 7);
    }
}
