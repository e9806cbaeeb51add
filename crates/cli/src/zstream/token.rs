//! `zstream token`: what a resume token says: where an interrupted receive stopped.
//!
//! Format source: `zfs_send_resume_token_to_nvlist`, libzfs_sendrecv.c, OpenZFS 2.3; the other way is
//! `engine::dsl::props::resume`. Differs from OpenZFS: it needs no kernel module.

use std::fmt::Write as _;

use clap::Args;
use nvpair::{NvList, NvValue};

use crate::ctx::Ctx;
use crate::verb::{Exit, Failure, Outcome, Verb};

/// The version of tokens that there is.
#[doc(alias = "ZFS_SEND_RESUME_TOKEN_VERSION")]
const VERSION: u32 = 1;
/// Largest list that a token is unpacked to. Those of OpenZFS have some hundred bytes, with the guids of redaction
/// snapshots some thousand.
const MOST: usize = 16 << 20;

/// Print what a resume token says.
#[derive(Debug, Args)]
pub struct Token {
    /// The token, as `receive_resume_token` has it.
    #[arg(value_name = "RESUME_TOKEN")]
    pub token: String,
}

impl Verb for Token {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let failed = |why: String| Failure::failed(format!("Unable to parse resume token: {why}"));
        let list = decode(self.token.trim()).map_err(failed)?;
        write!(ctx.out, "{}", print(&list))?;
        Ok(Exit::OK)
    }
}

/// Unpacks a token: `1-FLETCHER4-SIZE-ZLIB`, numbers and bytes in hexadecimal.
///
/// # Errors
/// What is wrong with it.
fn decode(token: &str) -> Result<NvList, String> {
    let corrupt = |what: &str| format!("resume token is corrupt ({what})");
    let mut fields = token.splitn(4, '-');
    let mut field = |what: &str| fields.next().ok_or_else(|| corrupt(what));
    let version: u32 = field("invalid version")?.parse().map_err(|_| corrupt("invalid version"))?;
    if version != VERSION {
        return Err(corrupt("invalid version"));
    }
    let bad = "payload is not valid";
    let sum = u64::from_str_radix(field(bad)?, 16).map_err(|_| corrupt(bad))?;
    let size = usize::from_str_radix(field(bad)?, 16).ok().filter(|size| *size <= MOST);
    let size = size.ok_or_else(|| corrupt("size of the list"))?;
    let packed = bytes(field(bad)?).ok_or_else(|| corrupt("payload is not hex-encoded"))?;
    // What is summed are whole words.
    let words = packed.get(..packed.len() - packed.len() % 4).unwrap_or_default();
    if checksum::fletcher::fletcher4(words, false).first() != Some(&sum) {
        return Err(corrupt("incorrect checksum"));
    }
    let mut list = vec![0; size];
    compress::decompress(compress::Algorithm::Gzip, &packed, &mut list)
        .map_err(|e| corrupt(&format!("decompression failed: {e}")))?;
    NvList::decode(&list).map_err(|e| corrupt(&format!("the list can't be read: {e}")))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    hex.as_bytes().chunks(2).map(pair).collect()
}

/// The list as OpenZFS prints lists: a tab, the name, numbers in hexadecimal.
#[doc(alias = "nvlist_print")]
fn print(list: &NvList) -> String {
    let mut text = "nvlist version: 0\n".to_owned();
    for pair in list.iter() {
        let name = pair.name.to_string_lossy();
        // A string can't fail to take text.
        let _ = match &pair.value {
            NvValue::Uint64(number) => writeln!(text, "\t{name} = {number:#x}"),
            NvValue::String(value) => writeln!(text, "\t{name} = {value}"),
            NvValue::Boolean => writeln!(text, "\t{name} = 1"),
            NvValue::Uint64Array(all) => {
                let all: Vec<String> = all.iter().map(|number| format!("{number:#x}")).collect();
                writeln!(text, "\t{name} = {}", all.join(" "))
            }
            other => writeln!(text, "\t{name} = {other:?}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctx::testing::captured;

    /// A token as OpenZFS makes them.
    fn token(list: &NvList) -> String {
        let packed = list.encode_native().unwrap();
        let small = compress::compress(compress::Algorithm::Gzip, 6, &packed, packed.len() + 64).unwrap();
        let sum = checksum::fletcher::fletcher4(&small[..small.len() / 4 * 4], false)[0];
        let hex: String = small.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("1-{sum:x}-{:x}-{hex}", packed.len())
    }

    #[test]
    fn a_token_says_where_a_receive_stopped() {
        let mut list = NvList::new();
        list.add("object", 2_u64).add("bytes", 0x1f00_u64).add("toname", "tank/a@b");
        list.add("compressok", NvValue::Boolean).add("redact_snaps", NvValue::Uint64Array(vec![1, 0xab]));
        let token = token(&list);
        let run = captured(&["zstream", "token", &token]);
        let text = "nvlist version: 0\n\tobject = 0x2\n\tbytes = 0x1f00\n\ttoname = tank/a@b\n\tcompressok = 1\n\
                    \tredact_snaps = 0x1 0xab\n";
        assert_eq!((run.exit, run.out.as_str(), run.err.as_str()), (Exit::OK, text, ""));
    }

    #[test]
    fn what_is_damaged_is_named() {
        let mut list = NvList::new();
        list.add("object", 2_u64);
        let whole = token(&list);
        let (head, hex) = whole.rsplit_once('-').unwrap();
        let fields: Vec<&str> = head.split('-').collect();
        for (token, why) in [
            ("".to_owned(), "invalid version"),
            (whole.replacen('1', "2", 1), "invalid version"),
            (head.to_owned(), "payload is not valid"),
            (format!("{head}-{}", &hex[1..]), "payload is not hex-encoded"),
            (format!("{head}-00{}", &hex[2..]), "incorrect checksum"),
            (format!("1-{}-ffffffffff-{hex}", fields[1]), "size of the list"),
            (format!("1-{}-{:x}-{hex}", fields[1], 4096), "decompression failed"),
            ("1-0-10-".to_owned(), "decompression failed"),
        ] {
            let run = captured(&["zstream", "token", &token]);
            assert_eq!(run.exit, Exit::FAILED, "{token}");
            let lead = format!("Unable to parse resume token: resume token is corrupt ({why}");
            assert!(run.err.starts_with(&lead), "{token}: {}", run.err);
        }
    }
}
