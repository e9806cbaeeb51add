//! Verbs that find and share equal blocks: `aquifer advise`, `aquifer clone` and `aquifer dedup`.

pub mod advise;
pub mod clone;
pub mod dedup;
pub mod request;
