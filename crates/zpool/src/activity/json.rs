//! The activities of a pool in `zpool status -j`.

use serde_json::{Map, Value, json};
use zutil::names::{NameStyle, vdev_name};

use super::super::json_form::{JsonForm, vdev_info};
use super::{Activity, Checkpoint, Expansion, Removal, Scan, state};
use crate::prop::PoolView;

impl Activity {
    /// The objects on a pool's doings, in OpenZFS's order.
    pub fn objects(&self, view: &PoolView<'_>, form: &JsonForm<'_>) -> Map<String, Value> {
        let mut map = Map::new();
        let mut put = |key: &str, object: Option<Map<String, Value>>| {
            if let Some(object) = object {
                map.insert(key.to_owned(), object.into());
            }
        };
        let errors = self.errors.filter(|errors| errors.start > self.scan.map_or(0, |scan| scan.start));
        let mut scan = Map::new();
        if self.scan.is_some() || errors.is_some() {
            scan = self.scan.unwrap_or_default().object(form);
            scan.extend(errors.map(|errors| errors.object(form)).unwrap_or_default());
        }
        let rebuilds: Map<String, Value> = self.rebuilds.iter().filter_map(|r| r.entry(view, form)).collect();
        if !rebuilds.is_empty() {
            scan.insert("rebuild_stats".to_owned(), rebuilds.into());
        }
        put("scan_stats", Some(scan).filter(|scan| !scan.is_empty()));
        put("removal_stats", self.removal.map(|removal| removal.object(view, form)));
        put("checkpoint_stats", self.checkpoint.map(|checkpoint| checkpoint.object(form)));
        put("raidz_expand_stats", self.expansion.map(|expansion| expansion.object(view, form)));
        map
    }
}

pub(super) fn state_name(state: u64) -> Value {
    json!(match state {
        state::SCANNING => "SCANNING",
        state::FINISHED => "FINISHED",
        state::CANCELED => "CANCELED",
        state::ERROR_SCRUBBING => "ERRORSCRUBBING",
        _ => "NONE",
    })
}

/// The vdev that something is done to. Only devices are found by their names again; of others there is a name
/// without a number, and no more.
fn subject(view: &PoolView<'_>, vdev: u64, form: &JsonForm<'_>) -> Map<String, Value> {
    let Some(top) = view.tree.children.iter().find(|top| top.id == vdev) else { return Map::new() };
    let name = vdev_name(top, NameStyle::default(), false);
    match top.path {
        Some(_) => vdev_info(top, name, form.style),
        None => Map::from_iter([("name".to_owned(), json!(name))]),
    }
}

impl Scan {
    #[doc(alias = "scan_status_nvlist")]
    fn object(&self, form: &JsonForm<'_>) -> Map<String, Value> {
        let name = match self.func {
            0 => "NONE",
            1 => "SCRUB",
            2 => "RESILVER",
            _ => "ERRORSCRUB",
        };
        form.map([
            ("function", json!(name)),
            ("state", state_name(self.state)),
            ("start_time", form.time(self.start)),
            ("end_time", form.time(self.end)),
            ("to_examine", form.bytes(self.to_examine)),
            ("examined", form.bytes(self.examined)),
            ("skipped", form.bytes(self.skipped)),
            ("processed", form.bytes(self.processed)),
            ("errors", form.count(self.errors)),
            ("bytes_per_scan", form.bytes(self.pass.examined)),
            ("pass_start", form.plain(self.pass.start)),
            ("scrub_pause", form.time(self.paused)),
            ("scrub_spent_paused", form.plain(self.pass.paused)),
            ("issued_bytes_per_scan", form.bytes(self.pass.issued)),
            ("issued", form.bytes(self.issued)),
        ])
    }
}

impl Removal {
    #[doc(alias = "removal_status_nvlist")]
    fn object(&self, view: &PoolView<'_>, form: &JsonForm<'_>) -> Map<String, Value> {
        let mut map = subject(view, self.vdev, form);
        map.extend(form.map([
            ("state", state_name(self.state)),
            ("removing_vdev", form.plain(self.vdev)),
            ("start_time", form.time(self.start)),
            ("end_time", form.time(self.end)),
            ("to_copy", form.bytes(self.to_copy)),
            ("copied", form.bytes(self.copied)),
            ("mapping_memory", form.bytes(self.mapping_memory)),
        ]));
        map
    }
}

impl Checkpoint {
    #[doc(alias = "checkpoint_status_nvlist")]
    fn object(&self, form: &JsonForm<'_>) -> Map<String, Value> {
        form.map([
            ("state", json!(if self.start.is_some() { "EXISTS" } else { "DISCARDING" })),
            ("start_time", form.time(self.start.unwrap_or(0))),
            ("space", form.bytes(self.space)),
        ])
    }
}

impl Expansion {
    #[doc(alias = "raidz_expand_status_nvlist")]
    fn object(&self, view: &PoolView<'_>, form: &JsonForm<'_>) -> Map<String, Value> {
        let mut map = subject(view, self.vdev, form);
        map.extend(form.map([
            ("state", state_name(self.state)),
            ("expanding_vdev", form.plain(self.vdev)),
            ("start_time", form.time(self.start)),
            ("end_time", form.time(self.end)),
            ("to_reflow", form.bytes(self.to_reflow)),
            ("reflowed", form.bytes(self.reflowed)),
            ("waiting_for_resilver", form.plain(u64::from(self.waits))),
        ]));
        map
    }
}
