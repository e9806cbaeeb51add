//! Reading pools that are not imported, damaged ones, too: viewing and copying files, one file per verb, and [`verify`],
//! which reads and checks every block.
//!
//! The verbs of [`Browse`] take `POOL/DATASET[@SNAPSHOT]:PATH`. A path never leaves its dataset: a directory that another dataset
//! would cover when mounted appears with its own content.

mod access;
mod bytes;
mod cat;
mod cp;
mod dest;
mod find;
mod find_eval;
mod find_parse;
mod ls;
mod pax;
mod report;
mod sha256sum;
mod stat;
mod tar;
mod tar_resume;
mod target;
mod text;
pub mod verify;
mod walk;

use clap::Subcommand;
use clikit::ctx::Ctx;
use clikit::verb::{Outcome, Verb};

/// The verbs that take `POOL/DATASET[@SNAPSHOT]:PATH`.
#[derive(Debug, Subcommand)]
pub enum Browse {
    /// List files
    Ls(ls::Ls),
    /// Print files
    Cat(cat::Cat),
    /// Show all information about a file
    Stat(stat::Stat),
    /// Find files
    Find(find::Find),
    /// Copy files, trees and volumes out of a pool
    Cp(cp::Cp),
    /// Write files and trees as a tar archive
    Tar(tar::Tar),
    /// Print SHA-256 checksums of files
    Sha256sum(sha256sum::Sha256sum),
}

impl Verb for Browse {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self {
            Browse::Ls(v) => v.run(ctx),
            Browse::Cat(v) => v.run(ctx),
            Browse::Stat(v) => v.run(ctx),
            Browse::Find(v) => v.run(ctx),
            Browse::Cp(v) => v.run(ctx),
            Browse::Tar(v) => v.run(ctx),
            Browse::Sha256sum(v) => v.run(ctx),
        }
    }
}
