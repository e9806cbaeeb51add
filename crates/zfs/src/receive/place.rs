//! Determines the snapshot that a stream becomes, and whether existing datasets there allow it.

use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::Failure;
use engine::dsl::props::names::dataset_name;
use engine::dsl::{Dataset, DatasetKind};
use ondisk::ObjsetType;
use ondisk::drr::{begin_flag, stream_feature};
use zcommon::names::check_snapshot;

use super::permissions;
use super::{First, Receive, failed, sent_name};
use crate::create::make_ancestors;

/// Where a stream goes.
#[derive(Debug, Clone)]
pub struct Place {
    /// File system or volume.
    pub dataset: String,
    /// The snapshot's name, behind the `@`.
    pub snapshot: String,
    /// The snapshot that a clone comes from.
    pub origin: Option<String>,
    /// The dataset is there already.
    pub exists: bool,
    /// It will be another one than before: a full stream, or a clone.
    pub is_new: bool,
    /// Prefix of messages.
    pub action: &'static str,
    /// The stream resumes an interrupted receive.
    pub resumes: bool,
}

impl Place {
    /// Whether a snapshot is one of the dataset.
    pub fn is_of(&self, snapshot: &str) -> bool {
        snapshot.split('@').next() == Some(self.dataset.as_str())
    }

    /// The snapshot.
    pub fn whole(&self) -> String {
        format!("{}@{}", self.dataset, self.snapshot)
    }
}

/// OpenZFS's message after the reason why there is no place for a new dataset.
#[doc(alias = "EZFS_BADRESTORE")]
const BAD_RESTORE: &str = "unable to restore to destination";

/// The part of the sent name that is appended to the one given.
pub(super) fn appended(verb: &Receive, sent: &str, root: &str) -> Result<String, Failure> {
    let dataset = sent.split('@').next().unwrap_or_default();
    let no_snapshot = |option: &str| match verb.name.contains('@') {
        true => Err(failed(super::PLAIN, format!("invalid argument - snapshot not allowed with {option}"))),
        false => Ok(()),
    };
    if verb.last_part {
        no_snapshot("-e")?;
        let from = root.rfind('/').or_else(|| dataset.rfind('/').filter(|_| root.is_empty()));
        let rest = from.and_then(|at| sent.get(at..)).map_or_else(|| format!("/{sent}"), str::to_owned);
        return Ok(rest);
    }
    if verb.without_pool {
        no_snapshot("-d")?;
        let from = sent.find('/').or_else(|| sent.find('@')).unwrap_or(0);
        return Ok(sent.get(from..).unwrap_or_default().to_owned());
    }
    match verb.name.contains('@') {
        true => Ok(String::new()),
        false => Ok(sent.get(root.len()..).unwrap_or_default().to_owned()),
    }
}

/// A snapshot of the pool with this guid. The same snapshot may have been received several times: the one nearest to the
/// target is found, at it or below the nearest of its ancestors.
#[doc(alias = "guid_to_name")]
pub fn by_guid(target: &Target, guid: u64) -> Option<String> {
    let _quiet = target.pool.quiet();
    let ends = target.name.match_indices('/').map(|(end, _)| end).chain([target.name.len()]);
    let tops: Vec<_> = ends.filter_map(|end| target.name.get(..end)).collect();
    tops.into_iter().rev().find_map(|top| {
        let all = target.view.dsl.walk(target.view.dsl.dir(top).ok()?).filter_map(Result::ok);
        let heads = all.filter(|dir| !dir.is_internal()).filter_map(|dir| dir.head().ok());
        let snapshots = heads.filter_map(|head| head.snapshots().ok()).flatten();
        snapshots.into_iter().find(|snapshot| snapshot.phys.guid == guid).map(|snapshot| snapshot.name)
    })
}

impl Receive {
    /// Where the stream of `begin` goes.
    ///
    /// # Errors
    /// OpenZFS' message for a stream that can't go there.
    #[doc(alias = "zfs_receive_one")]
    pub(super) fn place(
        &self,
        (begin, item): &First,
        root: &str,
        origin: Option<&str>,
        ctx: &mut Ctx,
    ) -> Result<(Place, Target), Failure> {
        let sent = sent_name(begin)?;
        let _ = item;
        let rest = appended(self, &sent, root)?;
        let slash = if rest.is_empty() || rest.starts_with(['/', '@']) { "" } else { "/" };
        let whole = format!("{}{slash}{rest}", self.name);
        check_snapshot(&whole).map_err(|e| failed(super::PLAIN, format!("invalid name: {e}")))?;
        let Some((dataset, snapshot)) = whole.split_once('@') else {
            return Err(failed(super::PLAIN, "invalid name"));
        };
        let resumes = begin.features() & stream_feature::RESUMING != 0;
        let is_clone = begin.flags & begin_flag::CLONE != 0;
        let is_new = (begin.fromguid == 0 || is_clone || origin.is_some()) && !resumes;
        let action = match (is_new, resumes) {
            (true, _) => "cannot receive new filesystem stream",
            (_, true) => "cannot receive resume stream",
            _ => "cannot receive incremental stream",
        };
        if ctx.pool_of(dataset).is_none() {
            let why = |absent: &str| ctx.why_no_pool_of(dataset, absent);
            return Err(match dataset.rsplit_once('/') {
                Some((above, _)) if is_new => {
                    let unopened = Failure::cannot("open", above, why("dataset does not exist"));
                    unopened.followed_by(action, BAD_RESTORE)
                }
                _ => failed(action, why(&format!("destination '{dataset}' does not exist"))),
            });
        }
        let target = Target::of(dataset, ctx)?;
        let mut place = Place {
            dataset: dataset.to_owned(),
            snapshot: snapshot.to_owned(),
            origin: origin.map(str::to_owned),
            exists: target.exists(),
            is_new,
            action,
            resumes,
        };
        if is_clone && place.origin.is_none() && !(resumes && place.exists) {
            let found = by_guid(&target, begin.fromguid);
            let none = || failed(action, format!("local origin for clone {whole} does not exist"));
            place.origin = Some(found.ok_or_else(none)?);
        }
        // Below the topmost dataset a renamed one is found by the stream's base.
        let inner =
            self.without_pool || self.last_part || sent.get(root.len()..).is_some_and(|r| r.starts_with('/'));
        if !is_new
            && !place.exists
            && inner
            && let Some(found) = by_guid(&target, begin.fromguid)
            && let Some((dataset, _)) = found.split_once('@')
        {
            (place.dataset, place.exists) = (dataset.to_owned(), true);
        }
        let target = Target { name: place.dataset.clone(), ..target };
        if !permissions::may_receive(self, &place.dataset, place.origin.as_deref(), ctx)? {
            return Err(failed(action, "permission denied"));
        }
        if self.heal {
            self.check_healed(begin, &place, &target, ctx)?;
            return Ok((place, target));
        }
        match place.exists {
            true => self.check_existing(begin.objset_type.into(), begin, &place, &target)?,
            false if !is_new => {
                return Err(failed(action, format!("destination '{dataset}' does not exist")));
            }
            false => self.check_parent(&place, &target, ctx)?,
        }
        Ok((place, target))
    }

    fn check_parent(&self, place: &Place, target: &Target, ctx: &mut Ctx) -> Result<(), Failure> {
        let Some((parent, _)) = place.dataset.rsplit_once('/') else {
            return Err(failed(place.action, format!("destination '{}' does not exist", place.dataset)));
        };
        if self.without_pool && !self.dry {
            make_ancestors(&place.dataset, target, !self.unmounted, ctx)?;
        }
        let above = Target { name: parent.to_owned(), ..Target::of(parent, ctx)? };
        if self.dry && !above.exists() {
            return Ok(());
        }
        match above.dataset().map_err(|e| e.followed_by(place.action, BAD_RESTORE))?.kind()? {
            DatasetKind::Filesystem => Ok(()),
            DatasetKind::Volume => {
                Err(failed(place.action, format!("parent '{parent}' is not a filesystem")))
            }
        }
    }

    fn check_existing(
        &self,
        kind: u64,
        begin: &ondisk::drr::DrrBegin,
        place: &Place,
        target: &Target,
    ) -> Result<(), Failure> {
        let (name, refuse) = (&place.dataset, |what: String| Err(failed(place.action, what)));
        let dataset = target.dataset()?;
        let _quiet = target.pool.quiet();
        let raw = begin.features() & stream_feature::RAW != 0;
        let encrypted = target.view.dsl.keys.root_of(&dataset.dir()?)?.is_some();
        if !place.is_new {
            let of_new =
                begin.fromguid == 0 || begin.flags & begin_flag::CLONE != 0 || place.origin.is_some();
            if place.resumes && of_new && !self.force && !is_partial(&dataset) {
                let what = "must specify -F to overwrite it";
                return refuse(format!("Resuming recv on existing destination '{name}'\n{what}"));
            }
            return match raw && !encrypted && !place.resumes {
                true => {
                    refuse("cannot perform raw receive on top of existing unencrypted dataset".to_owned())
                }
                false => Ok(()),
            };
        }
        let is_volume = ObjsetType::from_raw(kind) == Some(ObjsetType::Zvol);
        if !self.force {
            return refuse(format!("destination '{name}' exists\nmust specify -F to overwrite it"));
        }
        if let Some(snapshot) = dataset.snapshots()?.first() {
            let what = format!(
                "destination has snapshots (eg. {})\nmust destroy them to overwrite it",
                snapshot.name
            );
            return refuse(what);
        }
        if is_volume && !name.contains('/') {
            return refuse(format!("destination {name} is the root dataset\ncannot overwrite with a ZVOL"));
        }
        let dir = dataset.dir()?;
        let child = dir.children()?.into_iter().find(|(child, _)| !child.starts_with(['$', '%']));
        if let Some((child, _)) = child.filter(|_| is_volume) {
            let what = format!("destination has children (eg. {name}/{child})\ncannot overwrite with a ZVOL");
            return refuse(what);
        }
        let hidden = |origin: u64| dataset_name(&dir.dsl, origin).is_ok_and(|name| name.contains('$'));
        if dir.phys.origin_obj != 0 && !hidden(dir.phys.origin_obj) {
            return refuse(format!("destination '{name}' is a clone\nmust destroy it to overwrite it"));
        }
        if encrypted || raw {
            let what = "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one \
                        with an encrypted one";
            return refuse(what.to_owned());
        }
        Ok(())
    }
}

/// Whether it is the rest of an interrupted receive.
fn is_partial(dataset: &Dataset) -> bool {
    engine::dsl::props::resume::state(dataset).is_ok_and(|state| state.is_some())
}
