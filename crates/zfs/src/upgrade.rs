//! `zfs upgrade`: which file systems are of older versions, and giving them newer ones.

use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::refused::quoted;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::DatasetKind;
use engine::dsl::props::zpl::file_system;

/// Newest version of file systems.
const NEWEST: u64 = 5;

/// List file systems of older versions, or upgrade them.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// List the supported versions.
    #[arg(short = 'v')]
    pub list: bool,
    /// Upgrade all file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// Upgrade all descendants, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Upgrade to this version.
    #[arg(short = 'V', value_name = "VERSION", value_parser = version_of)]
    pub version: Option<u64>,
    /// File systems.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

/// The number that `-V` names; `current` names the newest, as in the property `version`.
fn version_of(word: &str) -> Result<u64, String> {
    if word == "current" { Ok(NEWEST) } else { word.parse().map_err(|_| format!("invalid version {word}")) }
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
        self.check()?;
        if self.list {
            writeln!(ctx.out, "{VERSIONS}")?;
            return Ok(Exit::OK);
        }
        if self.all || !self.names.is_empty() {
            return self.upgrade(ctx);
        }
        let mut older = Vec::new();
        for pool in ctx.all_pools().iter().map(|pool| pool.name()) {
            let all = self.below(&pool, true, ctx)?.into_iter();
            older.extend(all.map(|(target, version)| (target.name, version)).filter(|(_, v)| *v < NEWEST));
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

/// Result counts.
#[derive(Debug, Default)]
struct Counts {
    upgraded: usize,
    already: usize,
    failed: usize,
}

impl Upgrade {
    /// Refuses options that contradict each other. File systems are upgraded by name, or all of them, and never go back.
    fn check(&self) -> Result<(), Failure> {
        if let Some(version) = self.version.filter(|version| !(1..=NEWEST).contains(version)) {
            return Err(Failure::usage(format!("invalid version {version}")));
        }
        let (named, shaped) = (!self.names.is_empty(), self.recurse || self.version.is_some());
        let has_no_target = !self.all && !named && shaped;
        let is_more_than_list = self.list && (self.all || named || shaped);
        match has_no_target || is_more_than_list || (self.all && named) {
            true => Err(Failure::usage("")),
            false => Ok(()),
        }
    }

    #[doc(alias = "zfs_do_upgrade")]
    fn upgrade(&self, ctx: &mut Ctx) -> Outcome {
        let names = match self.all {
            true => ctx.all_pools().iter().map(|pool| pool.name()).collect(),
            false => self.names.clone(),
        };
        let mut counts = Counts::default();
        for name in names {
            match self.below(&name, self.all || self.recurse, ctx) {
                Ok(found) => {
                    for (target, version) in found {
                        self.one(&target, version, &mut counts, ctx)?;
                    }
                }
                Err(failure) => {
                    ctx.warn(failure.message().unwrap_or_default());
                    counts.failed += 1;
                }
            }
        }
        writeln!(ctx.out, "{} filesystems upgraded", counts.upgraded)?;
        if counts.already > 0 {
            writeln!(ctx.out, "{} filesystems already at this version", counts.already)?;
        }
        Ok(if counts.failed > 0 { Exit::FAILED } else { Exit::OK })
    }

    #[doc(alias = "upgrade_set_callback")]
    fn one(&self, target: &Target, version: u64, counts: &mut Counts, ctx: &mut Ctx) -> Result<(), Failure> {
        let (name, wanted) = (&target.name, self.version.unwrap_or(NEWEST));
        if super::version::check(target, wanted).is_err() {
            let needed = zpl::pool_version_for(wanted);
            writeln!(
                ctx.out,
                "{name}: can not be upgraded; the pool version needs to first be upgraded\nto version {needed}\n"
            )?;
            counts.failed += 1;
        } else if version > wanted {
            writeln!(ctx.out, "{name}: can not be downgraded; it is already at version {version}")?;
            counts.failed += 1;
        } else if version == wanted {
            counts.already += 1;
        } else if ctx.is_delegated() {
            ctx.warn(quoted("set property for", name).message().unwrap_or_default());
            counts.failed += 1;
        } else if let Err(what) = super::version::set(target, wanted) {
            ctx.warn(Failure::cannot("set property for", name, what).message().unwrap_or_default());
            counts.failed += 1;
        } else {
            ctx.log(&target.pool)?;
            counts.upgraded += 1;
        }
        Ok(())
    }

    /// File systems and their versions: one, or with everything below. One whose key is not loaded keeps its version
    /// to itself.
    fn below(&self, name: &str, recurse: bool, ctx: &mut Ctx) -> Result<Vec<(Target, u64)>, Failure> {
        let target = Target::head_of(name, ctx)?;
        let dirs = if recurse { target.tree()? } else { vec![target.dir()?] };
        let _quiet = target.pool.quiet();
        let mut found = Vec::new();
        for dir in dirs {
            let head = dir.head()?;
            if head.kind()? != DatasetKind::Filesystem {
                continue;
            }
            let known = head.objset().and_then(|objset| file_system(&objset)).ok();
            if let Some(version) = known.and_then(|props| props.get("version").copied()) {
                found.push((Target { name: dir.name, ..target.clone() }, version));
            }
        }
        Ok(found)
    }
}
