//! The command `zfs`: one file a verb; the mounts of the daemon, as its properties want them; and the permissions of
//! users other than the pools' owner.

mod allow;
pub use allow::Allow;
mod bookmark;
pub mod by_path;
mod clone;
mod content;
pub mod create;
pub mod delegated;
mod dependents;
mod destroy;
mod destroy_rest;
pub mod diff;
mod discard_log;
mod entry;
pub mod fuse;
pub mod get;
mod hold;
pub mod holds;
mod incomplete;
mod inherit;
pub mod keys;
pub mod list;
mod listing;
pub mod mount;
pub mod mount_helper;
pub mod project;
pub mod prop;
pub mod quota;
pub mod receive;
mod redact;
pub mod remount;
mod rename;
pub mod rewrite;
mod rollback;
pub mod rows;
pub mod select;
pub mod send;
mod set;
mod share;
mod simple;
pub mod snapshot;
mod stream_out;
pub mod unheeded;
mod upgrade;
pub mod userspace;
mod version;

use std::ffi::OsString;

use clap::{Args, Subcommand};
use clikit::ctx::Ctx;
use clikit::session::Home;
use clikit::unsupported::{self, ZFS_VERBS, refuse};
use clikit::verb::{Outcome, Verb};
use clikit::version::Version;

/// Configure and inspect datasets.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Zfs {
    /// The verb.
    #[command(subcommand)]
    pub verb: ZfsVerb,
}

/// The verbs of `zfs`.
#[derive(Debug, Subcommand)]
pub enum ZfsVerb {
    /// List datasets with their properties
    List(list::List),
    /// Print properties of datasets
    Get(get::Get),
    /// Print the differences between snapshots
    Diff(diff::Diff),
    /// List holds of snapshots
    Holds(holds::Holds),
    /// Print space used by user, with quotas
    Userspace(userspace::Userspace),
    /// Print space used by group, with quotas
    Groupspace(userspace::Groupspace),
    /// Print space used by project, with quotas
    Projectspace(userspace::Projectspace),
    /// List, check and set projects of files
    Project(project::Project),
    /// Write blocks of files again, with the current properties
    Rewrite(rewrite::Rewrite),
    /// Create a file system or volume
    Create(create::Create),
    /// Destroy datasets
    Destroy(destroy::Destroy),
    /// Create snapshots
    #[command(alias = "snap")]
    Snapshot(snapshot::Snapshot),
    /// Mount file systems
    Mount(mount::Mount),
    /// Unmount file systems
    #[command(alias = "umount")]
    Unmount(mount::Unmount),
    /// Roll a dataset back to a snapshot
    Rollback(rollback::Rollback),
    /// Create a clone of a snapshot
    Clone(clone::Clone),
    /// Promote a clone
    Promote(clone::Promote),
    /// Discard the records of an intent log
    DiscardLog(discard_log::DiscardLog),
    /// Receive a stream
    #[command(alias = "recv")]
    Receive(receive::Receive),
    /// Rename a dataset
    Rename(rename::Rename),
    /// Set properties of datasets
    Set(set::Set),
    /// Clear properties of datasets, so that they inherit them
    Inherit(inherit::Inherit),
    /// Hold snapshots
    Hold(hold::Hold),
    /// Remove holds from snapshots
    Release(hold::Release),
    /// Create a bookmark
    Bookmark(bookmark::Bookmark),
    /// Create a bookmark that lists the blocks that a redacted stream omits
    Redact(redact::Redact),
    /// Load keys
    LoadKey(keys::LoadKey),
    /// Unload keys
    UnloadKey(keys::UnloadKey),
    /// Change the key of a dataset
    ChangeKey(keys::ChangeKey),
    /// Write a stream of a snapshot
    Send(send::Send),
    /// Delegate permissions, or show them
    Allow(allow::Allow),
    /// Remove delegated permissions
    Unallow(allow::Unallow),
    /// List or upgrade file systems of older versions
    Upgrade(upgrade::Upgrade),
    /// Wait until an activity completes
    Wait(simple::Wait),
    /// Share file systems
    Share(share::Share),
    /// Stop sharing file systems
    Unshare(share::Unshare),
    /// Print the version
    Version(Version),
    /// A verb that has no module here.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

impl ZfsVerb {
    /// Words that may be paths in mounted file systems.
    pub fn names_or_paths(&self) -> &[String] {
        match self {
            Self::List(v) => &v.names,
            Self::Get(v) => &v.names,
            Self::Userspace(v) => std::slice::from_ref(&v.options.space.name),
            Self::Groupspace(v) => std::slice::from_ref(&v.options.space.name),
            Self::Projectspace(v) => std::slice::from_ref(&v.options.name),
            _ => &[],
        }
    }

    /// Words that may be mount points, with or without links.
    pub fn names_or_places(&self) -> &[String] {
        match self {
            Self::Unmount(v) => &v.names,
            Self::Unshare(v) => v.datasets(),
            _ => &[],
        }
    }

    /// Where it runs.
    pub fn home(&self) -> Home {
        match self {
            Self::List(v) => v.source.home_with(true, false),
            Self::Get(v) => v.source.home_with(true, false),
            Self::Diff(v) => v.source.home(),
            Self::Holds(v) => v.source.home(),
            Self::Send(v) => v.home(),
            Self::Userspace(v) => v.options.space.source.home(),
            Self::Groupspace(v) => v.options.space.source.home(),
            Self::Projectspace(v) => v.options.source.home(),
            Self::Other(words) => unsupported::home("zfs", words),
            Self::Project(_) | Self::Rewrite(_) | Self::Version(_) => Home::Here,
            _ => Home::Daemon,
        }
    }
}

impl Verb for Zfs {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self.verb {
            ZfsVerb::List(v) => v.run(ctx),
            ZfsVerb::Get(v) => v.run(ctx),
            ZfsVerb::Diff(v) => v.run(ctx),
            ZfsVerb::Holds(v) => v.run(ctx),
            ZfsVerb::Send(v) => v.run(ctx),
            ZfsVerb::Userspace(v) => v.run(ctx),
            ZfsVerb::Groupspace(v) => v.run(ctx),
            ZfsVerb::Projectspace(v) => v.run(ctx),
            ZfsVerb::Project(v) => v.run(ctx),
            ZfsVerb::Rewrite(v) => v.run(ctx),
            ZfsVerb::Create(v) => v.run(ctx),
            ZfsVerb::Destroy(v) => v.run(ctx),
            ZfsVerb::Snapshot(v) => v.run(ctx),
            ZfsVerb::Mount(v) => v.run(ctx),
            ZfsVerb::Unmount(v) => v.run(ctx),
            ZfsVerb::Rollback(v) => v.run(ctx),
            ZfsVerb::Clone(v) => v.run(ctx),
            ZfsVerb::Promote(v) => v.run(ctx),
            ZfsVerb::DiscardLog(v) => v.run(ctx),
            ZfsVerb::Receive(v) => v.run(ctx),
            ZfsVerb::Rename(v) => v.run(ctx),
            ZfsVerb::Set(v) => v.run(ctx),
            ZfsVerb::Inherit(v) => v.run(ctx),
            ZfsVerb::Hold(v) => v.run(ctx),
            ZfsVerb::Release(v) => v.run(ctx),
            ZfsVerb::Bookmark(v) => v.run(ctx),
            ZfsVerb::Redact(v) => v.run(ctx),
            ZfsVerb::LoadKey(v) => v.run(ctx),
            ZfsVerb::UnloadKey(v) => v.run(ctx),
            ZfsVerb::ChangeKey(v) => v.run(ctx),
            ZfsVerb::Allow(v) => v.run(ctx),
            ZfsVerb::Unallow(v) => v.run(ctx),
            ZfsVerb::Upgrade(v) => v.run(ctx),
            ZfsVerb::Wait(v) => v.run(ctx),
            ZfsVerb::Share(v) => v.run(ctx),
            ZfsVerb::Unshare(v) => v.run(ctx),
            ZfsVerb::Version(v) => v.run(ctx),
            ZfsVerb::Other(words) => refuse("zfs", ZFS_VERBS, &words, ctx),
        }
    }
}
