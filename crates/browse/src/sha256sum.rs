//! `aquifer sha256sum`: checksums of files, in the format of coreutils.

use std::ffi::OsString;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::interrupt::Interrupt;
use clikit::source::PoolSource;
use clikit::verb::{Failure, Outcome, Verb};
use ring::digest::{Context, SHA256};
use zpl::{FileKind, Inode};

use super::access::{Access, Named};
use super::bytes::{Bytes, Piece, zeros};
use super::report::Report;
use super::target::Target;
use super::walk::{Order, Step, Walk};

/// Print SHA-256 checksums of files.
///
/// The names are paths within the dataset, so that `sha256sum -c` can check the list against a copy of the tree. A
/// file with unreadable bytes gets no checksum; it is listed at the end, and the exit code is 1.
#[derive(Debug, Args)]
pub struct Sha256sum {
    #[command(flatten)]
    source: PoolSource,
    /// Include all regular files below directories.
    #[arg(short = 'r', long)]
    recursive: bool,
    /// End each line with NUL instead of newline, and do not escape names.
    #[arg(short = 'z', long)]
    zero: bool,
    /// POOL/DATASET[@SNAPSHOT]:PATH, or a volume
    #[arg(required = true, value_name = "FILE")]
    files: Vec<OsString>,
}

impl Verb for Sha256sum {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let mut access = Access::new(&self.source);
        let mut report = Report::default();
        for file in &self.files {
            let target = Target::parse(file);
            match access.open(&target, true, ctx)? {
                Named::Volume(volume) => {
                    let name = volume.name.clone().into_bytes();
                    self.one(Bytes::Volume(volume, Default::default()), &name, &mut report, ctx)?;
                }
                Named::File(inode, path) => self.tree(&inode, &path, &mut report, ctx)?,
            }
        }
        ctx.out.flush()?;
        Ok(report.finish("sha256sum", ctx))
    }
}

impl Sha256sum {
    fn tree(&self, inode: &Inode, path: &[u8], report: &mut Report, ctx: &mut Ctx) -> Result<(), Failure> {
        if inode.is_dir() && !self.recursive {
            report.failed(path, "is a directory", None);
            return Ok(());
        }
        for step in Walk::new(inode, path, Order::Name) {
            match step {
                Step::Enter(found) if found.inode.attr().kind == FileKind::Regular => {
                    self.one(Bytes::of(&found.inode), &found.path, report, ctx)?;
                }
                Step::Failed(path, e) => report.unreadable(&path, &e, None),
                Step::Enter(_) | Step::Leave(_) => {}
            }
        }
        Ok(())
    }

    fn one(&self, bytes: Bytes, path: &[u8], report: &mut Report, ctx: &mut Ctx) -> Result<(), Failure> {
        match digest(bytes, &ctx.interrupt)? {
            Ok(hex) => {
                let plain = self.zero || !path.iter().any(|b| b"\\\n\r".contains(b));
                let lead = if plain { "" } else { "\\" };
                write!(ctx.out, "{lead}{hex}  ")?;
                ctx.out.write_all(&if plain { path.to_vec() } else { escaped(path) })?;
                ctx.out.write_all(if self.zero { b"\0" } else { b"\n" })?;
            }
            Err(bad) => report.damaged(path, &bad, None),
        }
        Ok(())
    }
}

/// The digest in hex, or the unreadable ranges.
fn digest(
    mut bytes: Bytes,
    interrupt: &Interrupt,
) -> Result<Result<String, Vec<engine::dmu::Unreadable>>, Failure> {
    let mut hash = Context::new(&SHA256);
    let bad = bytes.all(0, interrupt, &mut |piece| {
        match piece {
            Piece::Data(_, data) => hash.update(data),
            Piece::Hole(range) => zeros(range.end - range.start, &mut |z| {
                hash.update(z);
                if interrupt.is_set() { Err(Failure::Interrupted) } else { Ok(()) }
            })?,
        }
        Ok(())
    })?;
    if !bad.is_empty() {
        return Ok(Err(bad));
    }
    Ok(Ok(hash.finish().as_ref().iter().map(|b| format!("{b:02x}")).collect()))
}

/// Escapes a name like coreutils, for a line that starts with a backslash.
fn escaped(path: &[u8]) -> Vec<u8> {
    let one = |b: &u8| match b {
        b'\\' => b"\\\\".to_vec(),
        b'\n' => b"\\n".to_vec(),
        b'\r' => b"\\r".to_vec(),
        other => vec![*other],
    };
    path.iter().flat_map(one).collect()
}
