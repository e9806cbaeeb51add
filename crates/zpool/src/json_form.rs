//! Numbers, times and vdevs in the JSON of `zpool`.

use clikit::output::json::JsonStyle;
use clikit::output::time::zoned_clock;
use serde_json::{Map, Value, json};
use zcommon::units::{nicebytes, nicenum, nicetime};
use zutil::import_listing::class_of;
use zutil::tree::VdevNode;

/// How numbers are written: for people, or exactly.
pub struct JsonForm<'a> {
    /// Strings or numbers.
    pub style: &'a JsonStyle,
    /// Exact numbers.
    pub literal: bool,
}

impl JsonForm<'_> {
    /// Keys and values as a map.
    pub fn map<const N: usize>(&self, entries: [(&str, Value); N]) -> Map<String, Value> {
        entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// A number without a unit, whatever its size.
    pub fn plain(&self, n: u64) -> Value {
        self.style.number(n)
    }

    /// An amount of things.
    pub fn count(&self, n: u64) -> Value {
        if self.literal { self.style.number(n) } else { json!(nicenum(n).to_string()) }
    }

    /// An amount of bytes.
    pub fn bytes(&self, n: u64) -> Value {
        if self.literal { self.style.number(n) } else { json!(nicebytes(n).to_string()) }
    }

    /// A time span of milliseconds; as a number in nanoseconds.
    pub fn span(&self, ms: u64) -> Value {
        let ns = ms.saturating_mul(1_000_000);
        if self.literal { self.style.number(ns) } else { json!(nicetime(ns).to_string()) }
    }

    /// A moment in seconds since 1970; 0: never.
    pub fn time(&self, seconds: u64) -> Value {
        match seconds {
            _ if self.literal => self.style.number(seconds),
            0 => json!("-"),
            _ => json!(zoned_clock(seconds)),
        }
    }
}

/// The first JSON entries of a vdev.
#[doc(alias = "fill_vdev_info")]
pub fn vdev_info(vdev: &VdevNode, name: String, style: &JsonStyle) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("name".into(), json!(name));
    map.insert("vdev_type".into(), json!(vdev.kind.name()));
    map.insert("guid".into(), style.number(vdev.guid));
    if let Some(path) = &vdev.path {
        map.insert("path".into(), json!(String::from_utf8_lossy(path)));
    }
    for (key, value) in [("phys_path", &vdev.phys_path), ("devid", &vdev.devid)] {
        if let Some(value) = value {
            map.insert(key.into(), json!(value));
        }
    }
    let class = match class_of(vdev) {
        Some("logs") => "log",
        Some(class) => class,
        None => "normal",
    };
    map.insert("class".into(), json!(class));
    map
}

/// The same for a vdev whose class follows from its parent.
pub fn with_class(mut map: Map<String, Value>, class: &str) -> Map<String, Value> {
    map.insert("class".into(), json!(class));
    map
}
