//! `zfs userspace`, `groupspace`, `projectspace`: usage and quotas by owner.

use std::cmp::Ordering;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::keys;
use clikit::listing::Lines;
use clikit::listing::SortKeys;
use clikit::output::table::{Column, Table};
use clikit::source::PoolSource;
use clikit::users::Names;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::DatasetKind;
use engine::dsl::props::userspace::{AccountKind, Usage, usage};
use zcommon::units::{nicebytes, nicenum};
use zpl::Filesystem;

use super::by_path;

/// The common part of the three verbs.
#[derive(Debug, Args)]
pub struct Space {
    /// Where the pool is.
    #[command(flatten)]
    pub source: PoolSource,
    /// The format of lines.
    #[command(flatten)]
    pub lines: Lines,
    /// Print numeric ids instead of names.
    #[arg(short = 'n')]
    pub numeric: bool,
    /// Columns, comma separated: type, name, used, quota, objused, objquota.
    #[arg(short = 'o', value_name = "FIELD,…", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// The order of lines.
    #[command(flatten)]
    pub sort: SortKeys,
    /// A file system or snapshot, or a path in a mounted file system.
    #[arg(value_name = "FILESYSTEM|SNAPSHOT|PATH")]
    pub name: String,
}

/// Options that projects do not have.
#[derive(Debug, Args)]
pub struct OwnerSpace {
    /// The options of all three verbs.
    #[command(flatten)]
    pub space: Space,
    /// Show users and groups of this machine instead of SMB users and groups; the mapping between them is not known.
    #[arg(short = 'i')]
    pub translate: bool,
    /// Types, comma separated: posixuser, smbuser, posixgroup, smbgroup, all.
    #[arg(short = 't', value_name = "TYPE,…", value_delimiter = ',')]
    pub types: Vec<String>,
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Type,
    Name,
    Used,
    Quota,
    ObjUsed,
    ObjQuota,
}

impl Field {
    const ALL: [(Field, &'static str); 6] = [
        (Field::Type, "type"),
        (Field::Name, "name"),
        (Field::Used, "used"),
        (Field::Quota, "quota"),
        (Field::ObjUsed, "objused"),
        (Field::ObjQuota, "objquota"),
    ];

    fn parse(word: &str) -> Result<Self, Failure> {
        let found = Self::ALL.iter().find(|(_, name)| *name == word).map(|(field, _)| *field);
        found.ok_or_else(|| Failure::usage(format!("invalid field '{word}'")))
    }

    fn header(self) -> String {
        let name = Self::ALL.iter().find(|(field, _)| *field == self).map_or("", |(_, name)| name);
        name.to_uppercase()
    }
}

/// One user, group or project.
#[derive(Debug, Clone)]
struct Row {
    kind: &'static str,
    name: String,
    usage: Usage,
}

impl Row {
    /// `None` for a word, and for objects where they are not counted.
    fn number(&self, field: Field) -> Option<u64> {
        // An owner with usage has a quota, if only 0, and vice versa.
        let pair = |this: Option<u64>, other: Option<u64>| this.or(other.map(|_| 0));
        match field {
            Field::Type | Field::Name => None,
            Field::Used => pair(self.usage.used, self.usage.quota),
            Field::Quota => pair(self.usage.quota, self.usage.used),
            Field::ObjUsed => pair(self.usage.objused, self.usage.objquota),
            Field::ObjQuota => pair(self.usage.objquota, self.usage.objused),
        }
    }

    fn cell(&self, field: Field, literal: bool) -> String {
        let Some(number) = self.number(field) else {
            return match field {
                Field::Type => self.kind.to_owned(),
                Field::Name => self.name.clone(),
                _ => "-".to_owned(),
            };
        };
        match field {
            _ if literal => number.to_string(),
            Field::Quota | Field::ObjQuota if number == 0 => "none".to_owned(),
            Field::ObjUsed | Field::ObjQuota => nicenum(number).to_string(),
            _ => nicebytes(number).to_string(),
        }
    }

    fn compare(&self, other: &Self, field: Field) -> Ordering {
        match field {
            Field::Type => self.kind.cmp(other.kind),
            Field::Name => match (self.name.parse::<u64>(), other.name.parse::<u64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                _ => self.name.cmp(&other.name),
            },
            _ => self.number(field).cmp(&other.number(field)),
        }
    }
}

/// Space by user.
#[derive(Debug, Args)]
pub struct Userspace {
    /// The options.
    #[command(flatten)]
    pub options: OwnerSpace,
}

/// Space by group.
#[derive(Debug, Args)]
pub struct Groupspace {
    /// The options.
    #[command(flatten)]
    pub options: OwnerSpace,
}

/// Space by project.
#[derive(Debug, Args)]
pub struct Projectspace {
    /// The options.
    #[command(flatten)]
    pub options: Space,
}

impl Verb for Userspace {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        owners(self.options, AccountKind::User, ctx)
    }
}

impl Verb for Groupspace {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        owners(self.options, AccountKind::Group, ctx)
    }
}

impl Verb for Projectspace {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        run(&self.options, &[AccountKind::Project], |_| true, ctx)
    }
}

/// Shows users, groups or both: types that are asked for stand in the place of the verb's own.
fn owners(options: OwnerSpace, account: AccountKind, ctx: &mut Ctx) -> Outcome {
    let known = ["all", "posixuser", "smbuser", "posixgroup", "smbgroup"];
    if let Some(bad) = options.types.iter().find(|t| !known.contains(&t.as_str())) {
        return Err(Failure::MinusOne(format!("invalid type '{bad}' for -t option")));
    }
    let has = |end: &str| options.types.iter().any(|t| t == "all" || t.ends_with(end));
    let mut accounts = vec![account];
    if !options.types.is_empty() {
        accounts = vec![AccountKind::User, AccountKind::Group];
        accounts.retain(|account| has(if *account == AccountKind::User { "user" } else { "group" }));
    }
    let wants = |kind: &str| {
        let word = kind.to_lowercase().replace(' ', "");
        options.types.is_empty() || options.types.iter().any(|t| t == "all" || *t == word)
    };
    run(&options.space, &accounts, wants, ctx)
}

fn run(options: &Space, accounts: &[AccountKind], wants: impl Fn(&str) -> bool, ctx: &mut Ctx) -> Outcome {
    let fields = fields(options)?;
    let order = order(options)?;
    let (names, _) = by_path::datasets(std::slice::from_ref(&options.name), ctx);
    let Some(name) = names.first() else { return Ok(Exit::FAILED) };
    let pool = options.source.open(name.split(['/', '@']).next().unwrap_or_default(), ctx)?;
    ctx.let_sync();
    let dataset = pool.dsl.dataset(name).map_err(|e| Failure::cannot("open", name, e.what()))?;
    if matches!(dataset.kind(), Ok(DatasetKind::Volume)) {
        return Err(Failure::cannot("open", name, "operation not applicable to datasets of this type"));
    }
    keys::ensure(&pool, &dataset.dir()?, ctx)?;
    let fs = Filesystem::open_committed(&dataset)?;
    let mut rows = Vec::new();
    for account in accounts.iter().copied() {
        let names = match (options.numeric, account) {
            (true, _) | (_, AccountKind::Project) => Names::default(),
            (_, AccountKind::User) => Names::users(),
            (_, AccountKind::Group) => Names::groups(),
        };
        let counts = usage(&dataset.objset()?, account)?;
        let all = counts.iter().map(|(id, usage)| row(*id, *usage, account, &names, &fs));
        rows.extend(all.filter(|row| wants(row.kind)));
    }
    rows.sort_by(|a, b| {
        let by = order.iter().map(|(field, down)| {
            let order = a.compare(b, *field);
            if *down { order.reverse() } else { order }
        });
        by.fold(Ordering::Equal, Ordering::then)
    });
    let column = |f: &Field| Column::new(f.header(), !matches!(f, Field::Type | Field::Name));
    let mut table = Table::new(fields.iter().map(column).collect());
    rows.iter()
        .for_each(|row| table.push(fields.iter().map(|f| row.cell(*f, options.lines.literal)).collect()));
    if !table.is_empty() {
        table.print(&mut *ctx.out, options.lines.scripted)?;
    }
    Ok(Exit::OK)
}

/// An id whose high half is not 0 is a Windows identity: the index of its domain, and a number in it.
fn row(id: u64, usage: Usage, account: AccountKind, names: &Names, fs: &Filesystem) -> Row {
    let (domain, rid) = (id >> 32, id & 0xffff_ffff);
    let kind = match (account, domain) {
        (AccountKind::User, 0) => "POSIX User",
        (AccountKind::User, _) => "SMB User",
        (AccountKind::Group, 0) => "POSIX Group",
        (AccountKind::Group, _) => "SMB Group",
        (AccountKind::Project, _) => "Project",
    };
    let name = match (account, domain) {
        (AccountKind::Project, _) => id.to_string(),
        (_, 0) => names.name(rid).map_or_else(|| rid.to_string(), str::to_owned),
        _ => format!("{}-{rid}", fs.domain(id).unwrap_or("S-1-0")),
    };
    Row { kind, name, usage }
}

/// The columns asked for, or all.
fn fields(options: &Space) -> Result<Vec<Field>, Failure> {
    if options.fields.is_empty() {
        return Ok(Field::ALL.iter().map(|(field, _)| *field).collect());
    }
    let bad = |word: &str| Failure::MinusOne(format!("invalid type '{word}' for -o option"));
    options.fields.iter().map(|word| Field::parse(word).map_err(|_| bad(word))).collect()
}

/// By type and name, unless something else is asked for first.
fn order(options: &Space) -> Result<Vec<(Field, bool)>, Failure> {
    let keys = options.sort.keys.iter().map(|(field, reverse)| Ok((Field::parse(field)?, *reverse)));
    let last = [Ok((Field::Type, false)), Ok((Field::Name, false))];
    keys.chain(last).collect()
}
