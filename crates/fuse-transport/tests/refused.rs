//! A process that the system refuses io_uring, as containers often are.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn each_connection_learns_that_io_uring_is_refused() {
    fuse_transport::use_io_uring(true);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let before = getrlimit(Resource::Nofile);
    // Room for the list of connections, and none for a ring.
    setrlimit(Resource::Nofile, Rlimit { current: Some(open), maximum: before.maximum }).unwrap();
    let refused = [fuse_transport::reserve(), fuse_transport::reserve()];
    setrlimit(Resource::Nofile, before).unwrap();
    for (number, reserved) in refused.iter().enumerate() {
        assert!(reserved.is_err(), "connection {number}");
    }
    // Room that comes later changes nothing.
    assert!(fuse_transport::reserve().is_err());
}
