//! Keys from `https://` and `http://` locations.
//!
//! A process that serves file systems makes a child of the same program fetch the key ([`apart`]): certificates may
//! lie in a mount of this very process, and name resolution runs code that cannot be interrupted. The environment
//! variables that OpenZFS passes to its HTTP library select the trusted certificates and our own identity
//! ([`Trust`]).
//!
//! The request is one GET of HTTP/1.0, so no server answers in chunks; an answer that is longer than any key,
//! truncated, or too slow is refused. Source of the messages: the output of OpenZFS 2.3.
//!
//! Differs from OpenZFS, which needs libcurl: a certificate that is itself trusted is accepted under any name,
//! because its owner could sign others for any name; all others must name the host as an alternative name.

mod tls;
mod url;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

pub use self::tls::Trust;
use stdx::Secret;

use self::url::Url;

/// The verb by which this program calls itself as a child; the location follows it.
pub const VERB: &str = "fetch-key";
/// Maximum bytes of a key; keys are 32 bytes, 64 hex digits or a passphrase of up to 512.
const MAX_KEY: usize = 4096;
/// Maximum bytes of the response head.
const MAX_HEAD: usize = 16 << 10;
/// Maximum number of redirects.
const MAX_HOPS: usize = 8;
/// Timeout of one connection attempt and of one wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of the whole fetch.
const LONGEST: Duration = Duration::from_secs(30);

/// Whether a key location is an `https://` or `http://` URL.
pub fn is_remote(location: &str) -> bool {
    location.starts_with("https://") || location.starts_with("http://")
}

/// Makes a child fetch a key. `env` is the caller's environment; its paths are relative to `cwd`.
///
/// # Errors
/// The reason, as a message for the caller.
pub fn apart(location: &str, env: &BTreeMap<String, OsString>, cwd: &Path) -> Result<Secret, String> {
    let mut child = Command::new(zfuse::mount_helper::PROGRAM);
    child.arg(VERB).arg(location).stdin(Stdio::null());
    for word in Trust::WORDS {
        match env.get(word) {
            Some(path) => child.env(word, cwd.join(path)),
            None => child.env_remove(word),
        };
    }
    let mut run = || {
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut key = Secret::zeros(0);
        if let Some(mut out) = child.stdout.take() {
            key = Secret::read(&mut out, None, MAX_KEY)?;
        }
        child.wait_with_output().map(|out| (key, out))
    };
    let (key, out) = run().map_err(|e| failed(location, &e))?;
    match out.status.success() {
        true => Ok(key),
        false => Err(String::from_utf8_lossy(&out.stderr).trim_end().to_owned()),
    }
}

/// The child's work: writes the key to standard output, or the reason of a failure to standard error.
pub fn act(location: &OsStr) -> u8 {
    let location = location.to_string_lossy().into_owned();
    let slow = failed(&location, &"it took too long");
    thread::spawn(move || {
        thread::sleep(LONGEST);
        eprintln!("{slow}");
        std::process::exit(1);
    });
    let done = get(&location, &Trust::of_environment());
    match done.and_then(|key| io::stdout().write_all(&key).map_err(|e| failed(&location, &e))) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("{why}");
            1
        }
    }
}

fn failed(location: &str, why: &dyn std::fmt::Display) -> String {
    format!("Failed to connect to {location}: {why}")
}

/// Fetches a key.
///
/// # Errors
/// The reason, as a message for the caller.
pub fn get(location: &str, trust: &Trust) -> Result<Secret, String> {
    let mut at = Url::parse(location).map_err(|e| failed(location, &e))?;
    for _ in 0..=MAX_HOPS {
        let answer = ask(&at, trust).map_err(|e| failed(location, &e))?;
        match answer.status {
            200..=299 => return Ok(answer.body),
            301 | 302 | 303 | 307 | 308 if answer.location.is_some() => {
                let to = answer.location.unwrap_or_default();
                at = at.follow(&to).map_err(|e| failed(location, &e))?;
            }
            status => return Err(format!("Couldn't GET {location}: {status}")),
        }
    }
    Err(failed(location, &"Too many redirects"))
}

#[derive(Debug)]
struct Answer {
    status: u16,
    location: Option<String>,
    body: Secret,
}

fn ask(at: &Url, trust: &Trust) -> io::Result<Answer> {
    let tcp = connect(at)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    tcp.set_write_timeout(Some(PATIENCE))?;
    let request = format!(
        "GET {} HTTP/1.0\r\nHost: {}\r\nUser-Agent: aquifer\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        at.path,
        at.authority()
    );
    match at.tls {
        true => talk(&mut trust.encrypt(tcp, &at.host)?, &request),
        false => talk(&mut &tcp, &request),
    }
}

fn connect(at: &Url) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (at.host.as_str(), at.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Sends a request and reads the answer up to its declared length.
fn talk<S>(stream: &mut S, request: &str) -> io::Result<Answer>
where
    S: Read + Write,
{
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut taken = Taken { room: Secret::zeros(MAX_HEAD + 4 + MAX_KEY + 1), len: 0 };
    let head_len = loop {
        let end = taken.bytes().windows(4).position(|four| four == b"\r\n\r\n");
        if end.unwrap_or(taken.len) > MAX_HEAD {
            return Err(bad("the answer's head is too long"));
        }
        if let Some(end) = end {
            break end;
        }
        if taken.more(stream)? == 0 {
            return Err(bad("the answer is cut short"));
        }
    };
    let head = Head::parse(&String::from_utf8_lossy(taken.bytes().get(..head_len).unwrap_or_default()))?;
    if !(200..300).contains(&head.status) {
        return Ok(Answer { status: head.status, location: head.location, body: Secret::zeros(0) });
    }
    let body = taken.body(stream, head_len + 4, head.length)?;
    Ok(Answer { status: head.status, location: None, body })
}

/// A received answer. No copy of it stays in a buffer.
struct Taken {
    room: Secret,
    len: usize,
}

impl Taken {
    fn bytes(&self) -> &[u8] {
        self.room.get(..self.len).unwrap_or_default()
    }

    fn more(&mut self, stream: &mut dyn Read) -> io::Result<usize> {
        let len = stream.read(self.room.get_mut(self.len..).unwrap_or_default())?;
        self.len = self.len.saturating_add(len);
        Ok(len)
    }

    /// The body after the head, once all of it has arrived.
    fn body(mut self, stream: &mut dyn Read, from: usize, length: Option<usize>) -> io::Result<Secret> {
        let wanted = length.unwrap_or(usize::MAX);
        loop {
            let body = self.bytes().get(from..).unwrap_or_default();
            if length.is_some_and(|length| length > MAX_KEY) || body.len() > MAX_KEY {
                return Err(bad("the answer is longer than a key can be"));
            }
            if let Some(all) = body.get(..wanted) {
                return Ok(Secret::of(all));
            }
            match (self.more(stream)?, length) {
                (0, None) => return Ok(Secret::of(self.bytes().get(from..).unwrap_or_default())),
                (0, Some(_)) => return Err(bad("the answer is cut short")),
                _ => {}
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    location: Option<String>,
    length: Option<usize>,
}

impl Head {
    fn parse(text: &str) -> io::Result<Self> {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or_else(|| bad("invalid HTTP response"))?;
        let mut head = Self { status, location: None, length: None };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "location" => head.location = Some(value.to_owned()),
                "content-length" => head.length = Some(value.parse().map_err(|_| bad("no length"))?),
                "transfer-encoding" if !value.eq_ignore_ascii_case("identity") => {
                    return Err(bad("chunked response to HTTP/1.0"));
                }
                _ => {}
            }
        }
        Ok(head)
    }
}

/// The file that an environment variable names.
fn path_of(word: &str) -> Option<PathBuf> {
    std::env::var_os(word).filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests;
