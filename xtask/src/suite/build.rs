//! Builds the tests and reads the paths of their binaries from cargo's messages.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A test binary.
pub struct Binary {
    /// `crate/target`; `crate` for the unit tests of a library or a program.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// The directory of its crate, in which `cargo test` runs it.
    pub folder: PathBuf,
}

/// Builds all test binaries. Errors if the build fails.
pub fn build(root: &Path, arguments: &[String]) -> Result<Vec<Binary>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    std::env::vars_os().filter(|(name, _)| is_of_package(name)).for_each(|(name, _)| {
        command.env_remove(name);
    });
    let mut child = command
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .args(arguments)
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cargo does not start: {e}"))?;
    let mut binaries = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(|e| format!("cargo's messages: {e}"))?;
            binaries.extend(serde_json::from_str(&line).ok().and_then(|message| binary(&message)));
        }
    }
    let status = child.wait().map_err(|e| format!("cargo: {e}"))?;
    if status.success() { Ok(binaries) } else { Err("the tests do not build".into()) }
}

/// Whether `cargo run` set a variable for this program alone. Build scripts that name such a variable (ring's) would run
/// again, and all crates above them would be built again, after every build by `cargo` itself.
fn is_of_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let alone = ["CARGO_BIN_NAME", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"];
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix)) || alone.contains(&&*name)
}

/// The test binary in one of cargo's messages.
fn binary(message: &Value) -> Option<Binary> {
    let program = message.get("executable")?.as_str()?;
    if !message.get("profile")?.get("test")?.as_bool()? {
        return None;
    }
    let folder = Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_owned();
    let target = message.get("target")?;
    let part = folder.file_name()?.to_string_lossy();
    let is_test = target.get("kind")?.as_array()?.iter().any(|kind| kind == "test");
    let target = target.get("name")?.as_str()?;
    let name = match is_test || target.replace('-', "_") != part.replace('-', "_") {
        true => format!("{part}/{target}"),
        false => part.into_owned(),
    };
    Some(Binary { name, program: program.into(), folder })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_this_program_do_not_reach_the_build() {
        for own in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PRIMARY_PACKAGE"] {
            assert!(is_of_package(OsStr::new(own)), "{own}");
        }
        for kept in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_BUILD_JOBS", "CARGO", "PATH"] {
            assert!(!is_of_package(OsStr::new(kept)), "{kept}");
        }
    }

    #[test]
    fn messages_name_test_binaries() {
        let message = |kind: &str, name: &str, test: bool| {
            serde_json::json!({
                "executable": "/t/x-1", "profile": { "test": test }, "manifest_path": "/w/crates/sim/Cargo.toml",
                "target": { "kind": [kind], "name": name },
            })
        };
        let name = |kind, target| binary(&message(kind, target, true)).map(|b| b.name);
        assert_eq!(name("lib", "sim").as_deref(), Some("sim"));
        assert_eq!(name("test", "crash").as_deref(), Some("sim/crash"));
        assert_eq!(name("bin", "kill").as_deref(), Some("sim/kill"));
        assert!(binary(&message("bin", "sim", false)).is_none());
        assert!(binary(&serde_json::json!({ "reason": "build-finished" })).is_none());
    }
}
