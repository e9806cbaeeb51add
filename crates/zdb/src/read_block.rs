//! `-R`: bytes at an offset of a vdev, as a dump or decoded; `-E`: an embedded block.

use std::fmt::Write as _;
use std::io::Write;

use checksum::{Algorithm, Salt};
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};
use engine::spa::Pool;
use engine::vdev::config::VdevConfig;
use ondisk::label::LABEL_START_SIZE;
use ondisk::names::mos;
use ondisk::{Blkptr, EmbeddedType, MAX_BLOCK_SIZE, MIN_BLOCK_SIZE, gang::gang_nblkptrs};

use super::target::Session;

/// Decompressors in the order in which zdb guesses.
const GUESSES: [(&str, compress::Algorithm); 4] = [
    ("lz4", compress::Algorithm::Lz4),
    ("lzjb", compress::Algorithm::Lzjb),
    ("gzip-1", compress::Algorithm::Gzip),
    ("zstd", compress::Algorithm::Zstd),
];
/// Checksums in the order in which zdb prints them.
const CHECKSUMS: [(&str, Algorithm); 7] = [
    ("fletcher2", Algorithm::Fletcher2),
    ("fletcher4", Algorithm::Fletcher4),
    ("sha256", Algorithm::Sha256),
    ("sha512", Algorithm::Sha512),
    ("skein", Algorithm::Skein),
    ("edonr", Algorithm::Edonr),
    ("blake3", Algorithm::Blake3),
];

/// `VDEV:OFFSET:[LSIZE/]PSIZE[:FLAGS]`, numbers hexadecimal.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    vdev: String,
    offset: u64,
    lsize: Option<u64>,
    psize: u64,
    flags: String,
}

impl Place {
    fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("Invalid block specifier: {text}  - {why}");
        let mut parts = text.splitn(4, ':');
        let mut part = || parts.next().unwrap_or_default();
        let (vdev, offset, size, flags) = (part(), part(), part(), part());
        let hex = |n: &str| u64::from_str_radix(n.strip_prefix("0x").unwrap_or(n), 16).ok();
        let offset = hex(offset).unwrap_or(0);
        let (lsize, psize) = match size.split_once('/') {
            Some((l, p)) => (Some(hex(l).unwrap_or(0)), hex(p).unwrap_or(0)),
            None => (None, hex(size).unwrap_or(0)),
        };
        if psize == 0 || lsize == Some(0) || psize > MAX_BLOCK_SIZE || lsize > Some(MAX_BLOCK_SIZE) {
            return Err(bad("invalid size(s)"));
        }
        if !psize.is_multiple_of(MIN_BLOCK_SIZE) || lsize.is_some_and(|l| !l.is_multiple_of(MIN_BLOCK_SIZE)) {
            return Err(bad("size must be a multiple of sector size"));
        }
        if !offset.is_multiple_of(MIN_BLOCK_SIZE) {
            return Err(bad("offset must be a multiple of sector size"));
        }
        if lsize.is_some_and(|l| l < psize) {
            return Err(bad("lsize must not be less than psize"));
        }
        Ok(Self { vdev: vdev.to_owned(), offset, lsize, psize, flags: flags.to_owned() })
    }
}

/// The parsed flags.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Flags {
    /// `b`: the pointer at this byte of the block.
    blkptr: Option<usize>,
    checksums: bool,
    decompress: bool,
    swap: bool,
    gang: bool,
    indirect: bool,
    raw: bool,
    verbose: bool,
}

impl Flags {
    fn parse(text: &str) -> Result<Self, char> {
        let mut flags = Self::default();
        let mut rest = text.chars().peekable();
        while let Some(letter) = rest.next() {
            match letter {
                'b' => {
                    let mut digits = String::new();
                    while let Some(c) = rest.next_if(char::is_ascii_hexdigit) {
                        digits.push(c);
                    }
                    flags.blkptr = Some(usize::from_str_radix(&digits, 16).map_err(|_| 'b')?);
                }
                'c' => flags.checksums = true,
                'd' => flags.decompress = true,
                'e' => flags.swap = true,
                'g' => flags.gang = true,
                'i' => flags.indirect = true,
                'r' => flags.raw = true,
                'v' => flags.verbose = true,
                ':' => {}
                other => return Err(other),
            }
        }
        Ok(flags)
    }
}

/// Prints each block in the operands. A block that cannot be read is reported among them and does not change the exit code.
#[doc(alias = "zdb_read_block")]
pub fn run(session: &Session, ctx: &mut Ctx) -> Outcome {
    for text in &session.rest {
        match one(session, text, ctx) {
            Err(Failure::Failed(why)) => writeln!(ctx.out, "{why}")?,
            done => done?,
        }
    }
    Ok(Exit::OK)
}

fn one(session: &Session, text: &str, ctx: &mut Ctx) -> Result<(), Failure> {
    let place = Place::parse(text).map_err(Failure::failed)?;
    let flags = Flags::parse(&place.flags);
    let flags =
        flags.map_err(|c| Failure::failed(format!("***Ignoring flag: {c}\nInvalid flag arg: '{c}'")))?;
    let stored = read(&session.pool, &place, ctx)?;
    let shown = if flags.decompress {
        let plain = decompress(&stored, place.lsize, flags.verbose, ctx);
        plain.ok_or_else(|| Failure::failed(format!("Decompress of {text} failed")))?
    } else {
        let mut bytes = stored.clone();
        bytes.resize(bytes.len().max(usize::try_from(place.lsize.unwrap_or(0)).unwrap_or(0)), 0);
        bytes
    };
    show(text, &shown, flags, ctx)?;
    if flags.checksums {
        print_checksums(&session.pool, &shown, ctx)?;
    }
    Ok(())
}

/// A vdev by number, numbers of children (`0.1`), or path of a leaf.
fn find<'a>(root: &'a VdevConfig, name: &str) -> Option<&'a VdevConfig> {
    let numbers: Option<Vec<u64>> = name.split('.').map(|n| n.parse().ok()).collect();
    if let Some(numbers) = numbers {
        let down = |vdev: &'a VdevConfig, id: u64| vdev.children.iter().find(|c| c.id == id);
        return numbers.into_iter().try_fold(root, down);
    }
    let named = |path: &str| path == name || path.rsplit('/').next() == Some(name);
    root.walk().into_iter().find(|v| v.path.as_deref().is_some_and(named))
}

fn read(pool: &Pool, place: &Place, ctx: &mut Ctx) -> Result<Vec<u8>, Failure> {
    let tree = pool.tree();
    let found = find(&tree.config, &place.vdev);
    let vdev = found.ok_or_else(|| Failure::failed(format!("***Invalid vdev: {}", place.vdev)))?;
    match tree.leaf(vdev.guid) {
        Some(leaf) => ctx.warn(format!("Found vdev: {}", leaf.path)),
        None => ctx.warn(format!("Found vdev type: {}", vdev.kind.name())),
    }
    let is_top = tree.config.children.iter().any(|top| top.guid == vdev.guid && top.id == vdev.id);
    if is_top {
        return Ok(pool.zio.read_physical(vdev.id, place.offset, place.psize)?.to_vec());
    }
    let device = tree.leaf(vdev.guid).and_then(|leaf| leaf.device());
    let device = device.ok_or_else(|| Failure::failed(format!("vdev {} cannot be read", place.vdev)))?;
    let at = place.offset.saturating_add(LABEL_START_SIZE);
    let bytes = blkdev::read_at(&*device, at, usize::try_from(place.psize).unwrap_or(0));
    Ok(bytes.map_err(|e| Failure::failed(format!("Read of {} failed: {e}", place.vdev)))?.to_vec())
}

/// Tries every decompressor for a given size, or for every size up to the largest.
fn decompress(stored: &[u8], lsize: Option<u64>, verbose: bool, ctx: &mut Ctx) -> Option<Vec<u8>> {
    let psize = u64::try_from(stored.len()).unwrap_or(MAX_BLOCK_SIZE);
    // Guessing ends at the usual limit of compressed blocks: the size of a larger one can be given.
    let last = lsize.unwrap_or(ondisk::OLD_MAX_BLOCK_SIZE.max(psize));
    let mut size = lsize.unwrap_or(psize + MIN_BLOCK_SIZE);
    while size <= last {
        let mut plain = vec![0; usize::try_from(size).ok()?];
        for (name, algorithm) in GUESSES {
            if verbose {
                ctx.warn(format!("Trying {psize:05x} -> {size:05x} ({name})"));
            }
            if compress::decompress(algorithm, stored, &mut plain).is_ok() {
                return Some(plain);
            }
        }
        size += MIN_BLOCK_SIZE;
    }
    None
}

fn show(text: &str, bytes: &[u8], flags: Flags, ctx: &mut Ctx) -> Result<(), Failure> {
    let swapped = flags.swap.then(|| swap(bytes));
    let view = swapped.as_deref().unwrap_or(bytes);
    if let Some(at) = flags.blkptr {
        let bp = view.get(at..).and_then(Blkptr::from_bytes);
        let bp = bp.ok_or_else(|| Failure::failed(format!("no room for a block pointer at {at:x}")))?;
        writeln!(ctx.out, "{bp}")?;
    } else if flags.raw {
        ctx.out.write_all(view)?;
    } else if flags.indirect || flags.gang {
        let all = view.chunks_exact(ondisk::blkptr::BLKPTR_SIZE);
        // As in OpenZFS, the trailer is not checked: the bytes may be a part of the header.
        let count = if flags.gang { gang_nblkptrs(view.len()) } else { all.len() };
        for bp in all.take(count).filter_map(Blkptr::from_bytes) {
            writeln!(ctx.out, "{bp}")?;
        }
    } else {
        write!(ctx.out, "{}", dump(text, bytes, flags.swap))?;
    }
    Ok(())
}

/// The bytes with each 8-byte word reversed.
fn swap(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(8).flat_map(|word| word.iter().rev().copied()).collect()
}

/// Sixteen bytes per line: two words, and as text.
#[doc(alias = "zdb_dump_block")]
fn dump(label: &str, bytes: &[u8], swapped: bool) -> String {
    let head =
        if swapped { " 7 6 5 4 3 2 1 0   f e d c b a 9 8" } else { " 0 1 2 3 4 5 6 7   8 9 a b c d e f" };
    let mut out = format!("\n{label}\n{:6}   {head}  0123456789abcdef\n", "");
    for (i, line) in bytes.chunks(16).enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(out, "{:06x}:", i * 16);
        for word in line.chunks(8) {
            let word = if swapped { swap(word) } else { word.to_vec() };
            let hex: String = word.iter().map(|b| format!("{b:02x}")).collect();
            let _ = write!(out, "  {hex}");
        }
        let text = |b: &u8| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '.' };
        let _ = writeln!(out, "  {}", line.iter().map(text).collect::<String>());
    }
    out
}

fn print_checksums(pool: &Pool, bytes: &[u8], ctx: &mut Ctx) -> Result<(), Failure> {
    let salt = pool.directory()?.lookup(mos::CHECKSUM_SALT.as_bytes()).ok().flatten();
    let salt: Option<Salt> = salt.and_then(|v| v.bytes().first_chunk().copied());
    writeln!(ctx.out)?;
    for (name, algorithm) in CHECKSUMS {
        let [a, b, c, d] = checksum::digest(algorithm, bytes, salt.as_ref(), false);
        writeln!(ctx.out, "{name:>12}\tcksum={a:016x}:{b:016x}:{c:016x}:{d:016x}")?;
    }
    Ok(())
}

/// `-E WORD0:…:WORD15`: the data of an embedded pointer, as bytes on standard output.
pub fn embedded(text: &str, ctx: &mut Ctx) -> Outcome {
    let bad = || Failure::failed("invalid input format");
    let words: Option<Vec<u64>> = text.split(':').map(|w| u64::from_str_radix(w, 16).ok()).collect();
    let words: [u64; 16] = words.and_then(|w| w.try_into().ok()).ok_or_else(bad)?;
    let bp = Blkptr::from_words(words);
    if bp.embedded_type() != Some(EmbeddedType::Data) {
        return Err(Failure::failed("not an embedded block pointer with data"));
    }
    let payload = bp.embedded_payload();
    let packed = usize::try_from(bp.embedded_psize()).ok().and_then(|n| payload.get(..n));
    let packed = packed.ok_or_else(|| Failure::failed("the payload does not fit into a pointer"))?;
    let mut plain = vec![0; usize::try_from(bp.embedded_lsize()).unwrap_or(0)];
    let name = bp.compress().map_or("", |c| c.name());
    let family = GUESSES.iter().find(|(guess, _)| name.split('-').next() == guess.split('-').next());
    match family {
        Some((_, algorithm)) => compress::decompress(*algorithm, packed, &mut plain)
            .map_err(|e| Failure::failed(format!("decode failed: {e}")))?,
        None if name == "zle" => compress::decompress(compress::Algorithm::Zle, packed, &mut plain)
            .map_err(|e| Failure::failed(format!("decode failed: {e}")))?,
        None => plain.iter_mut().zip(packed).for_each(|(to, from)| *to = *from),
    }
    ctx.out.write_all(&plain)?;
    Ok(Exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_checked_in_zdbs_words() {
        let place = Place::parse("0.1:3554e00:1000/200:dc").unwrap();
        assert_eq!((place.offset, place.lsize, place.psize), (0x355_4e00, Some(0x1000), 0x200));
        for (text, why) in [
            ("0:0:0", "invalid size(s)"),
            ("0:1:200", "offset must be a multiple of sector size"),
            ("0:0:201", "size must be a multiple of sector size"),
            ("0:0:200/400", "lsize must not be less than psize"),
        ] {
            assert_eq!(Place::parse(text).unwrap_err(), format!("Invalid block specifier: {text}  - {why}"));
        }
        assert_eq!(Flags::parse("db80").unwrap().blkptr, Some(0x80));
        assert_eq!(Flags::parse("q"), Err('q'));
    }

    #[test]
    fn dumps_show_bytes_in_order_or_words_swapped() {
        let plain = dump("x", b"0123456789abcdef", false);
        assert!(plain.ends_with("000000:  3031323334353637  3839616263646566  0123456789abcdef\n"));
        let swapped = dump("x", b"0123456789abcdef", true);
        assert!(swapped.ends_with("000000:  3736353433323130  6665646362613938  0123456789abcdef\n"));
    }
}
