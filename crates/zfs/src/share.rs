//! `zfs share` and `zfs unshare`: nothing is shared yet, and the answers are those of OpenZFS on a system that shares nothing.

use std::path::Path;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use zcommon::props::{DatasetTypes, ZfsProp};

use super::mount::property;

/// Share file systems: no file system is shared.
#[derive(Debug, Args)]
pub struct Share {
    /// All file systems; a protocol may follow: `nfs` or `smb`.
    #[arg(short = 'a')]
    pub all: bool,
    /// Load the keys of encrypted file systems.
    #[arg(short = 'l')]
    pub load_keys: bool,
    /// A file system.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

/// Stop sharing file systems: no file system is shared.
#[derive(Debug, Args)]
pub struct Unshare {
    /// All file systems; a protocol may follow: `nfs` or `smb`.
    #[arg(short = 'a')]
    pub all: bool,
    /// A file system or its mount point.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

impl Share {
    /// The file systems that are named.
    pub fn datasets(&self) -> &[String] {
        if self.all { &[] } else { &self.names }
    }
}

impl Unshare {
    /// The file systems that are named.
    pub fn datasets(&self) -> &[String] {
        if self.all { &[] } else { &self.names }
    }
}

impl Verb for Share {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.all {
            return all_of(&self.names);
        }
        let name = one(&self.names, "missing filesystem argument (specify -a for all)")?;
        let target = filesystem(name, ctx)?;
        if !is_to_be_shared(&target)? {
            let how = "use exports(5) or smb.conf(5) to share this filesystem, or set the sharenfs or sharesmb property";
            return Err(Failure::cannot("share", name, format!("legacy share\n{how}")));
        }
        Err(Failure::failed("zfs share: not supported yet: sharing over NFS or SMB"))
    }
}

impl Verb for Unshare {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.all {
            return all_of(&self.names);
        }
        let name = one(&self.names, "missing filesystem argument")?;
        let cannot = |why: &str| Failure::cannot("unshare", name, why);
        let (target, by_hand) = match name.starts_with('/') {
            true => {
                let mut mounted =
                    ctx.pools().into_iter().filter_map(|pool| pool.mounts.mounted_at(Path::new(name)));
                let dataset = mounted.next().ok_or_else(|| cannot("not a ZFS filesystem"))?;
                (filesystem(&dataset, ctx)?, "exportfs(8) or smbcontrol(1)")
            }
            false => (filesystem(name, ctx)?, "exports(5) or smb.conf(5)"),
        };
        Err(match is_to_be_shared(&target)? {
            true => cannot("not currently shared"),
            false => cannot(&format!("legacy share\nuse {by_hand} to unshare this filesystem")),
        })
    }
}

/// `-a`, which does nothing, as on a system where no file system has `sharenfs` or `sharesmb`.
#[doc(alias = "sa_protocol_decode")]
fn all_of(words: &[String]) -> Outcome {
    match words {
        [] => Ok(Exit::OK),
        [protocol, ..] if !matches!(protocol.as_str(), "nfs" | "smb") => {
            Err(Failure::usage("share type must be one of: nfs, smb"))
        }
        [_] => Ok(Exit::OK),
        _ => Err(Failure::usage("too many arguments")),
    }
}

fn one<'a>(names: &'a [String], missing: &str) -> Result<&'a String, Failure> {
    match names {
        [] => Err(Failure::usage(missing)),
        [name] => Ok(name),
        _ => Err(Failure::usage("too many arguments")),
    }
}

fn filesystem(name: &str, ctx: &mut Ctx) -> Result<Target, Failure> {
    let target = Target::head_of(name, ctx)?;
    match target.types()? {
        DatasetTypes::FILESYSTEM => Ok(target),
        _ => Err(Failure::cannot("open", name, "operation not applicable to datasets of this type")),
    }
}

/// Whether its properties ask for a share.
fn is_to_be_shared(target: &Target) -> Result<bool, Failure> {
    Ok(property(target, ZfsProp::Sharenfs)? != "off" || property(target, ZfsProp::Sharesmb)? != "off")
}
