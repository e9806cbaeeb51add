//! Verbs of `zfs` that have little to do: `upgrade`, `wait`, `share`, `unshare`.

use std::io::Write;

use clap::Args;
use engine::dsl::DatasetKind;
use engine::dsl::props::zpl::file_system;

use super::target::Target;
use crate::ctx::Ctx;
use crate::verb::{Exit, Failure, Outcome, Verb};

/// Newest version of file systems.
const NEWEST: u64 = 5;

/// List file systems of older versions.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// List the versions.
    #[arg(short = 'v')]
    pub list: bool,
    /// All file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// With everything below.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// The version.
    #[arg(short = 'V', value_name = "VERSION")]
    pub version: Option<u64>,
    /// File systems.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

const VERSIONS: &str = "The following filesystem versions are supported:

VER  DESCRIPTION
---  --------------------------------------------------------
 1   Initial ZFS filesystem version
 2   Enhanced directory entries
 3   Case insensitive and filesystem user identifier (FUID)
 4   userquota, groupquota properties
 5   System attributes

For more information on a particular version, including supported releases,
see the ZFS Administration Guide.
";

impl Verb for Upgrade {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.list {
            writeln!(ctx.out, "{VERSIONS}")?;
            return Ok(Exit::OK);
        }
        if let Some(version) = self.version.filter(|version| !(1..=NEWEST).contains(version)) {
            return Err(Failure::usage(format!("invalid version {version}")));
        }
        let older = match self.older(ctx) {
            Err(Failure::Failed(why)) if !self.names.is_empty() => {
                ctx.warn(why);
                writeln!(ctx.out, "0 filesystems upgraded")?;
                return Ok(Exit::FAILED);
            }
            older => older?,
        };
        if self.all || !self.names.is_empty() {
            if let Some((name, version)) = older.first() {
                let what = format!("{name} has version {version}");
                return Err(Failure::failed(format!(
                    "zfs upgrade: not supported yet: older versions: {what}"
                )));
            }
            writeln!(ctx.out, "0 filesystems upgraded")?;
            return Ok(Exit::OK);
        }
        writeln!(ctx.out, "This system is currently running ZFS filesystem version {NEWEST}.\n")?;
        if older.is_empty() {
            writeln!(ctx.out, "All filesystems are formatted with the current version.")?;
            return Ok(Exit::OK);
        }
        writeln!(ctx.out, "The following filesystems are out of date, and can be upgraded.  After being")?;
        writeln!(ctx.out, "upgraded, these filesystems (and any 'zfs send' streams generated from")?;
        writeln!(
            ctx.out,
            "subsequent snapshots) will no longer be accessible by older software versions.\n\n"
        )?;
        writeln!(ctx.out, "VER  FILESYSTEM\n---  ------------")?;
        for (name, version) in older {
            writeln!(ctx.out, "{version:2}   {name}")?;
        }
        Ok(Exit::OK)
    }
}

impl Upgrade {
    fn older(&self, ctx: &mut Ctx) -> Result<Vec<(String, u64)>, Failure> {
        let names = match self.names.is_empty() {
            true => ctx.pools().iter().map(|pool| pool.name()).collect(),
            false => self.names.clone(),
        };
        let mut older = Vec::new();
        for name in names {
            let target = Target::of(&name, ctx)?;
            let dirs =
                if self.names.is_empty() || self.recurse { target.tree()? } else { vec![target.dir()?] };
            let _quiet = target.pool.quiet();
            for dir in dirs {
                let head = dir.head()?;
                if head.kind()? != DatasetKind::Filesystem {
                    continue;
                }
                // A file system whose key is not loaded keeps its version to itself.
                let known = head.objset().and_then(|objset| file_system(&objset)).ok();
                if let Some(version) = known.and_then(|props| props.get("version").copied())
                    && version < NEWEST
                {
                    older.push((dir.name, version));
                }
            }
        }
        Ok(older)
    }
}

/// Wait until something is done.
#[derive(Debug, Args)]
pub struct Wait {
    /// Activities, comma separated: deleteq.
    #[arg(short = 't', value_name = "ACTIVITY,…", value_delimiter = ',')]
    pub activities: Vec<String>,
    /// The file system.
    pub name: String,
}

impl Verb for Wait {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if let Some(bad) = self.activities.iter().find(|a| *a != "deleteq") {
            return Err(Failure::usage(format!("invalid activity '{bad}'")));
        }
        let target = Target::of(&self.name, ctx)?;
        target.dataset()?;
        // Files that were removed while open go when they are closed; nothing is left to work off later.
        target.pool.spa()?.sync()?;
        Ok(Exit::OK)
    }
}

/// Share file systems: none are.
#[derive(Debug, Args)]
pub struct Share {
    /// All file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// Load keys that are needed.
    #[arg(short = 'l')]
    pub load_keys: bool,
    /// File systems.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

impl Verb for Share {
    fn run(self, _: &mut Ctx) -> Outcome {
        match self.names.first() {
            None if self.all => Ok(Exit::OK),
            None => Err(Failure::usage("missing filesystem argument")),
            Some(_) => Err(Failure::failed("zfs share: not supported yet: sharing over NFS or SMB")),
        }
    }
}

/// Stop sharing file systems: none are shared.
#[derive(Debug, Args)]
pub struct Unshare {
    /// All file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// File systems.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

impl Verb for Unshare {
    fn run(self, _: &mut Ctx) -> Outcome {
        match self.names.first() {
            None if self.all => Ok(Exit::OK),
            None => Err(Failure::usage("missing filesystem argument")),
            Some(name) => Err(Failure::cannot("unshare", name, "not currently shared")),
        }
    }
}
