//! `zstream dump`: the records of a stream and their sums, line for line as OpenZFS's `zstream` prints them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::path::PathBuf;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use nvpair::NvList;
use ondisk::drr::{DRR_SIZE, Drr, DrrBegin, DrrBody, DrrEnd, DrrWrite};

use super::stream::{Input, malformed, sum};

/// Kinds of records that are summed up, in their order.
const SUMMED: [&str; 9] =
    ["BEGIN", "END", "OBJECT", "FREEOBJECTS", "WRITE", "WRITE_BYREF", "WRITE_EMBEDDED", "FREE", "SPILL"];

/// Print the records of a stream.
#[derive(Debug, Args)]
pub struct Dump {
    /// All records, not only where parts begin and end; twice: with their checksums.
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// All records with their checksums, and what they hold.
    #[arg(short = 'd')]
    pub data: bool,
    /// Do not check checksums.
    #[arg(short = 'C')]
    pub unchecked: bool,
    /// The stream (default: standard input).
    pub file: Option<PathBuf>,
}

impl Verb for Dump {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let input: Box<dyn Read> = match &self.file {
            Some(path) => {
                Box::new(File::open(path).map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?)
            }
            None if io::stdin().is_terminal() => {
                let what = "a stream can't be read from a terminal: redirect standard input, or name a file";
                return Err(Failure::usage(what.to_owned()));
            }
            None => Box::new(io::stdin().lock()),
        };
        let mut input = Input::new(BufReader::new(input));
        let mut sums = Sums::default();
        match self.records(&mut input, &mut sums, ctx) {
            // Streams that `zfs receive -s` resumes end so.
            Err(_) if input.is_cut && sums.records > 0 => {
                ctx.warn(format!("the stream ends early: it has {} records", sums.records));
            }
            done => done?,
        }
        sums.print(input.length, &mut *ctx.out)?;
        Ok(Exit::OK)
    }
}

impl Dump {
    /// Prints all records, and adds them to `sums`.
    fn records(&self, input: &mut Input<impl Read>, sums: &mut Sums, ctx: &mut Ctx) -> Result<(), Failure> {
        while let Some((drr, before)) = input.record(!self.unchecked)? {
            let size = drr.payload_size();
            sums.add(&drr, size);
            show(&drr, size, self.verbose > 0 || self.data, &mut *ctx.out)?;
            if let DrrBody::Begin(_) = drr.body
                && size > 0
            {
                let payload = input.payload(size)?;
                match NvList::decode(&payload) {
                    Ok(list) => write!(ctx.out, "{}", list.print())?,
                    Err(e) => ctx.warn(format!("the list behind a BEGIN record can't be read: {e}")),
                }
                continue;
            }
            if let DrrBody::End(DrrEnd { checksum, .. }) = drr.body
                && !self.unchecked
                && checksum != before
                && checksum != [0; 4]
            {
                return Err(malformed(format!("its checksum is {}, not {}", sum(before), sum(checksum))));
            }
            let read = match self.data {
                true => input.pieces(size, &mut |piece| show_bytes(piece, &mut *ctx.out)),
                false => input.skip(size),
            };
            if (self.verbose > 1 || self.data) && !matches!(drr.body, DrrBody::Begin(_)) {
                writeln!(ctx.out, "    checksum = {}", sum(drr.checksum.unwrap_or_default()))?;
            }
            read?;
        }
        Ok(())
    }
}

/// Bytes on a line of `-d`.
const LINE: usize = 16;
/// Bytes of a group.
const GROUP: usize = 4;

/// Prints bytes in hexadecimal digits and as ASCII characters.
#[doc(alias = "print_block")]
fn show_bytes(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    for line in bytes.chunks(LINE) {
        let (mut digits, mut text) = (String::new(), String::new());
        for (at, group) in line.chunks(GROUP).enumerate() {
            digits.push(' ');
            digits.extend(group.iter().map(|byte| format!("{byte:02x} ")));
            text.extend((at > 0).then_some(' '));
            let printed = |&byte: &u8| if matches!(byte, b' '..=b'~') { char::from(byte) } else { '.' };
            text.extend(group.iter().map(printed));
        }
        writeln!(out, "{digits:<54}{text}")?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Records and bytes by kind.
#[derive(Debug, Default)]
struct Sums {
    kinds: BTreeMap<&'static str, (u64, u64)>,
    records: u64,
    payload: u64,
}

impl Sums {
    fn add(&mut self, drr: &Drr, size: u64) {
        let (count, bytes) = self.kinds.entry(drr.body.name()).or_default();
        *count += 1;
        *bytes = bytes.saturating_add(size);
        self.records += 1;
        self.payload = self.payload.saturating_add(size);
    }

    /// `length`: bytes of the stream.
    fn print(&self, length: u64, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "SUMMARY:")?;
        for kind in SUMMED {
            let (count, bytes) = self.kinds.get(kind).copied().unwrap_or_default();
            writeln!(out, "\tTotal DRR_{kind} records = {count} ({bytes} bytes)")?;
        }
        let headers = self.records.saturating_mul(DRR_SIZE as u64);
        writeln!(out, "\tTotal records = {}", self.records)?;
        writeln!(out, "\tTotal payload size = {} (0x{:x})", self.payload, self.payload)?;
        writeln!(out, "\tTotal header overhead = {headers} (0x{headers:x})")?;
        writeln!(out, "\tTotal stream length = {length} (0x{length:x})")
    }
}

fn show_begin(begin: &DrrBegin, payload: u32, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "BEGIN record")?;
    writeln!(out, "\thdrtype = {}", begin.versioninfo & 3)?;
    writeln!(out, "\tfeatures = {:x}", begin.features())?;
    writeln!(out, "\tmagic = {:x}", begin.magic)?;
    writeln!(out, "\tcreation_time = {:x}", begin.creation_time)?;
    writeln!(out, "\ttype = {}", begin.objset_type)?;
    writeln!(out, "\tflags = 0x{:x}", begin.flags)?;
    writeln!(out, "\ttoguid = {:x}", begin.toguid)?;
    writeln!(out, "\tfromguid = {:x}", begin.fromguid)?;
    writeln!(out, "\ttoname = {}", String::from_utf8_lossy(begin.name()))?;
    writeln!(out, "\tpayloadlen = {payload}")
}

/// One record; `size` bytes follow it.
fn show(drr: &Drr, size: u64, verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    match &drr.body {
        DrrBody::Begin(begin) => {
            show_begin(begin, drr.payloadlen, out)?;
            if verbose { writeln!(out) } else { Ok(()) }
        }
        DrrBody::End(end) => writeln!(out, "END checksum = {}", sum(end.checksum)),
        _ if verbose => writeln!(out, "{}", line(&drr.body, size)),
        _ => Ok(()),
    }
}

/// The line of any other record.
fn line(body: &DrrBody, size: u64) -> String {
    match body {
        DrrBody::Object(o) => format!(
            "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} raw_bonuslen = {} \
             flags = {} maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}",
            o.object,
            o.object_type,
            o.bonustype,
            o.blksz,
            o.bonuslen,
            o.dn_slots,
            o.raw_bonuslen,
            o.flags,
            o.maxblkid,
            o.indblkshift,
            o.nlevels,
            o.nblkptr
        ),
        DrrBody::Freeobjects(f) => format!("FREEOBJECTS firstobj = {} numobjs = {}", f.firstobj, f.numobjs),
        DrrBody::Write(w) => write_line(w, size),
        DrrBody::WriteByref(w) => format!(
            "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} toguid = {:x} \
             refguid = {:x} refobject = {} refoffset = {}",
            w.object,
            w.checksumtype,
            w.key.prop,
            w.offset,
            w.length,
            w.toguid,
            w.refguid,
            w.refobject,
            w.refoffset
        ),
        DrrBody::Free(f) => {
            format!("FREE object = {} offset = {} length = {}", f.object, f.offset, f.length.cast_signed())
        }
        DrrBody::Spill(s) => format!(
            "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} \
             payload_size = {size} salt = {} iv = {} mac = {}",
            s.object,
            s.length,
            s.flags,
            s.compressiontype,
            s.compressed_size,
            hex(&s.salt.0),
            hex(&s.iv.0),
            hex(&s.mac.0)
        ),
        DrrBody::WriteEmbedded(w) => format!(
            "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} \
             psize = {}",
            w.object, w.offset, w.length, w.toguid, w.compression, w.etype, w.lsize, w.psize
        ),
        DrrBody::ObjectRange(r) => format!(
            "OBJECT_RANGE firstobj = {} numslots = {} flags = {} salt = {} iv = {} mac = {}",
            r.firstobj,
            r.numslots,
            r.flags,
            hex(&r.salt.0),
            hex(&r.iv.0),
            hex(&r.mac.0)
        ),
        DrrBody::Redact(r) => {
            format!("REDACT object = {} offset = {} length = {}", r.object, r.offset, r.length.cast_signed())
        }
        DrrBody::Begin(_) | DrrBody::End(_) => String::new(),
    }
}

fn write_line(w: &DrrWrite, size: u64) -> String {
    format!(
        "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} \
         logical_size = {} compressed_size = {} payload_size = {size} props = {:x} salt = {} iv = {} mac = {}",
        w.object,
        w.object_type,
        w.checksumtype,
        w.compressiontype,
        w.flags,
        w.offset,
        w.logical_size,
        w.compressed_size,
        w.key.prop,
        hex(&w.salt.0),
        hex(&w.iv.0),
        hex(&w.mac.0)
    )
}

#[cfg(test)]
mod tests {
    use checksum::Fletcher4;
    use ondisk::Endian;
    use ondisk::drr::{
        DRR_CHECKSUM_OFFSET, DRR_MAGIC, Drr, DrrBegin, DrrBody, DrrEnd, DrrFree, DrrFreeobjects, DrrObject,
        DrrSpill, DrrWrite, DrrWriteByref, DrrWriteEmbedded,
    };

    use clikit::testing::run;
    use clikit::verb::Exit;

    /// A stream with one record of each kind that OpenZFS's `zstream` takes without more.
    fn stream() -> Vec<u8> {
        let begin =
            DrrBegin { magic: DRR_MAGIC, versioninfo: 1 | 4 << 2, toguid: 0xabc, ..Default::default() };
        let object = DrrObject { object: 5, object_type: 19, blksz: 512, bonuslen: 6, ..Default::default() };
        let write = DrrWrite { object: 5, object_type: 19, logical_size: 512, ..Default::default() };
        let bodies = [
            DrrBody::Object(object),
            DrrBody::Freeobjects(DrrFreeobjects { firstobj: 6, numobjs: 7, toguid: 0xabc }),
            DrrBody::Write(write),
            DrrBody::WriteByref(DrrWriteByref { object: 5, length: 512, refguid: 0xd, ..Default::default() }),
            DrrBody::WriteEmbedded(DrrWriteEmbedded {
                object: 5,
                psize: 33,
                lsize: 90,
                ..Default::default()
            }),
            DrrBody::Free(DrrFree { object: 5, offset: 512, length: u64::MAX, toguid: 0xabc }),
            DrrBody::Spill(DrrSpill { object: 5, length: 512, ..Default::default() }),
        ];
        let (mut out, mut sum) = (Vec::new(), Fletcher4::new(false));
        let mut push = |out: &mut Vec<u8>, body: DrrBody| {
            let body = match body {
                DrrBody::End(end) => DrrBody::End(DrrEnd { checksum: sum.finish(), ..end }),
                body => body,
            };
            let first = matches!(body, DrrBody::Begin(_));
            let mut drr = Drr { payloadlen: 0, body, checksum: (!first).then_some([0; 4]) };
            sum.update(&drr.to_bytes(Endian::Little)[..DRR_CHECKSUM_OFFSET]);
            drr.checksum = drr.checksum.map(|_| sum.finish());
            let bytes = drr.to_bytes(Endian::Little);
            let payload = vec![9; drr.payload_size() as usize];
            sum.update(&bytes[DRR_CHECKSUM_OFFSET..]);
            sum.update(&payload);
            out.extend([bytes, payload].concat());
        };
        push(&mut out, DrrBody::Begin(begin));
        bodies.into_iter().for_each(|body| push(&mut out, body));
        push(&mut out, DrrBody::End(DrrEnd { toguid: 0xabc, ..Default::default() }));
        out
    }

    fn dump(options: &[&str], bytes: &[u8]) -> clikit::testing::Run {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        run::<crate::Zstream>(&[&["zstream", "dump"], options, &[file.path().to_str().unwrap()]].concat())
    }

    #[test]
    fn records_are_printed_as_openzfs_prints_them() {
        let stream = stream();
        let ours = dump(&["-v"], &stream);
        assert_eq!((ours.exit, ours.err.as_str()), (Exit::OK, ""));
        assert!(ours.out.contains("WRITE_EMBEDDED object = 5 offset = 0 length = 0"), "{}", ours.out);
        assert!(ours.out.contains("\tTotal records = 9\n"), "{}", ours.out);
        let ours = dump(&["-d"], &stream).out;
        assert!(
            ours.contains(" 09 09 09 09  09 09 09 09  09 09 09 09  09 09 09 09   .... .... .... ....\n"),
            "{ours}"
        );
        // The real one, where it is installed.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &stream).unwrap();
        for options in [&["-v"][..], &["-d"], &[]] {
            let mut real = std::process::Command::new("/usr/sbin/zstream");
            if let Ok(real) = real.arg("dump").args(options).arg(file.path()).output() {
                assert_eq!(dump(options, &stream).out, String::from_utf8(real.stdout).unwrap());
            }
        }
    }

    #[test]
    fn a_stream_that_ends_early_is_summed_up() {
        let stream = stream();
        // Within a payload, within both parts of a header, and between two records.
        for len in [312, 400, 2 * 312, 2 * 312 + 4, 4 * 312 + 100, stream.len() - 20, stream.len() - 312] {
            let run = dump(&["-v"], &stream[..len]);
            assert_eq!(run.exit, Exit::OK, "{len}: {}", run.err);
            assert!(run.out.contains("SUMMARY:\n"), "{len}: {}", run.out);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &stream[..len]).unwrap();
            let mut real = std::process::Command::new("/usr/sbin/zstream");
            if let Ok(real) = real.args(["dump", "-v"]).arg(file.path()).output() {
                assert_eq!(run.out, String::from_utf8(real.stdout).unwrap(), "{len}");
            }
        }
    }

    #[test]
    fn streams_that_changed_are_refused() {
        let mut stream = stream();
        stream[1000] ^= 1;
        let run = dump(&[], &stream);
        assert!(run.exit == Exit::FAILED && run.err.contains("checksum"), "{}", run.err);
        assert_eq!(dump(&["-C"], &stream).exit, Exit::OK);
        assert_eq!(dump(&[], b"no stream at all").exit, Exit::FAILED);
    }
}
