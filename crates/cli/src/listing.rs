//! Options that all listings share.

use clap::Args;

/// The format of lines.
#[derive(Debug, Args)]
pub struct Lines {
    /// No header, tabs between columns.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    pub literal: bool,
}

/// JSON instead of lines.
#[derive(Debug, Args)]
pub struct Json {
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
    /// Numbers as numbers in JSON.
    #[arg(long = "json-int", requires = "json")]
    pub json_int: bool,
}

/// Options for JSON that contains pools.
#[derive(Debug, Args)]
pub struct PoolJson {
    #[command(flatten)]
    pub(crate) style: Json,
    /// Key pools by guid in JSON.
    #[arg(long = "json-pool-key-guid", requires = "json")]
    pub json_pool_key_guid: bool,
}
