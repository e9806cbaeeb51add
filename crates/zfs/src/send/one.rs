//! One stream: of a snapshot, a file system or a volume; the rest of an interrupted one; or of a partially
//! received dataset.

use clikit::ctx::Ctx;
use clikit::source::PoolSource;
use clikit::verb::{Failure, Outcome};
use engine::Error;
use engine::dsl::Dataset;
use engine::dsl::props::bookmarks::{BookmarkInfo, bookmarks};
use engine::dsl::props::resume;
use engine::recv::RECEIVE_CHILD;
use engine::send::{From, Meter, Saved, SendFlags, SendOptions as Stream, compound, estimate};
use nvpair::NvList;

use super::running::{Output, Report, failure, run, watched};
use super::scene::{Scene, reason};
use super::sizes::{self, Base};
use super::{Options, exit, tree};

fn cannot(name: &str, why: &str) -> Failure {
    Failure::failed(format!("warning: cannot send '{name}': {why}"))
}

/// The full name of an incremental stream's base, which may be given without its dataset.
fn whole_name(from: &str, to: &str, ctx: &mut Ctx) -> String {
    let dataset = to.split('@').next().unwrap_or_default();
    if !from.contains(['@', '#']) {
        ctx.warn(
            "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix to avoid ambiguity.",
        );
        return format!("{dataset}@{from}");
    }
    if from.starts_with(['@', '#']) { format!("{dataset}{from}") } else { from.to_owned() }
}

fn dataset_of(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or_default()
}

/// The base of a stream of `to`, and the engine's description of it.
#[doc(alias = "dmu_send")]
fn base(scene: &Scene, to: &Dataset, name: &str) -> Result<(Base, From), Failure> {
    let is_clone = dataset_of(name) != dataset_of(&to.name);
    if !name.contains('#') {
        let from = scene.must(name)?;
        if !scene.is_before(&from, to)? {
            return Err(cannot(&to.name, "not an earlier snapshot from the same fs"));
        }
        let known = From { is_clone, ..From::snapshot(&from)? };
        return Ok((Base::Snapshot(Box::new(from)), known));
    }
    let missing = || cannot(&to.name, &format!("incremental source ({name}) does not exist"));
    let mark = scene.bookmark(name).map_err(|_| missing())?;
    let is_same = mark.phys.redaction_obj != 0 && mark.phys.guid == to.phys.guid;
    if mark.phys.creation_txg >= to.phys.creation_txg && to.is_snapshot() && !is_same {
        return Err(cannot(&to.name, "not an earlier snapshot from the same fs"));
    }
    if is_clone && !is_of_history(scene, &mark, name, to)? {
        return Err(cannot(&to.name, "not an earlier snapshot from the same fs"));
    }
    let known = From { is_clone, ..From::bookmark(&mark.phys) };
    Ok((Base::Bookmark(Box::new(mark)), known))
}

/// Whether a bookmark of another dataset is of one that `to` was cloned from, made before that.
#[doc(alias = "dsl_dataset_is_before")]
fn is_of_history(scene: &Scene, mark: &BookmarkInfo, name: &str, to: &Dataset) -> Result<bool, Failure> {
    let owner = scene.must(dataset_of(name))?;
    let _quiet = scene.quiet();
    let mut at = to.clone();
    loop {
        let origin = at.dir()?.phys.origin_obj;
        if origin == 0 {
            return Ok(false);
        }
        let before = Dataset::open(&scene.pool.dsl, origin, at.name.clone())?;
        if before.phys.dir_obj == owner.phys.dir_obj {
            return Ok(mark.phys.creation_txg <= before.phys.creation_txg);
        }
        if before.phys.creation_txg <= mark.phys.creation_txg {
            return Ok(false);
        }
        at = before;
    }
}

/// The redaction list of a bookmark beside the snapshot.
fn redaction(scene: &Scene, to: &Dataset, book: &str) -> Result<u64, Failure> {
    let name = book.rsplit_once('#').map_or(book, |(_, name)| name);
    let Some((dataset, _)) = to.name.split_once('@') else {
        return Err(cannot(&to.name, "cannot do a redacted send to a filesystem"));
    };
    let name = format!("{dataset}#{name}");
    let mark =
        scene.bookmark(&name).map_err(|_| Failure::cannot("open", &name, "no such pool or dataset"))?;
    match mark.phys.redaction_obj {
        0 => Err(cannot(&to.name, "not a redaction bookmark")),
        list if engine::send::Redaction::open(&scene.pool.dsl, list)?.is_complete() => Ok(list),
        _ => Err(cannot(&to.name, "incomplete redaction bookmark provided")),
    }
}

fn report(o: &Options) -> Report {
    Report { progress: o.verbose > 0, parsable: o.parsable, verbosity: o.verbosity() }
}

/// `zfs send` without `-I` and `-R`.
#[doc(alias = "zfs_send_one")]
pub(super) fn send(source: &PoolSource, o: &Options, name: &str, ctx: &mut Ctx) -> Outcome {
    let scene = Scene::open(source, name, ctx)?;
    let to = scene.must(name)?;
    let from_name = o.from().map(|from| whole_name(from, name, ctx));
    let (base, from) = match &from_name {
        Some(from) => {
            let (base, from) = base(&scene, &to, from)?;
            (base, Some(from))
        }
        None => (Base::None, None),
    };
    let redact = o.book().map(|book| redaction(&scene, &to, book)).transpose()?;
    scene.ready(&to, o.raw, ctx)?;
    let stream = Stream { from, flags: o.flags(), redact, ..Stream::default() };
    let mut head = None;
    if o.props || o.holds || o.backup {
        head = Some(tree::single(&scene, o, &to, ctx)?);
    }
    if o.verbosity() > 0 {
        let size = sizes::of(&scene, &to, &base, &stream, ctx).map_err(|e| failure(&e, name, reason))?;
        if o.verbose > 0 || o.parsable {
            let line = sizes::line(&to.name, from_name.as_deref(), size, o.parsable);
            sizes::tell(&line, o.dry, ctx)?;
            sizes::tell(&sizes::total(size, o.parsable, false), o.dry, ctx)?;
        }
    }
    if o.dry {
        return exit(true);
    }
    write(&scene, &to, &stream, (head, report(o)), ctx)
}

fn write(
    scene: &Scene,
    to: &Dataset,
    stream: &Stream,
    (head, report): (Option<tree::Head>, Report),
    ctx: &mut Ctx,
) -> Outcome {
    let failed = |e: &Error| failure(e, &to.name, reason);
    let hold = match stream.saved {
        Some(_) => scene.hold_partial(to, stream.flags.raw),
        None => scene.hold(to, stream.flags.raw),
    };
    let _hold = hold.map_err(|e| failed(&e))?;
    let from = stream.from.as_ref().map(|from| from.redaction_obj);
    let _lists = scene.hold_lists(stream.redact.into_iter().chain(from)).map_err(|e| failed(&e))?;
    let to = &scene.dataset(&to.name).map_err(|e| failed(&e))?;
    let mut stream = stream.clone();
    if let Some(saved) = &mut stream.saved {
        // Nothing receives into the dataset now: its content is that of the place that it names.
        let state = state_of(scene, to)?.1;
        let state = state.filter(|state| state.toguid == saved.toguid).ok_or_else(no_state)?;
        saved.place = state.place;
    }
    let mut out = Output::of(ctx)?;
    if let Some(head) = &head {
        compound::begin(&mut out, &head.toname, head.features, Some(&head.list)).map_err(|e| failed(&e))?;
    }
    run(to, &stream, &mut out, report, ctx).map_err(|e| failed(&e))?;
    if head.is_some() {
        compound::end(&mut out).map_err(|e| failed(&e))?;
    }
    out.finish(ctx)?;
    exit(true)
}

/// Values of a resume token.
struct State {
    toname: String,
    toguid: u64,
    fromguid: u64,
    place: (u64, u64),
    bytes: u64,
    flags: SendFlags,
    /// Guids of the snapshots with respect to which the stream is redacted.
    redact: Option<Vec<u64>>,
    /// The same of the bookmark that it builds on.
    from_redact: Option<Vec<u64>>,
}

fn resume_failed(why: &str) -> Failure {
    Failure::failed(format!("cannot resume send: {why}"))
}

impl State {
    fn of(list: &NvList) -> Option<Self> {
        let array = |name: &str| list.u64_array(name).map(<[u64]>::to_vec);
        Some(Self {
            toname: list.string("toname")?.to_string(),
            toguid: list.u64("toguid")?,
            fromguid: list.u64("fromguid").unwrap_or(0),
            place: (list.u64("object")?, list.u64("offset")?),
            bytes: list.u64("bytes")?,
            flags: SendFlags {
                embed: list.contains("embedok"),
                large_blocks: list.contains("largeblockok"),
                compressed: list.contains("compressok"),
                raw: list.contains("rawok"),
            },
            redact: array("redact_snaps"),
            from_redact: array("book_redact_snaps"),
        })
    }
}

fn either(one: SendFlags, two: SendFlags) -> SendFlags {
    SendFlags {
        embed: one.embed || two.embed,
        large_blocks: one.large_blocks || two.large_blocks,
        compressed: one.compressed || two.compressed,
        raw: one.raw || two.raw,
    }
}

/// `zfs send -t`. Its failures have OpenZFS's exit code -1.
#[doc(alias = "zfs_send_resume")]
pub(super) fn resumed(source: &PoolSource, o: &Options, token: &str, ctx: &mut Ctx) -> Outcome {
    rest(source, o, token, ctx).map_err(|failure| match failure {
        Failure::Failed(why) => Failure::MinusOne(why),
        other => other,
    })
}

fn rest(source: &PoolSource, o: &Options, token: &str, ctx: &mut Ctx) -> Outcome {
    let list = resume::decode(token.trim()).map_err(|why| resume_failed(&why))?;
    if o.verbosity() > 0 {
        let text = format!("resume token contents:\n{}", zstream::token::print(&list));
        sizes::tell(text.trim_end_matches('\n'), o.dry, ctx)?;
    }
    let state = State::of(&list).ok_or_else(|| resume_failed("resume token is corrupt"))?;
    let scene = Scene::open(source, &state.toname, ctx).map_err(|_| gone(&state.toname))?;
    let to = by_guid(&scene, &state, ctx)?;
    let mut stream = Stream { flags: either(o.flags(), state.flags), ..Stream::default() };
    stream.resume = (state.place != (0, 0)).then_some(state.place);
    let (mut base, mut from_name) = (Base::None, None);
    if state.fromguid != 0 {
        let found = from_by_guid(&scene, &state, &to)?;
        (base, from_name) = (found.0, Some(found.2));
        stream.from = Some(found.1);
    }
    if let Some(snaps) = &state.redact
        && to.extra(zcommon::features::Feature::RedactedDatasets.info().guid)?.is_none()
    {
        stream.redact = Some(redaction_of(&scene, &to, snaps)?);
    }
    scene.ready(&to, stream.flags.raw, ctx)?;
    if o.verbosity() > 0 {
        let unresumed = Stream { resume: None, ..stream.clone() };
        let size = match (&stream.redact, stream.from.as_ref().map_or(0, |from| from.redaction_obj)) {
            (None, 0) => {
                sizes::of(&scene, &to, &base, &unresumed, ctx).map(|all| all.wrapping_sub(state.bytes))
            }
            _ => counted(&to, &stream, ctx),
        };
        let size = size.map_err(|e| failure(&e, &to.name, reason))?;
        if o.verbose > 0 || o.parsable {
            sizes::tell(&sizes::line(&to.name, from_name.as_deref(), size, o.parsable), o.dry, ctx)?;
            sizes::tell(&sizes::total(size, o.parsable, false), o.dry, ctx)?;
        }
    }
    if o.dry {
        return exit(true);
    }
    write(&scene, &to, &stream, (None, report(o)), ctx)
}

fn counted(to: &Dataset, stream: &Stream, ctx: &mut Ctx) -> engine::Result<u64> {
    let meter = Meter::default();
    watched(&meter, &to.name, Report::default(), ctx, |meter| estimate::exact(to, stream, meter))
}

fn gone(name: &str) -> Failure {
    resume_failed(&format!("'{name}' used in the initial send no longer exists"))
}

/// The snapshot, file system or volume that a token names: by its name, or by its guid if it was renamed or moved.
#[doc(alias = "guid_to_name")]
fn by_guid(scene: &Scene, state: &State, ctx: &Ctx) -> Result<Dataset, Failure> {
    // A stream of a file system or volume itself names it so.
    let name = state.toname.strip_suffix("@--head--").unwrap_or(&state.toname);
    let named = scene.dataset(name).ok();
    if let Some(found) = named.clone().filter(|found| found.phys.guid == state.toguid) {
        return Ok(found);
    }
    // Permissions of delegated users were checked by name.
    let is_owner = ctx.session.as_ref().is_none_or(|session| session.delegated.is_none());
    if is_owner
        && let Some(found) =
            datasets(scene, &scene.pool.name)?.into_iter().find(|s| s.phys.guid == state.toguid)
    {
        return Ok(found);
    }
    Err(match named {
        Some(_) => resume_failed(&format!(
            "'{}' is no longer the same snapshot used in the initial send",
            state.toname
        )),
        None => gone(&state.toname),
    })
}

/// Heads and snapshots.
fn datasets(scene: &Scene, name: &str) -> Result<Vec<Dataset>, Failure> {
    let mut all = snapshots(scene, name)?;
    for dir in scene.below(name)? {
        let _quiet = scene.quiet();
        all.push(dir.head()?);
    }
    Ok(all)
}

fn snapshots(scene: &Scene, name: &str) -> Result<Vec<Dataset>, Failure> {
    let mut all = Vec::new();
    for dir in scene.below(name)? {
        let _quiet = scene.quiet();
        all.append(&mut dir.head()?.snapshots()?);
    }
    Ok(all)
}

/// Finds the base of a resumed stream: a snapshot of that guid, or a bookmark that redacts the same. Several datasets
/// may have received the snapshot; one in the history of `to` comes first.
fn from_by_guid(scene: &Scene, state: &State, to: &Dataset) -> Result<(Base, From, String), Failure> {
    let fits = |s: &Dataset| s.phys.guid == state.fromguid && state.from_redact.is_none();
    let mut fitting = snapshots(scene, &scene.pool.name)?.into_iter().filter(fits);
    let any = fitting.next();
    let mut base_of_it = None;
    for snapshot in any.iter().cloned().chain(fitting) {
        if scene.is_before(&snapshot, to)? {
            base_of_it = Some(snapshot);
            break;
        }
    }
    let name = match base_of_it.or(any) {
        Some(found) => found.name,
        None => {
            let dataset = dataset_of(&to.name);
            let _quiet = scene.quiet();
            let head = scene.pool.dsl.dataset(dataset)?;
            let wanted = |mark: &BookmarkInfo| {
                mark.phys.guid == state.fromguid
                    && same(mark.redact_snaps.as_ref(), state.from_redact.as_ref())
            };
            let found = bookmarks(&head)?.into_iter().find(wanted).map(|mark| mark.name);
            let gone = || format!("incremental source {:#x} no longer exists", state.fromguid);
            format!("{dataset}#{}", found.ok_or_else(|| resume_failed(&gone()))?)
        }
    };
    let (base, from) = base(scene, to, &name)?;
    Ok((base, from, name))
}

fn same(one: Option<&Vec<u64>>, two: Option<&Vec<u64>>) -> bool {
    let sorted = |list: Option<&Vec<u64>>| {
        list.map(|list| {
            let mut list = list.clone();
            list.sort_unstable();
            list
        })
    };
    sorted(one) == sorted(two)
}

/// The complete redaction bookmark of a snapshot's dataset that redacts with respect to these snapshots.
#[doc(alias = "find_redact_book")]
fn redaction_of(scene: &Scene, to: &Dataset, snaps: &Vec<u64>) -> Result<u64, Failure> {
    let _quiet = scene.quiet();
    let head = scene.pool.dsl.dataset(dataset_of(&to.name))?;
    let found = bookmarks(&head)?.into_iter().find(|mark| same(mark.redact_snaps.as_ref(), Some(snaps)));
    let found = found.ok_or_else(|| resume_failed("no appropriate redaction bookmark exists"))?;
    let list = engine::send::Redaction::open(&scene.pool.dsl, found.phys.redaction_obj)?;
    match list.is_complete() {
        true => Ok(found.phys.redaction_obj),
        false => Err(resume_failed("incomplete redaction bookmark provided")),
    }
}

/// The values of an interrupted receive into a dataset: as a token's list has them, and read.
fn state_of(scene: &Scene, to: &Dataset) -> Result<(Option<NvList>, Option<State>), Failure> {
    let _quiet = scene.quiet();
    let list = resume::state(to)?;
    let state = list.as_ref().and_then(State::of);
    Ok((list, state))
}

fn no_state() -> Failure {
    Failure::failed("saved send failed: dataset has no partially-received state")
}

/// `zfs send --saved`.
#[doc(alias = "zfs_send_saved")]
pub(super) fn saved(source: &PoolSource, o: &Options, name: &str, ctx: &mut Ctx) -> Outcome {
    let scene = Scene::open(source, name, ctx)?;
    scene.must(name)?;
    let child = scene.dataset(&format!("{name}/{RECEIVE_CHILD}"));
    let to = match child {
        Ok(child) => child,
        Err(_) => scene.must(name)?,
    };
    let (list, state) = state_of(&scene, &to)?;
    let state = state.ok_or_else(no_state)?;
    let saved = Saved { toguid: state.toguid, toname: state.toname.clone(), place: state.place };
    let mut stream = Stream { flags: state.flags, saved: Some(saved), ..Stream::default() };
    let (mut base, mut from_name) = (Base::None, None);
    if state.fromguid != 0 {
        let found = from_by_guid(&scene, &state, &to)?;
        (base, from_name) = (found.0, Some(found.2));
        // The hidden child stands for the dataset that it will be part of; only another dataset's snapshot makes it a clone.
        stream.from =
            Some(From { is_clone: dataset_of(from_name.as_deref().unwrap_or(name)) != name, ..found.1 });
    }
    scene.ready(&to, stream.flags.raw, ctx)?;
    if o.verbose > 0 || o.parsable {
        let text = token_of_saved(list.unwrap_or_default(), name);
        sizes::tell(text.trim_end_matches('\n'), o.dry, ctx)?;
        let size = sizes::of(&scene, &to, &base, &stream, ctx).map_err(|e| failure(&e, name, reason))?;
        sizes::tell(&sizes::line(name, from_name.as_deref(), size, o.parsable), o.dry, ctx)?;
        sizes::tell(&sizes::total(size, o.parsable, false), o.dry, ctx)?;
    }
    if o.dry {
        return exit(true);
    }
    write(&scene, &to, &stream, (None, report(o)), ctx)
}

/// The values of the token that stands for a saved stream of `name`, from those of the interrupted receive: it begins at the
/// beginning.
#[doc(alias = "zfs_send_saved")]
fn token_of_saved(mut list: NvList, name: &str) -> String {
    for field in ["object", "offset", "bytes"] {
        list.remove(field);
        list.add(field, 0_u64);
    }
    list.remove("toname");
    list.add("toname", name);
    format!("resume token contents:\n{}", zstream::token::print(&list))
}
