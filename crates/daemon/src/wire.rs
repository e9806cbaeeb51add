//! The protocol of the socket.
//!
//! ```text
//! client: length (u32 LE, with three descriptors) · nvlist argv, cwd, env, width        later, any byte: stop
//! server: 'a' accepted                    · 'x' and the exit code, when all output is written
//! ```

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nvpair::{NvList, NvString};
use parking_lot::Mutex;
use rustix::fs::FileType;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// The daemon's message on its standard output once it accepts connections.
pub const READY: &[u8] = b"ready\n";
/// Maximum bytes of a request: more than any command line may have.
const MAX: usize = 4 << 20;
/// The same for users other than the owner: a request takes many times its bytes in memory while it is decoded.
const MAX_OF_DELEGATED: usize = 1 << 20;
/// Maximum words and variables in a request of such a user.
const WORDS_OF_DELEGATED: usize = 32 << 10;
/// One request of such a user is decoded at a time.
static DECODING: Mutex<()> = Mutex::new(());
/// Standard input, output and error.
const STREAMS: usize = 3;

/// Sent when a request was read.
pub(crate) const ACCEPTED: u8 = b'a';
/// Sent before the exit code.
pub(crate) const EXIT: u8 = b'x';
/// Asks a command to stop.
pub(crate) const STOP: u8 = b's';

/// A command to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub argv: Vec<OsString>,
    pub cwd: PathBuf,
    pub env: BTreeMap<String, OsString>,
    pub width: u64,
}

impl Request {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut env = NvList::new();
        for (name, value) in &self.env {
            env.add(name.as_str(), value.as_bytes());
        }
        let argv: Vec<NvString> = self.argv.iter().map(|word| NvString::from(word.as_bytes())).collect();
        let mut list = NvList::new();
        list.add("argv", argv).add("cwd", self.cwd.as_os_str().as_bytes()).add("env", env);
        list.add("width", self.width);
        list.encode_xdr().map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let list = NvList::decode(bytes).map_err(|e| bad(&e.to_string()))?;
        let text = |value: &NvString| OsStr::from_bytes(value.as_bytes()).to_owned();
        let argv = list.string_array("argv").ok_or_else(|| bad("a request without a command"))?;
        let cwd = list.string("cwd").ok_or_else(|| bad("a request without a working directory"))?;
        let env = list.nvlist("env").into_iter().flat_map(NvList::iter);
        let env = env.filter_map(|pair| match &pair.value {
            nvpair::NvValue::String(value) => Some((pair.name.to_string_lossy().into_owned(), text(value))),
            _ => None,
        });
        Ok(Self {
            argv: argv.iter().map(text).collect(),
            cwd: PathBuf::from(OsString::from_vec(cwd.as_bytes().to_vec())),
            env: env.collect(),
            width: list.u64("width").unwrap_or(0),
        })
    }
}

/// Sends a request and its streams.
pub(crate) fn send(
    stream: &mut UnixStream,
    request: &Request,
    streams: [BorrowedFd<'_>; STREAMS],
) -> io::Result<()> {
    let body = request.encode()?;
    let len = u32::try_from(body.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&streams)) {
        return Err(io::Error::other("no room for descriptors"));
    }
    let head = len.to_le_bytes();
    let sent = sendmsg(stream.as_fd(), &[IoSlice::new(&head)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(head.get(sent..).unwrap_or_default())?;
    stream.write_all(&body)
}

/// Receives a request; `None` if the other side disconnected without one. `is_delegated`: of a user other than the owner.
pub(crate) fn receive(
    stream: &mut UnixStream,
    is_delegated: bool,
) -> io::Result<Option<(Request, [OwnedFd; STREAMS])>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut head = [0; 4];
    let got =
        recvmsg(stream.as_fd(), &mut [IoSliceMut::new(&mut head)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut streams: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            streams.extend(received);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    stream.read_exact(head.get_mut(got.bytes..).unwrap_or_default())?;
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let len = usize::try_from(u32::from_le_bytes(head)).unwrap_or(usize::MAX);
    if len > if is_delegated { MAX_OF_DELEGATED } else { MAX } {
        return Err(bad("a request that is too long"));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    let streams =
        <[OwnedFd; STREAMS]>::try_from(streams).map_err(|_| bad("a request without its streams"))?;
    if !is_delegated {
        return Ok(Some((Request::decode(&body)?, streams)));
    }
    let _alone = DECODING.lock();
    let request = Request::decode(&body)?;
    match request.argv.len() + request.env.len() > WORDS_OF_DELEGATED {
        true => Err(bad("a request that is too long")),
        false => Ok(Some((request, streams))),
    }
}

/// Whether writing to another user's stream has no effect beyond that user's rights: this process writes to a file
/// with its own rights (quotas and set-id bits do not apply to root), and a socket may reveal to its other
/// end that root wrote. So the stream must be a pipe or a terminal; a client with another stream copies from
/// a pipe.
pub(crate) fn is_harmless(stream: &OwnedFd) -> bool {
    let kind = rustix::fs::fstat(stream).map(|stat| FileType::from_raw_mode(stat.st_mode));
    match kind {
        Ok(FileType::Fifo) => true,
        Ok(FileType::CharacterDevice) => rustix::termios::isatty(stream),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn requests_and_streams_arrive_as_they_were() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let request = Request {
            argv: vec!["zfs".into(), OsString::from_vec(vec![b'a', 0xff])],
            cwd: "/some/where".into(),
            env: BTreeMap::from([("TZ".to_owned(), "UTC".into())]),
            width: 80,
        };
        let null = File::open("/dev/null").unwrap();
        send(&mut here, &request, [null.as_fd(); STREAMS]).unwrap();
        let (received, streams) = receive(&mut there, false).unwrap().unwrap();
        assert_eq!((received, streams.len()), (request, STREAMS));
        let long = Request { argv: vec!["zfs".into(); WORDS_OF_DELEGATED + 1], ..Request::default() };
        std::thread::scope(|scope| {
            scope.spawn(|| send(&mut here, &long, [null.as_fd(); STREAMS]));
            assert!(receive(&mut there, true).is_err());
        });
        drop(here);
        let (here, mut there) = UnixStream::pair().unwrap();
        drop(here);
        assert!(receive(&mut there, false).unwrap().is_none());
    }
}
