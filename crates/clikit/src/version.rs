//! `zpool version`, `zfs version` and `aquifer version`.

use std::io::Write;

use crate::ctx::Ctx;
use crate::names::{BUILD, RELEASE, is_ours};
use crate::output::json::{document, print};
use crate::verb::{Exit, Outcome, Verb};
use clap::Args;
use serde_json::json;

/// Print the version.
#[derive(Debug, Args)]
pub struct Version {
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
}

/// The OpenZFS release, then this program's own version: programs parse a version out of `zfs-2.4.4-0aquifer0.1.0`.
#[doc(alias = "ZFS_META_ALIAS")]
pub fn level() -> String {
    format!("{RELEASE}-{BUILD}")
}

impl Verb for Version {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let is_own = !is_ours(ctx.command.split(' ').next().unwrap_or_default());
        let own = concat!("aquifer-", env!("CARGO_PKG_VERSION"));
        let [userland, kernel] = [format!("zfs-{}", level()), format!("zfs-kmod-{}", level())];
        if self.json {
            let mut doc = document(&ctx.command);
            doc.insert("zfs_version".into(), json!({ "userland": userland, "kernel": kernel }));
            if is_own {
                doc.insert("aquifer_version".into(), json!(own));
            }
            print(&mut *ctx.out, &doc.into())?;
        } else if is_own {
            writeln!(ctx.out, "{own}")?;
        } else {
            // The daemon, which is this program, takes the place of the kernel module.
            writeln!(ctx.out, "{userland}\n{kernel}")?;
        }
        Ok(Exit::OK)
    }
}
