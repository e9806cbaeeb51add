//! `zstream drop_record`: a stream without the blocks that are named.
//!
//! Source: zstream(8), OpenZFS's development branch.

use std::io::{self, Read, Write};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use ondisk::drr::DrrBody;

use super::recompress::parse_place;
use super::stream::{redirected, rewrite};

/// Leave blocks out of a stream.
#[derive(Debug, Args)]
pub struct DropRecord {
    /// Print the omitted records.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Blocks whose records are left out.
    #[arg(value_name = "OBJECT,OFFSET", required = true, value_parser = parse)]
    pub blocks: Vec<(u64, u64)>,
}

fn parse(word: &str) -> Result<(u64, u64), String> {
    let (object, offset, mut rest) = parse_place(word)?;
    match rest.next() {
        None => Ok((object, offset)),
        Some(_) => Err(format!("invalid value for offset in {word}")),
    }
}

impl Verb for DropRecord {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        redirected(ctx.out_is_terminal)?;
        let dropped = self.stream(io::stdin().lock(), &mut *ctx.out)?;
        if self.verbose {
            for (object, offset) in dropped {
                ctx.warn(format!("dropping record ino {object} offset {offset}"));
            }
        }
        Ok(Exit::OK)
    }
}

impl DropRecord {
    /// Returns the blocks that were left out.
    fn stream(&self, from: impl Read, to: &mut dyn Write) -> Result<Vec<(u64, u64)>, Failure> {
        let mut dropped = Vec::new();
        rewrite(from, to, &|_| Ok(()), &mut |drr, _| {
            let place = match &drr.body {
                DrrBody::Write(write) => (write.object, write.offset),
                DrrBody::WriteEmbedded(write) => (write.object, write.offset),
                DrrBody::WriteByref(write) => (write.object, write.offset),
                _ => return Ok(true),
            };
            let stays = !self.blocks.contains(&place);
            if !stays {
                dropped.push(place);
            }
            Ok(stays)
        })?;
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::recompress::tests::stream;
    use super::super::stream::Input;
    use super::*;

    #[test]
    fn named_blocks_are_left_out_and_the_checksums_stay_right() {
        let blocks = ["2,0", "3,512"].map(|word| parse(word).unwrap()).to_vec();
        let mut out = Vec::new();
        let dropped = DropRecord { verbose: false, blocks }.stream(&stream(1)[..], &mut out).unwrap();
        assert_eq!(dropped, [(2, 0)]);
        let (mut input, mut objects) = (Input::new(&out[..]), Vec::new());
        while let Some((drr, before)) = input.record(true).unwrap() {
            input.skip(drr.payload_size()).unwrap();
            match drr.body {
                DrrBody::Write(write) => objects.push(write.object),
                DrrBody::End(end) => assert_eq!(end.checksum, before),
                _ => {}
            }
        }
        assert_eq!(objects, [1, 3, 4]);
        for bad in ["1", "x,0", "1,0,lz4"] {
            parse(bad).unwrap_err();
        }
    }
}
