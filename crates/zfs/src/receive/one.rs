//! One stream becomes one snapshot.

use std::io::Write;
use std::time::Instant;

use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::settings::When;
use clikit::target::Target;
use clikit::verb::Failure;
use engine::recv::{Input, Item, Receiver, Wish, begin};
use engine::{Error, Kind};
use nvpair::NvList;
use ondisk::ObjsetType;
use ondisk::drr::{DrrBegin, DrrBody, stream_feature};
use zcommon::props::DatasetTypes;
use zcommon::units::nicebytes;

use super::permissions;
use super::place::{Place, by_guid};
use super::props::{Kind as Fit, Stage, Wishes, apply, apply_to_blocks, is_of_keys};
use super::{Receive, failed, of_stream};
use crate::keys::encryption;
use crate::mount::mount_created;
use crate::remount::{mount_again, mount_lost, mounted_below, unmount_all, warn};

/// A package's facts on a stream.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'s> {
    /// Properties of the dataset.
    pub props: Option<&'s NvList>,
    /// Properties of the snapshot.
    pub of_snapshot: Option<&'s NvList>,
    /// Tags of its holds that are to be received.
    pub holds: Option<&'s NvList>,
    /// The package is one of `-R`.
    pub recursive: bool,
    /// The dataset's encryption root is in the package.
    pub has_root: bool,
    /// The dataset that the topmost one of the package becomes.
    pub top: &'s str,
}

/// A stream whose first record has been read.
#[derive(Debug)]
pub struct Stream<'s> {
    /// The first record.
    pub begin: DrrBegin,
    /// The same, with its list.
    pub item: Item,
    /// The dataset named in the send command: the rest of a name is appended to the target's.
    pub root: &'s str,
    /// Its facts in a package, if it is part of one.
    pub listed: Option<Listed<'s>>,
}

/// The dataset that a stream was received into.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// Number of its head, which renames keep.
    pub head: u64,
    /// The stream made it.
    pub is_new: bool,
}

/// Receives a stream. Returns its dataset, unless nothing is received.
///
/// # Errors
/// OpenZFS' message, and the record with the fault. The target is then unchanged, or keeps the received part
/// (`-s`).
#[doc(alias = "zfs_receive_one")]
pub fn receive(
    verb: &Receive,
    wishes: &Wishes,
    stream: Stream<'_>,
    input: &mut Input<'_>,
    ctx: &mut Ctx,
) -> Result<Option<Received>, Failure> {
    let Stream { begin, item, root, listed } = stream;
    let first = (begin, item);
    let (place, target) = verb.place(&first, root, wishes.origin.as_deref(), ctx)?;
    let (begin, item) = first;
    if verb.verbose {
        let how = if verb.dry { "would receive" } else { "receiving" };
        let corrective = if verb.heal { "corrective " } else { "" };
        let kind = if begin.fromguid == 0 { "full" } else { "incremental" };
        let sent = String::from_utf8_lossy(begin.name()).into_owned();
        writeln!(ctx.out, "{how} {corrective}{kind} stream of {sent} into {}", place.whole())?;
        ctx.out.flush()?;
    }
    if verb.dry {
        return skip(input, place.action).map(|()| None);
    }
    let with_props = listed.is_some_and(|listed| listed.props.is_some());
    let is_volume = ObjsetType::from_raw(begin.objset_type.into()) == Some(ObjsetType::Zvol);
    let types = if is_volume { DatasetTypes::VOLUME } else { DatasetTypes::FILESYSTEM };
    let kind = Fit {
        types,
        recursive: listed.is_some_and(|listed| listed.recursive),
        is_new: place.is_new,
        raw: begin.features() & stream_feature::RAW != 0,
    };
    let fitting = wishes.fitting(kind, place.action, &place.dataset, ctx)?;
    let wishes = &fitting;
    let mut wish = wish(verb, (wishes, with_props), (&begin, &item), (&place, &target), ctx)?;
    let has_root = listed.is_some_and(|listed| listed.has_root);
    wish.roots_follow = has_root && place.exists && permissions::may_change_key(&place.dataset, ctx)?;
    let (started, from) = (Instant::now(), item.offset);
    if verb.heal {
        super::heal::run(&wish, (&place, &target), input, ctx)?;
        report(verb, (started, input.offset().saturating_sub(from)), ctx)?;
        return Ok(None);
    }
    // A full stream replaces all that a mount could keep.
    let is_new = place.is_new || (place.resumes && begin.fromguid == 0);
    let unmounted = if is_new { unmount_tree(verb, &place, &target, ctx)? } else { Vec::new() };
    let props = listed.and_then(|listed| listed.props);
    let settings = (props, wishes, types);
    let early = match fill(verb, wish, (&place, &target), settings, input, ctx) {
        Ok(early) => early,
        Err(failure) => {
            if !verb.unmounted {
                let failures = mount_again(&unmounted, ctx);
                warn(&failures, ctx);
            }
            return Err(failure);
        }
    };
    ctx.log(&target.pool)?;
    finish(&place, early, settings, listed, &target, ctx)?;
    report(verb, (started, input.offset().saturating_sub(from)), ctx)?;
    if is_new && !is_volume && !verb.unmounted {
        if unmounted.is_empty() {
            if let Some(listed) = listed {
                mount_above(&place.dataset, listed.top, ctx)?;
            }
            mount_created(&place.dataset, ctx)?;
        } else if let Some(failure) = mount_again(&unmounted, ctx).into_iter().next() {
            return Err(failure);
        }
    }
    let _quiet = target.pool.quiet();
    // A stream of a snapshot that another dataset has was passed over.
    let head = target.view.dsl.dataset(&place.dataset).ok().map(|dataset| dataset.number);
    let is_new = !place.exists || place.resumes && begin.fromguid == 0;
    Ok(head.map(|head| Received { head, is_new }))
}

/// Mounts file systems of a package that are above a new one and not mounted: they would hide its mount later.
#[doc(alias = "CL_GATHER_MOUNT_ALWAYS")]
fn mount_above(dataset: &str, top: &str, ctx: &mut Ctx) -> Result<(), Failure> {
    let ends = dataset.match_indices('/').map(|(at, _)| at);
    for above in ends.filter_map(|end| dataset.get(..end)) {
        let is_below = above.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_below && Target::of(above, ctx)?.pool.mounts.at(above).is_none() {
            mount_created(above, ctx)?;
        }
    }
    Ok(())
}

/// Properties of a stream, and those of the command line for a dataset of this type.
type Settings<'a> = (Option<&'a NvList>, &'a Wishes, DatasetTypes);

/// Settings that were made before the data.
#[derive(Debug, Default)]
struct Early {
    /// The dataset is new: only the settings of [`Stage::After`] are left.
    is_new: bool,
    /// Messages on properties that stay as they are.
    notes: Vec<String>,
    /// The settings could not be made. The data is received all the same.
    failure: Option<Failure>,
}

/// Makes the settings that need the complete dataset, and those of the snapshot.
fn finish(
    place: &Place,
    early: Early,
    (props, wishes, types): Settings<'_>,
    listed: Option<Listed<'_>>,
    target: &Target,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let mut notes = early.notes;
    let stage = if early.is_new { Stage::After } else { Stage::Whole };
    let done = match early.failure {
        Some(failure) => Err(failure),
        None => apply((&place.dataset, stage), props, Some((wishes, types)), target, ctx),
    };
    let done = done.map(|more| notes.extend(more));
    let of_snapshot = listed.and_then(|listed| listed.of_snapshot).filter(|_| done.is_ok());
    if let Some(list) = of_snapshot {
        notes.extend(apply((&place.whole(), Stage::Whole), Some(list), None, target, ctx)?);
    }
    for note in notes {
        writeln!(ctx.err, "{note}")?;
    }
    done?;
    match listed.and_then(|listed| listed.holds) {
        Some(tags) => hold(place, tags, target, ctx),
        None => Ok(()),
    }
}

/// Unmounts a file system that a stream replaces, with all below it. Returns their names, those above first.
fn unmount_tree(
    verb: &Receive,
    place: &Place,
    target: &Target,
    ctx: &mut Ctx,
) -> Result<Vec<String>, Failure> {
    if target.pool.mounts.at(&place.dataset).is_none() {
        return Ok(Vec::new());
    }
    let names = mounted_below(&target.pool, &place.dataset);
    unmount_all(target, &names, verb.force_unmount, ctx)
}

/// Holds the snapshot as the sender does. Impossible holds are skipped.
fn hold(place: &Place, tags: &NvList, target: &Target, ctx: &mut Ctx) -> Result<(), Failure> {
    if !permissions::may_hold(&place.dataset, ctx)? {
        return Ok(());
    }
    let tags: Vec<String> = tags.iter().map(|pair| pair.name.to_string_lossy().into_owned()).collect();
    for tag in tags {
        let whole = place.whole();
        // As in OpenZFS: the snapshot was received, with a hold or without.
        let _ = ctx.change(&target.pool, move |tasks, _| tasks.hold(&whole, &tag));
    }
    Ok(())
}

/// Prints how much was received, with -v.
fn report(verb: &Receive, (started, bytes): (Instant, u64), ctx: &mut Ctx) -> Result<(), Failure> {
    if verb.verbose {
        let seconds = started.elapsed().as_secs_f64().max(0.01);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rate"
        )]
        let rate = (bytes as f64 / seconds) as u64;
        let (bytes, rate) = (nicebytes(bytes), nicebytes(rate));
        writeln!(ctx.out, "received {bytes} stream in {seconds:.2} seconds ({rate}/sec)")?;
        ctx.out.flush()?;
    }
    Ok(())
}

/// Reads over a stream.
fn skip(input: &mut Input<'_>, action: &str) -> Result<(), Failure> {
    while let Some(item) = input.record().map_err(|e| of_stream(&e, action))? {
        if matches!(item.drr.body, DrrBody::End(_)) {
            return Ok(());
        }
    }
    Err(failed(action, "incomplete stream"))
}

fn wish(
    verb: &Receive,
    (wishes, with_props): (&Wishes, bool),
    (begin, item): (&DrrBegin, &Item),
    (place, target): (&Place, &Target),
    ctx: &mut Ctx,
) -> Result<Wish, Failure> {
    let cannot = |what: String| failed(place.action, what);
    let wish = Wish::of(begin, &item.payload, &place.dataset, &place.snapshot);
    let mut wish = wish.map_err(|e| cannot(e.what().to_owned()))?;
    wish.force = verb.force;
    wish.resumable = verb.resumable;
    wish.origin.clone_from(&place.origin);
    wish.limited = ctx.limited();
    if place.is_new && !place.exists && begin.features() & stream_feature::RAW == 0 {
        let types = match wish.kind {
            ObjsetType::Zvol => DatasetTypes::VOLUME,
            _ => DatasetTypes::FILESYSTEM,
        };
        let mut set: Vec<_> = wishes.set.iter().filter(|(name, _)| is_of_keys(name)).cloned().collect();
        // Streams with properties do not have this one; without `-w` they come from datasets that are not encrypted.
        let said = set.iter().map(|(name, _)| name).chain(&wishes.left).chain(&wishes.inherited);
        let is_said = said.into_iter().any(|name| name == "encryption");
        if with_props && !is_said {
            set.push(("encryption".to_owned(), "off".to_owned()));
        }
        let mut stored = Wishes { set, ..Wishes::default() }.values(types, When::New).map_err(cannot)?;
        let secrets = std::sync::Arc::clone(&target.view.env.secrets);
        if !stored.is_empty() {
            wish.encryption = encryption(&mut stored, &place.dataset, &*secrets, ctx).map_err(cannot)?;
        }
    }
    Ok(wish)
}

/// Begins, fills and ends a receive, or aborts it. Returns the settings that were made before the data.
fn fill(
    verb: &Receive,
    wish: Wish,
    (place, target): (&Place, &Target),
    settings: Settings<'_>,
    input: &mut Input<'_>,
    ctx: &mut Ctx,
) -> Result<Early, Failure> {
    let spa = target.pool.spa()?;
    let refused = |e: &Error| failed(place.action, sentence(e, &place.dataset));
    let guid = wish.to_guid;
    let mut receiver = match begin(spa, wish, input.endian()) {
        Ok(receiver) => receiver,
        Err(e)
            if matches!(e.kind(), Kind::NotFound | Kind::Exists)
                && by_guid(target, guid).is_some_and(|name| place.is_of(&name)) =>
        {
            if verb.verbose {
                writeln!(ctx.out, "snap {} already exists; ignoring", place.whole())?;
            }
            return skip(input, place.action).map(|()| Early::default());
        }
        Err(e) if e.kind() == Kind::Exists => {
            return Err(failed(&format!("cannot restore to {}", place.whole()), e.what()));
        }
        Err(e) => return Err(refused(&e)),
    };
    let interrupt = ctx.interrupt.clone();
    let early = set_early(place, receiver.begun().is_new, settings, target, ctx);
    let done = early.and_then(|early| {
        let filled = receiver.fill(input, &mut |_| !interrupt.is_set());
        filled.map_err(|e| broken(&e, verb, place, target, &receiver)).map(|()| early)
    });
    let done =
        done.and_then(|early| end(&receiver, place, target, ctx).map_err(|e| refused(&e)).map(|()| early));
    if done.is_err() {
        // A dataset that can't be destroyed now is destroyed at the next import.
        let _ = receiver.abort(verb.resumable);
    }
    done
}

/// Makes the settings that apply to the received blocks. A new dataset gets nearly all of them, and keeps them when the
/// receive is interrupted: the stream that resumes it has none.
///
/// # Errors
/// For an existing dataset.
#[doc(alias = "zfs_ioc_recv_impl")]
fn set_early(
    place: &Place,
    is_new: bool,
    (props, wishes, types): Settings<'_>,
    target: &Target,
    ctx: &mut Ctx,
) -> Result<Early, Failure> {
    if !is_new {
        apply_to_blocks(&place.dataset, props, (wishes, types), target, ctx)?;
        return Ok(Early::default());
    }
    let granted = if place.exists { Ok(()) } else { permissions::received(&place.dataset, ctx) };
    let set = |()| apply((&place.dataset, Stage::Before), props, Some((wishes, types)), target, ctx);
    Ok(match granted.and_then(set) {
        Ok(notes) => Early { is_new, notes, failure: None },
        Err(failure) => Early { is_new, notes: Vec::new(), failure: Some(failure) },
    })
}

/// Makes the snapshot. A file system that is mounted stays so, with the content that was received. Those below it are mounted
/// again where the folder of their mount point was replaced.
fn end(receiver: &Receiver, place: &Place, target: &Target, ctx: &mut Ctx) -> engine::Result<()> {
    let mounts = &target.pool.mounts;
    if receiver.begun().is_new || mounts.at(&place.dataset).is_none() {
        return receiver.end().map(drop);
    }
    let content = format!("{}/{}", place.dataset, engine::recv::RECEIVE_CHILD);
    receiver.settle()?;
    let inside = mounted_below(&target.pool, &place.dataset);
    mounts.rollback(&place.dataset, &content, Box::new(|| receiver.end().map(drop)))?;
    mount_lost(&inside, target, ctx);
    Ok(())
}

/// OpenZFS' message for a refusal.
fn sentence(e: &Error, name: &str) -> String {
    match e.kind() {
        Kind::Quota => format!("destination {name} space quota exceeded."),
        Kind::KeyMissing => "inherited key must be loaded".to_owned(),
        Kind::NoSpace | Kind::Suspended | Kind::ReadOnly => why(e),
        Kind::NotFound | Kind::Busy | Kind::Exists => e.what().to_owned(),
        _ => e.what().to_owned(),
    }
}

/// The failure for a stream that broke off or is damaged.
#[doc(alias = "recv_ecksum_set_aux")]
fn broken(e: &Error, verb: &Receive, place: &Place, target: &Target, receiver: &Receiver) -> Failure {
    if e.what().contains("interrupted") && !verb.resumable {
        return Failure::Interrupted;
    }
    let of_stream = matches!(e.kind(), Kind::Checksum | Kind::Io | Kind::Corrupt | Kind::Interrupted);
    if !of_stream || !verb.resumable {
        let what = match e.kind() {
            Kind::Checksum => e.what().replacen("the checksum of", "checksum mismatch: that of", 1),
            _ => sentence(e, &place.dataset),
        };
        return failed(place.action, what);
    }
    // The token is that of the last record on disk.
    let token = receiver.settle().ok().and_then(|()| {
        let dataset = target.view.dsl.dataset(&place.dataset).ok()?;
        engine::dsl::props::resume::token(&dataset).ok().flatten()
    });
    let mut what = "checksum mismatch or incomplete stream".to_owned();
    if let Some(token) = token {
        what += ".\nPartially received snapshot is saved.\nA resuming stream can be generated on the sending system by \
                 running:\n    zfs send -t ";
        what += &token;
    }
    failed(place.action, format!("{what}\n({})", e.what()))
}
