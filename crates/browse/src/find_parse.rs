//! The expression of `find`, parsed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use clikit::verb::Failure;
use zpl::FileKind;

/// A number that `find` compares with: exactly, more than (`+`), less than (`-`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// `N`
    Is(u64),
    /// `+N`
    Above(u64),
    /// `-N`
    Below(u64),
}

impl Bound {
    /// Whether `n` satisfies it.
    pub fn admits(self, n: u64) -> bool {
        match self {
            Self::Is(m) => n == m,
            Self::Above(m) => n > m,
            Self::Below(m) => n < m,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(n) = text.strip_prefix('+') {
            return n.parse().ok().map(Self::Above);
        }
        match text.strip_prefix('-') {
            Some(n) => n.parse().ok().map(Self::Below),
            None => text.parse().ok().map(Self::Is),
        }
    }
}

/// One of a file's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Access.
    Access,
    /// Content.
    Modify,
    /// Attributes.
    Change,
}

/// How permission bits are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Perm {
    /// Exactly these.
    Exact(u32),
    /// All of these.
    All(u32),
    /// Any of these.
    Any(u32),
}

/// A test, an action, or a combination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Not(Box<Node>),
    True,
    False,
    Name(Vec<u8>, bool),
    Path(Vec<u8>, bool),
    LinkName(Vec<u8>),
    Type(Vec<FileKind>),
    /// Unit in bytes.
    Size(Bound, u64),
    Empty,
    Links(Bound),
    Inum(Bound),
    Uid(Bound),
    Gid(Bound),
    User(String),
    Group(String),
    Perm(Perm),
    /// Age in units of seconds.
    Age(Which, Bound, u64),
    NewerThan(Which, i64),
    Xattr,
    Prune,
    Print,
    Print0,
    Printf(Vec<u8>),
    Ls,
    Quit,
}

/// A whole expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    /// The tree.
    pub root: Node,
    /// Directories deeper than this are not entered.
    pub max_depth: usize,
    /// Files above this depth are not tested.
    pub min_depth: usize,
    /// The time from which ages are counted, seconds since 1970.
    pub now: i64,
}

struct Parser<'a> {
    words: std::iter::Peekable<std::slice::Iter<'a, OsString>>,
    max_depth: usize,
    min_depth: usize,
    acts: bool,
    nested: u32,
}

impl Expression {
    /// Parses the words after the starting points.
    pub fn parse(words: &[OsString]) -> Result<Self, Failure> {
        let words = words.iter().peekable();
        let mut parser = Parser { words, max_depth: usize::MAX, min_depth: 0, acts: false, nested: 0 };
        let root = match parser.words.peek() {
            None => Node::True,
            Some(_) => parser.or()?,
        };
        if let Some(word) = parser.words.next() {
            return Err(usage(format!("unexpected '{}'", word.to_string_lossy())));
        }
        let root = if parser.acts { root } else { Node::And(Box::new(root), Box::new(Node::Print)) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Ok(Self {
            root,
            max_depth: parser.max_depth,
            min_depth: parser.min_depth,
            now: i64::try_from(now).unwrap_or(i64::MAX),
        })
    }
}

fn usage(what: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("find: {what}"))
}

impl Parser<'_> {
    fn peek_is(&mut self, options: &[&str]) -> bool {
        self.words.peek().is_some_and(|w| options.iter().any(|o| w.as_bytes() == o.as_bytes()))
    }

    fn or(&mut self) -> Result<Node, Failure> {
        let mut left = self.and()?;
        while self.peek_is(&["-o", "-or"]) {
            self.words.next();
            left = Node::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Node, Failure> {
        let mut left = self.not()?;
        while self.words.peek().is_some() && !self.peek_is(&["-o", "-or", ")"]) {
            if self.peek_is(&["-a", "-and"]) {
                self.words.next();
            }
            left = Node::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Node, Failure> {
        let mut negated = false;
        while self.peek_is(&["!", "-not"]) {
            self.words.next();
            negated = !negated;
        }
        let node = if self.peek_is(&["("]) { self.group()? } else { self.primary()? };
        Ok(if negated { Node::Not(Box::new(node)) } else { node })
    }

    fn group(&mut self) -> Result<Node, Failure> {
        self.words.next();
        self.nested += 1;
        if self.nested > 100 {
            return Err(usage("parentheses nested too deeply"));
        }
        let node = self.or()?;
        self.nested -= 1;
        if !self.peek_is(&[")"]) {
            return Err(usage("missing ')'"));
        }
        self.words.next();
        Ok(node)
    }

    fn bytes(&mut self, of: &str) -> Result<Vec<u8>, Failure> {
        let word = self.words.next().ok_or_else(|| usage(format!("missing argument to '{of}'")))?;
        Ok(word.as_bytes().to_vec())
    }

    fn text(&mut self, of: &str) -> Result<String, Failure> {
        Ok(String::from_utf8_lossy(&self.bytes(of)?).into_owned())
    }

    fn bound(&mut self, of: &str) -> Result<Bound, Failure> {
        let text = self.text(of)?;
        Bound::parse(&text).ok_or_else(|| usage(format!("invalid argument '{text}' to '{of}'")))
    }

    fn depth(&mut self, of: &str) -> Result<usize, Failure> {
        let text = self.text(of)?;
        text.parse().map_err(|_| usage(format!("invalid argument '{text}' to '{of}'")))
    }

    fn action(&mut self, node: Node) -> Node {
        self.acts = true;
        node
    }

    fn primary(&mut self) -> Result<Node, Failure> {
        let word = self.words.next().ok_or_else(|| usage("an expression is missing"))?;
        let word = word.to_string_lossy().into_owned();
        let w = word.as_str();
        let age = |which, unit| (which, unit);
        Ok(match w {
            "-name" => Node::Name(self.bytes(w)?, false),
            "-iname" => Node::Name(self.bytes(w)?, true),
            "-path" | "-wholename" => Node::Path(self.bytes(w)?, false),
            "-ipath" | "-iwholename" => Node::Path(self.bytes(w)?, true),
            "-lname" => Node::LinkName(self.bytes(w)?),
            "-type" => types(&self.text(w)?)?,
            "-size" => size(&self.text(w)?)?,
            "-empty" => Node::Empty,
            "-links" => Node::Links(self.bound(w)?),
            "-inum" => Node::Inum(self.bound(w)?),
            "-uid" => Node::Uid(self.bound(w)?),
            "-gid" => Node::Gid(self.bound(w)?),
            "-user" => Node::User(self.text(w)?),
            "-group" => Node::Group(self.text(w)?),
            "-perm" => perm(&self.text(w)?)?,
            "-mtime" | "-atime" | "-ctime" | "-mmin" | "-amin" | "-cmin" => {
                let (which, unit) = match w {
                    "-atime" => age(Which::Access, 86_400),
                    "-amin" => age(Which::Access, 60),
                    "-ctime" => age(Which::Change, 86_400),
                    "-cmin" => age(Which::Change, 60),
                    "-mmin" => age(Which::Modify, 60),
                    _ => age(Which::Modify, 86_400),
                };
                Node::Age(which, self.bound(w)?, unit)
            }
            "-newermt" => Node::NewerThan(Which::Modify, moment(&self.text(w)?)?),
            "-newerct" => Node::NewerThan(Which::Change, moment(&self.text(w)?)?),
            "-newerat" => Node::NewerThan(Which::Access, moment(&self.text(w)?)?),
            "-xattr" => Node::Xattr,
            "-true" | "-xdev" | "-mount" | "-depth" | "-noleaf" => Node::True,
            "-false" => Node::False,
            "-prune" => Node::Prune,
            "-maxdepth" => {
                self.max_depth = self.depth(w)?;
                Node::True
            }
            "-mindepth" => {
                self.min_depth = self.depth(w)?;
                Node::True
            }
            "-print" => self.action(Node::Print),
            "-print0" => self.action(Node::Print0),
            "-ls" => self.action(Node::Ls),
            "-quit" => self.action(Node::Quit),
            "-printf" => {
                let format = self.bytes(w)?;
                self.action(Node::Printf(format))
            }
            other => return Err(usage(format!("unknown predicate '{other}'"))),
        })
    }
}

fn types(text: &str) -> Result<Node, Failure> {
    let kinds = [
        FileKind::Fifo,
        FileKind::CharDevice,
        FileKind::Directory,
        FileKind::BlockDevice,
        FileKind::Regular,
        FileKind::Symlink,
        FileKind::Socket,
    ];
    let one = |t: &str| kinds.into_iter().find(|k| t.chars().eq([k.letter()]));
    let list: Option<Vec<FileKind>> = text.split(',').map(one).collect();
    list.map(Node::Type).ok_or_else(|| usage(format!("unknown argument to -type: {text}")))
}

fn size(text: &str) -> Result<Node, Failure> {
    let bad = || usage(format!("invalid -size '{text}'"));
    let (number, unit) = match text.char_indices().last() {
        Some((at, c)) if c.is_ascii_alphabetic() => (text.get(..at).unwrap_or_default(), c),
        _ => (text, 'b'),
    };
    let unit = match unit {
        'b' => 512,
        'c' => 1,
        'w' => 2,
        'k' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        'T' => 1 << 40,
        _ => return Err(bad()),
    };
    Bound::parse(number).map(|b| Node::Size(b, unit)).ok_or_else(bad)
}

fn perm(text: &str) -> Result<Node, Failure> {
    let bad = || usage(format!("invalid mode '{text}': use octal digits"));
    let octal = |t: &str| u32::from_str_radix(t, 8).map_err(|_| bad());
    if let Some(rest) = text.strip_prefix('-') {
        return Ok(Node::Perm(Perm::All(octal(rest)?)));
    }
    match text.strip_prefix('/') {
        Some(rest) => Ok(Node::Perm(Perm::Any(octal(rest)?))),
        None => Ok(Node::Perm(Perm::Exact(octal(text)?))),
    }
}

/// `2026-11-20`, `2026-11-20 23:45`, `2026-11-20 23:45:10`, `@SECONDS`.
fn moment(text: &str) -> Result<i64, Failure> {
    let bad = || usage(format!("invalid time '{text}': use 2026-11-20, '2026-11-20 23:45' or @SECONDS"));
    if let Some(seconds) = text.strip_prefix('@') {
        return seconds.parse().map_err(|_| bad());
    }
    let civil = text.parse::<jiff::civil::DateTime>().or_else(|_| {
        let date = text.parse::<jiff::civil::Date>();
        date.map(|d| d.to_datetime(jiff::civil::Time::midnight()))
    });
    let zoned = civil.and_then(|c| c.to_zoned(jiff::tz::TimeZone::system())).map_err(|_| bad())?;
    Ok(zoned.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Expression, Failure> {
        Expression::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn precedence_and_implied_print() {
        let e = parse(&["-true", "-o", "!", "-false", "-empty"]).unwrap();
        let Node::And(left, right) = e.root else { panic!() };
        assert_eq!(*right, Node::Print);
        let not = Node::Not(Box::new(Node::False));
        let and = Node::And(Box::new(not), Box::new(Node::Empty));
        assert_eq!(*left, Node::Or(Box::new(Node::True), Box::new(and)));
    }

    #[test]
    fn actions_stand_for_themselves() {
        assert_eq!(parse(&["-print0"]).unwrap().root, Node::Print0);
        assert_eq!(parse(&["-maxdepth", "2"]).unwrap().max_depth, 2);
    }

    #[test]
    fn errors_are_usage_errors() {
        for words in [&["-nonsense"][..], &["-name"], &["(", "-true"], &["-size", "+x"], &["-type", "q"]] {
            assert!(matches!(parse(words), Err(Failure::Usage(_))), "{words:?}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size("+10k").unwrap(), Node::Size(Bound::Above(10), 1024));
        assert_eq!(size("3").unwrap(), Node::Size(Bound::Is(3), 512));
        assert_eq!(moment("@5").unwrap(), 5);
    }
}
