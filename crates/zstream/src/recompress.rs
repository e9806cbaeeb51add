//! `zstream recompress` and `zstream decompress`: the blocks of a stream in another compression, or in none.
//!
//! Source: zstream(8), OpenZFS 2.3. Differs from OpenZFS: streams with redaction records pass, which its `zstream` ends
//! at; and a record marked as uncompressed by `off` must have the matching length.

use std::io::{self, Read, Write};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use compress::{Algorithm, zstd};
use ondisk::CompressType;
use ondisk::drr::{Drr, DrrBody, DrrWrite, stream_feature};

use super::stream::{redirected, rewrite};

/// Compressed payloads are filled up to whole sectors.
const SECTOR: usize = 512;
/// Largest block.
const MAX_BLOCK: u64 = 16 << 20;

/// Compress a stream otherwise.
#[derive(Debug, Args)]
pub struct Recompress {
    /// Level, where the algorithm's name does not say it.
    #[arg(short = 'l', value_name = "LEVEL")]
    pub level: Option<u8>,
    /// `off`, `lzjb`, `zle`, `lz4`, `gzip-1` to `gzip-9`, `zstd`.
    #[arg(value_name = "ALGORITHM")]
    pub algorithm: String,
}

impl Verb for Recompress {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let wanted = kind(&self.algorithm)
            .ok_or_else(|| Failure::usage(format!("Invalid compression type {}.", self.algorithm)))?;
        redirected(ctx.out_is_terminal)?;
        self.stream(wanted, io::stdin().lock(), &mut *ctx.out)?;
        Ok(Exit::OK)
    }
}

impl Recompress {
    fn stream(&self, wanted: CompressType, from: impl Read, to: &mut dyn Write) -> Result<(), Failure> {
        let level = self.level.unwrap_or(0);
        rewrite(from, to, &refuse_raw, &mut |drr, payload| {
            let DrrBody::Write(write) = &mut drr.body else { return Ok(true) };
            let plain = match compression(write)? {
                None => std::mem::take(payload),
                Some(old) => expand(old, write, payload).ok_or_else(|| {
                    let (kind, object, offset) = (write.compressiontype, write.object, write.offset);
                    let what = format!("decompression type {kind} failed for ino {object} offset {offset}");
                    Failure::failed(what)
                })?,
            };
            *payload = store(write, wanted, level, plain);
            Ok(true)
        })
    }
}

/// Decompress blocks of a stream whose compression is not what the stream says.
#[derive(Debug, Args)]
pub struct Decompress {
    /// Say what was done.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Blocks, and how they are compressed: lz4 without a word; `off`: not at all.
    #[arg(value_name = "OBJECT,OFFSET[,TYPE]", value_parser = parse_block)]
    pub blocks: Vec<Block>,
}

/// A block, and how it is compressed; `None`: not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    object: u64,
    offset: u64,
    kind: CompressType,
}

/// Object and offset of a block, and the fields behind them.
pub(super) fn parse_place(word: &str) -> Result<(u64, u64, std::str::Split<'_, char>), String> {
    let mut fields = word.split(',');
    let mut number = |what: &str| {
        let field = fields.next().and_then(|field| field.parse().ok());
        field.ok_or_else(|| format!("invalid value for {what}"))
    };
    let (object, offset) = (number("object")?, number("offset")?);
    Ok((object, offset, fields))
}

fn parse_block(word: &str) -> Result<Block, String> {
    let (object, offset, mut fields) = parse_place(word)?;
    let word = fields.next().unwrap_or("lz4");
    let kind = match word {
        "gzip" => Some(CompressType::Gzip6),
        word => kind(word),
    };
    let kind = kind.filter(|_| fields.next().is_none());
    kind.map(|kind| Block { object, offset, kind }).ok_or_else(|| format!("Invalid compression type {word}."))
}

impl Verb for Decompress {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        redirected(ctx.out_is_terminal)?;
        let said = self.stream(io::stdin().lock(), &mut *ctx.out)?;
        said.iter().for_each(|line| ctx.warn(line));
        Ok(Exit::OK)
    }
}

impl Decompress {
    /// Returns messages.
    fn stream(&self, from: impl Read, to: &mut dyn Write) -> Result<Vec<String>, Failure> {
        let mut said = Vec::new();
        rewrite(from, to, &|_| Ok(()), &mut |drr, payload| {
            said.extend(self.record(drr, payload));
            Ok(true)
        })?;
        Ok(said)
    }

    /// Decompresses the record, if it is selected; returns a message.
    fn record(&self, drr: &mut Drr, payload: &mut Vec<u8>) -> Option<String> {
        let DrrBody::Write(write) = &mut drr.body else { return None };
        let at = |block: &&Block| block.object == write.object && block.offset == write.offset;
        let block = self.blocks.iter().find(at)?;
        let place = format!("ino {} offset {}", write.object, write.offset);
        let plain = match block.kind {
            CompressType::Off => Some(payload.clone()),
            kind => expand(kind, write, payload),
        };
        let Some(plain) = plain.filter(|plain| plain.len() as u64 == write.logical_size) else {
            return Some(format!("decompression failed for {place}"));
        };
        *payload = plain;
        (write.compressiontype, write.compressed_size) = (0, 0);
        let line = match block.kind {
            CompressType::Off => format!("Resetting compression type to off for {place}"),
            _ => format!("successfully decompressed {place}"),
        };
        self.verbose.then_some(line)
    }
}

/// Encrypted blocks can't be recompressed.
fn refuse_raw(begin: &mut DrrBody) -> Result<(), Failure> {
    match begin {
        DrrBody::Begin(begin) if begin.features() & stream_feature::RAW != 0 => {
            Err(Failure::failed("a raw stream of encrypted data can't be recompressed"))
        }
        _ => Ok(()),
    }
}

/// A compression by the name that streams' tools have for it.
fn kind(word: &str) -> Option<CompressType> {
    if word == "off" {
        return Some(CompressType::Off);
    }
    let of = |raw| CompressType::from_raw(raw).filter(|kind| kind.name() == word);
    (CompressType::Lzjb.raw()..=CompressType::Zstd.raw())
        .find_map(of)
        .filter(|kind| *kind != CompressType::Empty)
}

/// How the payload of a record is compressed, by its own word.
fn compression(write: &DrrWrite) -> Result<Option<CompressType>, Failure> {
    if write.compressiontype == 0 {
        return Ok(None);
    }
    let raw = write.compressiontype;
    let kind = CompressType::from_raw(raw).filter(|kind| algorithm(*kind).is_some());
    kind.map(Some).ok_or_else(|| Failure::failed(format!("Invalid compression type in stream: {raw}")))
}

fn algorithm(kind: CompressType) -> Option<(Algorithm, u8)> {
    Some(match kind {
        CompressType::Inherit | CompressType::On | CompressType::Off | CompressType::Empty => return None,
        CompressType::Lzjb => (Algorithm::Lzjb, 0),
        CompressType::Zle => (Algorithm::Zle, 0),
        CompressType::Lz4 => (Algorithm::Lz4, 0),
        CompressType::Zstd => (Algorithm::Zstd, 0),
        gzip => (Algorithm::Gzip, gzip.raw().saturating_sub(CompressType::Gzip1.raw()) + 1),
    })
}

fn expand(kind: CompressType, write: &DrrWrite, payload: &[u8]) -> Option<Vec<u8>> {
    let size = usize::try_from(write.logical_size).ok().filter(|_| write.logical_size <= MAX_BLOCK)?;
    let mut plain = vec![0; size];
    compress::decompress(algorithm(kind)?.0, payload, &mut plain).ok().map(|()| plain)
}

/// The payload of a record, compressed if that makes it shorter by a sector; recorded in the record.
fn store(write: &mut DrrWrite, kind: CompressType, level: u8, plain: Vec<u8>) -> Vec<u8> {
    let packed = algorithm(kind).and_then(|(algorithm, own)| {
        let level = if own == 0 { level } else { own };
        let slow = zstd::Level::from_number(level)
            .filter(|_| algorithm == Algorithm::Zstd && plain.len() >= zstd::ABORT_SIZE);
        if slow.is_some_and(|level| !zstd::promises(level, &plain, plain.len())) {
            return None;
        }
        compress::compress(algorithm, level, &plain, plain.len())
    });
    let whole = packed.map(|mut packed| {
        packed.resize(packed.len().next_multiple_of(SECTOR), 0);
        packed
    });
    let Some(packed) = whole.filter(|packed| packed.len() < plain.len()) else {
        (write.compressiontype, write.compressed_size) = (0, 0);
        return plain;
    };
    (write.compressiontype, write.compressed_size) = (kind.raw(), packed.len() as u64);
    packed
}

#[cfg(test)]
pub(super) mod tests {
    use ondisk::Endian;
    use ondisk::drr::{DRR_MAGIC, DrrBegin, DrrEnd};

    use super::super::stream::Output;
    use super::*;

    /// A stream of blocks, the first of which compress.
    pub(in super::super) fn stream(versioninfo: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let mut output = Output::new(&mut out);
        let mut put = |body: DrrBody, payload: &[u8]| {
            let checksum = (!matches!(body, DrrBody::Begin(_))).then_some([1; 4]);
            output.put(Drr { payloadlen: 0, body, checksum }, payload, Endian::Little).unwrap();
        };
        put(DrrBody::Begin(DrrBegin { magic: DRR_MAGIC, versioninfo, ..Default::default() }), &[]);
        for object in 1..5_u64 {
            let mut state = 1_u64;
            let mut noise = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            };
            let byte = |at: u64| if object == 4 { noise() } else { (at / 64 * object) as u8 };
            let text: Vec<u8> = (0..16_384).map(byte).collect();
            let write = DrrWrite { object, logical_size: 16_384, object_type: 19, ..Default::default() };
            put(DrrBody::Write(write), &text);
        }
        put(DrrBody::End(DrrEnd { checksum: [1; 4], toguid: 0 }), &[]);
        out
    }

    fn recompressed(word: &str, from: &[u8]) -> Vec<u8> {
        let verb = Recompress { level: None, algorithm: word.to_owned() };
        let mut out = Vec::new();
        verb.stream(kind(word).unwrap(), from, &mut out).unwrap();
        out
    }

    #[test]
    fn a_stream_comes_back_from_every_compression() {
        let plain = stream(1);
        for word in ["lzjb", "zle", "lz4", "gzip-1", "gzip-9", "zstd"] {
            let small = recompressed(word, &plain);
            assert!(word == "zle" || small.len() < plain.len() / 2, "{word}: {}", small.len());
            assert_eq!(recompressed("off", &small), plain, "{word}");
            // The real zstream, where it is installed, reads our stream.
            let mut real = std::process::Command::new("/usr/sbin/zstream");
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &small).unwrap();
            let piped = real.args(["recompress", "off"]).stdin(file.reopen().unwrap()).output();
            assert!(piped.is_err() || piped.is_ok_and(|real| real.stdout == plain), "{word}");
        }
    }

    #[test]
    fn blocks_that_the_stream_is_wrong_about_are_decompressed() {
        let (plain, mut out) = (stream(1), Vec::new());
        let lz4 = recompressed("lz4", &plain);
        let blocks = ["1,0", "2,0,lz4", "3,0,gzip", "4,0,off"].map(|word| parse_block(word).unwrap());
        let verb = Decompress { verbose: true, blocks: blocks.to_vec() };
        let said = verb.stream(&lz4[..], &mut out).unwrap();
        let lines = [
            "successfully decompressed ino 1 offset 0",
            "successfully decompressed ino 2 offset 0",
            "decompression failed for ino 3 offset 0",
            "Resetting compression type to off for ino 4 offset 0",
        ];
        assert_eq!(said, lines);
        assert!(out.len() > lz4.len() && out.len() < plain.len());
        assert_eq!(recompressed("off", &out), plain);
        for bad in ["1", "x,0", "1,0,nonsense", "1,0,lz4,1"] {
            parse_block(bad).unwrap_err();
        }
    }

    #[test]
    fn raw_streams_are_refused() {
        let raw = stream(1 | stream_feature::RAW << 2);
        let verb = Recompress { level: None, algorithm: "lz4".to_owned() };
        assert!(verb.stream(CompressType::Lz4, &raw[..], &mut Vec::new()).is_err());
    }
}
