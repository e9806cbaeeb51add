//! OpenZFS's formats, made from plain rows: no engine here, so a fixture or a daemon's answer prints the same.
//!
//! [`row`] is what is printed, [`table`] the columns of `zfs list` and `zpool list`, [`get`] those of
//! `zfs get` and `zpool get`, [`sort`] the order of datasets, [`json`] what `-j` prints.

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
