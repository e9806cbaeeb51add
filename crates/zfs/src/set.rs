//! `zfs set`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::settings::{When, of_dataset};
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::props::PropValue;
use engine::dsl::write::Hooks as _;
use engine::dsl::write::props::SettingSource;
use sharing::dedup::remark;
use zcommon::props::DatasetTypes;

use super::content::OfContent;
use super::create::reservation_of;
use super::remount::{mounted_followers, mounted_heads, waiting_followers, warn, with_moved, with_unmounted};
use super::unheeded;

/// Set properties of datasets.
#[derive(Debug, Args)]
pub struct Set {
    /// Do not remount file systems.
    #[arg(short = 'u')]
    pub unmounted: bool,
    /// Properties and their values, then datasets.
    #[arg(value_name = "PROPERTY=VALUE… DATASET…", required = true)]
    pub words: Vec<String>,
}

impl Verb for Set {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        // A dataset's name has no '='.
        let split = self.words.iter().position(|word| !word.contains('=')).unwrap_or(self.words.len());
        let (words, names) = self.words.split_at_checked(split).unwrap_or_default();
        if words.is_empty() {
            return Err(Failure::usage("missing property=value argument(s)"));
        }
        if names.is_empty() {
            return Err(Failure::usage("missing dataset name(s)"));
        }
        if names.iter().any(|name| name.contains('=')) {
            return Err(Failure::usage("invalid argument order"));
        }
        let settings = clikit::settings::split(words).map_err(Failure::MinusOne)?;
        let mut exit = Exit::OK;
        for name in names {
            let target = Target::of(name, ctx).and_then(|target| Ok((target.types()?, target)));
            let (done, code) = match target {
                Ok((types, target)) => {
                    let done = self.one(&settings, &target, types, ctx);
                    if let Ok(code) = done {
                        remark(words, &target, ctx);
                        exit = exit.worse(code);
                    }
                    (done, Exit::MINUS_ONE)
                }
                Err(failure) => (Err(failure), Exit::FAILED),
            };
            if let Err(failure) = done {
                ctx.warn(failure.message().unwrap_or_default());
                exit = exit.worse(code);
            }
        }
        Ok(exit)
    }
}

/// Work that is done while file systems are not mounted.
type Work<'a> = Box<dyn FnOnce(&mut Ctx) -> Result<(), Failure> + 'a>;

impl Set {
    fn one(
        &self,
        settings: &[(String, String)],
        target: &Target,
        types: DatasetTypes,
        ctx: &mut Ctx,
    ) -> Outcome {
        let name = target.name.as_str();
        let cannot = |what: String| Failure::cannot("set property for", name, what);
        let mut stored = Vec::new();
        for (prop, value) in settings {
            stored.push(of_dataset(prop, value, types, When::Later).map_err(cannot)?);
        }
        check_location(target, &stored).map_err(cannot)?;
        OfContent::take(&mut stored).set(target, &mut stored, ctx).map_err(cannot)?;
        let stored = stored.into_iter().map(|(prop, value)| auto(target, prop, value));
        let stored = stored.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
        if stored.is_empty() {
            return Ok(Exit::OK);
        }
        unheeded::tell(name, &stored);
        unheeded::remember(target, &stored);
        let names = if self.unmounted { Vec::new() } else { moving(target, &stored)? };
        let moved = stored.iter().any(|(prop, _)| prop == "mountpoint") && !self.unmounted;
        let waiting = if moved { waiting_followers(target)? } else { Vec::new() };
        let words: Vec<String> = stored.iter().map(|(prop, _)| prop.clone()).collect();
        let (dataset, options) = (name.to_owned(), words.clone());
        let with = |ctx: &mut Ctx, work: Work<'_>| match moved {
            true => with_moved(target, &names, &waiting, ctx, work),
            false => with_unmounted(target, &names, false, ctx, work),
        };
        let work = |ctx: &mut Ctx| {
            let done = ctx.change(&target.pool, move |tasks, _| {
                let settings: Vec<_> = stored.iter().map(|(p, v)| (p.as_str(), Some(v.clone()))).collect();
                tasks.set(&dataset, &settings, SettingSource::Local)
            });
            done.map_err(|e| cannot(reason(&e, &words)))
        };
        let ((), mounted) = with(ctx, Box::new(work))?;
        Ok(remount(target, &options, mounted, ctx))
    }
}

/// Refuses a `keylocation` that the dataset cannot have, in OpenZFS's words.
#[doc(alias("zfs_valid_proplist", "zfs_setprop_error"))]
fn check_location(target: &Target, settings: &[(String, PropValue)]) -> Result<(), String> {
    let Some((_, PropValue::Text(location))) = settings.iter().find(|(prop, _)| prop == "keylocation") else {
        return Ok(());
    };
    let dir = target.dir().map_err(|e| e.message().unwrap_or_default())?;
    let root = target.view.dsl.keys.root_of(&dir).map_err(|e| e.what().to_owned())?;
    match root {
        None if location != "none" => Err("keylocation must be 'none' for unencrypted datasets".to_owned()),
        Some(_) if location == "none" => {
            Err("keylocation must not be 'none' for encrypted datasets".to_owned())
        }
        Some(root) if root.dir != dir.number => {
            Err("keylocation may only be set on encryption roots".to_owned())
        }
        _ => Ok(()),
    }
}

/// The mounted file systems that must be unmounted for these settings, in the order in which they can be.
fn moving(target: &Target, settings: &[(String, PropValue)]) -> Result<Vec<String>, Failure> {
    let sets = |name: &str, number: u64| {
        settings.iter().any(|(prop, value)| prop == name && value.number() == Some(number))
    };
    if sets("zoned", 1) {
        return Ok(mounted_heads(target));
    }
    // Other values of `canmount` do not affect present mounts.
    if sets("canmount", 0) || settings.iter().any(|(prop, _)| prop == "mountpoint") {
        return mounted_followers(target);
    }
    Ok(Vec::new())
}

/// Properties that the kernel has as flags of the mount.
#[doc(alias = "zfs_is_namespace_prop")]
const FLAGS: [&str; 6] = ["atime", "relatime", "devices", "exec", "setuid", "readonly"];

/// Tells mounts that these properties changed. Flags of the mount are told to the kernel even if the daemon's state has them
/// already: `mount -o remount` of another program may have changed them. `failures`: of file systems that could not be mounted
/// after the change. The property stays set whatever fails.
///
/// A file system that cannot be mounted at its new place is reported and does not change the exit code, as in OpenZFS, where
/// only a mounted file system that does not take its new options does.
#[doc(alias("set_callback", "changelist_postfix"))]
pub(super) fn remount(
    target: &Target,
    props: &[impl AsRef<str>],
    mut failures: Vec<Failure>,
    ctx: &mut Ctx,
) -> Exit {
    if props.iter().any(|prop| FLAGS.contains(&prop.as_ref())) {
        target.pool.mounts.forget_flags(&target.name);
    }
    let told = target.pool.mounts.settings_changed(&target.name);
    let exit = if told.is_empty() { Exit::OK } else { Exit::FAILED };
    failures.extend(told.into_iter().map(|(at, e)| Failure::cannot("remount", at.display(), e.what())));
    warn(&failures, ctx);
    if !failures.is_empty() {
        ctx.warn("property may be set but unable to remount filesystem");
    }
    exit
}

/// OpenZFS' message when a setting is refused.
#[doc(alias = "zfs_setprop_error")]
fn reason(e: &engine::Error, props: &[String]) -> String {
    let quota = props.iter().any(|prop| matches!(prop.as_str(), "quota" | "refquota"));
    match e.kind() {
        engine::Kind::NoSpace if quota => "size is less than current used or reserved space".to_owned(),
        engine::Kind::NoSpace => "size is greater than available space".to_owned(),
        engine::Kind::Quota | engine::Kind::Invalid => e.what().to_owned(),
        _ => why(e),
    }
}

/// Whether `refreservation=auto` is among settings.
pub(super) fn is_auto(settings: &[(String, PropValue)]) -> bool {
    settings.iter().any(|(prop, value)| prop == "refreservation" && value.number() == Some(u64::MAX))
}

/// Puts the number in the place of `refreservation=auto`.
fn auto(target: &Target, prop: String, value: PropValue) -> Result<(String, PropValue), String> {
    match prop == "refreservation" && value.number() == Some(u64::MAX) {
        true => Ok((prop, PropValue::Number(whole_size(target)?))),
        false => Ok((prop, value)),
    }
}

/// Sets a volume's reservation to the space that all of it may need.
pub(super) fn reserve_all(target: &Target, ctx: &mut Ctx) -> Result<(), String> {
    let (name, bytes) = (target.name.clone(), whole_size(target)?);
    let setting = [("refreservation", Some(PropValue::Number(bytes)))];
    let done = ctx.change(&target.pool, move |tasks, _| tasks.set(&name, &setting, SettingSource::Local));
    done.map_err(|e| reason(&e, &[]))
}

/// The space that a volume may need when all of it is written.
fn whole_size(target: &Target) -> Result<u64, String> {
    let text = |e: engine::Error| e.what().to_owned();
    let spa = target.pool.spa().map_err(text)?;
    let volume = zvol::open(spa, &target.name).map_err(|e| match e.kind() {
        engine::Kind::Unsupported => "'refreservation=auto' is for volumes".to_owned(),
        _ => in_use(&e),
    })?;
    let bytes = zvol::reservation(spa, volume.size(), volume.block_size(), 1);
    volume.close().map_err(text)?;
    Ok(bytes)
}

/// Why a volume cannot be opened.
fn in_use(e: &engine::Error) -> String {
    if e.kind() == engine::Kind::Busy { "dataset is busy".to_owned() } else { e.what().to_owned() }
}

fn is_read_only(target: &Target, spa: &engine::spa::Spa) -> engine::Result<bool> {
    let number = spa.pool.dsl.dataset(&target.name)?.number;
    Ok(spa.datasets.number_property(number, "readonly")?.is_some_and(|value| value != 0))
}

/// The refreservation of a volume whose size changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reserve {
    /// It follows the size if it was for the whole volume.
    Follow,
    /// It becomes that of the whole volume.
    Whole,
    /// It is set to something else.
    Other,
}

impl Reserve {
    /// The reservation of these settings; takes `refreservation=auto`, which depends on the new size, out of them.
    #[doc(alias("zfs_add_synthetic_resv", "zfs_fix_auto_resv"))]
    pub(super) fn by(settings: &mut Vec<(String, PropValue)>) -> Self {
        if is_auto(settings) {
            settings.retain(|(prop, _)| prop != "refreservation");
            return Self::Whole;
        }
        match settings.iter().any(|(prop, _)| prop == "refreservation") {
            true => Self::Other,
            false => Self::Follow,
        }
    }
}

/// Changes the size of a volume, and its reservation with it. A volume grows after its reservation, so that one whose
/// reservation is refused has the size that it had.
#[doc(alias = "zvol_set_volsize")]
pub(super) fn resize(target: &Target, size: u64, reserve: Reserve) -> Result<(), String> {
    let text = |e: engine::Error| e.what().to_owned();
    let spa = target.pool.spa().map_err(text)?;
    if is_read_only(target, spa).map_err(text)? {
        return Err("dataset is read-only".to_owned());
    }
    let volume = zvol::open(spa, &target.name).map_err(|e| in_use(&e))?;
    let (old_size, block) = (volume.size(), volume.block_size());
    let fits = zvol::check(size, block).map_err(|_| {
        format!("'volsize' must be a multiple of volume block size ({})", zcommon::units::nicebytes(block))
    });
    let whole = |size: u64| zvol::reservation(spa, size, block, 1);
    let prop = reservation_of(spa.version());
    let set_reservation = || {
        let (old, new) = (whole(old_size), whole(size));
        set_whole(target, (prop, reserve), old, new).map_err(text)
    };
    let set_size = || volume.resize(size).map_err(text);
    let resized = fits.and_then(|()| match size > old_size {
        false => set_size().and_then(|()| set_reservation().map(drop)),
        true => set_reservation().and_then(|before| {
            set_size().inspect_err(|_| {
                // The caller learns of the first failure.
                let _ = before.map(|before| set_reserved(target, prop, before));
            })
        }),
    });
    // After an error, too: an open volume can be neither changed nor destroyed.
    let closed = volume.close().map_err(text);
    resized.and(closed)
}

/// Sets the reservation of a volume of another size to `new`, as far as it follows the size; `old`: that of the whole volume as
/// it was. Returns the reservation that it replaces.
fn set_whole(
    target: &Target,
    (prop, reserve): (&'static str, Reserve),
    old: u64,
    new: u64,
) -> engine::Result<Option<u64>> {
    let name = target.name.clone();
    target.pool.task(move |tasks, _| {
        let found = engine::dsl::write::names::find(&tasks.at, tasks.pool, &name)?;
        let now = tasks.at.zap_word(tasks.at.dir(found.dir)?.props_zapobj, prop)?;
        match reserve {
            Reserve::Whole => {}
            Reserve::Follow if now == Some(old) => {}
            Reserve::Follow | Reserve::Other => return Ok(None),
        }
        tasks.set(&name, &[(prop, Some(PropValue::Number(new)))], SettingSource::Local)?;
        Ok(Some(now.unwrap_or(0)))
    })
}

fn set_reserved(target: &Target, prop: &'static str, bytes: u64) -> engine::Result<()> {
    let name = target.name.clone();
    let setting = [(prop, Some(PropValue::Number(bytes)))];
    target.pool.task(move |tasks, _| tasks.set(&name, &setting, SettingSource::Local))
}
