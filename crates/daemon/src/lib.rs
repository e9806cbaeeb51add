//! The daemon: the process that owns imported pools, and how commands reach it.
//!
//! ```text
//! command ── client ── Unix socket: arguments, folder, descriptors ──▶ server ── Commands::run, a thread each
//!                                                                        │
//!                                       registry: pools by name ─────────┘── engine
//!                                          │
//!                                       cache file: what to import after a crash
//! ```
//!
//! A request carries the command line itself and the client's standard streams. So the same code serves a verb
//! whether it works on an image in its own process or on an imported pool here; there is no second list of requests
//! that could differ from the verbs. What changes pools is in [`registry`] and [`ops`], without any text.
//!
//! No lock of the registry is held while a pool works: a name that is being imported, created or exported is marked
//! as busy instead.

pub mod access;
pub mod cache;
pub mod client;
pub mod conf;
mod connections;
pub mod deleg;
pub mod devices;
pub mod foreign;
pub mod memory;
pub mod mounts;
pub mod ops;
pub mod paths;
pub mod registry;
pub mod server;
mod wire;

pub use registry::{Imported, Registry};
pub use server::{Call, Caller, Commands};
