//! `aquifer zpool import` against the real `zpool import`, byte by byte.
//!
//! The real one needs a kernel module; a preloaded shim has libzpool do the module's part in user space
//! (crates/testkit/oracle). Needs zpool, libzpool and a C compiler, and prints a notice when it has to skip.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The real `zpool` with the shim.
struct Oracle {
    shim: PathBuf,
    helper: PathBuf,
}

impl Oracle {
    fn build(dir: &Path) -> Option<Self> {
        let lib = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]
            .into_iter()
            .map(|lib| Path::new(lib).join("libzpool.so.6"))
            .find(|lib| lib.exists())?;
        let nvpair = lib.with_file_name("libnvpair.so.3");
        let source = testkit::golden::workspace().join("crates/testkit/oracle");
        let (shim, helper) = (dir.join("shim.so"), dir.join("tryimport"));
        let cc = |out: &Path, rest: &[&Path]| {
            let mut command = Command::new("cc");
            command.arg("-w").arg("-o").arg(out).args(rest);
            command.status().is_ok_and(|status| status.success())
        };
        let built = cc(&shim, &[Path::new("-shared"), Path::new("-fPIC"), &source.join("import_shim.c")])
            && cc(&helper, &[&source.join("tryimport.c"), &lib, &nvpair]);
        let works = Command::new("zpool").arg("--help").output().is_ok();
        (built && works).then_some(Self { shim, helper })
    }

    fn list(&self, dir: &Path) -> String {
        let mut zpool = Command::new("zpool");
        zpool.env("LD_PRELOAD", &self.shim).env("AQUIFER_TRYIMPORT", &self.helper);
        text(zpool.arg("import").arg("-d").arg(dir))
    }
}

fn text(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

fn ours(dir: &Path) -> String {
    without_aux(&text(Command::new(env!("CARGO_BIN_EXE_aquifer")).args(["zpool", "import", "-d"]).arg(dir)))
}

/// The listing without spares and cache devices, which libzpool doesn't load.
fn without_aux(text: &str) -> String {
    let mut in_aux = false;
    let keep = |line: &&str| {
        in_aux = matches!(*line, "\tcache" | "\tspares") || (in_aux && line.starts_with("\t  "));
        !in_aux
    };
    text.lines().filter(keep).map(|line| format!("{line}\n")).collect()
}

/// Copies a golden pool's devices, those in `lost` left out.
fn without(pool: &Path, lost: &[&str], to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(pool).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("disk") && !lost.contains(&name.as_str()) {
            let copied =
                Command::new("cp").arg("--sparse=always").arg(entry.path()).arg(to.join(name)).status();
            assert!(copied.unwrap().success());
        }
    }
}

#[test]
fn every_golden_pool_is_listed_as_openzfs_lists_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(oracle) = Oracle::build(dir.path()) else {
        return eprintln!("SKIPPED: needs zpool, libzpool.so.6 and cc");
    };
    for golden in testkit::golden::of_2_3() {
        assert_eq!(ours(&golden.dir), oracle.list(&golden.dir), "{}", golden.name);
    }
}

#[test]
fn pools_with_lost_devices_are_listed_as_openzfs_lists_them() {
    let dir = tempfile::tempdir().unwrap();
    let Some(oracle) = Oracle::build(dir.path()) else {
        return eprintln!("SKIPPED: needs zpool, libzpool.so.6 and cc");
    };
    let cases: &[(&str, &[&str])] = &[
        ("raidz1-3", &["disk2"]),
        ("raidz1-3", &["disk1", "disk2"]),
        ("mirror3", &["disk1", "disk3"]),
        ("stripe-mixed", &["disk1"]),
        ("stripe-mixed", &["disk2", "disk4"]),
        ("stripe-mixed", &["disk1", "disk2", "disk4", "disk5"]),
        ("classes", &["disk4"]),
        ("classes", &["disk2", "disk3"]),
        ("classes", &["disk5", "disk6"]),
        ("removed", &["disk3"]),
        ("draid1", &["disk1", "disk2"]),
        ("replacing", &["disk1"]),
        ("unclean-log", &["disk3"]),
        ("unclean-log", &["disk1", "disk2"]),
        ("legacy-v28", &["disk1"]),
    ];
    for (number, (name, lost)) in cases.iter().enumerate() {
        let Some(golden) = testkit::golden::get(name) else { continue };
        let copy = dir.path().join(number.to_string());
        without(&golden.dir, lost, &copy);
        assert_eq!(ours(&copy), oracle.list(&copy), "{name} without {lost:?}");
        std::fs::remove_dir_all(&copy).unwrap();
    }
}
