//! Running scripts: their environment, and their output for a device.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Scripts at once, for each processor: most wait for a disk.
const AT_ONCE: usize = 5;

/// Output of scripts for a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// Columns in their order, with the device's cells.
    pub cells: Vec<(String, String)>,
    /// Output without a column: the last line of a script, when it is no `name=value`.
    pub others: Vec<String>,
}

impl Said {
    /// Takes the output of one script. A column that is there already stays as it is.
    #[doc(alias = "vdev_process_cmd_output")]
    fn take(&mut self, output: &str) {
        for line in output.lines() {
            let line: String = line.chars().filter(|c| !c.is_control()).collect();
            let Some((name, value)) = line.split_once('=') else {
                self.others.push(line);
                return;
            };
            if !self.cells.iter().any(|(known, _)| known == name) {
                self.cells.push((name.to_owned(), value.to_owned()));
            }
        }
    }
}

/// Runs all scripts for each of these devices.
#[doc(alias = "all_pools_for_each_vdev_run_vcdl")]
pub fn all(scripts: &[PathBuf], paths: &[String]) -> BTreeMap<String, Said> {
    let mut paths = paths.to_vec();
    paths.sort();
    paths.dedup();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            let said = one(scripts, path);
            found.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone(), said);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).saturating_mul(AT_ONCE);
    thread::scope(|scope| (0..threads.min(paths.len())).for_each(|_| drop(scope.spawn(work))));
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[doc(alias = "vdev_run_cmd")]
fn one(scripts: &[PathBuf], path: &str) -> Said {
    let upath = underlying(Path::new(path));
    let enclosure = enclosure(Path::new(path));
    let mut said = Said::default();
    for script in scripts {
        let mut command = Command::new(script);
        command.env_clear().env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin").env("VDEV_PATH", path);
        command.env("VDEV_UPATH", upath.as_deref().unwrap_or(Path::new("")));
        command.env("VDEV_ENC_SYSFS_PATH", enclosure.as_deref().unwrap_or(Path::new("")));
        if let Some(output) = output(&mut command) {
            said.take(&output);
        }
    }
    said
}

/// The help text of a script.
#[doc(alias = "print_zpool_script_help")]
pub fn help(script: &Path) -> Vec<String> {
    let output = output(Command::new(script).arg("-h")).unwrap_or_default();
    output.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

/// Standard output of a program that ends well.
fn output(command: &mut Command) -> Option<String> {
    let done = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The device itself behind links, and behind a device-mapper or multipath one.
#[doc(alias = "zfs_get_underlying_path")]
fn underlying(path: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(path).ok()?;
    let name = real.file_name()?.to_str()?;
    let slaves = PathBuf::from(format!("/sys/block/{name}/slaves"));
    let first = name.starts_with("dm-").then(|| fs::read_dir(slaves).ok()?.flatten().next()).flatten();
    Some(first.map_or(real, |slave| Path::new("/dev").join(slave.file_name())))
}

/// The slot of an enclosure that a disk is in.
#[doc(alias = "zfs_get_enclosure_sysfs_path")]
pub fn enclosure(path: &Path) -> Option<PathBuf> {
    let meta = fs::metadata(underlying(path)?).ok().filter(|meta| meta.rdev() != 0)?;
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let base = format!("/sys/dev/block/{major}:{minor}");
    let entries = ["device", "../device"].iter().filter_map(|dir| fs::read_dir(format!("{base}/{dir}")).ok());
    let mut named = entries.flatten().flatten();
    let slot = named.find(|entry| entry.file_name().to_string_lossy().starts_with("enclosure_device"))?;
    fs::canonicalize(slot.path()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_columns_until_one_is_none() {
        let mut said = Said::default();
        said.take("a=1\nb=x=y\na=2\nno such thing\nc=3\n");
        said.take("d=\x1b[31m4\nlast\n");
        let cells = [("a", "1"), ("b", "x=y"), ("d", "[31m4")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(said, Said { cells: cells.into(), others: vec!["no such thing".into(), "last".into()] });
    }

    #[test]
    fn a_script_sees_the_device_and_nothing_else() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("s");
        fs::write(&script, "#!/bin/sh\nenv | sort | grep -v -e ^PWD= -e ^SHLVL= -e ^_=\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let path = script.display().to_string();
        let said = all(std::slice::from_ref(&script), std::slice::from_ref(&path));
        let names: Vec<&str> = said[&path].cells.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["PATH", "VDEV_ENC_SYSFS_PATH", "VDEV_PATH", "VDEV_UPATH"]);
        assert!(said[&path].cells.contains(&("VDEV_PATH".into(), path.clone())));
        fs::write(&script, "#!/bin/sh\necho a=1\nexit 3\n").unwrap();
        assert_eq!(all(&[script], std::slice::from_ref(&path))[&path], Said::default());
    }
}
