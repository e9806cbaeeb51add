//! `aquifer cat`: the bytes of files.

use std::ffi::OsString;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::source::PoolSource;
use clikit::verb::{Failure, Outcome, Verb};

use super::access::{Access, Named};
use super::bytes::{Bytes, Piece, zeros};
use super::report::Report;
use super::target::Target;

/// Print files.
///
/// Unreadable bytes are printed as zeros, listed at the end, and make the exit code 1.
#[derive(Debug, Args)]
pub struct Cat {
    #[command(flatten)]
    source: PoolSource,
    /// POOL/DATASET[@SNAPSHOT]:PATH, or a volume
    #[arg(required = true, value_name = "FILE")]
    files: Vec<OsString>,
}

impl Verb for Cat {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let mut access = Access::new(&self.source);
        let mut report = Report::default();
        for file in &self.files {
            let target = Target::parse(file);
            let bytes = match access.open(&target, true, ctx)? {
                Named::Volume(volume) => Bytes::Volume(volume, Default::default()),
                Named::File(inode, _) => {
                    if let Err(e) = inode.chunk(0, 0) {
                        report.failed(target.text.as_bytes(), e.what(), None);
                        continue;
                    }
                    Bytes::of(&inode)
                }
            };
            print(bytes, target.text.as_bytes(), &mut report, ctx)?;
        }
        ctx.out.flush()?;
        Ok(report.finish("cat", ctx))
    }
}

fn print(mut bytes: Bytes, path: &[u8], report: &mut Report, ctx: &mut Ctx) -> Result<(), Failure> {
    let interrupt = ctx.interrupt.clone();
    let out = &mut ctx.out;
    let bad = bytes.all(0, &interrupt, &mut |piece| match piece {
        Piece::Data(_, data) => Ok(out.write_all(data)?),
        Piece::Hole(range) => zeros(range.end - range.start, &mut |z| {
            if interrupt.is_set() { Err(Failure::Interrupted) } else { Ok(out.write_all(z)?) }
        }),
    })?;
    report.damaged(path, &bad, None);
    Ok(())
}
