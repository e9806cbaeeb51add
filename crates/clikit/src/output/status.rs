//! The report of `zpool status`.
//!
//! ```text
//!   pool: tank
//!  state: ONLINE
//! status: …                      only if there is something to report, with the action
//! action: …
//!   scan: …
//! config:
//!
//!         NAME        STATE     READ WRITE CKSUM
//!         tank        ONLINE       0     0     0
//!           disk1     ONLINE       0     0     0
//!
//! errors: No known data errors
//! ```

use std::io::{self, Write};

use zcommon::units::nicenum;

/// Minimum width of names.
const NAME_WIDTH: usize = 10;

/// One vdev of the config.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusVdev {
    /// Its OpenZFS name: `mirror-0`, `/dev/sda`.
    pub name: String,
    /// `ONLINE`, `DEGRADED`, …, or for a spare `AVAIL` or `INUSE`.
    pub state: String,
    /// Read, write and checksum errors; a spare has none.
    pub errors: Option<[u64; 3]>,
    /// With a column for slow requests: their number, if known.
    pub slow: Option<Option<u64>>,
    /// With a column for the power of its slot: a word.
    pub power: Option<&'static str>,
    /// With a column for direct requests: the number with a wrong checksum.
    pub direct: Option<u64>,
    /// Text after the counts, with its two leading spaces.
    pub note: String,
    /// It is omitted, with its children; column widths still include it.
    pub is_hidden: bool,
    /// Its children.
    pub children: Vec<StatusVdev>,
}

/// Damaged data known to the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownErrors {
    /// Damaged blocks.
    pub count: u64,
    /// The affected files, if `-v` requests them.
    pub names: Option<Vec<String>>,
}

/// The report of `zpool status` on one pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusReport {
    /// The pool's name.
    pub pool: String,
    /// Its state.
    pub state: String,
    /// A description of the problem; further lines begin with a tab.
    pub status: Option<String>,
    /// The recommended action.
    pub action: Option<String>,
    /// The id of OpenZFS's page on the problem: `ZFS-8000-8A`.
    pub see: Option<String>,
    /// Whole lines on scrub and resilver, removal, checkpoint and expansion.
    pub activity: Vec<String>,
    /// The pool itself, its normal vdevs as children.
    pub root: StatusVdev,
    /// Vdevs of the classes `dedup`, `special` and `logs`.
    pub classes: Vec<(String, Vec<StatusVdev>)>,
    /// Cache devices.
    pub cache: Vec<StatusVdev>,
    /// Hot spares.
    pub spares: Vec<StatusVdev>,
    /// Damaged data.
    pub errors: Option<KnownErrors>,
    /// Further column headings.
    pub more_heads: String,
    /// Counts are exact (`-p`).
    pub literal: bool,
}

/// How the lines of vdevs are written.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// Width of the names.
    width: usize,
    /// Counts are exact.
    literal: bool,
}

impl Form {
    fn count(self, n: u64) -> String {
        if self.literal { n.to_string() } else { nicenum(n).to_string() }
    }
}

impl StatusReport {
    /// Prints the report.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "  pool: {}\n state: {}", self.pool, self.state)?;
        let labelled = [("status", &self.status), ("action", &self.action)];
        for (label, text) in labelled.iter().filter_map(|(l, t)| t.as_ref().map(|t| (l, t))) {
            writeln!(out, "{label}: {text}")?;
        }
        if let Some(id) = &self.see {
            writeln!(out, "   see: https://openzfs.github.io/openzfs-docs/msg/{id}")?;
        }
        self.activity.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        self.print_config(out)?;
        self.print_errors(out)
    }

    fn print_config(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.name_width();
        writeln!(out, "config:\n")?;
        write!(out, "\t{:width$}  {:8} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM")?;
        let slow = if self.root.slow.is_some() { "  SLOW" } else { "" };
        let power = if self.root.power.is_some() { " POWER" } else { "" };
        let direct = if self.root.direct.is_some() { "   DIO" } else { "" };
        writeln!(out, "{slow}{power}{direct}{}", self.more_heads)?;
        let form = Form { width, literal: self.literal };
        print_vdev(out, &self.root, 0, form)?;
        for (class, vdevs) in &self.classes {
            writeln!(out, "\t{class}\t")?;
            print_vdevs(out, vdevs, form)?;
        }
        for (class, vdevs) in [("cache", &self.cache), ("spares", &self.spares)] {
            if !vdevs.is_empty() {
                writeln!(out, "\t{class}")?;
                print_vdevs(out, vdevs, form)?;
            }
        }
        Ok(())
    }

    fn print_errors(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(errors) = &self.errors else { return Ok(()) };
        match &errors.names {
            _ if errors.count == 0 => writeln!(out, "\nerrors: No known data errors"),
            None => writeln!(out, "\nerrors: {} data errors, use '-v' for a list", errors.count),
            Some(names) => {
                writeln!(out, "\nerrors: Permanent errors have been detected in the following files:\n")?;
                names.iter().try_for_each(|name| writeln!(out, "{:7} {name}", ""))
            }
        }
    }

    fn name_width(&self) -> usize {
        let classes = self.classes.iter().flat_map(|(_, vdevs)| vdevs);
        let below = classes.chain(&self.cache).chain(&self.spares).map(|v| widest(v, 2));
        below.fold(widest(&self.root, 0), usize::max).max(NAME_WIDTH)
    }
}

fn widest(vdev: &StatusVdev, depth: usize) -> usize {
    vdev.children.iter().map(|c| widest(c, depth + 2)).fold(vdev.name.len() + depth, usize::max)
}

fn print_vdevs(out: &mut dyn Write, vdevs: &[StatusVdev], form: Form) -> io::Result<()> {
    vdevs.iter().try_for_each(|v| print_vdev(out, v, 2, form))
}

fn print_vdev(out: &mut dyn Write, vdev: &StatusVdev, depth: usize, form: Form) -> io::Result<()> {
    if vdev.is_hidden {
        return Ok(());
    }
    let name_width = form.width.saturating_sub(depth);
    write!(out, "\t{:depth$}{:name_width$}  {:8}", "", vdev.name, vdev.state)?;
    if let Some(counts) = vdev.errors {
        counts.iter().try_for_each(|n| write!(out, " {:>5}", form.count(*n)))?;
    }
    if let Some(slow) = vdev.slow {
        let none = || if form.literal { "0" } else { "-" }.to_owned();
        write!(out, " {:>5}", slow.map_or_else(none, |n| form.count(n)))?;
    }
    if let Some(power) = vdev.power {
        write!(out, " {power:>5}")?;
    }
    if let Some(direct) = vdev.direct {
        write!(out, " {:>5}", form.count(direct))?;
    }
    writeln!(out, "{}", vdev.note)?;
    vdev.children.iter().try_for_each(|c| print_vdev(out, c, depth + 2, form))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str) -> StatusVdev {
        StatusVdev { name: name.into(), state: "ONLINE".into(), errors: Some([0; 3]), ..Default::default() }
    }

    fn print(report: &StatusReport) -> String {
        let mut out = Vec::new();
        report.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_class_has_its_heading() {
        let mirror = StatusVdev { children: vec![disk("d2"), disk("d3")], ..disk("mirror-1") };
        let spare = StatusVdev { state: "AVAIL".into(), errors: None, ..disk("d8") };
        let report = StatusReport {
            pool: "tank".into(),
            state: "ONLINE".into(),
            activity: vec!["checkpoint: created today, consumes 180K".into()],
            root: StatusVdev { children: vec![disk("a-rather-long-name")], ..disk("tank") },
            classes: vec![("special".into(), vec![mirror])],
            cache: vec![disk("d7")],
            spares: vec![spare],
            errors: Some(KnownErrors::default()),
            ..Default::default()
        };
        let want = "  pool: tank\n state: ONLINE\ncheckpoint: created today, consumes 180K\nconfig:\n\n\
            \tNAME                  STATE     READ WRITE CKSUM\n\
            \ttank                  ONLINE       0     0     0\n\
            \t  a-rather-long-name  ONLINE       0     0     0\n\
            \tspecial\t\n\
            \t  mirror-1            ONLINE       0     0     0\n\
            \t    d2                ONLINE       0     0     0\n\
            \t    d3                ONLINE       0     0     0\n\
            \tcache\n\
            \t  d7                  ONLINE       0     0     0\n\
            \tspares\n\
            \t  d8                  AVAIL   \n\
            \nerrors: No known data errors\n";
        assert_eq!(print(&report), want);
    }

    #[test]
    fn hidden_columns_leave_their_heading_and_the_width() {
        let hidden = StatusVdev { is_hidden: true, ..disk("a-rather-long-name") };
        let report = StatusReport {
            pool: "tank".into(),
            state: "ONLINE".into(),
            root: disk("tank"),
            classes: vec![("logs".into(), vec![hidden.clone()])],
            spares: vec![hidden],
            ..Default::default()
        };
        let want = "  pool: tank\n state: ONLINE\nconfig:\n\n\
            \tNAME                  STATE     READ WRITE CKSUM\n\
            \ttank                  ONLINE       0     0     0\n\
            \tlogs\t\n\tspares\n";
        assert_eq!(print(&report), want);
    }

    #[test]
    fn exact_counts_are_numbers() {
        let mirror = StatusVdev { slow: Some(None), errors: Some([0, 0, 41_260]), ..disk("mirror-0") };
        let report = StatusReport { root: mirror, literal: true, ..Default::default() };
        assert!(
            print(&report).contains("\tmirror-0    ONLINE       0     0 41260     0\n"),
            "{}",
            print(&report)
        );
        let text = print(&StatusReport { literal: false, ..report });
        assert!(text.contains("\tmirror-0    ONLINE       0     0 40.3K     -\n"), "{text}");
    }

    #[test]
    fn trouble_is_explained() {
        let gone = StatusVdev { state: "UNAVAIL".into(), note: "  was /dev/sdb".into(), ..disk("1234") };
        let report = StatusReport {
            pool: "t".into(),
            state: "DEGRADED".into(),
            status: Some("one\n\ttwo.".into()),
            action: Some("do it.".into()),
            see: Some("ZFS-8000-2Q".into()),
            root: StatusVdev { children: vec![gone], ..disk("t") },
            errors: Some(KnownErrors { count: 2, names: Some(vec!["t/a:/f".into()]) }),
            ..Default::default()
        };
        let text = print(&report);
        assert!(
            text.starts_with(
                "  pool: t\n state: DEGRADED\nstatus: one\n\ttwo.\naction: do it.\n   see: https"
            )
        );
        assert!(text.contains("\t  1234      UNAVAIL      0     0     0  was /dev/sdb\n"), "{text}");
        assert!(text.ends_with("following files:\n\n        t/a:/f\n"));
    }
}
