//! `zstream redup`: expands a deduplicated stream: references to earlier blocks become full records.
//!
//! Source: zstream(8), OpenZFS 2.3.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use ondisk::drr::{DRR_SIZE, Drr, DrrBody, DrrWrite, DrrWriteByref, stream_feature};

use super::stream::{Input, Output, malformed};

/// Make a stream without references of a deduplicated one.
#[derive(Debug, Args)]
pub struct Redup {
    /// Say how much was done.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// The stream: a file, as it is read in leaps.
    pub file: PathBuf,
}

/// Where blocks are: by snapshot, object and offset, the record and the place of its payload in the file.
type Known = HashMap<(u64, u64, u64), (DrrWrite, u64)>;

impl Verb for Redup {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if ctx.out_is_terminal {
            return Err(Failure::failed("a stream can't be written to a terminal: redirect standard output"));
        }
        let (records, references) = self.convert(&mut *ctx.out)?;
        if self.verbose {
            let what = format!("{records} total records, including {references} dedup records");
            ctx.warn(format!("converted stream with {what}"));
        }
        Ok(Exit::OK)
    }
}

impl Redup {
    /// Writes the stream; returns the number of records, and of references among them.
    fn convert(&self, to: &mut dyn Write) -> Result<(u64, u64), Failure> {
        let cannot = |e: std::io::Error| Failure::failed(format!("{}: {e}", self.file.display()));
        let open = || File::open(&self.file).map_err(cannot);
        let (mut input, mut past) = (Input::new(BufReader::new(open()?)), open()?);
        let mut output = Output::new(to);
        let (mut known, mut at, mut records, mut references) = (Known::new(), 0_u64, 0_u64, 0_u64);
        while let Some((mut drr, _)) = input.record(true)? {
            let size = drr.payload_size();
            let mut payload = input.payload(size)?;
            at += DRR_SIZE as u64;
            records += 1;
            match &mut drr.body {
                DrrBody::Begin(begin) => {
                    // Bits of the kind of stream are below those of features.
                    begin.versioninfo &= !((stream_feature::DEDUP | stream_feature::DEDUPPROPS) << 2);
                }
                DrrBody::Write(write) => {
                    known.insert((write.toguid, write.object, write.offset), (*write, at));
                }
                DrrBody::WriteByref(byref) => {
                    let (write, place) = resolve(byref, &known)?;
                    drr = Drr { body: DrrBody::Write(write), ..drr };
                    payload = read_at(&mut past, place, drr.payload_size())?;
                    references += 1;
                }
                _ => {}
            }
            at += size;
            output.put(drr, &payload, input.endian)?;
        }
        Ok((records, references))
    }
}

/// The record that a reference stands for, and where the payload is.
fn resolve(byref: &DrrWriteByref, known: &Known) -> Result<(DrrWrite, u64), Failure> {
    let found = known.get(&(byref.refguid, byref.refobject, byref.refoffset));
    let (of, place) = found.ok_or_else(|| {
        let what =
            format!("object {} offset {} refers to a block that did not come", byref.object, byref.offset);
        malformed(what)
    })?;
    let write = DrrWrite {
        object: byref.object,
        offset: byref.offset,
        toguid: byref.toguid,
        checksumtype: byref.checksumtype,
        flags: byref.flags,
        key: byref.key,
        ..*of
    };
    Ok((write, *place))
}

fn read_at(file: &mut File, place: u64, size: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(place))?;
    file.take(size).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == size { Ok(bytes) } else { Err(malformed("it ends within a record")) }
}

#[cfg(test)]
mod tests {
    use ondisk::Endian;
    use ondisk::drr::{DRR_MAGIC, DrrBegin};

    use super::*;
    use clikit::testing::run;

    #[test]
    fn references_become_the_blocks_that_they_mean() {
        let mut stream = Vec::new();
        let mut output = Output::new(&mut stream);
        let versioninfo =
            1 | (stream_feature::DEDUP | stream_feature::DEDUPPROPS | stream_feature::SA_SPILL) << 2;
        let begin = DrrBegin { magic: DRR_MAGIC, versioninfo, ..Default::default() };
        let write = DrrWrite { object: 5, offset: 512, toguid: 7, logical_size: 512, ..Default::default() };
        let byref = DrrWriteByref {
            object: 6,
            toguid: 8,
            refguid: 7,
            refobject: 5,
            refoffset: 512,
            ..Default::default()
        };
        for (body, payload) in [
            (DrrBody::Begin(begin), &[][..]),
            (DrrBody::Write(write), &[3; 512]),
            (DrrBody::WriteByref(byref), &[]),
        ] {
            let checksum = (!matches!(body, DrrBody::Begin(_))).then_some([1; 4]);
            output.put(Drr { payloadlen: 0, body, checksum }, payload, Endian::Little).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let (file, whole) = (dir.path().join("dedup"), dir.path().join("whole"));
        std::fs::write(&file, &stream).unwrap();
        let mut out = Vec::new();
        let verb = Redup { verbose: false, file: file.clone() };
        assert_eq!(verb.convert(&mut out).unwrap(), (3, 1));
        std::fs::write(&whole, &out).unwrap();
        let run = run::<crate::Zstream>(&["zstream", "dump", "-v", whole.to_str().unwrap()]);
        assert!(
            run.out.contains("\tfeatures = 4\n") && run.out.contains("records = 2 (1024 bytes)"),
            "{}",
            run.out
        );
        assert!(run.out.contains("WRITE object = 6 ") && out.ends_with(&[3; 512]), "{}", run.out);
        // The real one, where it is installed.
        if let Ok(real) = std::process::Command::new("/usr/sbin/zstream").arg("redup").arg(&file).output() {
            assert_eq!(real.stdout, out);
        }
        // A reference to a record that is missing.
        let cut = [&stream[..312], &stream[stream.len() - 312..]].concat();
        std::fs::write(&file, cut).unwrap();
        assert!(Redup { verbose: false, file }.convert(&mut Vec::new()).is_err());
    }
}
