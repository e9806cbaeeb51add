//! The expression of `find`, applied to files.

use std::io::Write;

use clikit::users::Names;
use clikit::verb::Failure;
use zpl::{Attr, FileKind, Time};

use super::find_parse::{Expression, Node, Perm, Which};
use super::text::{local, mode_string, seconds, write_name};
use super::walk::Found;

/// The result of a visit for the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcomes {
    /// Continue, into the directory too.
    Descend,
    /// Do not enter the directory.
    Prune,
    /// Stop.
    Quit,
}

/// An expression ready to be applied.
pub struct Finder<'a> {
    expression: &'a Expression,
    users: Names,
    groups: Names,
    terminal: bool,
}

struct Visit<'a, 'w> {
    found: &'a Found,
    /// Path of the starting point.
    start: &'a [u8],
    out: &'a mut Box<dyn Write + 'w>,
    outcome: Outcomes,
}

impl<'a> Finder<'a> {
    /// Resolves names with this machine's users.
    pub fn new(expression: &'a Expression, terminal: bool) -> Self {
        Self { expression, users: Names::users(), groups: Names::groups(), terminal }
    }

    /// Tests a file and performs the actions of the expression.
    pub fn visit(&self, found: &Found, start: &[u8], out: &mut Box<dyn Write>) -> Result<Outcomes, Failure> {
        let mut visit = Visit { found, start, out, outcome: Outcomes::Descend };
        if found.depth >= self.expression.min_depth {
            self.eval(&self.expression.root, &mut visit)?;
        }
        let too_deep = found.depth >= self.expression.max_depth && visit.outcome == Outcomes::Descend;
        Ok(if too_deep { Outcomes::Prune } else { visit.outcome })
    }

    fn eval(&self, node: &Node, v: &mut Visit<'_, '_>) -> Result<bool, Failure> {
        let (attr, inode) = (v.found.inode.attr(), &v.found.inode);
        Ok(match node {
            Node::And(a, b) => self.eval(a, v)? && v.outcome != Outcomes::Quit && self.eval(b, v)?,
            Node::Or(a, b) => self.eval(a, v)? || (v.outcome != Outcomes::Quit && self.eval(b, v)?),
            Node::Not(a) => !self.eval(a, v)?,
            Node::True => true,
            Node::False => false,
            Node::Name(pattern, fold) => glob(pattern, v.found.name(), *fold),
            Node::Path(pattern, fold) => glob(pattern, &v.found.path, *fold),
            Node::LinkName(pattern) => {
                attr.kind == FileKind::Symlink && glob(pattern, &inode.readlink()?, false)
            }
            Node::Type(kinds) => kinds.contains(&attr.kind),
            Node::Size(bound, unit) => bound.admits(attr.size.div_ceil(*unit)),
            Node::Empty => match attr.kind {
                FileKind::Regular => attr.size == 0,
                FileKind::Directory => inode.entries()?.next().is_none(),
                _ => false,
            },
            Node::Links(bound) => bound.admits(attr.links),
            Node::Inum(bound) => bound.admits(inode.number()),
            Node::Uid(bound) => bound.admits(u64::from(attr.uid)),
            Node::Gid(bound) => bound.admits(u64::from(attr.gid)),
            Node::User(name) => is_owner(&self.users, attr.uid, name),
            Node::Group(name) => is_owner(&self.groups, attr.gid, name),
            Node::Perm(Perm::Exact(bits)) => attr.perm == *bits,
            Node::Perm(Perm::All(bits)) => attr.perm & bits == *bits,
            Node::Perm(Perm::Any(bits)) => *bits == 0 || attr.perm & bits != 0,
            Node::Age(which, bound, unit) => {
                let age = self.expression.now.saturating_sub(time(attr, *which).sec);
                bound.admits(u64::try_from(age).unwrap_or(0) / unit)
            }
            Node::NewerThan(which, moment) => time(attr, *which).sec > *moment,
            Node::Xattr => !inode.xattr_names()?.is_empty(),
            Node::Prune => {
                v.outcome = Outcomes::Prune;
                true
            }
            Node::Quit => {
                v.outcome = Outcomes::Quit;
                true
            }
            Node::Print => self.print(v).map(|()| true)?,
            Node::Print0 => {
                v.out.write_all(path_of(v.found))?;
                v.out.write_all(b"\0")?;
                true
            }
            Node::Ls => self.long(v).map(|()| true)?,
            Node::Printf(format) => self.printf(format, v).map(|()| true)?,
        })
    }

    fn print(&self, v: &mut Visit<'_, '_>) -> Result<(), Failure> {
        write_name(v.out, path_of(v.found), self.terminal)?;
        Ok(writeln!(v.out)?)
    }

    fn long(&self, v: &mut Visit<'_, '_>) -> Result<(), Failure> {
        let format = b"%10i %6k %M %3n %-8u %-8g %8s %Tb %Td %TH:%TM %p";
        self.printf(format, v)?;
        if v.found.inode.attr().kind == FileKind::Symlink {
            write!(v.out, " -> ")?;
            write_name(v.out, &v.found.inode.readlink()?, self.terminal)?;
        }
        Ok(writeln!(v.out)?)
    }

    fn printf(&self, format: &[u8], v: &mut Visit<'_, '_>) -> Result<(), Failure> {
        let mut rest = format.iter().copied();
        while let Some(b) = rest.next() {
            match b {
                b'\\' => match rest.next() {
                    Some(b'n') => v.out.write_all(b"\n")?,
                    Some(b't') => v.out.write_all(b"\t")?,
                    Some(b'0') => v.out.write_all(b"\0")?,
                    Some(b'r') => v.out.write_all(b"\r")?,
                    Some(b'\\') | None => v.out.write_all(b"\\")?,
                    Some(other) => v.out.write_all(&[b'\\', other])?,
                },
                b'%' => self.directive(&mut rest, v)?,
                other => v.out.write_all(&[other])?,
            }
        }
        Ok(())
    }

    /// One `%` directive, with an optional `-` and width.
    fn directive(&self, rest: &mut dyn Iterator<Item = u8>, v: &mut Visit<'_, '_>) -> Result<(), Failure> {
        let (mut left, mut width) = (false, 0_usize);
        let mut next = rest.next();
        while let Some(c) = next.filter(|c| *c == b'-' || c.is_ascii_digit()) {
            match c {
                b'-' => left = true,
                digit => width = (width * 10 + usize::from(digit - b'0')).min(1000),
            }
            next = rest.next();
        }
        let value = match next {
            None | Some(b'%') => b"%".to_vec(),
            Some(c @ (b'A' | b'C' | b'T' | b'B')) => self.moment(c, rest.next().unwrap_or(b'@'), v),
            Some(c) => self.value(c, v)?,
        };
        let pad = width.saturating_sub(value.len());
        if !left {
            write!(v.out, "{:pad$}", "")?;
        }
        v.out.write_all(&value)?;
        if left {
            write!(v.out, "{:pad$}", "")?;
        }
        Ok(())
    }

    fn moment(&self, which: u8, form: u8, v: &Visit<'_, '_>) -> Vec<u8> {
        let attr = v.found.inode.attr();
        let time = match which {
            b'A' => attr.atime,
            b'C' => attr.ctime,
            b'B' => attr.crtime,
            _ => attr.mtime,
        };
        match form {
            b'@' => seconds(time, 10),
            b'+' => local(time, "%Y-%m-%d+%H:%M:%S.%9f0"),
            other => local(time, &format!("%{}", char::from(other))),
        }
        .into_bytes()
    }

    fn value(&self, directive: u8, v: &Visit<'_, '_>) -> Result<Vec<u8>, Failure> {
        let (found, inode) = (v.found, &v.found.inode);
        let attr = inode.attr();
        let owner = |names: &Names, id: u32| {
            names.name(u64::from(id)).map_or_else(|| id.to_string(), str::to_owned).into_bytes()
        };
        let number = |n: u64| n.to_string().into_bytes();
        Ok(match directive {
            b'p' => path_of(found).to_vec(),
            b'P' => below(&found.path, v.start).to_vec(),
            b'f' => found.name().to_vec(),
            b'h' => parent(&found.path).to_vec(),
            b'H' => v.start.to_vec(),
            b'd' => number(u64::try_from(found.depth).unwrap_or(0)),
            b's' => number(attr.size),
            b'b' => number(attr.blocks),
            b'k' => number(attr.blocks.div_ceil(2)),
            b'm' => format!("{:o}", attr.perm).into_bytes(),
            b'M' => mode_string(attr).into_bytes(),
            b'u' => owner(&self.users, attr.uid),
            b'g' => owner(&self.groups, attr.gid),
            b'U' => number(u64::from(attr.uid)),
            b'G' => number(u64::from(attr.gid)),
            b'n' => number(attr.links),
            b'i' => number(inode.number()),
            b'y' => vec![u8::try_from(attr.kind.letter()).unwrap_or(b'?')],
            b'l' if attr.kind == FileKind::Symlink => inode.readlink()?,
            b'l' => Vec::new(),
            b't' => local(attr.mtime, "%a %b %e %H:%M:%S.%9f0 %Y").into_bytes(),
            b'a' => local(attr.atime, "%a %b %e %H:%M:%S.%9f0 %Y").into_bytes(),
            b'c' => local(attr.ctime, "%a %b %e %H:%M:%S.%9f0 %Y").into_bytes(),
            b'F' => b"zfs".to_vec(),
            other => vec![b'%', other],
        })
    }
}

fn path_of(found: &Found) -> &[u8] {
    if found.path.is_empty() { b"." } else { &found.path }
}

fn below<'a>(path: &'a [u8], start: &[u8]) -> &'a [u8] {
    let rest = path.strip_prefix(start).unwrap_or(path);
    rest.strip_prefix(b"/").unwrap_or(rest)
}

fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&b| b == b'/') {
        Some(0) => b"/",
        Some(at) => path.get(..at).unwrap_or_default(),
        None => b".",
    }
}

fn time(attr: &Attr, which: Which) -> Time {
    match which {
        Which::Access => attr.atime,
        Which::Modify => attr.mtime,
        Which::Change => attr.ctime,
    }
}

fn is_owner(names: &Names, id: u32, wanted: &str) -> bool {
    names.name(u64::from(id)) == Some(wanted) || wanted.parse() == Ok(id)
}

/// Matches a shell pattern against a whole name: `*` `?` `[a-z]` `[!a]` `\x`. As in `find`, `*` and `?` match a
/// slash and a leading dot. Takes at most length times length steps.
pub fn glob(pattern: &[u8], name: &[u8], fold: bool) -> bool {
    let (mut p, mut n) = (pattern, name);
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some((b'*', rest)) = p.split_first() {
            retry = Some((rest, n));
            p = rest;
            continue;
        }
        match n.split_first() {
            None => return p.is_empty(),
            Some((&c, tail)) => match one(p, c, fold) {
                Some(rest) => (p, n) = (rest, tail),
                None => {
                    let Some((after, from)) = retry else { return false };
                    let Some((_, later)) = from.split_first() else { return false };
                    retry = Some((after, later));
                    (p, n) = (after, later);
                }
            },
        }
    }
}

/// Matches one byte with the start of a pattern other than `*`; returns the rest of the pattern.
fn one(pattern: &[u8], c: u8, fold: bool) -> Option<&[u8]> {
    let same = |a: u8| if fold { a.eq_ignore_ascii_case(&c) } else { a == c };
    let (&first, rest) = pattern.split_first()?;
    match first {
        b'?' => Some(rest),
        b'\\' => rest.split_first().filter(|(b, _)| same(**b)).map(|(_, rest)| rest),
        b'[' => class(rest, c, fold).unwrap_or_else(|| same(b'[').then_some(rest)),
        literal => same(literal).then_some(rest),
    }
}

/// A bracket class: `None` without an end, otherwise the rest of the pattern if `c` is in the class.
fn class(pattern: &[u8], c: u8, fold: bool) -> Option<Option<&[u8]>> {
    let negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let mut rest = if negated { pattern.get(1..)? } else { pattern };
    let hit = |low: u8, high: u8| {
        let inside = |c: u8| (low..=high).contains(&c);
        inside(c) || (fold && (inside(c.to_ascii_lowercase()) || inside(c.to_ascii_uppercase())))
    };
    let (mut found, mut first) = (false, true);
    loop {
        let (&low, tail) = rest.split_first()?;
        if low == b']' && !first {
            return Some((found != negated).then_some(tail));
        }
        first = false;
        rest = tail;
        match tail {
            [b'-', high, after @ ..] if *high != b']' => {
                found |= hit(low, *high);
                rest = after;
            }
            _ => found |= hit(low, low),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("*.c", "a.c", true),
            ("*.c", "a.h", false),
            ("a*b*c", "aXbYbZc", true),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[ab", "[ab", true),
        ] {
            assert_eq!(glob(pattern.as_bytes(), name.as_bytes(), false), fits, "{pattern} {name}");
        }
        assert!(glob(b"READ*", b"readme", true));
        let hostile = "a".repeat(20_000);
        assert!(!glob(b"*a*a*a*a*a*a*a*a*b", hostile.as_bytes(), false));
    }
}
