//! `zfs diff`: changes between a snapshot and a later one, or the present file system.
//!
//! A file system's objects lie in an array. Blocks of that array that are the same in both states hold the
//! same objects; in the others each object is looked at in both states ([`changes`]).
//!
//! Paths begin with the place where the file system is mounted.
//!
//! Differs from OpenZFS: the file system need not be mounted; paths then begin with its `mountpoint` property, or
//! with its name where that is no path.

pub mod changes;

use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::keys;
use clikit::session::why;
use clikit::source::PoolSource;
use clikit::target::NOT_OF_THIS_TYPE;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use engine::Kind;
use engine::dsl::props::stats::clone_origin;
use engine::dsl::props::written;
use engine::dsl::{Dataset, DatasetKind as HeadKind};
use zcommon::names::check_snapshot;
use zcommon::props::ZfsProp;
use zpl::differences::changed_objects;
use zpl::{FileKind, Filesystem};

use self::changes::{Change, Side};
use super::prop::{Node, Props};
use super::snapshot::of_its_own_group;

/// Print the differences between a snapshot and a later snapshot, or the current file system.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Diff {
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// Print the type of each file.
    #[arg(short = 'F')]
    pub classify: bool,
    /// Print tabs between columns, and no arrows.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print the time of each change.
    #[arg(short = 't')]
    pub times: bool,
    /// Print names without escapes.
    #[arg(short = 'h')]
    pub raw_names: bool,
    /// The earlier snapshot.
    #[arg(value_name = "SNAPSHOT")]
    pub from: String,
    /// The later snapshot or the file system (default: the snapshot's file system).
    #[arg(value_name = "SNAPSHOT|FILESYSTEM")]
    pub to: Option<String>,
}

impl Verb for Diff {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        self.check_first(ctx)?;
        let (from_name, to_name) = self.ends()?;
        let own = from_name.split('@').next().unwrap_or_default();
        let moment = Moment::of(&to_name, ctx)?;
        let to_name = moment.as_ref().map_or(to_name, |moment| moment.name.clone());
        let pool = self.source.open(own.split('/').next().unwrap_or_default(), ctx)?;
        // A long walk must not keep changes from the disk; snapshots stay as they are anyway.
        ctx.let_sync();
        let open = |name: &str| {
            pool.dsl.dataset(name).map_err(|e| match e.kind() {
                Kind::NotFound => {
                    // The later state may have been sought in a pool that is not there yet.
                    Failure::cannot("open", name, ctx.why_no_pool_of(name, "dataset does not exist"))
                }
                _ => Failure::cannot("open", name, e),
            })
        };
        let (from, to) = (open(&from_name)?, open(&to_name)?);
        if written::since_snapshot(&from, &to).is_err() {
            let why = "Not an earlier snapshot from the same fs";
            let origin = to.dir()?.phys.origin_obj;
            let is_clone = origin != 0 && clone_origin(&pool.dsl, origin)?.is_some();
            let is_of_other = to.name.split('@').next() != Some(own);
            return Err(Failure::failed(match is_of_other && !is_clone {
                true => format!("{why}: invalid name"),
                false => format!("Unable to obtain diffs: \n   {why}"),
            }));
        }
        keys::ensure(&pool, &to.dir()?, ctx)?;
        let place = self.place(&to, ctx)?;
        let sides =
            (Side::new(Filesystem::open_committed(&from)?), Side::new(Filesystem::open_committed(&to)?));
        let objsets = (from.objset()?, to.objset()?);
        let mut failed = false;
        for object in changed_objects(&objsets.0, &objsets.1) {
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            match object {
                Ok(number) => {
                    for change in changes::of_object(&sides.0, &sides.1, number) {
                        self.print(&change, &place, ctx)?;
                    }
                }
                Err(e) => {
                    failed = true;
                    ctx.warn(format!("Unable to determine path or stats: {e}"));
                }
            }
        }
        Ok(if failed { Exit::FAILED } else { Exit::OK })
    }
}

/// A snapshot of a file system as it is now, which lasts while it is compared.
#[doc(alias = "ZFS_IOC_TMP_SNAPSHOT")]
struct Moment {
    pool: Arc<Imported>,
    name: String,
    tag: String,
}

impl Moment {
    /// Nothing for a snapshot, for pools that can't change, and where the name is wrong.
    fn of(dataset: &str, ctx: &mut Ctx) -> Result<Option<Self>, Failure> {
        let Some(pool) = ctx.pool_of(dataset).filter(|_| !dataset.contains('@')) else { return Ok(None) };
        let Ok(spa) = pool.spa() else { return Ok(None) };
        if spa.pool.dsl.dataset(dataset).is_err() {
            return Ok(None);
        }
        let tag = format!("zfs-diff-{}-{:016x}", std::process::id(), spa.pool.env.guid());
        let name = format!("{dataset}@{tag}");
        let taken = of_its_own_group(|| {
            let (name, tag) = (name.clone(), tag.clone());
            spa.dsl_task(move |tasks| tasks.snapshot_tmp(&name, &tag))
        });
        taken.map_err(|e| {
            Failure::failed(format!("Cannot create just-in-time snapshot of '{dataset}': {}", why(&e)))
        })?;
        Ok(Some(Self { pool, name, tag }))
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        let (name, tag) = (self.name.clone(), self.tag.clone());
        // A hold that can't be released now is released at the next import.
        let _ = self.pool.spa().and_then(|spa| spa.dsl_task(move |tasks| tasks.release(&name, &tag)));
    }
}

impl Diff {
    /// The first dataset that is named must be a file system.
    fn check_first(&self, ctx: &mut Ctx) -> Result<(), Failure> {
        let named = match (&self.to, self.from.starts_with('@')) {
            (_, false) => &self.from,
            (Some(to), true) => to,
            (None, true) => return Err(Failure::usage("")),
        };
        let name = named.split('@').next().unwrap_or_default();
        let pool = name.split('/').next().unwrap_or_default();
        let pool = self.source.open(pool, ctx).map_err(|e| match e.is_no_pool(pool) {
            true => Failure::no_dataset(name),
            false => e,
        })?;
        let found = pool.dsl.dataset(name).and_then(|dataset| dataset.kind());
        ctx.let_sync();
        match found {
            Ok(HeadKind::Filesystem) => Ok(()),
            Ok(_) => Err(Failure::cannot("open", name, NOT_OF_THIS_TYPE)),
            Err(e) if e.kind() == Kind::NotFound => Err(Failure::no_dataset(name)),
            Err(e) => Err(Failure::cannot("open", name, e)),
        }
    }

    /// The names of both states. One of them may be a snapshot without its file system, which is then the other's.
    #[doc(alias = "get_snapshot_names")]
    fn ends(&self) -> Result<(String, String), Failure> {
        let from = &self.from;
        let Some(to) = &self.to else {
            let bad = |fault| Failure::failed(format!("Badly formed snapshot name {from}: {fault}"));
            check_snapshot(from).map_err(bad)?;
            return Ok((from.clone(), from.split('@').next().unwrap_or_default().to_owned()));
        };
        let (own, snapshot) = from.split_once('@').unwrap_or_default();
        let (theirs, later) = to.split_once('@').map_or((to.as_str(), None), |(set, snap)| (set, Some(snap)));
        if snapshot.is_empty() || later == Some("") || (own.is_empty() && theirs.is_empty()) {
            return Err(Failure::failed("Unable to determine which snapshots to compare: invalid name"));
        }
        Ok(match (own.is_empty(), theirs.is_empty()) {
            (true, _) => (format!("{theirs}{from}"), to.clone()),
            (false, true) => (from.clone(), format!("{own}{to}")),
            (false, false) => (from.clone(), to.clone()),
        })
    }

    /// Prefix of the paths.
    #[doc(alias = "get_mountpoint")]
    fn place(&self, to: &Dataset, ctx: &mut Ctx) -> Result<Vec<u8>, Failure> {
        let head = to.dir()?.head()?;
        let kind = head.kind()?;
        if kind != HeadKind::Filesystem {
            return Err(Failure::cannot("diff", &head.name, "not a file system"));
        }
        let name = head.name.clone();
        let pool = if self.source.is_offline() { None } else { ctx.pool_of(&name) };
        if let Some(at) = pool.and_then(|pool| pool.mounts.at(&name)) {
            let at = at.into_os_string().into_vec();
            return Ok(if at == b"/" { Vec::new() } else { at });
        }
        let node = Node::Dataset(head, kind);
        let mountpoint = Props::new(&node, 0).native(ZfsProp::Mountpoint).map(|p| p.literal);
        let path = mountpoint.filter(|m| m.starts_with('/')).unwrap_or_else(|| format!("/{name}"));
        Ok(path.trim_end_matches('/').as_bytes().to_vec())
    }

    fn print(&self, change: &Change, place: &[u8], ctx: &mut Ctx) -> Result<(), Failure> {
        let out = &mut ctx.out;
        if self.times {
            write!(out, "{:10}.{:09}\t", change.time.sec, change.time.nsec)?;
        }
        write!(out, "{}\t", change.sign)?;
        if self.classify {
            write!(out, "{}\t", letter(change.kind))?;
        }
        self.print_path(out, place, &change.path)?;
        if let Some(renamed) = &change.renamed {
            out.write_all(if self.scripted { b"\t" } else { b" -> " })?;
            self.print_path(out, place, renamed)?;
        }
        if change.links != 0 {
            write!(out, "\t({:+})", change.links)?;
        }
        Ok(writeln!(out)?)
    }

    /// Bytes that could confuse a terminal or a script are printed as `\0040`.
    fn print_path(&self, out: &mut dyn Write, place: &[u8], path: &[u8]) -> Result<(), Failure> {
        for &byte in place.iter().chain(path) {
            match byte {
                _ if self.raw_names => out.write_all(&[byte])?,
                b'\\' | b' ' => write!(out, "\\{byte:04o}")?,
                0x21..0x7f => out.write_all(&[byte])?,
                _ => write!(out, "\\{byte:04o}")?,
            }
        }
        Ok(())
    }
}

/// The letter of `-F`.
#[doc(alias = "get_what")]
fn letter(kind: FileKind) -> char {
    match kind {
        FileKind::Symlink => '@',
        FileKind::Directory => '/',
        FileKind::CharDevice => 'C',
        FileKind::BlockDevice => 'B',
        FileKind::Fifo => '|',
        FileKind::Socket => '=',
        FileKind::Regular => 'F',
    }
}
