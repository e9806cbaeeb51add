//! `zstream`: looks into send streams and resume tokens, and makes streams of others.

mod dump;
mod recompress;
mod redup;
mod stream;
mod token;

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::ctx::Ctx;
use crate::unsupported::{ZSTREAM_VERBS, refuse};
use crate::verb::{Outcome, Verb};

/// Look into send streams.
#[derive(Debug, Args)]
pub struct Zstream {
    /// What to do.
    #[command(subcommand)]
    pub verb: ZstreamVerb,
}

/// The word after `zstream`.
#[derive(Debug, Subcommand)]
pub enum ZstreamVerb {
    /// Print the records of a stream
    Dump(dump::Dump),
    /// Decompress blocks whose compression is not what the stream says
    Decompress(recompress::Decompress),
    /// Compress a stream otherwise
    Recompress(recompress::Recompress),
    /// Make a stream without references of a deduplicated one
    Redup(redup::Redup),
    /// Print what a resume token says
    Token(token::Token),
    /// What OpenZFS has and this program does not.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

impl Verb for Zstream {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self.verb {
            ZstreamVerb::Dump(verb) => verb.run(ctx),
            ZstreamVerb::Decompress(verb) => verb.run(ctx),
            ZstreamVerb::Recompress(verb) => verb.run(ctx),
            ZstreamVerb::Redup(verb) => verb.run(ctx),
            ZstreamVerb::Token(verb) => verb.run(ctx),
            ZstreamVerb::Other(words) => refuse("zstream", ZSTREAM_VERBS, &words, ctx),
        }
    }
}
