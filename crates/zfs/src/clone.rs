//! `zfs clone` and `zfs promote`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::settings::{self, When, of_dataset};
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::Kind;
use engine::dsl::DatasetKind;
use engine::dsl::props::names::dataset_name;
use zcommon::names::check_entity;

use super::content::{OfContent, undo};
use super::create::{furnish, make_ancestors};
use super::mount::{mount_new, not_mounted};
use super::set::{is_auto, reserve_all};

/// Create a clone of a snapshot.
#[derive(Debug, Args)]
pub struct Clone {
    /// Create missing parent datasets.
    #[arg(short = 'p')]
    pub parents: bool,
    /// Do not mount it.
    #[arg(short = 'u')]
    pub unmounted: bool,
    /// Leave it unmounted because the caller may not mount.
    #[arg(skip)]
    pub stays_unmounted: bool,
    /// Set a property; may be repeated.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub props: Vec<String>,
    /// The snapshot.
    pub snapshot: String,
    /// The new dataset.
    #[arg(value_name = "FILESYSTEM|VOLUME")]
    pub name: String,
}

impl Verb for Clone {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let cannot = |what: String| Failure::cannot("create", &self.name, what);
        if !self.snapshot.contains('@') {
            let what = "operation not applicable to datasets of this type";
            return Err(Failure::cannot("open", &self.snapshot, what));
        }
        let origin = Target::of(&self.snapshot, ctx)?;
        let kind = origin.dataset()?.kind()?;
        check_entity(&self.name).map_err(|e| cannot(e.to_string()))?;
        if self.name.split('/').next() != Some(origin.pool.name().as_str()) {
            return Err(cannot("source and target pools differ".to_owned()));
        }
        let target = Target { name: self.name.clone(), ..origin };
        if target.exists() {
            return if self.parents {
                Ok(Exit::OK)
            } else {
                Err(cannot("dataset already exists".to_owned()))
            };
        }
        let parent = self.name.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default();
        if target.view.dsl.dataset(parent).is_err() && !self.parents {
            return Err(cannot("parent does not exist".to_owned()));
        }
        let types = match kind {
            DatasetKind::Filesystem => zcommon::props::DatasetTypes::FILESYSTEM,
            DatasetKind::Volume => zcommon::props::DatasetTypes::VOLUME,
        };
        let mut stored = Vec::new();
        for (name, value) in settings::split(&self.props).map_err(cannot)? {
            stored.push(of_dataset(&name, &value, types, When::Later).map_err(cannot)?);
        }
        let content = OfContent::take(&mut stored);
        let auto = is_auto(&stored);
        if auto && kind == DatasetKind::Filesystem {
            return Err(cannot("'refreservation=auto' is for volumes".to_owned()));
        }
        let mut asked = stored.clone();
        stored.retain(|(name, _)| !auto || name != "refreservation");
        make_ancestors(&self.name, &target, !self.unmounted, ctx)?;
        let (snapshot, name) = (self.snapshot.clone(), self.name.clone());
        let caller = ctx.session()?.caller;
        let made = ctx.change(&target.pool, move |tasks, _| {
            tasks.clone_snapshot(&snapshot, &name)?;
            furnish(tasks, &name, &stored, caller)
        });
        made.map_err(|e| cannot(why(&e)))?;
        if auto || !content.is_empty() {
            let target = Target::of(&self.name, ctx)?;
            let set = content.set(&target, &mut asked, ctx);
            // A new size takes the reservation with it.
            let done = set.and_then(|()| if is_auto(&asked) { reserve_all(&target, ctx) } else { Ok(()) });
            done.inspect_err(|_| undo(&target)).map_err(cannot)?;
        }
        if kind == DatasetKind::Filesystem && !self.unmounted {
            return mount_new(&self.name, ctx);
        }
        if kind == DatasetKind::Filesystem && self.stays_unmounted {
            return not_mounted(&self.name, ctx);
        }
        Ok(Exit::OK)
    }
}

/// Promote a clone, so that its origin depends on it.
#[derive(Debug, Args)]
pub struct Promote {
    /// The clone.
    pub name: String,
}

impl Verb for Promote {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let target = Target::of(&self.name, ctx)?;
        target.dataset()?;
        let cannot = |what: String| Failure::cannot("promote", &self.name, what);
        if self.name.contains('%') {
            return Err(cannot("invalid character '%' in name".to_owned()));
        }
        let origin = target.dir()?.phys.origin_obj;
        if origin == 0 {
            return Err(cannot("not a cloned filesystem".to_owned()));
        }
        let conflict = |what: &str| match dataset_name(&target.view.dsl, origin) {
            Ok(origin) => format!("{what} from parent '{origin}'"),
            Err(_) => what.to_owned(),
        };
        let name = self.name.clone();
        ctx.change(&target.pool, move |tasks, _| tasks.promote(&name)).map_err(|e| match e.kind() {
            Kind::Exists if e.what().contains("bookmark") => cannot(e.what().to_owned()),
            Kind::Exists => cannot(conflict(e.what())),
            Kind::Denied => cannot("cannot promote dataset outside its encryption root".to_owned()),
            Kind::Invalid => cannot("not a cloned filesystem".to_owned()),
            _ => cannot(why(&e)),
        })?;
        Ok(Exit::OK)
    }
}
