//! Standing jobs, from a file in TOML: one table `[job.NAME]` each.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};

use crate::place::Place;
use crate::{Job, Raw};

/// Where the file is unless it is given.
pub const PATH: &str = "/etc/aquifer/replicate.toml";

/// Reads the jobs of a file, by name.
///
/// # Errors
/// A message that names the file, the job and the key.
pub fn read(path: &Path) -> Result<BTreeMap<String, Job>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&text).map_err(|e| format!("{}: {e}", path.display()))
}

fn parse(text: &str) -> Result<BTreeMap<String, Job>, String> {
    let table: Table = text.parse().map_err(|e: toml::de::Error| e.to_string())?;
    let mut jobs = BTreeMap::new();
    for (key, value) in &table {
        match (key.as_str(), value) {
            ("job", Value::Table(all)) => {
                for (name, value) in all {
                    let values = value.as_table().ok_or_else(|| format!("job.{name}: not a table"))?;
                    let job = job(name, values).map_err(|e| format!("job.{name}: {e}"))?;
                    jobs.insert(name.clone(), job);
                }
            }
            _ => return Err(format!("unknown key '{key}': jobs are tables [job.NAME]")),
        }
    }
    Ok(jobs)
}

fn job(name: &str, values: &Table) -> Result<Job, String> {
    check_name(name)?;
    let text = |key: &str| match values.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(format!("{key}: not a text")),
    };
    let place = |key: &str, via: &str| {
        let word = text(key)?.ok_or_else(|| format!("{key} is missing"))?;
        Place::parse(word, text(via)?)
    };
    let mut job = Job::new(name, place("source", "source_via")?, place("target", "via")?);
    for (key, value) in values {
        let flag = || value.as_bool().ok_or_else(|| format!("{key}: neither true nor false"));
        let word = || value.as_str().ok_or_else(|| format!("{key}: not a text"));
        match key.as_str() {
            "source" | "source_via" | "target" | "via" => {}
            "recursive" => job.recursive = flag()?,
            "snapshot" => job.snapshot = flag()?,
            "newest" => job.newest = flag()?,
            "force" => job.force = flag()?,
            "writable" => job.writable = flag()?,
            "props" => job.props = flag()?,
            "holds" => job.no_holds = !flag()?,
            "verify" => job.verify = flag()?,
            "exclude" => job.exclude = texts(key, value)?,
            "keep" => job.keep = Some(word()?.parse()?),
            "keep_target" => job.keep_target = Some(word()?.parse()?),
            "rate" => job.rate = Some(bytes(word()?)?),
            "max_age" => job.max_age = Some(age(word()?)?),
            "raw" => job.raw = raw(word()?)?,
            _ => return Err(format!("unknown key '{key}'")),
        }
    }
    job.check()?;
    Ok(job)
}

fn texts(key: &str, value: &Value) -> Result<Vec<String>, String> {
    let all = value.as_array().ok_or_else(|| format!("{key}: not a list"))?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    all.iter().map(text).collect::<Option<_>>().ok_or_else(|| format!("{key}: not a list of texts"))
}

/// Whether a job may have this name, which becomes part of names of snapshots.
///
/// # Errors
/// A message with the characters that a name may have.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    match !name.is_empty() && name.len() <= 64 && name.chars().all(is_fine) {
        true => Ok(()),
        false => Err(format!("'{name}': a job's name has letters, digits, '-' and '.', at most 64")),
    }
}

/// Parses `when-encrypted`, `always` or `never`.
///
/// # Errors
/// A message with the allowed values.
pub fn raw(word: &str) -> Result<Raw, String> {
    match word {
        "when-encrypted" => Ok(Raw::WhenEncrypted),
        "always" => Ok(Raw::Always),
        "never" => Ok(Raw::Never),
        _ => Err(format!("raw is when-encrypted, always or never, not '{word}'")),
    }
}

/// Parses a number of bytes: `500K`, `20M`, `1G`.
///
/// # Errors
/// A message with examples.
pub fn bytes(word: &str) -> Result<u64, String> {
    scaled(word, &[("", 1), ("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)])
        .ok_or_else(|| format!("'{word}': a rate is like 500K, 20M or 1G"))
}

/// Parses an age in seconds: `90m`, `36h`, `2d`.
///
/// # Errors
/// A message with examples.
pub fn age(word: &str) -> Result<u64, String> {
    scaled(word, &[("s", 1), ("m", 60), ("h", 3600), ("d", 86400), ("w", 604_800)])
        .ok_or_else(|| format!("'{word}': an age is like 90m, 36h or 2d"))
}

fn scaled(word: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = word.get(digits.len()..)?;
    let (_, scale) = units.iter().find(|(known, _)| known.eq_ignore_ascii_case(unit))?;
    digits.parse::<u64>().ok()?.checked_mul(*scale).filter(|&number| number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_read() {
        let text = r#"
[job.home]
source = "tank/home"
target = "ssh://backup@box/pool/home"
recursive = true
snapshot = true
keep = "24h,30d"
keep_target = "12m"
exclude = ["tmp", "cache/x"]
rate = "20M"
max_age = "36h"
raw = "never"

[job.second]
source = "tank/a"
target = "far/a"
via = "docker exec -i box sh -c"
holds = false
"#;
        let jobs = parse(text).unwrap();
        let home = &jobs["home"];
        assert!(home.recursive && home.snapshot && !home.no_holds);
        assert_eq!((home.rate, home.max_age, home.raw), (Some(20 << 20), Some(36 * 3600), Raw::Never));
        assert_eq!(home.keep.as_ref().map(ToString::to_string).as_deref(), Some("24h,30d"));
        assert_eq!(home.exclude, ["tmp", "cache/x"]);
        assert!(jobs["second"].no_holds && jobs["second"].source.reach == crate::place::Reach::Here);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("job = 1", "unknown key 'job'"),
            ("[job.a]\nsource = \"t\"", "job.a: target is missing"),
            ("[job.a]\nsource = \"t\"\ntarget = \"u\"\nrecursiv = true", "job.a: unknown key 'recursiv'"),
            ("[job.a]\nsource = \"t\"\ntarget = \"u\"\nrecursive = \"yes\"", "job.a: recursive: neither"),
            ("[job.a]\nsource = \"t\"\ntarget = \"u\"\nkeep = \"all\"", "job.a: 'all': a retention rule"),
            ("[job.\"a b\"]\nsource = \"t\"\ntarget = \"u\"", "job.a b: 'a b': a job's name"),
            (
                "[job.a]\nsource = \"t\"\ntarget = \"t/b\"\nrecursive = true",
                "job.a: the target 't/b' is below",
            ),
            ("[job", "TOML parse error"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
