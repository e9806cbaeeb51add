//! The command `zpool`: one file a verb.

mod activity;
mod add;
mod attach;
mod checkpoint;
mod condition;
pub mod create;
mod ddt;
mod dedup;
mod destroy;
pub mod device;
mod draid_word;
mod errors;
mod events;
mod export;
pub mod get;
mod get_vdev;
pub mod history;
mod import;
mod import_older;
mod import_one;
mod import_rebuild;
mod in_use;
pub mod iostat;
mod iostat_columns;
mod iostat_extended;
mod json_form;
mod labelclear;
mod layouts;
pub mod list;
mod list_vdevs;
mod progress;
pub mod prop;
mod redundancy;
mod remove;
mod reopen;
pub mod scripts;
mod scrub;
mod set;
mod simple;
pub mod sizes;
mod split;
pub mod status;
mod status_json;
mod sweep;
mod unavailable;
mod upgrade;
pub mod vdev_names;
pub mod vdevs;
mod wait;

use std::ffi::OsString;

use clap::{Args, Subcommand};
use clikit::ctx::Ctx;
use clikit::output::json::JsonStyle;
use clikit::session::Home;
use clikit::unsupported::{self, ZPOOL_VERBS, refuse};
use clikit::verb::{Outcome, Verb};
use clikit::version::Version;
use serde_json::{Map, Value, json};

/// Configure and inspect pools.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Zpool {
    /// The verb.
    #[command(subcommand)]
    pub verb: ZpoolVerb,
}

/// The verbs of `zpool`.
#[derive(Debug, Subcommand)]
pub enum ZpoolVerb {
    /// List pools
    List(list::List),
    /// Print the health of pools and their devices
    Status(status::Status),
    /// Print I/O statistics of pools
    Iostat(iostat::Iostat),
    /// Print properties of pools
    Get(get::Get),
    /// Print the command history of pools
    History(history::History),
    /// Import pools, or list the importable ones
    Import(import::Import),
    /// Create a pool
    Create(create::Create),
    /// Destroy a pool
    Destroy(destroy::Destroy),
    /// Add vdevs to a pool
    Add(add::Add),
    /// Attach a device to a device of a pool
    Attach(attach::Attach),
    /// Replace a device
    Replace(attach::Replace),
    /// Detach a device from a mirror
    Detach(attach::Detach),
    /// Split one device of each mirror into a new pool
    Split(split::Split),
    /// Export pools
    Export(export::Export),
    /// Set a property of a pool
    Set(set::Set),
    /// Write all changes to disk
    Sync(simple::Sync),
    /// Give a pool a new guid
    Reguid(simple::Reguid),
    /// Keep the state on disk until the next import
    #[command(hide = true)]
    Freeze(simple::Freeze),
    /// Enable the features that a pool lacks
    Upgrade(upgrade::Upgrade),
    /// Read all blocks, and repair bad ones
    Scrub(scrub::Scrub),
    /// Restart a resilver
    Resilver(scrub::Resilver),
    /// Remove devices from a pool
    Remove(remove::Remove),
    /// Wait until an activity completes
    Wait(wait::Wait),
    /// Write to the free space of devices
    Initialize(sweep::Initialize),
    /// Trim the free space of devices
    Trim(sweep::Trim),
    /// Create or discard a checkpoint of a pool
    Checkpoint(checkpoint::Checkpoint),
    /// Remove old entries with one reference from the dedup tables
    Ddtprune(ddt::Ddtprune),
    /// Read dedup and clone tables into memory
    Prefetch(ddt::Prefetch),
    /// Clear the errors of devices
    Clear(device::Clear),
    /// Take devices offline
    Offline(device::Offline),
    /// Bring devices online
    Online(device::Online),
    /// Reopen all devices of pools
    Reopen(reopen::Reopen),
    /// Print the events of pools
    Events(events::Events),
    /// Clear the labels of a device
    Labelclear(labelclear::Labelclear),
    /// Print the version
    Version(Version),
    /// A verb that has no module here.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

impl ZpoolVerb {
    /// Where it runs.
    pub fn home(&self) -> Home {
        match self {
            Self::List(v) => v.source.home_of_report(&v.pools),
            Self::Status(v) => v.home(),
            Self::Iostat(v) => v.source.home_of_report(&v.pools),
            Self::Get(v) => v.source.home(),
            Self::History(v) => v.source.home(),
            Self::Import(v) => v.home(),
            Self::Other(words) => unsupported::home("zpool", words),
            Self::Version(_) => Home::Here,
            _ => Home::Daemon,
        }
    }
}

impl ZpoolVerb {
    /// Scripts that add columns to its output.
    pub fn scripts(&self) -> Option<scripts::Scripts> {
        match self {
            Self::Status(v) => v.scripts(),
            Self::Iostat(v) => v.scripts(),
            _ => None,
        }
    }
}

impl Verb for Zpool {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self.verb {
            ZpoolVerb::List(v) => v.run(ctx),
            ZpoolVerb::Status(v) => v.run(ctx),
            ZpoolVerb::Iostat(v) => v.run(ctx),
            ZpoolVerb::Get(v) => v.run(ctx),
            ZpoolVerb::History(v) => v.run(ctx),
            ZpoolVerb::Import(v) => v.run(ctx),
            ZpoolVerb::Create(v) => v.run(ctx),
            ZpoolVerb::Destroy(v) => v.run(ctx),
            ZpoolVerb::Add(v) => v.run(ctx),
            ZpoolVerb::Attach(v) => v.run(ctx),
            ZpoolVerb::Replace(v) => v.run(ctx),
            ZpoolVerb::Detach(v) => v.run(ctx),
            ZpoolVerb::Split(v) => v.run(ctx),
            ZpoolVerb::Export(v) => v.run(ctx),
            ZpoolVerb::Set(v) => v.run(ctx),
            ZpoolVerb::Sync(v) => v.run(ctx),
            ZpoolVerb::Reguid(v) => v.run(ctx),
            ZpoolVerb::Freeze(v) => v.run(ctx),
            ZpoolVerb::Upgrade(v) => v.run(ctx),
            ZpoolVerb::Scrub(v) => v.run(ctx),
            ZpoolVerb::Resilver(v) => v.run(ctx),
            ZpoolVerb::Remove(v) => v.run(ctx),
            ZpoolVerb::Wait(v) => v.run(ctx),
            ZpoolVerb::Checkpoint(v) => v.run(ctx),
            ZpoolVerb::Initialize(v) => v.run(ctx),
            ZpoolVerb::Trim(v) => v.run(ctx),
            ZpoolVerb::Ddtprune(v) => v.run(ctx),
            ZpoolVerb::Prefetch(v) => v.run(ctx),
            ZpoolVerb::Clear(v) => v.run(ctx),
            ZpoolVerb::Offline(v) => v.run(ctx),
            ZpoolVerb::Online(v) => v.run(ctx),
            ZpoolVerb::Reopen(v) => v.run(ctx),
            ZpoolVerb::Events(v) => v.run(ctx),
            ZpoolVerb::Labelclear(v) => v.run(ctx),
            ZpoolVerb::Version(v) => v.run(ctx),
            ZpoolVerb::Other(words) => refuse("zpool", ZPOOL_VERBS, &words, ctx),
        }
    }
}

/// The JSON entries of a pool before its properties.
#[doc(alias = "fill_pool_info")]
fn pool_object(view: &prop::PoolView<'_>, style: &JsonStyle) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("name".into(), json!(view.pool.name));
    map.insert("type".into(), json!("POOL"));
    map.insert("state".into(), json!(view.state()));
    map.insert("pool_guid".into(), style.number(view.pool.guid));
    map.insert("txg".into(), style.number(view.pool.uberblock.txg));
    map.insert("spa_version".into(), style.number(5000));
    map.insert("zpl_version".into(), style.number(5));
    map
}

/// The key of a pool in JSON: name or guid.
fn pool_key(view: &prop::PoolView<'_>, style: &JsonStyle) -> String {
    if style.pool_key_guid { view.pool.guid.to_string() } else { view.pool.name.clone() }
}
