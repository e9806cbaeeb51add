//! Properties of received datasets: those of the stream, and overrides of the command line.

use std::io::Write;

use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::settings::{When, of_dataset, split};
use clikit::target::Target;
use clikit::verb::Failure;
use engine::dsl::props::PropValue;
use engine::dsl::write::Tasks;
use engine::dsl::write::props::SettingSource;
use engine::recv::RECEIVE_CHILD;
use nvpair::{NvList, NvValue};
use zcommon::props::{DatasetTypes, PropName, is_user_property};

use super::permissions::settable;
use super::{PLAIN, Receive, failed};
use crate::content::OfContent;

/// Settings of `-o` and `-x`.
#[derive(Debug, Default)]
pub struct Wishes {
    /// The snapshot that a full stream becomes a clone of.
    pub origin: Option<String>,
    /// Properties to set.
    pub set: Vec<(String, String)>,
    /// Properties that the stream does not set.
    pub left: Vec<String>,
    /// Properties that are inherited from the first dataset of a package, where the command line sets them.
    pub inherited: Vec<String>,
}

/// Type of a stream's dataset, as far as properties depend on it.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// File system or volume.
    pub types: DatasetTypes,
    /// It is one of a package of `-R`.
    pub recursive: bool,
    /// It makes a dataset.
    pub is_new: bool,
    /// It is raw.
    pub raw: bool,
}

/// Properties that affect how new blocks are written. On an existing dataset, too, they are set before the first block arrives.
const OF_BLOCKS: [&str; 6] =
    ["compression", "checksum", "copies", "dedup", "redundant_metadata", "special_small_blocks"];

/// Whether a property defines the encryption of a new dataset: it is set at the creation of the dataset, and
/// only then.
pub fn is_of_keys(name: &str) -> bool {
    matches!(name, "encryption" | "keyformat" | "keylocation" | "pbkdf2iters")
}

/// Whether datasets of these types have the property. All have user properties.
fn applies(name: &str, types: DatasetTypes) -> bool {
    match PropName::parse(name) {
        Some(PropName::Native(prop)) => prop.info().types.intersects(types),
        _ => true,
    }
}

/// Whether children inherit the property.
fn is_inheritable(name: &str) -> bool {
    match PropName::parse(name) {
        Some(PropName::Native(prop)) => prop.info().inheritable(),
        _ => true,
    }
}

/// Whether the property belongs to the content of a stream, so that nothing else can be asked for.
fn is_of_content(name: &str) -> bool {
    match PropName::parse(name) {
        Some(PropName::Native(prop)) => {
            let info = prop.info();
            (info.read_only() || info.set_once() || info.name == "version") && !is_of_keys(info.name)
        }
        _ => false,
    }
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
        let of_stream = |name: &&String| is_of_content(name);
        let of_content = set.iter().map(|(name, _)| name).chain(&left).find(of_stream);
        if let Some(name) = of_content.or(left.iter().find(|name| *name == "volsize")) {
            return Err(failed(PLAIN, format!("property '{name}' belongs to the stream")));
        }
        Ok(Self { origin, set, left, inherited: Vec::new() })
    }

    /// The settings for the datasets below the first one of a package.
    pub fn below(&self) -> Self {
        let inherited = self.set.iter().map(|(name, _)| canonical(name)).collect();
        Self { left: self.left.clone(), inherited, ..Self::default() }
    }

    /// The part of the wishes that a stream of this kind can fulfil. `action` begins the messages, `name` is the dataset.
    ///
    /// # Errors
    /// For keys of raw and of incremental streams, and for properties that datasets of the type lack.
    #[doc(alias = "zfs_setup_cmdline_props")]
    pub fn fitting(&self, kind: Kind, action: &str, name: &str, ctx: &mut Ctx) -> Result<Self, Failure> {
        let Kind { types, recursive, is_new, raw } = kind;
        let all =
            self.set.iter().map(|(prop, _)| (prop, true)).chain(self.left.iter().map(|prop| (prop, false)));
        for (prop, is_set) in all.filter(|(prop, _)| is_of_keys(prop)) {
            let what = match (raw, is_new || recursive || !is_set) {
                (true, _) => "set or excluded for raw streams",
                (false, false) => "set for incremental streams",
                (false, true) => continue,
            };
            return Err(failed(action, format!("encryption property '{prop}' cannot be {what}.")));
        }
        let mut fit = Self { origin: self.origin.clone(), ..Self::default() };
        for (prop, value) in &self.set {
            match applies(prop, types) {
                true => fit.set.push((prop.clone(), value.clone())),
                false if recursive => {}
                false => {
                    let what = format!("property '{prop}' does not apply to datasets of this type");
                    return Err(failed(action, what));
                }
            }
        }
        for prop in &self.left {
            match applies(prop, types) {
                true => fit.left.push(prop.clone()),
                false => writeln!(
                    ctx.err,
                    "Warning: {name}: property '{prop}' does not apply to datasets of this type"
                )?,
            }
        }
        fit.inherited = self.inherited.iter().filter(|prop| applies(prop, types)).cloned().collect();
        // A value that cannot be is refused before anything is received.
        fit.later(types).map_err(|what| failed(action, what))?;
        Ok(fit)
    }

    /// The properties to set on a dataset that exists.
    fn later(&self, types: DatasetTypes) -> Result<Vec<(String, PropValue)>, String> {
        let all = self.set.iter().filter(|(name, _)| !is_of_keys(name));
        all.map(|(name, value)| of_dataset(name, value, types, When::Later)).collect()
    }

    /// Whether the property comes from the command line or the parent, regardless of the stream.
    fn hides(&self, name: &str) -> bool {
        self.left.iter().chain(&self.inherited).any(|hidden| hidden == name)
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

/// Properties of a stream, as they are stored. Those that are not known here, or can't be set, are skipped,
/// and so is the key's location, which only encryption roots have: see [`super::roots`].
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
                !info.read_only()
                    && !info.set_once()
                    && !is_of_keys(info.name)
                    && of_a_number(info.name) == is_number
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

/// When the settings of a stream and of the command line are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// On a new dataset, before its data: they apply to the received blocks, and an interrupted receive keeps them.
    Before,
    /// On a new dataset, after its data: those that [`Stage::Before`] leaves out.
    After,
    /// On a dataset or snapshot that is complete: all of them.
    Whole,
}

impl Stage {
    /// Whether a property is set at this stage. A quota for referenced space waits for the data: the content of a dataset may
    /// exceed it slightly, and could not be received then.
    #[doc(alias = "extract_delay_props")]
    fn has(self, prop: &str) -> bool {
        match self {
            Stage::Before => prop != "refquota",
            Stage::After => prop == "refquota",
            Stage::Whole => true,
        }
    }
}

/// Sets the stream's properties as received ones, and those of the command line. `name`: a dataset or a
/// snapshot. Returns a message for each property of the stream that stays as it is.
///
/// Properties of the stream that the caller has no permission for stay as they are.
pub fn apply(
    (name, stage): (&str, Stage),
    list: Option<&NvList>,
    wishes: Option<(&Wishes, DatasetTypes)>,
    target: &Target,
    ctx: &mut Ctx,
) -> Result<Vec<String>, Failure> {
    let mut all = list.map(received).filter(|_| stage != Stage::After || list.is_some_and(has_late));
    let (mut local, mut content) = (Vec::new(), OfContent::default());
    let (mut left, mut inherited) = (Vec::new(), Vec::new());
    if let Some((wishes, types)) = wishes {
        local = wishes.later(types).map_err(|what| failed(PLAIN, what))?;
        content = OfContent::take(&mut local);
        local.retain(|(name, _)| stage.has(name));
        if stage != Stage::After {
            let explicit = |all: &[String]| -> Vec<String> {
                all.iter().filter(|name| is_inheritable(name) && !is_of_keys(name)).cloned().collect()
            };
            (left, inherited) = (explicit(&wishes.left), explicit(&wishes.inherited));
        }
        if let Some(all) = &mut all {
            all.retain(|(name, _)| is_inheritable(name) || !wishes.hides(name));
        }
    }
    let mut notes = Vec::new();
    if let Some(all) = &mut all {
        all.retain(|(name, _)| stage.has(name));
        let may = settable(name, ctx)?;
        let refused = all.extract_if(.., |(prop, _)| !may.allows(prop));
        notes.extend(
            refused.map(|(prop, _)| format!("cannot receive {prop} property on {name}: permission denied")),
        );
    }
    if all.is_some() || !local.is_empty() || !left.is_empty() || !inherited.is_empty() {
        notes.extend(store((name, stage), (all, local), (left, inherited), target, ctx)?);
    }
    // Settings that the content holds need the whole content.
    if stage != Stage::Before && !content.is_empty() {
        let target = Target::of(name, ctx)?;
        content.set(&target, &mut Vec::new(), ctx).map_err(|what| failed(PLAIN, what))?;
    }
    Ok(notes)
}

/// Whether a stream has a property that is set after its data.
fn has_late(list: &NvList) -> bool {
    list.iter().any(|pair| Stage::After.has(&pair.name.to_string_lossy()))
}

/// Stores properties of a received dataset: those of the stream (`None`: it has none), those of the command line, and inherits
/// the others (`left`: unless they are set locally). Returns messages as [`apply`].
fn store(
    (name, stage): (&str, Stage),
    (mut all, local): (Option<Settings>, Settings),
    (left, mut inherited): (Vec<String>, Vec<String>),
    target: &Target,
    ctx: &mut Ctx,
) -> Result<Vec<String>, Failure> {
    let may = settable(name, ctx)?;
    let dataset = name.to_owned();
    let done = ctx.change(&target.pool, move |tasks, _| {
        let mut refused = Vec::new();
        if let Some(all) = &mut all {
            let needing = all.extract_if(.., |(prop, value)| tasks.needs_upgrade(prop, value));
            refused.extend(needing.map(|(prop, _)| (prop, UPGRADE.to_owned())));
            // Properties of the first stage came from the same stream.
            let clears = |prop: &str| stage != Stage::After && may.allows(prop);
            refused.extend(receive_each(tasks, &dataset, all, &clears)?);
        }
        let local: Vec<_> = local.iter().map(|(n, v)| (n.as_str(), Some(v.clone()))).collect();
        if !local.is_empty() {
            tasks.set(&dataset, &local, SettingSource::Local)?;
        }
        // A local setting hides the received one already, and stays.
        for name in left {
            if !tasks.is_set_locally(&dataset, &name)? {
                inherited.push(name);
            }
        }
        let inherited: Vec<_> = inherited.iter().map(|name| (name.as_str(), None)).collect();
        if !inherited.is_empty() {
            tasks.set(&dataset, &inherited, SettingSource::Inherited)?;
        }
        Ok(refused)
    });
    let refused = done.map_err(|e| failed(PLAIN, why(&e)))?.into_iter();
    Ok(refused.map(|(prop, why)| format!("cannot receive {prop} property on {name}: {why}")).collect())
}

/// Properties and their values as they are stored.
type Settings = Vec<(String, PropValue)>;

/// Why a value is refused that needs a feature which is not enabled.
const UPGRADE: &str = "pool and or dataset must be upgraded to set this property or value";

/// Sets the received properties of a dataset; those that cannot be set are returned with the reason, as the rest of the stream
/// does not depend on them.
#[doc(alias = "zfs_set_prop_nvlist")]
fn receive_each(
    tasks: &Tasks<'_>,
    dataset: &str,
    all: &[(String, PropValue)],
    clears: &dyn Fn(&str) -> bool,
) -> engine::Result<Vec<(String, String)>> {
    let Err(first) = tasks.set_received(dataset, all, clears) else { return Ok(Vec::new()) };
    if !is_refusal(&first) {
        return Err(first);
    }
    let mut refused = Vec::new();
    let mut left: Vec<_> = all.iter().collect();
    // A reservation may need the quota that comes after it, so those that are refused are tried again after the others.
    for _ in 0..2 {
        refused.clear();
        let mut again = Vec::new();
        for one in left {
            match tasks.set_received(dataset, std::slice::from_ref(one), &|_| false) {
                Err(e) if is_refusal(&e) => {
                    refused.push((one.0.clone(), e.what().to_owned()));
                    again.push(one);
                }
                done => done?,
            }
        }
        left = again;
    }
    Ok(refused)
}

fn is_refusal(e: &engine::Error) -> bool {
    use engine::Kind::{Invalid, NoSpace, Quota, Unsupported};
    matches!(e.kind(), NoSpace | Invalid | Unsupported | Quota)
}

/// Sets the properties that affect how blocks are written on the hidden child of a dataset, which is about to be filled, so
/// that they apply to the received blocks. They go with a failed receive.
pub fn apply_to_blocks(
    name: &str,
    list: Option<&NvList>,
    (wishes, types): (&Wishes, DatasetTypes),
    target: &Target,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let may = settable(name, ctx)?;
    let is_of_blocks = |name: &str| OF_BLOCKS.contains(&name);
    let mut received = list.map(received).unwrap_or_default();
    received.retain(|(prop, _)| is_of_blocks(prop) && may.allows(prop) && !wishes.hides(prop));
    let mut local = wishes.later(types).map_err(|what| failed(PLAIN, what))?;
    local.retain(|(prop, _)| is_of_blocks(prop));
    received.retain(|(prop, _)| local.iter().all(|(set, _)| set != prop));
    if received.is_empty() && local.is_empty() {
        return Ok(());
    }
    let name = name.to_owned();
    let done = ctx.change(&target.pool, move |tasks, _| {
        let filled = format!("{name}/{RECEIVE_CHILD}");
        for (prop, value) in received {
            if !tasks.needs_upgrade(&prop, &value) && !tasks.is_set_locally(&name, &prop)? {
                match tasks.set(&filled, &[(prop.as_str(), Some(value))], SettingSource::Local) {
                    // It is reported when it is set on the target.
                    Err(e) if is_refusal(&e) => {}
                    done => done?,
                }
            }
        }
        local.into_iter().try_for_each(|(prop, value)| {
            tasks.set(&filled, &[(prop.as_str(), Some(value))], SettingSource::Local)
        })
    });
    done.map_err(|e| failed(PLAIN, why(&e)))
}
