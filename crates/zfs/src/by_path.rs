//! Datasets that are named by a path in them: `zfs list /tank/a`.
//!
//! A path is looked up by the client, never by the daemon, whose own mounts may answer it: the client sends
//! the mount point that the path is in, and the daemon knows its file system.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use clikit::ctx::Ctx;

/// Mounted file systems with their device numbers and mount points.
const MOUNTS: &str = "/proc/self/mountinfo";

fn is_path(word: &str) -> bool {
    word.starts_with('/') || word.starts_with("./")
}

/// The kernel's marker of our mounts.
const TYPE: &str = " - fuse.zfs ";

/// A command line with mount points of ours in the place of paths: of paths in a mounted file system, and of places
/// that are the mount point itself.
#[doc(alias("zfs_path_to_zhandle", "getextmntent"))]
pub fn with_mount_points(argv: &[OsString], paths: &[String], places: &[String]) -> Vec<OsString> {
    let of = |names: &[String]| names.iter().filter(|name| is_path(name)).cloned().collect::<HashSet<_>>();
    let (paths, places) = (of(paths), of(places));
    if paths.is_empty() && places.is_empty() {
        return argv.to_vec();
    }
    let mounts = fs::read_to_string(MOUNTS).unwrap_or_default();
    let place = |word: &OsString| {
        let word = word.to_str()?;
        let found =
            mount_point(Some(word).filter(|word| paths.contains(*word) || places.contains(*word))?, &mounts)?;
        let is_it = || Path::new(word).canonicalize().is_ok_and(|whole| whole == Path::new(&found));
        (paths.contains(word) || is_it()).then_some(found)
    };
    argv.iter().map(|word| place(word).map_or_else(|| word.clone(), OsString::from)).collect()
}

/// Where the file system with a path is mounted: the longest of its mount points that the path is below.
fn mount_point(path: &str, mounts: &str) -> Option<String> {
    let device = fs::metadata(path).ok()?.dev();
    let whole = Path::new(path).canonicalize().ok()?;
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let places = mounts.lines().filter(|line| line.contains(TYPE)).filter_map(|line| {
        let mut words = line.split(' ');
        let device = words.nth(2)?;
        let place = words.nth(1)?.replace("\\040", " ");
        (device == wanted && whole.starts_with(&place)).then_some(place)
    });
    places.max_by_key(String::len)
}

/// Resolves words to names of datasets, in the daemon. Words that are no mount point of ours are reported and
/// skipped.
pub fn datasets(words: &[String], ctx: &mut Ctx) -> (Vec<String>, bool) {
    let (mut names, mut missed) = (Vec::new(), false);
    for word in words {
        let mounted =
            |ctx: &mut Ctx| ctx.pools().iter().find_map(|pool| pool.mounts.mounted_at(Path::new(word)));
        match if is_path(word) { mounted(ctx) } else { Some(word.clone()) } {
            Some(name) => names.push(name),
            None => {
                ctx.warn(format!("'{word}': not a ZFS filesystem"));
                missed = true;
            }
        }
    }
    (names, missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_in_the_deepest_mount_of_its_device() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let (file, top) = (top.join("a b/file"), top.display().to_string());
        fs::create_dir(dir.path().join("a b")).unwrap();
        fs::write(&file, b"").unwrap();
        let dev = fs::metadata(&file).unwrap().dev();
        let dev = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
        let line = |place: &str, kind: &str| format!("1 2 {dev} / {place} rw - {kind} tank rw\n");
        let ours =
            line("/", "fuse.zfs") + &line(&format!("{top}/a\\040b"), "fuse.zfs") + &line(&top, "fuse.zfs");
        let file = file.to_str().unwrap();
        assert_eq!(mount_point(file, &ours), Some(format!("{top}/a b")));
        assert_eq!(mount_point(file, &line("/", "ext4")), None);
        assert_eq!(mount_point(&format!("{file}/none"), &ours), None);
    }
}
