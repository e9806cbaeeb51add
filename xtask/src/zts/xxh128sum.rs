//! The command `xxh128sum` for the suite, whose package (`xxhash`) a fresh machine lacks.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::process::ExitCode;

use twox_hash::XxHash3_128;

/// Prints the sum and the name of each file; of the standard input without any.
pub fn main(args: &[String]) -> ExitCode {
    let names: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.starts_with('-')).collect();
    let names = if names.is_empty() { vec!["-"] } else { names };
    let mut code = ExitCode::SUCCESS;
    for name in names {
        let told = sum_of(name).and_then(|sum| writeln!(io::stdout(), "{sum}  {name}"));
        if let Err(why) = told {
            eprintln!("xxh128sum: {name}: {why}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn sum_of(name: &str) -> io::Result<String> {
    match name {
        "-" => sum(&mut io::stdin().lock()),
        path => sum(&mut File::open(path)?),
    }
}

/// The sum as 32 hexadecimal digits.
fn sum(from: &mut dyn Read) -> io::Result<String> {
    let mut hash = XxHash3_128::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(format!("{:032x}", hash.finish_128())),
            Ok(count) => hash.write(buffer.get(..count).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums that xxHash's own command prints.
    #[test]
    fn sums_are_those_of_the_command() {
        assert_eq!(sum(&mut &b""[..]).unwrap(), "99aa06d3014798d86001c324468d497f");
        assert_eq!(sum(&mut &b"abc"[..]).unwrap(), "06b05ab6733a618578af5f94892f3950");
    }
}
