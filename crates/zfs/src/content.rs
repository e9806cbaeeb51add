//! Settings that are kept in the content of a dataset instead of its properties: quotas of users, groups and projects, the size
//! of a volume, the version of a file system.

use clikit::ctx::Ctx;
use clikit::target::Target;
use engine::dsl::props::PropValue;
use zpl::write::QuotaKind;

use super::quota::{self, Quota};
use super::set::{Reserve, resize};

/// The settings of a command that change the content of a dataset.
#[derive(Debug, Default)]
pub struct OfContent {
    volsize: Option<u64>,
    version: Option<u64>,
    quotas: Vec<Quota>,
    defaults: Vec<(QuotaKind, u64)>,
}

impl OfContent {
    /// Takes these settings out of `stored`.
    pub fn take(stored: &mut Vec<(String, PropValue)>) -> Self {
        let (quotas, others) = quota::split(std::mem::take(stored));
        let mut content = Self { quotas, ..Self::default() };
        for (prop, value) in others {
            match (prop.as_str(), QuotaKind::of_default(&prop)) {
                (_, Some(kind)) => content.defaults.push((kind, value.number().unwrap_or(0))),
                ("volsize", _) => content.volsize = value.number(),
                ("version", _) => content.version = value.number(),
                _ => stored.push((prop, value)),
            }
        }
        content
    }

    /// Whether the command has none of them.
    pub fn is_empty(&self) -> bool {
        let none = self.volsize.is_none() && self.version.is_none();
        none && self.quotas.is_empty() && self.defaults.is_empty()
    }

    /// Makes the settings. `stored`: the other settings of the command; `refreservation=auto` is taken out of them where it
    /// follows from the size of the volume.
    ///
    /// # Errors
    /// The reason of the first refusal. Settings before it stay.
    #[doc(alias = "zfs_prop_set_special")]
    pub fn set(
        self,
        target: &Target,
        stored: &mut Vec<(String, PropValue)>,
        ctx: &mut Ctx,
    ) -> Result<(), String> {
        let log = |ctx: &mut Ctx| ctx.log(&target.pool).map_err(|e| e.message().unwrap_or_default());
        if let Some(size) = self.volsize {
            resize(target, size, Reserve::by(stored))?;
            log(ctx)?;
        }
        if let Some(version) = self.version {
            super::version::set(target, version)?;
            log(ctx)?;
        }
        for (kind, who, limit) in self.quotas {
            quota::set(target, kind, &who, limit, ctx)?;
            log(ctx)?;
        }
        for (kind, limit) in self.defaults {
            quota::set_default(target, kind, limit)?;
            log(ctx)?;
        }
        Ok(())
    }
}

/// Destroys a dataset that the command made, as one of its settings was refused.
#[doc(alias = "zfs_ioc_clone")]
pub fn undo(target: &Target) {
    let name = target.name.clone();
    // The caller learns of the refusal.
    let _ = target.pool.task(move |tasks, _| tasks.destroy(&name, false));
}
