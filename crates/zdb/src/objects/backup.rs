//! `-B`: a snapshot as a send stream.
//!
//! Differs from OpenZFS: the number of an older snapshot after the flags makes the stream incremental.

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};
use engine::send::{From, SendFlags, send};

use crate::options::parse_number;
use crate::target::{Session, by_number};

/// Writes the stream to standard output.
pub fn run(session: &Session, objset: &str, ctx: &mut Ctx) -> Outcome {
    let number = parse_number(objset)
        .ok_or_else(|| Failure::failed(format!("zdb: '{objset}' is not the number of an object set")))?;
    let flags = parse_flags(session.rest.first().map(String::as_str).unwrap_or_default())?;
    if ctx.out_is_terminal {
        return Err(Failure::failed("zdb: stream cannot be written to a terminal"));
    }
    let dataset = by_number(&session.pool.dsl, number)?;
    let from = session.rest.get(1).map(|word| from(session, word)).transpose()?;
    send(&dataset, from, flags, &mut ctx.out)?;
    Ok(Exit::OK)
}

fn from(session: &Session, word: &str) -> Result<From, Failure> {
    let number = parse_number(word)
        .ok_or_else(|| Failure::failed(format!("zdb: '{word}' is not the number of a snapshot")))?;
    Ok(From::snapshot(&by_number(&session.pool.dsl, number)?)?)
}

/// Letters of `zfs send`.
fn parse_flags(letters: &str) -> Result<SendFlags, Failure> {
    let mut flags = SendFlags::default();
    for letter in letters.chars() {
        match letter {
            'e' => flags.embed = true,
            'L' => flags.large_blocks = true,
            'c' => flags.compressed = true,
            'w' => flags.raw = true,
            other => return Err(Failure::failed(format!("zdb: unknown backup flag '{other}'"))),
        }
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_zfs_send() {
        let all = SendFlags { embed: true, large_blocks: true, compressed: true, raw: true };
        assert_eq!(parse_flags("eLcw").unwrap(), all);
        assert_eq!(parse_flags("").unwrap(), SendFlags::default());
        assert!(parse_flags("x").is_err());
    }
}
