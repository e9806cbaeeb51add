//! The helper program of the system's FUSE package, which mounts and unmounts for ordinary users.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

const PROGRAM: &str = "fusermount3";
/// The environment variable with the helper's descriptor for sending the connection.
const WAY: &str = "_FUSE_COMMFD";

/// Mounts with these options and returns the connection.
///
/// # Errors
/// The helper's message.
pub fn mount(at: &Path, options: &str) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new(PROGRAM);
    command.args(["-o", options, "--"]).arg(at).env(WAY, "0").stdin(Stdio::from(theirs));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|e| {
        io::Error::new(e.kind(), format!("{PROGRAM} (of the system's FUSE package) cannot be run: {e}"))
    })?;
    // Only the helper keeps the other end, which is closed when it exits.
    drop(command);
    let device = receive(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said)?;
    }
    let status = child.wait()?;
    match device? {
        Some(device) => Ok(device),
        None if said.trim().is_empty() => Err(io::Error::other(format!("{PROGRAM} ended with {status}"))),
        None => Err(io::Error::other(said.trim().to_owned())),
    }
}

/// Receives a descriptor; `None` if the other end is closed without one.
fn receive(from: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let found = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut received) => received.next(),
        _ => None,
    });
    Ok(found)
}

/// Removes a mount.
///
/// # Errors
/// `ResourceBusy`, or the helper's message.
pub fn unmount(at: &Path, force: bool) -> io::Result<()> {
    let args: &[&str] = if force { &["-u", "-z"] } else { &["-u"] };
    let out = Command::new(PROGRAM).args(args).arg("--").arg(at).output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    match (out.status.success(), said.contains("busy")) {
        (true, _) => Ok(()),
        (false, true) => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
        _ => Err(io::Error::other(said.trim().to_owned())),
    }
}
