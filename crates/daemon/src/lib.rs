//! The daemon: the process that owns imported pools, and its connection to commands.
//!
//! ```text
//! command ── client ── Unix socket: arguments, directory, descriptors ──▶ server ── Commands::run, a thread each
//!                                                                        │
//!                                       registry: pools by name ─────────┘── engine
//!                                          │
//!                                       cache file: pools to import after a crash
//! ```
//!
//! A request contains the command line itself and the client's standard streams. So one implementation of a verb
//! works on an image in its own process and on an imported pool here; there is no second list of requests that
//! could differ from the verbs. Changes to pools are in [`registry`] and [`ops`], which print no text.
//!
//! No lock of the registry is held while a pool works: a name that is being imported, created or exported is marked
//! as busy instead.

pub mod access;
mod bad_logs;
pub mod cache;
pub mod cached;
pub mod client;
pub mod conf;
mod connections;
pub mod deleg;
pub mod devices;
pub mod events;
pub mod foreign;
pub mod imported;
pub mod lending;
mod located;
pub mod memory;
pub mod mounts;
pub mod ops;
pub mod parallel;
pub mod partitions;
pub mod paths;
pub mod pool_delays;
mod recorded;
pub mod registry;
mod rings;
pub mod server;
mod wire;

pub use imported::Imported;
pub use located::Unavailable;
pub use registry::Registry;
pub use server::{Call, Caller, Commands};
