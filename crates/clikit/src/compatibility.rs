//! The pool property `compatibility`: files that name the features a pool may have.
//!
//! Source: `zpool_load_compat`, libzfs, OpenZFS 2.4.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::ctx::Ctx;
use crate::verb::Failure;
use zcommon::features::{FEATURES, Feature, compatibility_set};

/// Directory of the administrator's files.
const OWN: &str = "/etc/zfs/compatibility.d";
/// Directory of the files that a distribution installs.
const INSTALLED: &str = "/usr/share/zfs/compatibility.d";
/// Maximum bytes of a file.
#[doc(alias = "ZPOOL_COMPAT_MAXSIZE")]
const MAX_SIZE: u64 = 16384;
/// Characters of an unknown name in a message.
const SHOWN: usize = 32;

/// Features that a value of the property allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compatible {
    /// The features.
    pub features: Vec<Feature>,
    /// Names that an installed file has and this program does not know.
    pub warning: Option<String>,
}

/// The features of one file, and the names in it that are none.
struct Words {
    features: Vec<Feature>,
    unknown: Vec<String>,
    is_installed: bool,
}

/// Returns the features that all of these sets allow; `off`: all, `legacy`: none.
pub fn compatible(files: &str) -> Result<Vec<Feature>, String> {
    load(files).map(|loaded| loaded.features)
}

/// As [`compatible`], with the warning about an installed file. A file takes precedence over the built-in set of its name.
#[doc(alias = "zpool_load_compat")]
pub fn load(files: &str) -> Result<Compatible, String> {
    match files {
        "off" | "" => return Ok(Compatible { features: FEATURES.to_vec(), warning: None }),
        "legacy" => return Ok(Compatible { features: Vec::new(), warning: None }),
        _ => {}
    }
    let names = files.split(',').filter(|name| !name.is_empty());
    let read: Vec<(&str, Option<Words>)> = names.map(|name| (name, words_of(name))).collect();
    let bad = joined(read.iter().filter(|(_, words)| words.is_none()).map(|(name, _)| *name));
    if !bad.is_empty() {
        return Err(format!("could not read/parse feature file(s): {bad}"));
    }
    let read: Vec<Words> = read.into_iter().filter_map(|(_, words)| words).collect();
    if read.is_empty() {
        return Err("no valid compatibility files specified".to_owned());
    }
    let unknown = joined(read.iter().flat_map(|words| &words.unknown).map(String::as_str));
    if read.iter().any(|words| !words.is_installed && !words.unknown.is_empty()) {
        return Err(format!("invalid feature name(s) in local compatibility files: {unknown}"));
    }
    let mut features = FEATURES.to_vec();
    features.retain(|feature| read.iter().all(|words| words.features.contains(feature)));
    let warning = format!("unrecognized feature name(s) in distribution compatibility files: {unknown}");
    Ok(Compatible { features, warning: (!unknown.is_empty()).then_some(warning) })
}

/// As [`load`], for a command that sets the property: it prints the warning.
#[doc(alias = "zpool_do_load_compat")]
pub fn load_or_tell(files: &str, ctx: &mut Ctx) -> Result<Vec<Feature>, Failure> {
    let loaded = load(files).map_err(|what| Failure::failed(format!("Error: {what}")))?;
    if let Some(warning) = loaded.warning {
        ctx.warn(format_args!("Warning: {warning}"));
    }
    Ok(loaded.features)
}

/// Each word, followed by a space.
fn joined<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("{word} ")).collect()
}

/// The words of a file, by its absolute name or in one of the directories, or of a built-in set; `None`: it cannot be read.
fn words_of(name: &str) -> Option<Words> {
    let own = Path::new(OWN).join(name);
    let (path, is_installed) =
        if own.exists() { (own, false) } else { (Path::new(INSTALLED).join(name), true) };
    if path.exists() {
        return text_of(&path).map(|text| words_in(&text, is_installed));
    }
    compatibility_set(name).map(|features| Words { features, unknown: Vec::new(), is_installed })
}

/// The text of a file of an admissible size, whose last line is complete.
fn text_of(path: &Path) -> Option<String> {
    // Opening a pipe would wait for its writer.
    let size = path.metadata().ok().filter(|data| data.is_file())?.len();
    if !(1..=MAX_SIZE).contains(&size) {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(size).read_to_end(&mut bytes).ok()?;
    bytes.ends_with(b"\n").then(|| String::from_utf8_lossy(&bytes).into_owned())
}

fn words_in(text: &str, is_installed: bool) -> Words {
    let (mut features, mut unknown) = (Vec::new(), Vec::new());
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    for word in lines.flat_map(|line| line.split([',', ' ', '\t'])).filter(|word| !word.is_empty()) {
        match Feature::from_name(word) {
            Some(feature) => features.push(feature),
            None => unknown.push(shown(word)),
        }
    }
    Words { features, unknown, is_installed }
}

/// An unknown word, shortened and without characters that a terminal would interpret.
fn shown(word: &str) -> String {
    let printable = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    word.chars().take(SHOWN).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of OpenZFS 2.4.4's `zpool create` for the same files.
    #[test]
    fn files_are_read_as_openzfs_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set");
        let name = path.to_str().unwrap();
        let said = |text: &str| {
            std::fs::write(&path, text).unwrap();
            compatible(name)
        };
        let both = Ok(vec![Feature::Lz4Compress, Feature::LargeBlocks]);
        let sorted = |found: Result<Vec<Feature>, String>| {
            found.map(|mut features| {
                features.sort_by_key(|feature| *feature != Feature::Lz4Compress);
                features
            })
        };
        for text in [
            "lz4_compress\nlarge_blocks\n",
            "\tlz4_compress, large_blocks # c\n",
            "# c\n\nlz4_compress large_blocks\n",
        ] {
            assert_eq!(sorted(said(text)), both, "{text}");
        }
        assert_eq!(said("# only\n"), Ok(Vec::new()));
        let bad = Err(format!("could not read/parse feature file(s): {name} "));
        assert_eq!(
            [said("lz4_compress"), said(""), said(&"\n".repeat(16385))],
            [(); 3].map(|()| bad.clone())
        );
        assert!(said(&"\n".repeat(16384)).is_ok());
        let what = "invalid feature name(s) in local compatibility files: nope b?d ";
        assert_eq!(said("lz4_compress nope\nb\u{7}d\n"), Err(what.to_owned()));
        assert_eq!(compatible("none-such").unwrap_err(), "could not read/parse feature file(s): none-such ");
        assert_eq!(compatible(",").unwrap_err(), "no valid compatibility files specified");
    }

    #[test]
    fn unknown_names_of_an_installed_file_are_left_out() {
        let words = words_in("lz4_compress newer\n", true);
        assert_eq!((words.features, words.unknown), (vec![Feature::Lz4Compress], vec!["newer".to_owned()]));
    }
}
