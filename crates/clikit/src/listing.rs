//! Options that all listings share.

use clap::Args;

/// The format of lines.
#[derive(Debug, Args)]
pub struct Lines {
    /// Print no header, and separate columns by a single tab.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print exact (parsable) numbers.
    #[arg(short = 'p')]
    pub literal: bool,
}

/// JSON instead of lines.
#[derive(Debug, Args)]
pub struct Json {
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
    /// Print numbers as JSON integers.
    #[arg(long = "json-int", requires = "json")]
    pub json_int: bool,
}
