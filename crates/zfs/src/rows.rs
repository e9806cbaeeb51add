//! From a dataset and wanted properties to a row.

use std::sync::Arc;

use clikit::output::row::{DatasetRow, Prop, PropList, Source};
use clikit::output::sort::SortColumn;
use clikit::users::Names;
use clikit::verb::Failure;
use daemon::access::{DelegatedUser, permissions};
use engine::dsl::props::userspace::{AccountKind, usage};
use engine::dsl::props::written;
use engine::dsl::{Dataset, DatasetKind as HeadKind};
use engine::spa::Pool;
use zcommon::props::{PropName, UserQuotaProp, ZfsProp};
use zcommon::units::{nicebytes, nicenum};

use super::prop::{Node, Props};

/// A property that a user asked for, by the name it is printed with.
pub fn word(prop: &PropName) -> String {
    match prop {
        PropName::Native(p) => p.name().to_owned(),
        PropName::User(name) => name.clone(),
        PropName::UserQuota(kind, who) => format!("{}{who}", kind.prefix()),
        PropName::Written(since) => format!("written{since}"),
    }
}

/// A word of `-s` or `-S`.
pub fn sort_column(property: &str, reverse: bool) -> Result<SortColumn, Failure> {
    let bad = || Failure::usage(format!("invalid property '{property}'"));
    let prop = PropName::parse(property).ok_or_else(bad)?;
    let numeric = match &prop {
        PropName::Native(p) => p.info().data_type == zcommon::props::PropType::Number,
        PropName::User(_) => false,
        _ => return Err(bad()),
    };
    Ok(SortColumn { property: word(&prop), reverse, numeric })
}

/// A row, and the names of the user properties it has beside those wanted.
pub(super) fn row(
    props: &Props<'_>,
    node: &Node,
    wanted: &[(PropName, Arc<str>)],
    user: Users,
    eyes: Option<Eyes<'_>>,
) -> (DatasetRow, Vec<String>) {
    let named =
        wanted.iter().filter_map(|(prop, word)| Some((Arc::clone(word), value(props, node, prop, eyes)?)));
    let names = if user == Users::All { props.user_names() } else { Vec::new() };
    let others = names.iter().filter_map(|name| Some((name.as_str().into(), props.user(name)?)));
    let all: PropList = named.chain(others).collect();
    let row = DatasetRow { name: node.name(), kind: node.kind(), createtxg: node.createtxg(), props: all };
    (row, names)
}

/// Whether rows have user properties that were not named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// All that are set.
    All,
    /// Only those named.
    Named,
}

fn value(props: &Props<'_>, node: &Node, prop: &PropName, eyes: Option<Eyes<'_>>) -> Option<Prop> {
    match (prop, node) {
        (PropName::Native(p), _) => props.native(*p),
        (PropName::User(name), _) => props.user(name),
        (PropName::Written(since), Node::Dataset(dataset, _)) => written_since(dataset, since),
        (PropName::UserQuota(kind, who), Node::Dataset(dataset, HeadKind::Filesystem)) => {
            user_quota(dataset, *kind, who, eyes)
        }
        _ => None,
    }
}

/// `written@snap`, `written@fs@snap`, `written#bookmark`.
fn written_since(dataset: &Dataset, since: &str) -> Option<Prop> {
    let head = dataset.name.split('@').next()?;
    let old = if let Some(mark) = since.strip_prefix('#') {
        let head = dataset.dsl.dir(head).ok()?.head().ok()?;
        let marks = engine::dsl::props::bookmarks::bookmarks(&head).ok()?;
        written::WrittenSince::of_bookmark(&marks.into_iter().find(|b| b.name == mark)?.phys)?
    } else {
        let name = since.strip_prefix('@')?;
        let full = if name.contains('@') { name.to_owned() } else { format!("{head}@{name}") };
        written::WrittenSince::of(&dataset.dsl.dataset(&full).ok()?)
    };
    let used = written::since(old, dataset).ok()?.used;
    Some(number(used, nicebytes(used).to_string()))
}

fn number(n: u64, nice: String) -> Prop {
    Prop { nice, literal: n.to_string(), number: Some(n), source: Source::Local, received: None }
}

/// A user other than the pool's owner, and the pool.
#[derive(Clone, Copy)]
pub(super) struct Eyes<'a> {
    pub delegated: &'a DelegatedUser,
    pub pool: &'a Pool,
}

impl Eyes<'_> {
    /// Whether the user may see an account: the own one, that of a group of theirs, or any with the permission.
    #[doc(alias = "zfs_secpolicy_userspace_one")]
    fn may_see(self, dataset: &Dataset, kind: UserQuotaProp, account: AccountKind, id: u64) -> bool {
        let own = match account {
            AccountKind::User => u64::from(self.delegated.uid) == id,
            AccountKind::Group => self.delegated.groups.iter().any(|group| u64::from(*group) == id),
            AccountKind::Project => false,
        };
        let name = dataset.name.split('@').next().unwrap_or_default();
        let perm = kind.prefix().trim_end_matches('@');
        own || permissions(self.pool, name, self.delegated).is_ok_and(|have| have.contains(perm))
    }
}

/// `userused@joe`, `groupquota@100` and kin; an id that has no entry has used nothing and has no quota.
fn user_quota(dataset: &Dataset, kind: UserQuotaProp, who: &str, eyes: Option<Eyes<'_>>) -> Option<Prop> {
    let (account, names) = match kind.prefix().split_at_checked(4)?.0 {
        "user" => (AccountKind::User, Some(Names::users())),
        "grou" => (AccountKind::Group, Some(Names::groups())),
        _ => (AccountKind::Project, None),
    };
    let id = UserQuotaProp::id(who).or_else(|| names?.id(who))?;
    if eyes.is_some_and(|eyes| !eyes.may_see(dataset, kind, account, id)) {
        return None;
    }
    let usage = usage(&dataset.objset().ok()?, account).ok()?.get(&id).copied().unwrap_or_default();
    let n = match (kind.is_quota(), kind.counts_objects()) {
        (false, false) => usage.used,
        (false, true) => usage.objused,
        (true, false) => usage.quota,
        (true, true) => usage.objquota,
    };
    let n = n.unwrap_or(0);
    let nice = match (n, kind.is_quota(), kind.counts_objects()) {
        (0, true, _) => "none".to_owned(),
        (_, _, true) => nicenum(n).to_string(),
        (_, _, false) => nicebytes(n).to_string(),
    };
    Some(number(n, nice))
}

/// The words of `-o` for `zfs list`, and their properties. `all` is every visible property that some dataset
/// has, the name first; `space` is how space is used.
pub fn list_columns(words: &[String]) -> Result<Vec<PropName>, Failure> {
    let mut columns = Vec::new();
    for word in words.iter().flat_map(|w| w.split(',')).map(str::trim) {
        match word {
            "space" => columns.extend(SPACE.map(PropName::Native)),
            "all" => {
                columns.push(PropName::Native(ZfsProp::Name));
                columns.extend(all_native().map(PropName::Native));
            }
            word => columns.push(parse(word)?),
        }
    }
    Ok(columns)
}

const SPACE: [ZfsProp; 7] = [
    ZfsProp::Name,
    ZfsProp::Available,
    ZfsProp::Used,
    ZfsProp::Usedbysnapshots,
    ZfsProp::Usedbydataset,
    ZfsProp::Usedbyrefreservation,
    ZfsProp::Usedbychildren,
];

/// The native properties that `all` stands for.
pub fn all_native() -> impl Iterator<Item = ZfsProp> {
    ZfsProp::ALL.iter().copied().filter(|p| p.info().visible)
}

/// A property by the user's word.
pub fn parse(word: &str) -> Result<PropName, Failure> {
    PropName::parse(word)
        .ok_or_else(|| Failure::usage(format!("bad property list: invalid property '{word}'")))
}
