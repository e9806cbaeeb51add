//! Properties of what is received: those of the stream, and what the command line says instead.

use std::io::Write;

use engine::dsl::props::PropValue;
use engine::dsl::write::props::Source;
use nvpair::{NvList, NvValue};
use zcommon::props::{DatasetTypes, PropName, is_user_property};

use super::{PLAIN, Receive, failed};
use crate::ctx::Ctx;
use crate::delegated::settable;
use crate::session::why;
use crate::settings::{When, of_dataset, split};
use crate::verb::Failure;
use crate::zfs::target::Target;

/// What `-o` and `-x` say.
#[derive(Debug, Default)]
pub struct Wishes {
    /// The snapshot that a full stream becomes a clone of.
    pub origin: Option<String>,
    /// Properties to set.
    pub set: Vec<(String, String)>,
    /// Properties that the stream does not set.
    pub left: Vec<String>,
}

impl Wishes {
    /// Reads the options.
    pub fn of(verb: &Receive) -> Result<Self, Failure> {
        let mut set = split(&verb.props).map_err(Failure::usage)?;
        let origin = set.iter().position(|(name, _)| name == "origin").map(|at| set.remove(at).1);
        let left: Vec<String> = verb.exclude.iter().map(|name| canonical(name)).collect();
        for (at, name) in left.iter().enumerate() {
            let again = left.iter().take(at).any(|known| known == name);
            if again || set.iter().any(|(known, _)| canonical(known) == *name) {
                return Err(Failure::usage(format!("property '{name}' specified multiple times")));
            }
        }
        for name in set.iter().map(|(name, _)| name).chain(&left) {
            if !is_user_property(name) && !matches!(PropName::parse(name), Some(PropName::Native(_))) {
                return Err(failed(PLAIN, format!("invalid property '{name}'")));
            }
        }
        Ok(Self { origin, set, left })
    }

    /// The properties to set, with values as they are stored.
    pub fn values(&self, types: DatasetTypes, when: When) -> Result<Vec<(String, PropValue)>, String> {
        self.set.iter().map(|(name, value)| of_dataset(name, value, types, when)).collect()
    }
}

/// The name of a property whose abbreviation may be given.
fn canonical(name: &str) -> String {
    match PropName::parse(name) {
        Some(PropName::Native(prop)) => prop.info().name.to_owned(),
        _ => name.to_owned(),
    }
}

/// Properties of a stream, as they are stored. Those that are not known here, or can't be set, are left out.
fn received(list: &NvList) -> Vec<(String, PropValue)> {
    let mut all = Vec::new();
    for pair in list.iter() {
        let name = pair.name.to_string_lossy().into_owned();
        let value = match &pair.value {
            NvValue::Uint64(number) => PropValue::Number(*number),
            NvValue::String(text) => PropValue::Text(text.to_string_lossy().into_owned()),
            _ => continue,
        };
        let settable = match PropName::parse(&name) {
            Some(PropName::Native(prop)) => {
                let info = prop.info();
                let is_number = matches!(value, PropValue::Number(_));
                !info.read_only() && !info.set_once() && of_a_number(info.name) == is_number
            }
            Some(PropName::User(_)) => matches!(value, PropValue::Text(_)),
            _ => false,
        };
        if settable {
            all.push((name, value));
        }
    }
    all
}

/// Whether a property is stored as a number.
fn of_a_number(name: &str) -> bool {
    !matches!(name, "mountpoint" | "sharenfs" | "sharesmb" | "mlslabel" | "keylocation")
        && !matches!(name, "context" | "fscontext" | "defcontext" | "rootcontext")
}

/// Sets the stream's properties as received ones, and what the command line wants. `name`: a dataset or a snapshot.
///
/// Properties of the stream that the caller has no permission for stay as they are; a message names each.
pub fn apply(
    name: &str,
    list: Option<&NvList>,
    wishes: Option<(&Wishes, DatasetTypes)>,
    target: &Target,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let may = settable(name, ctx)?;
    let mut all = list.map(received);
    if let Some(all) = &mut all {
        for (refused, _) in all.extract_if(.., |(prop, _)| !may.allows(prop)) {
            writeln!(ctx.err, "cannot receive {refused} property on {name}: permission denied")?;
        }
    }
    let mut local = Vec::new();
    let mut left = Vec::new();
    if let Some((wishes, types)) = wishes {
        let when = When::Later;
        local = wishes.values(types, when).map_err(|what| failed(PLAIN, what))?;
        left.clone_from(&wishes.left);
    }
    if all.is_none() && local.is_empty() && left.is_empty() {
        return Ok(());
    }
    let dataset = name.to_owned();
    let done = ctx.change(&target.pool, move |tasks, _| {
        if let Some(all) = &all {
            tasks.set_received(&dataset, all, &|prop| may.allows(prop))?;
        }
        let local: Vec<_> = local.iter().map(|(n, v)| (n.as_str(), Some(v.clone()))).collect();
        if !local.is_empty() {
            tasks.set(&dataset, &local, Source::Local)?;
        }
        let left: Vec<_> = left.iter().map(|name| (name.as_str(), None)).collect();
        if left.is_empty() { Ok(()) } else { tasks.set(&dataset, &left, Source::Inherited) }
    });
    done.map_err(|e| failed(PLAIN, why(&e)))
}
