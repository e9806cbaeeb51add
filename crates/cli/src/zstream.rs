//! `zstream`: looks into send streams and resume tokens. What makes a stream of another is not there yet.

mod dump;
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
            ZstreamVerb::Token(verb) => verb.run(ctx),
            ZstreamVerb::Other(words) => refuse("zstream", ZSTREAM_VERBS, &words),
        }
    }
}
