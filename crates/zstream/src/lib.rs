//! `zstream`: inspects send streams and resume tokens, and converts streams.

mod drop;
mod dump;
mod recompress;
mod redup;
mod stream;
pub mod token;

use std::ffi::OsString;

use clap::{Args, Subcommand};
use clikit::ctx::Ctx;
use clikit::unsupported::{ZSTREAM_VERBS, refuse};
use clikit::verb::{Outcome, Verb};

/// Inspect send streams.
#[derive(Debug, Args)]
pub struct Zstream {
    /// The command.
    #[command(subcommand)]
    pub verb: ZstreamVerb,
}

/// The word after `zstream`.
#[derive(Debug, Subcommand)]
pub enum ZstreamVerb {
    /// Print the records of a stream
    Dump(dump::Dump),
    /// Decompress blocks whose compression differs from the stream's record
    Decompress(recompress::Decompress),
    /// Leave records out of a stream
    #[command(name = "drop_record")]
    DropRecord(drop::DropRecord),
    /// Recompress a stream
    Recompress(recompress::Recompress),
    /// Convert a deduplicated stream to one without references
    Redup(redup::Redup),
    /// Print the contents of a resume token
    Token(token::Token),
    /// A verb of OpenZFS that this program does not implement.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

impl Verb for Zstream {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self.verb {
            ZstreamVerb::Dump(verb) => verb.run(ctx),
            ZstreamVerb::Decompress(verb) => verb.run(ctx),
            ZstreamVerb::DropRecord(verb) => verb.run(ctx),
            ZstreamVerb::Recompress(verb) => verb.run(ctx),
            ZstreamVerb::Redup(verb) => verb.run(ctx),
            ZstreamVerb::Token(verb) => verb.run(ctx),
            ZstreamVerb::Other(words) => refuse("zstream", ZSTREAM_VERBS, &words, ctx),
        }
    }
}
