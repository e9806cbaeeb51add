//! Streams that OpenZFS made, received into pools of ours: judged by zdb, by the content of the source, and
//! by sending the received snapshots again.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test must say so"
)]

mod big_endian;
mod cut;
mod ends;
mod forged;
mod golden;
mod heal;
mod holes;
mod moved;
mod raw_big_endian;
mod tools;
