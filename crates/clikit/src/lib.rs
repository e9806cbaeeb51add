//! Parts that the commands share.
//!
//! A verb is a clap struct ([`verb::Verb`]) that runs against a [`ctx::Ctx`]: its streams, the interrupt flag, and in
//! the daemon the [`session::Session`] with the imported pools. [`source`] opens pools that are not imported. [`output`]
//! prints OpenZFS's formats from plain rows, which do not depend on the engine.

pub mod bar;
pub mod clean;
pub mod compatibility;
pub mod ctx;
pub mod fetch;
pub mod interrupt;
pub mod keys;
pub mod listing;
pub mod members;
pub mod names;
pub mod output;
pub mod parallel;
pub mod paths;
pub mod pool_state;
pub mod progress;
pub mod refused;
pub mod repeat;
pub mod session;
pub mod settings;
pub mod source;
pub mod target;
pub mod testing;
pub mod unsupported;
pub mod unsupported_usage;
pub mod users;
pub mod verb;
pub mod version;
pub mod words;
