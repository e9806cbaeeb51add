//! `zstream token`: prints a resume token, the position where an interrupted receive stopped.
//!
//! `engine::dsl::props::resume` reads and makes tokens. Differs from OpenZFS: it needs no kernel module.

use std::fmt::Write as _;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::props::resume::decode;
use nvpair::{NvList, NvValue};

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

/// The list as OpenZFS prints lists: a tab, the name, numbers in hexadecimal.
#[doc(alias = "nvlist_print")]
pub fn print(list: &NvList) -> String {
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
    use clikit::testing::run;

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
        let run = run::<crate::Zstream>(&["zstream", "token", &token]);
        let text = "nvlist version: 0\n\tobject = 0x2\n\tbytes = 0x1f00\n\ttoname = tank/a@b\n\tcompressok = 1\n\
                    \tredact_snaps = 0x1 0xab\n";
        assert_eq!((run.exit, run.out.as_str(), run.err.as_str()), (Exit::OK, text, ""));
    }

    #[test]
    fn damaged_tokens_are_refused_with_the_reason() {
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
            let run = run::<crate::Zstream>(&["zstream", "token", &token]);
            assert_eq!(run.exit, Exit::FAILED, "{token}");
            let lead = format!("Unable to parse resume token: resume token is corrupt ({why}");
            assert!(run.err.starts_with(&lead), "{token}: {}", run.err);
        }
    }
}
