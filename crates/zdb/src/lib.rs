//! `zdb`: on-disk structures as OpenZFS's debugger prints them.
//!
//! ```text
//! options   the command line, with getopt's syntax
//! target    the operand, opened
//! run       the sections, in zdb's order
//! blocks, objects, …   one module for each section
//! ```

mod blocks;
mod brt;
mod copying;
pub mod ddt;
mod fragmentation;
mod import_config;
mod indirect;
mod io_stats;
mod l2arc;
mod label;
mod label_stats;
mod livelists;
mod metaslabs;
mod objects;
mod options;
mod pool;
mod read_block;
mod run;
mod simulate;
mod target;
mod text;
mod uberblock;

use std::ffi::OsString;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::Home;
use clikit::verb::{Outcome, Verb};

/// On-disk structures, as OpenZFS's debugger prints them.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub struct Zdb {
    /// Options and names; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub words: Vec<OsString>,
}

impl Zdb {
    /// The process in which it runs: the daemon prints its cache file, also to users that cannot open it.
    pub fn home(&self) -> Home {
        let options = options::Options::parse(&self.words()).ok();
        let is_daemons = options.is_some_and(|options| {
            !options.help && options.cache_file.is_none() && run::prints_cache_file(&options)
        });
        if is_daemons { Home::Pools } else { Home::Here }
    }

    fn words(&self) -> Vec<String> {
        self.words.iter().map(|w| w.to_string_lossy().into_owned()).collect()
    }
}

impl Verb for Zdb {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        run::run(&self.words(), ctx)
    }
}
