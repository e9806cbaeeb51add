//! From datasets and wanted properties to rows.

use std::collections::{BTreeMap, HashSet};

use daemon::access::{Guest, permissions};
use daemon::mounts::Hidden;
use engine::dsl::props::userspace::{Account, usage};
use engine::dsl::props::written;
use engine::dsl::{Dataset, DatasetKind as HeadKind};
use engine::spa::Pool;
use zcommon::props::{PropName, UserQuotaProp, ZfsProp};
use zcommon::units::{nicebytes, nicenum};

use super::prop::{Node, Props};
use super::select::Found;
use crate::ctx::Ctx;
use crate::output::row::{DatasetRow, Prop, Source};
use crate::output::sort::SortColumn;
use crate::parallel;
use crate::users::Names;
use crate::verb::Failure;

/// Datasets of a report for which changes wait together.
const PIECE: usize = 256;

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

/// Rows, and the names of the user properties in them.
#[derive(Debug, Default)]
pub struct Rows {
    /// One a node.
    pub rows: Vec<DatasetRow>,
    /// Names of the user properties that were not requested by name, in the order in which they are found.
    pub user_names: Vec<String>,
}

/// Rows of everything found, each with the properties wanted that apply to it.
pub fn rows(found: &Found, wanted: &[PropName], user: Users, ctx: &mut Ctx) -> Result<Rows, Failure> {
    let wanted: Vec<(&PropName, String)> = wanted.iter().map(|prop| (prop, word(prop))).collect();
    let standing: BTreeMap<String, Hidden> =
        ctx.pools().iter().flat_map(|pool| pool.mounts.hidden()).collect();
    let guest = ctx.session().ok().and_then(|session| session.guest.clone());
    let mut made = Vec::with_capacity(found.nodes.len());
    for (count, piece) in found.nodes.chunks(PIECE).enumerate() {
        let again = (count > 0 && ctx.breathe()) || found.outdated;
        let rows = parallel::map(piece, &ctx.interrupt, |(index, node)| {
            let pool = found.pools.get(*index);
            let fresh = if again { Some(node.again(&pool?.pool)?) } else { None };
            let (node, usable) = (fresh.as_ref().unwrap_or(node), pool.map_or(0, |p| p.usable));
            let props = Props::new(node, usable).mounted(standing.get(&node.name()).cloned());
            let eyes = guest.as_ref().zip(pool).map(|(guest, pool)| Eyes { guest, pool: &pool.pool });
            Some(row(&props, node, &wanted, user, eyes))
        });
        made.extend(rows.ok_or(Failure::Interrupted)?.into_iter().flatten());
    }
    let mut all = Rows::default();
    let mut seen = HashSet::new();
    for (row, names, notes) in made {
        notes.iter().for_each(|note| ctx.warn(format!("{}: {note}", row.name)));
        all.user_names.extend(names.into_iter().filter(|name| seen.insert(name.clone())));
        all.rows.push(row);
    }
    Ok(all)
}

/// A row, the names of the user properties it has beside those wanted, and read errors.
fn row(
    props: &Props<'_>,
    node: &Node,
    wanted: &[(&PropName, String)],
    user: Users,
    eyes: Option<Eyes<'_>>,
) -> (DatasetRow, Vec<String>, Vec<String>) {
    let valued =
        wanted.iter().filter_map(|(prop, word)| Some((word.clone(), value(props, node, prop, eyes)?)));
    let mut all: BTreeMap<String, Prop> = valued.collect();
    let names = if user == Users::All { props.user_names() } else { Vec::new() };
    for name in &names {
        if let Some(value) = props.user(name) {
            all.insert(name.clone(), value);
        }
    }
    let row = DatasetRow { name: node.name(), kind: node.kind(), createtxg: node.createtxg(), props: all };
    (row, names, props.take_notes())
}

/// Whether rows have user properties that were not named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// All that are set.
    All,
    /// Only those named.
    Named,
}

/// Names of all user properties in force anywhere, in the order in which they are found.
pub fn user_names(found: &Found) -> Vec<String> {
    let mut seen = HashSet::new();
    let names = found.nodes.iter().flat_map(|(index, node)| {
        let pool = found.pools.get(*index).filter(|_| found.outdated);
        let fresh = pool.and_then(|open| node.again(&open.pool));
        Props::new(fresh.as_ref().unwrap_or(node), 0).user_names()
    });
    names.filter(|name| seen.insert(name.clone())).collect()
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
    let (old, object) = if let Some(mark) = since.strip_prefix('#') {
        let head = dataset.dsl.dir(head).ok()?.head().ok()?;
        let marks = engine::dsl::props::bookmarks::bookmarks(&head).ok()?;
        let phys = marks.into_iter().find(|b| b.name == mark)?.phys;
        let referenced = written::Space {
            used: phys.referenced_bytes_refd,
            comp: phys.compressed_bytes_refd,
            uncomp: phys.uncompressed_bytes_refd,
        };
        (written::Moment { txg: phys.creation_txg, referenced }, None)
    } else {
        let name = since.strip_prefix('@')?;
        let full = if name.contains('@') { name.to_owned() } else { format!("{head}@{name}") };
        let old = dataset.dsl.dataset(&full).ok()?;
        (written::Moment::of(&old), Some(old.number))
    };
    let used = written::since(old, object, dataset).ok()?.used;
    Some(number(used, nicebytes(used).to_string()))
}

fn number(n: u64, nice: String) -> Prop {
    Prop { nice, literal: n.to_string(), number: Some(n), source: Source::Local, received: None }
}

/// A user other than the pool's owner, and the pool.
#[derive(Clone, Copy)]
struct Eyes<'a> {
    guest: &'a Guest,
    pool: &'a Pool,
}

impl Eyes<'_> {
    /// Whether the user may see an account: the own one, that of a group of theirs, or any with the permission.
    #[doc(alias = "zfs_secpolicy_userspace_one")]
    fn may_see(self, dataset: &Dataset, kind: UserQuotaProp, account: Account, id: u64) -> bool {
        let own = match account {
            Account::User => u64::from(self.guest.uid) == id,
            Account::Group => self.guest.groups.iter().any(|group| u64::from(*group) == id),
            Account::Project => false,
        };
        let name = dataset.name.split('@').next().unwrap_or_default();
        let perm = kind.prefix().trim_end_matches('@');
        own || permissions(self.pool, name, self.guest).is_ok_and(|have| have.contains(perm))
    }
}

/// `userused@joe`, `groupquota@100` and kin; an id that has no entry has used nothing and has no quota.
fn user_quota(dataset: &Dataset, kind: UserQuotaProp, who: &str, eyes: Option<Eyes<'_>>) -> Option<Prop> {
    let (account, names) = match kind.prefix().split_at_checked(4)?.0 {
        "user" => (Account::User, Some(Names::users())),
        "grou" => (Account::Group, Some(Names::groups())),
        _ => (Account::Project, None),
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
