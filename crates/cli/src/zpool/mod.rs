//! `zpool`: one file a verb.

mod activity;
mod condition;
mod errors;
pub mod get;
mod get_vdev;
pub mod history;
mod import;
pub mod list;
mod list_vdevs;
pub mod prop;
mod repeat;
pub mod sizes;
pub mod status;
mod status_json;

use std::ffi::OsString;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::ctx::Ctx;
use crate::multicall;
use crate::output::json::JsonStyle;
use crate::unsupported::{ZPOOL_VERBS, refuse};
use crate::verb::{Outcome, Verb};

/// Pools: find, open, describe.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Zpool {
    /// What to do.
    #[command(subcommand)]
    pub verb: ZpoolVerb,
}

/// The verbs of `zpool`.
#[derive(Debug, Subcommand)]
pub enum ZpoolVerb {
    /// List pools
    List(list::List),
    /// Print how pools and their devices are
    Status(status::Status),
    /// Print properties of pools
    Get(get::Get),
    /// Print what was done to pools
    History(history::History),
    /// List pools that can be imported
    Import(import::Import),
    /// Print the version
    Version(multicall::Version),
    /// A verb that has no module here.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

impl Verb for Zpool {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self.verb {
            ZpoolVerb::List(v) => v.run(ctx),
            ZpoolVerb::Status(v) => v.run(ctx),
            ZpoolVerb::Get(v) => v.run(ctx),
            ZpoolVerb::History(v) => v.run(ctx),
            ZpoolVerb::Import(v) => v.run(ctx),
            ZpoolVerb::Version(v) => v.run(ctx),
            ZpoolVerb::Other(words) => refuse("zpool", ZPOOL_VERBS, &words),
        }
    }
}

/// What JSON says of a pool before its properties.
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
