//! `zfs destroy -r` and `-R` of file systems and volumes: an undestroyable dataset keeps only itself and its
//! dependents.
//!
//! Source: zfs_main.c, OpenZFS 2.4.

use std::collections::HashSet;

use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome};
use engine::Kind;

use super::destroy::{Step, Uses, destroy_next, heads_of, is_at_or_below, owner, refused, step_of};
use super::mount::cannot_unmount;
use super::remount::{Left, mount_again, warn};

/// Destroys in the order of the steps all that can be destroyed, and mounts again what stays. `held`: whether a snapshot has
/// holds.
///
/// # Errors
/// When the pool cannot be read. Datasets that stay are reported and make the exit code 1.
#[doc(alias = "destroy_callback")]
pub(super) fn destroy_rest(
    target: &Target,
    steps: Vec<Step>,
    held: impl Fn(&str) -> bool,
    ctx: &mut Ctx,
) -> Outcome {
    let mut stay = Stay::default();
    let steps = stay.without_used(target, steps, held)?;
    let mut steps = stay.without_parents(steps);
    let mounts = &target.pool.mounts;
    let mut mounted = heads_of(&steps);
    mounted.retain(|name| mounts.at(name).is_some());
    for stays in mounts.unmount_many(&mounted, false, false) {
        stay.add(&stays.name, cannot_unmount(&stays));
    }
    mounted.reverse();
    steps = stay.without_parents(steps);
    let left = Left::by(target, &heads_of(&steps));
    while let Err(e) = destroy_next(target, &mut steps, false, ctx) {
        stay.refused(&e, &mut steps);
        if ends_all(&e) {
            break;
        }
        steps = stay.without_parents(steps);
    }
    // The folder of a file system that stays is in use, or is created again.
    left.remove();
    if !stay.failures.is_empty() {
        stay.failures.extend(mount_again(&mounted, ctx));
    }
    warn(&stay.failures, ctx);
    Ok(if stay.failures.is_empty() { Exit::OK } else { Exit::FAILED })
}

/// Whether other datasets cannot be destroyed for the same reason.
fn ends_all(e: &engine::Error) -> bool {
    matches!(e.kind(), Kind::Suspended | Kind::Io | Kind::NoDevice | Kind::ReadOnly | Kind::Interrupted)
}

/// Datasets and snapshots that stay.
#[derive(Debug, Default)]
struct Stay {
    /// File systems and volumes.
    heads: HashSet<String>,
    failures: Vec<Failure>,
}

impl Stay {
    fn add(&mut self, head: &str, why: Failure) {
        self.heads.insert(head.to_owned());
        self.failures.push(why);
    }

    /// The steps without snapshots that are held or in use, and without those that would be destroyed together with them.
    fn without_used(
        &mut self,
        target: &Target,
        steps: Vec<Step>,
        held: impl Fn(&str) -> bool,
    ) -> Result<Vec<Step>, Failure> {
        let uses = Uses::new(target, &steps, held);
        // Snapshots between two file systems are destroyed together.
        let (mut run, mut used) = (0, HashSet::new());
        let mut numbered = Vec::new();
        for step in steps {
            if let Some(why) = uses.of(&step)? {
                self.add(owner(&step), Failure::failed(why));
                used.insert((run, owner(&step).to_owned()));
            }
            run += usize::from(matches!(step, Step::Head(_)));
            numbered.push((run, step));
        }
        let goes = |(run, step): (usize, Step)| {
            let together = (run, owner(&step).to_owned());
            (matches!(step, Step::Head(_)) || !used.contains(&together)).then_some(step)
        };
        Ok(numbered.into_iter().filter_map(goes).collect())
    }

    /// The steps without file systems and volumes that stay, or that contain one that stays.
    fn without_parents(&mut self, steps: Vec<Step>) -> Vec<Step> {
        let mut go = Vec::new();
        for step in steps {
            let Step::Head(name) = &step else {
                go.push(step);
                continue;
            };
            if self.heads.contains(name) {
                continue;
            }
            match self.heads.iter().any(|head| is_at_or_below(head, name)) {
                true => self.add(&name.clone(), Failure::cannot("destroy", name, "filesystem has children")),
                false => go.push(step),
            }
        }
        go
    }

    /// The first steps failed: removes the steps of the dataset that the error names, and those that depend on them.
    fn refused(&mut self, e: &engine::Error, steps: &mut Vec<Step>) {
        let Some(first) = steps.first().cloned() else { return };
        let end = steps.iter().position(|step| matches!(step, Step::Head(_))).unwrap_or(steps.len());
        let later = steps.split_off(end.max(1));
        let named = step_of(e, std::slice::from_ref(&first), first.name());
        let culprit = if steps.contains(&named) { named } else { first };
        self.add(owner(&culprit), refused(&culprit, e));
        steps.retain(|step| owner(step) != owner(&culprit));
        steps.extend(later);
    }
}
