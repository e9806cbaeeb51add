//! Streams of `zfs send -R`, `-I` and `-p`: a list of datasets with their properties and snapshots, then a stream for
//! each snapshot, then an END.

use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome};
use engine::dsl::DatasetKind;
use engine::recv::{Input, Item};
use nvpair::{NvList, NvValue};
use ondisk::ObjsetType;
use ondisk::drr::{DrrBody, stream_feature};

use super::one::{self, Listed, Stream};
use super::place::appended;
use super::props::Wishes;
use super::reconcile::Reconcile;
use super::{PLAIN, Receive, failed, of_stream, roots, sent_name};
use crate::remount::{mount_again, waiting_followers};

/// The list at the head of a package.
#[derive(Debug, Default)]
pub(super) struct Package {
    list: NvList,
}

/// The list's facts on a snapshot's dataset.
pub(super) struct SentDataset<'p> {
    pub(super) dataset: &'p NvList,
    /// The name behind the `@`.
    pub(super) snapshot: String,
}

impl Package {
    /// The dataset that has the snapshot with this guid.
    #[doc(alias = "fsavl_find")]
    pub(super) fn find(&self, guid: u64) -> Option<SentDataset<'_>> {
        self.list.nvlist("fss")?.iter().find_map(|pair| {
            let NvValue::List(dataset) = &pair.value else { return None };
            let snapshots = dataset.nvlist("snaps")?;
            let is = |pair: &&nvpair::NvPair| matches!(pair.value, NvValue::Uint64(number) if number == guid);
            let snapshot = snapshots.iter().find(is)?.name.to_string_lossy().into_owned();
            Some(SentDataset { dataset, snapshot })
        })
    }

    /// Its entry for each dataset.
    pub(super) fn datasets(&self) -> impl Iterator<Item = &NvList> {
        self.list.nvlist("fss").into_iter().flat_map(NvList::iter).filter_map(|pair| match &pair.value {
            NvValue::List(dataset) => Some(dataset),
            _ => None,
        })
    }

    /// Whether the encryption root of a dataset of the package is in it, too: [`roots`] restores it here then.
    fn has_root(&self, dataset: &NvList) -> bool {
        let name = text(dataset, "name").unwrap_or_default();
        let is_above = |root: &str| {
            let rest = name.strip_prefix(root);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut roots = self.datasets().filter(|sent| sent.contains("is_encroot"));
        self.list.contains("raw") && roots.any(|root| text(root, "name").is_some_and(|root| is_above(&root)))
    }

    /// The facts on the stream of a snapshot that was found; holds only where they are to be received.
    fn listed<'s>(&'s self, found: &'s SentDataset<'_>, with_holds: bool, top: &'s str) -> Listed<'s> {
        let of_snapshot = |name: &str| found.dataset.nvlist(name).and_then(|all| all.nvlist(&found.snapshot));
        Listed {
            props: found.dataset.nvlist("props"),
            of_snapshot: of_snapshot("snapprops"),
            holds: if with_holds { of_snapshot("snapholds") } else { None },
            recursive: self.is_recursive(),
            has_root: self.has_root(found.dataset),
            top,
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        text(&self.list, name)
    }

    /// Whether the package describes all datasets below its first one, so that the target can be reconciled.
    fn is_recursive(&self) -> bool {
        !self.list.contains("not_recursive") && self.list.contains("fss")
    }
}

/// A text of a list.
pub(super) fn text(list: &NvList, name: &str) -> Option<String> {
    match list.get(name) {
        Some(NvValue::String(text)) => Some(text.to_string_lossy().into_owned()),
        _ => None,
    }
}

/// Receives a package.
///
/// # Errors
/// As [`one::receive`], for the first stream that can't be received; later streams are skipped.
#[doc(alias = "zfs_receive_package")]
pub fn receive(
    verb: &Receive,
    wishes: &Wishes,
    head: &Item,
    input: &mut Input<'_>,
    ctx: &mut Ctx,
) -> Outcome {
    let malformed = || failed(PLAIN, "invalid stream (malformed nvlist)");
    let list = match head.payload.as_slice() {
        [] => NvList::new(),
        bytes => NvList::decode(bytes).map_err(|_| malformed())?,
    };
    let package = Package { list };
    if verb.name.contains('@') && package.is_recursive() && package.text("fromsnap").is_some() {
        return Err(failed(PLAIN, "invalid argument - snapshot not allowed with a replication stream"));
    }
    let next = |input: &mut Input<'_>| input.record().map_err(|e| of_stream(&e, PLAIN));
    if !matches!(next(input)?.map(|item| item.drr.body), Some(DrrBody::End(_))) {
        return Err(failed(PLAIN, "invalid stream (corrupt header)"));
    }
    let mut reconcile = match package.text("fromsnap").filter(|_| package.is_recursive() && !verb.dry) {
        Some(from) => Some(Reconcile::new(verb, &package, top(verb, head)?, from)),
        None => None,
    };
    if let Some(reconcile) = &mut reconcile {
        reconcile.run(ctx)?;
    }
    let with_holds = !verb.no_holds
        && matches!(&head.drr.body, DrrBody::Begin(begin) if begin.features() & stream_feature::HOLDS != 0);
    let top = top(verb, head)?;
    let (mut root, mut has_mountable) = (None, false);
    let mut received = Vec::new();
    while let Some(item) = next(input)? {
        let begin = match item.drr.body {
            DrrBody::End(_) => break,
            DrrBody::Begin(begin) => begin,
            _ => return Err(failed(PLAIN, "invalid stream (bad record type)")),
        };
        let sent = sent_name(&begin)?;
        let is_fs = ObjsetType::from_raw(begin.objset_type.into()) == Some(ObjsetType::Zfs);
        has_mountable |= is_fs && begin.features() & stream_feature::REDACTED == 0;
        // The first stream is of the dataset named in the send command.
        let dataset = sent.split('@').next().unwrap_or_default();
        let root = root.get_or_insert_with(|| dataset.to_owned()).clone();
        let found = package.find(begin.toguid);
        let listed = found.as_ref().map(|found| package.listed(found, with_holds, &top));
        let is_first = root == dataset;
        // Below the first dataset properties of the command line are inherited.
        let below = wishes.below();
        let wishes = if is_first { wishes } else { &below };
        let guid = begin.toguid;
        let done = one::receive(verb, wishes, Stream { begin, item, root: &root, listed }, input, ctx)?;
        received.extend(done.map(|done| (guid, done)));
    }
    // Received datasets may be new parents of existing ones.
    let done = reconcile.map_or(Ok(true), |mut reconcile| reconcile.run(ctx))?;
    if package.list.contains("raw") && !verb.dry {
        roots::restore(&package, &top, &received, ctx)?;
    }
    if !done {
        // OpenZFS fails without a word here.
        ctx.warn(format!(
            "{PLAIN}: not everything in {top} could be renamed, promoted or destroyed as at the sender"
        ));
        return Ok(Exit::FAILED);
    }
    if has_mountable && package.list.contains("fss") && !verb.dry && !verb.unmounted {
        mount_tree(&top, ctx)?;
    }
    Ok(Exit::OK)
}

/// Mounts the received tree: the file systems whose mount points follow from that of the topmost dataset, also those that were
/// there and not mounted.
#[doc(alias = "CL_GATHER_MOUNT_ALWAYS")]
fn mount_tree(top: &str, ctx: &mut Ctx) -> Result<(), Failure> {
    let target = Target::of(top, ctx)?;
    if !target.exists() || target.dataset()?.kind()? != DatasetKind::Filesystem {
        return Ok(());
    }
    let waiting = waiting_followers(&target)?;
    mount_again(&waiting, ctx).into_iter().next().map_or(Ok(()), Err)
}

/// The dataset that the topmost dataset of a package becomes.
fn top(verb: &Receive, head: &Item) -> Result<String, Failure> {
    let DrrBody::Begin(begin) = &head.drr.body else {
        return Err(failed(PLAIN, "invalid stream (bad magic number)"));
    };
    let rest = match verb.without_pool || verb.last_part {
        true => appended(verb, &sent_name(begin)?, "")?,
        false => String::new(),
    };
    let slash = if rest.is_empty() || rest.starts_with(['/', '@']) { "" } else { "/" };
    let whole = format!("{}{slash}{rest}", verb.name);
    Ok(whole.split('@').next().unwrap_or_default().to_owned())
}
