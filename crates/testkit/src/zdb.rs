//! Real zdb as the judge of pools that we wrote.

use std::path::Path;
use std::process::Command;

/// Whether zdb is installed; says so loudly when it is not.
pub fn installed() -> bool {
    let found = Command::new("zdb").arg("-h").output().is_ok();
    if !found {
        eprintln!("SKIPPED: zdb is not installed, so nothing judges what was written");
    }
    found
}

/// Runs zdb on the exported pool `name` whose devices are in `dir`; its output, or what went wrong.
pub fn run(dir: &Path, name: &str, args: &[&str]) -> Result<String, String> {
    let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(args).arg(name).output();
    let out = out.map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(text) } else { Err(format!("zdb {args:?}: {}\n{text}", out.status)) }
}

/// Every block read and its checksum right, every allocated sector referred to exactly once, and a history that
/// can be printed.
pub fn verify(dir: &Path, name: &str) -> Result<(), String> {
    run(dir, name, &["-h"])?;
    let text = run(dir, name, &["-bcc"])?;
    if text.contains("No leaks (block sum matches space maps exactly)") { Ok(()) } else { Err(text) }
}
