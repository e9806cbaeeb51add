//! `zfs allow` and `zfs unallow`: delegated permissions, stored and shown.
//!
//! The daemon's own socket is its owner's alone. On a second one other users may read, and use delegated
//! permissions .

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::users::Names;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::deleg::{self, Grant, Scope, Who};
use engine::dsl::Dir;
use zcommon::props::{PropAttr, ZfsProp};

/// Columns of a heading.
const WIDTH: usize = 70;

/// The common arguments of both verbs.
#[derive(Debug, Args)]
pub struct DelegationOptions {
    /// Allow for the dataset only, not for its descendants.
    #[arg(short = 'l')]
    pub local: bool,
    /// Allow for the descendants only, not for the dataset.
    #[arg(short = 'd')]
    pub descendent: bool,
    /// The names are users.
    #[arg(short = 'u')]
    pub user: bool,
    /// The names are groups.
    #[arg(short = 'g')]
    pub group: bool,
    /// Delegate to everyone.
    #[arg(short = 'e')]
    pub everyone: bool,
    /// Create-time permissions: the creator of a descendent dataset gets them on it.
    #[arg(short = 'c')]
    pub create: bool,
    /// Define or change the permission set of this name.
    #[arg(short = 's', value_name = "@SET")]
    pub set: Option<String>,
}

/// Delegate permissions, or show them.
#[derive(Debug, Args)]
pub struct Allow {
    /// The options.
    #[command(flatten)]
    pub options: DelegationOptions,
    /// Users or groups, permissions, and the dataset.
    #[arg(value_name = "WHO PERM,… DATASET", required = true)]
    pub words: Vec<String>,
}

/// Remove delegated permissions.
#[derive(Debug, Args)]
pub struct Unallow {
    /// The options.
    #[command(flatten)]
    pub options: DelegationOptions,
    /// Remove them from descendent datasets, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Users or groups, permissions, and the dataset.
    #[arg(value_name = "WHO [PERM,…] DATASET", required = true)]
    pub words: Vec<String>,
}

impl Verb for Allow {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if let ([name], true) = (self.words.as_slice(), self.options.is_bare()) {
            return show(name, ctx);
        }
        let (scopes, perms, name) = self.options.read(&self.words)?;
        let perms = perms.ok_or_else(|| Failure::usage("missing permissions"))?;
        change(&name, scopes, perms, false, true, ctx)
    }
}

impl Verb for Unallow {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let (scopes, perms, name) = self.options.read(&self.words)?;
        change(&name, scopes, perms.unwrap_or_default(), self.recurse, false, ctx)
    }
}

/// The file system or volume of a command; a failure is -1.
#[doc(alias = "zfs_do_allow_unallow_impl")]
fn opened(name: &str, ctx: &mut Ctx) -> Result<Target, Failure> {
    let found = match name.contains('@') {
        true => Err(Failure::cannot("open", name, "snapshot delimiter '@' is not expected here")),
        false => Target::of(name, ctx).and_then(|target| target.dataset().map(|_| target)),
    };
    found.map_err(|e| {
        Failure::MinusOne(format!("{}\nFailed to open dataset: {name}", e.message().unwrap_or_default()))
    })
}

fn change(
    name: &str,
    scopes: Vec<Scope>,
    perms: Vec<String>,
    recurse: bool,
    allow: bool,
    ctx: &mut Ctx,
) -> Outcome {
    let target = opened(name, ctx)?;
    let names: Vec<String> = match recurse {
        true => target.tree()?.into_iter().map(|dir| dir.name).collect(),
        false => vec![name.to_owned()],
    };
    let grants: Vec<Grant> = scopes.into_iter().map(|scope| Grant { scope, perms: perms.clone() }).collect();
    let done = ctx.change(&target.pool, move |tasks, _| {
        let work = if allow { deleg::allow } else { deleg::unallow };
        names.iter().try_for_each(|name| work(tasks, name, &grants))
    });
    done.map_err(|e| Failure::cannot("set permissions on", name, why(&e)))?;
    Ok(Exit::OK)
}

type Read = (Vec<Scope>, Option<Vec<String>>, String);

impl DelegationOptions {
    /// Whether no option names users, a set or a scope.
    fn is_bare(&self) -> bool {
        let flags = [self.local, self.descendent, self.user, self.group, self.everyone, self.create];
        self.set.is_none() && !flags.contains(&true)
    }

    /// Parses the users, the permissions (if given), and the dataset.
    #[doc(alias = "parse_allow_args")]
    fn read(&self, words: &[String]) -> Result<Read, Failure> {
        let nobody = self.create || self.set.is_some();
        let kinds = [self.user, self.group, self.everyone, self.create, self.set.is_some()];
        if kinds.iter().filter(|kind| **kind).count() > 1 || nobody && (self.local || self.descendent) {
            return Err(Failure::usage("invalid combination of options"));
        }
        let whole = self.everyone || nobody;
        let (who, perms, name) = match (whole, words) {
            (true, [perms, name]) => (None, Some(perms), name),
            (true, [name]) => (None, None, name),
            (false, [who, perms, name]) => (Some(who), Some(perms), name),
            (false, [who, name]) => (Some(who), None, name),
            _ => return Err(Failure::usage("wrong number of parameters")),
        };
        let perms = perms.map(|perms| perms.split(',').map(str::to_owned).collect::<Vec<_>>());
        // Read-only properties can't be set, so no permission for them exists.
        let is_property =
            |word: &str| ZfsProp::from_name(word).is_some_and(|prop| prop.info().attr != PropAttr::ReadOnly);
        for perm in perms.iter().flatten() {
            deleg::check(perm, is_property).map_err(|e| Failure::failed(e.what()))?;
        }
        if self.create {
            return Ok((vec![Scope::Create], perms, name.clone()));
        }
        if let Some(set) = &self.set {
            if !set.starts_with('@') {
                return Err(Failure::usage(format!("invalid set name '{set}': missing '@' prefix")));
            }
            deleg::check(set, |_| false).map_err(|e| Failure::failed(e.what()))?;
            return Ok((vec![Scope::Set(set.clone())], perms, name.clone()));
        }
        let who = match who {
            None => vec![Who::Everyone],
            Some(list) => list.split(',').map(|word| self.who(word)).collect::<Result<_, _>>()?,
        };
        let mut scopes = Vec::new();
        for who in who {
            if self.local || !self.descendent {
                scopes.push(Scope::Local(who.clone()));
            }
            if self.descendent || !self.local {
                scopes.push(Scope::Descendent(who));
            }
        }
        Ok((scopes, perms, name.clone()))
    }

    fn who(&self, word: &str) -> Result<Who, Failure> {
        let number = word.parse::<u64>().ok();
        let (users, groups) = (Names::users(), Names::groups());
        // A bare number is a user or a group only if one with that id exists.
        let (named, there) =
            (users.id(word).map(Who::User).or_else(|| groups.id(word).map(Who::Group)), |names: &Names| {
                number.filter(|id| names.name(*id).is_some())
            });
        let (kind, found) = match (self.user, self.group) {
            _ if word == "everyone" && !self.user && !self.group => ("", Some(Who::Everyone)),
            (true, _) => ("user", users.id(word).or(number).map(Who::User)),
            (_, true) => ("group", groups.id(word).or(number).map(Who::Group)),
            _ => (
                "user/group",
                named.or_else(|| there(&users).map(Who::User)).or_else(|| there(&groups).map(Who::Group)),
            ),
        };
        found.ok_or_else(|| Failure::usage(format!("zfs: error: invalid {kind} {word}")))
    }
}

/// The permissions at a dataset and those above it.
fn show(name: &str, ctx: &mut Ctx) -> Outcome {
    let target = opened(name, ctx)?;
    let mut above = Some(name);
    let mut first = true;
    while let Some(name) = above {
        let dir = Target { name: name.to_owned(), ..target.clone() }.dir()?;
        let text = page(&dir)?;
        if !text.is_empty() {
            if !first {
                writeln!(ctx.out)?;
            }
            first = false;
            let head = format!("---- Permissions on {name} ");
            writeln!(ctx.out, "{head:-<WIDTH$}")?;
            ctx.out.write_all(text.as_bytes())?;
        }
        above = name.rsplit_once('/').map(|(parent, _)| parent);
    }
    Ok(Exit::OK)
}

/// The output for one dataset.
#[doc(alias = "print_fs_perms")]
fn page(dir: &Dir) -> Result<String, Failure> {
    let (users, groups) = (Names::users(), Names::groups());
    let name =
        |names: &Names, id: u64| names.name(id).map_or_else(|| format!("(unknown: {id})"), str::to_owned);
    let mut sections: BTreeMap<(u8, &str), Vec<String>> = BTreeMap::new();
    let all = deleg::grants(dir)?;
    let both = |who: &Who, perm: &String| {
        let has = |scope: Scope| all.iter().any(|g| g.scope == scope && g.perms.contains(perm));
        has(Scope::Local(who.clone())) && has(Scope::Descendent(who.clone()))
    };
    for grant in &all {
        let mut add = |section: (u8, &'static str), lead: String, perms: Vec<&str>| {
            if !perms.is_empty() {
                sections.entry(section).or_default().push(format!("\t{lead}{}", perms.join(",")));
            }
        };
        let perms: Vec<&str> = grant.perms.iter().map(String::as_str).collect();
        let (who, local) = match &grant.scope {
            Scope::Set(set) => {
                add((0, "Permission sets:"), format!("{set} "), perms);
                continue;
            }
            Scope::Create => {
                add((1, "Create time permissions:"), String::new(), perms);
                continue;
            }
            Scope::Local(who) => (who, true),
            Scope::Descendent(who) => (who, false),
        };
        let lead = match who {
            Who::User(id) => format!("user {} ", name(&users, *id)),
            Who::Group(id) => format!("group {} ", name(&groups, *id)),
            Who::Everyone => "everyone ".to_owned(),
        };
        let (shared, own): (Vec<&String>, Vec<&String>) = grant.perms.iter().partition(|p| both(who, p));
        if local {
            add((2, "Local permissions:"), lead.clone(), words(&own));
            add((4, "Local+Descendent permissions:"), lead, words(&shared));
        } else {
            add((3, "Descendent permissions:"), lead, words(&own));
        }
    }
    let lines = sections.into_iter().map(|((_, title), lines)| format!("{title}\n{}\n", lines.join("\n")));
    Ok(lines.collect())
}

fn words<'a>(list: &[&'a String]) -> Vec<&'a str> {
    list.iter().map(|word| word.as_str()).collect()
}
