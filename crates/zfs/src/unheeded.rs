//! Settings that are kept and of which nothing comes in this build.
//!
//! Programs take a line on standard error for a failure, so they are reported in the daemon's log when they
//! are made, and in `zpool status` for as long as they exist.

use std::collections::BTreeSet;
use std::sync::Arc;

use clikit::target::Target;
use daemon::Imported;
use engine::dsl::props::PropValue;
use engine::dsl::props::names::dir_name;
use engine::dsl::{Dir, Dsl};
use zcommon::props::ZfsProp;

/// The properties that may be set in vain.
const PROPS: [ZfsProp; 2] = [ZfsProp::Sharenfs, ZfsProp::Sharesmb];
/// Lines of `zpool status` at most.
const SHOWN: usize = 10;

/// Why nothing comes of a setting.
fn reason(prop: &str, value: &PropValue) -> Option<&'static str> {
    match (prop, value) {
        ("sharenfs" | "sharesmb", PropValue::Text(how)) if how != "off" => Some("nothing is shared yet"),
        _ => None,
    }
}

/// `sharenfs=on: nothing is shared yet`.
fn line(prop: &str, value: &PropValue) -> Option<String> {
    let why = reason(prop, value)?;
    let word = match value {
        PropValue::Text(text) => text.as_str(),
        PropValue::Number(n) => {
            ZfsProp::from_name(prop).and_then(|prop| prop.info().word(*n)).unwrap_or("on")
        }
    };
    Some(format!("{prop}={word}: {why}"))
}

/// Logs those among new settings of a dataset.
pub fn tell(name: &str, settings: &[(String, PropValue)]) {
    for note in settings.iter().filter_map(|(prop, value)| line(prop, value)) {
        eprintln!("{name}: {note}");
    }
}

/// Has `zpool status` look at a dataset from now on, if these settings of it give a reason.
pub fn remember(target: &Target, settings: &[(String, PropValue)]) {
    if !settings.iter().any(|(prop, value)| reason(prop, value).is_some()) {
        return;
    }
    // The first query examines all datasets.
    if let Some(known) = target.pool.unheeded.lock().as_mut()
        && let Ok(dir) = target.dir()
    {
        known.insert(dir.number);
    }
}

/// The lines of `zpool status` on a pool's datasets; none of a pool that can't be read.
pub fn lines(pool: &Imported) -> Vec<String> {
    if pool.spa().is_ok_and(|spa| spa.is_suspended()) {
        return Vec::new();
    }
    let Ok(view) = pool.view() else { return Vec::new() };
    let mut known = pool.unheeded.lock();
    let known = known.get_or_insert_with(|| all(&view.dsl));
    let mut lines = Vec::new();
    known.retain(|number| {
        let found = of(&view.dsl, *number).unwrap_or_default();
        let stays = !found.is_empty();
        lines.extend(found);
        stays
    });
    lines.sort();
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// The directories that have such settings of their own.
fn all(dsl: &Arc<Dsl>) -> BTreeSet<u64> {
    let Ok(root) = dsl.root() else { return BTreeSet::new() };
    let dirs = dsl.walk(root).filter_map(Result::ok).filter(|dir| !dir.is_internal());
    dirs.filter(|dir| !own(dir).is_empty()).map(|dir| dir.number).collect()
}

/// The notes on one directory.
fn of(dsl: &Arc<Dsl>, number: u64) -> engine::Result<Vec<String>> {
    let dir = Dir::open(dsl, number, dir_name(dsl, number)?)?;
    Ok(own(&dir).into_iter().map(|note| format!("{}: {note}", dir.name)).collect())
}

/// The notes on a directory's own settings.
fn own(dir: &Dir) -> Vec<String> {
    let Ok(Some(zap)) = dir.dsl.zap(dir.phys.props_zapobj) else { return Vec::new() };
    let set = |prop: &ZfsProp| {
        let value = zap.lookup(prop.name().as_bytes()).ok()??;
        line(prop.name(), &PropValue::from_zap(&value))
    };
    PROPS.iter().filter_map(set).collect()
}
