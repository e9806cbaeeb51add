//! OpenZFS's formats, printed from plain rows: this module does not use the engine, so a fixture or a daemon's
//! answer prints the same.
//!
//! [`row`] defines the rows, [`table`] the columns of `zfs list` and `zpool list`, [`get`] those of `zfs get` and
//! `zpool get`, [`sort`] the order of datasets, [`json`] the output of `-j`.

pub mod get;
pub mod history;
pub mod json;
pub mod nice;
pub mod row;
pub mod sort;
pub mod status;
pub mod table;
pub mod time;
pub mod value;
