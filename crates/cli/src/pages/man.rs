//! Man pages: generated from the commands' definitions, with sections of our own.

use std::io;

use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use clikit::names::NAMES;
use clikit::unsupported;
use clikit::unsupported_usage::{self, Form};
use engine::memory::limits::LIMITS;

use super::topics;
use crate::command::command;

/// A page.
pub(super) struct Page {
    pub name: String,
    pub section: &'static str,
    pub text: Vec<u8>,
}

pub(super) const MANUAL: &str = "Aquifer Manual";
pub(super) const SOURCE: &str = concat!("Aquifer ", env!("CARGO_PKG_VERSION"));

/// All pages.
pub(super) fn pages() -> io::Result<Vec<Page>> {
    let mut pages = vec![settings()?];
    for topic in topics::topics() {
        pages.push(topic.page()?);
    }
    for name in NAMES.iter().chain(&["aquifer"]) {
        let tree = command(name).display_name(*name).bin_name(*name);
        pages.push(page(tree.clone(), name)?);
        for sub in tree.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            // `aquifer zpool` already has a page: that of `zpool`.
            if sub.get_name() != "help" && !NAMES.contains(&sub.get_name()) {
                pages.push(of_verb(name, sub)?);
            }
        }
    }
    for form in unsupported_usage::all() {
        pages.push(of_form(&form)?);
    }
    Ok(pages)
}

/// The page of a verb.
pub(super) fn of_verb(name: &str, verb: &clap::Command) -> io::Result<Page> {
    let full = format!("{name}-{}", verb.get_name());
    let verb = verb.clone().display_name(full.clone()).bin_name(format!("{name} {}", verb.get_name()));
    page(verb.disable_version_flag(true), &full)
}

/// The page of an unimplemented verb: its synopsis, and that it is unsupported.
pub(super) fn of_form(form: &Form) -> io::Result<Page> {
    let name = format!("{}-{}", form.command, form.verb);
    let what = unsupported::what(form.command, form.verb).unwrap_or_default();
    let what = what.split(';').next().unwrap_or_default();
    let mut roff = Roff::new();
    roff.control("TH", [name.to_uppercase().as_str(), "8", "", SOURCE, MANUAL]);
    section(&mut roff, "NAME", &[("", &format!("{name} - {what}"))]);
    let usage: String = form.usage.split_whitespace().collect::<Vec<_>>().join(" ");
    section(&mut roff, "SYNOPSIS", &[("", &format!("{} {} {usage}", form.command, form.verb))]);
    section(&mut roff, "DESCRIPTION", &[("", NOT_YET)]);
    section(&mut roff, "EXIT STATUS", EXIT);
    section(&mut roff, "SEE ALSO", &[("", &format!("{}(8), aquifer(8)", form.command))]);
    let mut text = Vec::new();
    roff.to_writer(&mut text)?;
    Ok(Page { name, section: "8", text })
}

/// The description of an unimplemented verb.
pub(super) const NOT_YET: &str = "This build does not support this verb yet: it checks the command line and its names, says so, and fails.";

fn page(tree: clap::Command, name: &str) -> io::Result<Page> {
    let has_verbs = tree.has_subcommands();
    let man = Man::new(tree).title(name.to_uppercase()).section("8").source(SOURCE).manual(MANUAL);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_verbs {
        man.render_subcommands_section(&mut text)?;
    }
    own_sections(name).to_writer(&mut text)?;
    Ok(Page { name: name.to_owned(), section: "8", text })
}

/// A heading, and paragraphs of a term and its description; an empty term begins a plain paragraph.
fn section(roff: &mut Roff, heading: &str, paragraphs: &[(&str, &str)]) {
    roff.control("SH", [heading]);
    for (term, text) in paragraphs {
        if term.is_empty() {
            roff.control("PP", []);
        } else {
            roff.control("TP", []);
            roff.text([bold(*term)]);
        }
        roff.text([roman(*text)]);
    }
}

/// Verbatim lines.
fn example(roff: &mut Roff, lines: &[&str]) {
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in lines {
        roff.text([Inline::Roman((*line).to_owned())]);
    }
    roff.control("fi", []);
}

const EXIT: &[(&str, &str)] = &[
    ("0", "Success."),
    ("1", "Failure; a message on standard error gives the reason."),
    ("2", "Invalid command line."),
];

/// Sections that the commands' definitions do not contain.
fn own_sections(name: &str) -> Roff {
    let mut roff = Roff::new();
    let verb_of = name.split('-').next().unwrap_or(name);
    match name {
        "aquifer" => {
            section(&mut roff, "FILES", FILES);
            section(&mut roff, "ENVIRONMENT", ENVIRONMENT);
            section(&mut roff, "SIGNALS", SIGNALS);
        }
        "zpool" => example(
            &mut roff,
            &[
                "zpool create tank raidz2 disk1 disk2 disk3 disk4",
                "zpool status -x",
                "zpool export tank && zpool import -d /dev tank",
            ],
        ),
        "zfs" => example(
            &mut roff,
            &[
                "zfs create -o compression=zstd tank/home",
                "zfs snapshot tank/home@monday",
                "zfs rollback tank/home@monday",
            ],
        ),
        "zdb" => example(&mut roff, &["zdb -e -p /images -bcc tank", "zdb -l /dev/sdb1"]),
        "zstream" => {
            example(&mut roff, &["zstream dump -v backup.zfs", "ssh host zfs send tank@a | zstream dump"])
        }
        "arcstat" | "zarcstat" => {
            example(&mut roff, &["arcstat 5", "arcstat -f time,hit%,dh%,ph%,mh%,size,c 1 60", "arcstat -v"]);
        }
        "zilstat" => {
            example(&mut roff, &["zilstat", "zilstat -a -i 5", "zilstat -p tank -f time,ds,cc,ic,ima"])
        }
        "zed" => {
            section(&mut roff, "FILES", ZED_FILES);
            example(&mut roff, &["zed -F -v", "zed -d /root/zedlets -j 4", "kill -HUP $(cat /run/zed.pid)"]);
        }
        "arc_summary" | "zarcsummary" => example(&mut roff, &["arc_summary -s archits", "arc_summary -g"]),
        "zfs-project" => example(
            &mut roff,
            &[
                "zfs project -p 42 -rs /tank/build",
                "zfs set projectquota@42=10G tank",
                "zfs projectspace tank",
                "zfs project -c -r /tank/build",
            ],
        ),
        _ => {}
    }
    section(&mut roff, "EXIT STATUS", EXIT);
    let see = match verb_of {
        _ if name == "aquifer" => "zpool(8), zfs(8), zdb(8), arcstat(8), arc_summary(8), aquifer-settings(5)",
        "arcstat" | "zarcstat" | "arc_summary" | "zarcsummary" | "zilstat" => {
            "aquifer-kstat(8), aquifer-settings(5)"
        }
        "zed" => "zpool-events(8), zpool(8), aquifer(8), aquifer-settings(5)",
        _ if name != verb_of && verb_of == "zpool" => "zpool(8), zpoolprops(7), zpoolconcepts(7), aquifer(8)",
        _ if name != verb_of && verb_of == "zfs" => "zfs(8), zfsprops(7), zfsconcepts(7), aquifer(8)",
        "zpool" => "zpoolprops(7), vdevprops(7), zpool-features(7), zpoolconcepts(7), zfs(8), aquifer(8)",
        "zfs" => "zfsprops(7), zfsconcepts(7), zpool(8), aquifer(8)",
        _ => "aquifer(8), aquifer-settings(5)",
    };
    section(&mut roff, "SEE ALSO", &[("", see)]);
    roff
}

const FILES: &[(&str, &str)] = &[
    ("/run/aquifer/socket", "Root's daemon listens here; only its owner can enter the directory."),
    ("/var/lib/aquifer/zpool.cache", "The pools that the next daemon imports."),
    ("/etc/aquifer/aquifer.conf", "Settings of root's daemon: see aquifer-settings(5)."),
    ("$XDG_RUNTIME_DIR/aquifer, ~/.local/state/aquifer, ~/.config/aquifer", "The same for other users."),
];

const ZED_FILES: &[(&str, &str)] = &[
    ("/etc/zfs/zed.d", "The zedlets that are run; dotfiles are not."),
    ("/etc/zfs/zed.d/zed.rc", "Settings that zedlets read: addresses for mail, a command for reports."),
    ("/run/zed.pid", "The process id; locked, so that there is one event daemon."),
    ("/run/zed.state", "The last event that was processed."),
];

const ENVIRONMENT: &[(&str, &str)] = &[
    ("AQUIFER_RUN", "The directory of all files of a daemon; each directory has a daemon of its own."),
    ("AQUIFER_CONF", "The settings file."),
    (
        "AQUIFER_IO_URING",
        "0: the daemon's mounts use /dev/fuse, not FUSE over io_uring. 1: root's daemon enables io_uring in kernels older than Linux 6.18, too.",
    ),
    ("ZPOOL_IMPORT_PATH", "Directories that zpool import searches, separated by colons."),
];

const SIGNALS: &[(&str, &str)] = &[
    ("SIGTERM, SIGINT", "The daemon exports all pools and exits; the next one imports them again."),
    (
        "SIGKILL",
        "No synced data is lost: the next command imports the pools, replays their logs and mounts them again.",
    ),
];

/// aquifer-settings(5).
fn settings() -> io::Result<Page> {
    let mut roff = Roff::new();
    roff.control("TH", ["AQUIFER-SETTINGS", "5", "", SOURCE, MANUAL]);
    section(&mut roff, "NAME", &[("", "aquifer-settings - memory limits of the Aquifer daemon")]);
    roff.control("SH", ["DESCRIPTION"]);
    let paragraphs = [
        "The daemon reads its settings when it starts, from /etc/aquifer/aquifer.conf (root), \
         ~/.config/aquifer/aquifer.conf (other users), the file aquifer.conf in the directory that AQUIFER_RUN names, or the \
         file that AQUIFER_CONF names.",
        "A line is NAME = VALUE, or in modprobe's format options zfs NAME=VALUE \\&...; # begins a comment. Names are those \
         of OpenZFS's module parameters. Sizes may have letters (4G). A value of 0 means the default where the default \
         depends on the machine. Invalid lines are reported in the log and ignored.",
        "aquifer get shows the values in effect; aquifer set NAME=VALUE changes it at once, and with --save in the file, too.",
        "The guarantee: the daemon's own memory stays below the sum of zfs_arc_max, zfs_dirty_data_max for each pool that is \
         being written, and 128 MiB for everything else.",
    ];
    for text in paragraphs {
        roff.control("PP", []);
        roff.text([roman(text.replace("\\&", ""))]);
    }
    roff.control("SH", ["SETTINGS"]);
    for info in LIMITS {
        roff.control("TP", []);
        roff.text([bold(info.name), roman(" = "), italic(if info.bytes { "bytes" } else { "number" })]);
        roff.text([roman(info.about)]);
    }
    section(&mut roff, "SEE ALSO", &[("", "aquifer(8), aquifer-get(8), aquifer-set(8)")]);
    let mut text = Vec::new();
    roff.to_writer(&mut text)?;
    Ok(Page { name: "aquifer-settings".to_owned(), section: "5", text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_every_setting_has_its_page() {
        let pages = pages().unwrap();
        let text = |name: &str| {
            let page = pages.iter().find(|page| page.name == name);
            String::from_utf8(page.unwrap_or_else(|| panic!("no page {name}")).text.clone()).unwrap()
        };
        for name in
            ["aquifer", "zpool", "zfs", "zdb", "arcstat", "arc_summary", "zpool-create", "zfs-project"]
        {
            let text = text(name);
            for heading in [".SH NAME", ".SH SYNOPSIS", ".SH \"EXIT STATUS\"", ".SH \"SEE ALSO\""] {
                assert!(text.contains(heading), "{name} lacks {heading}:\n{text}");
            }
        }
        for name in ["zfsprops", "zpoolprops", "vdevprops", "zpool-features", "zpoolconcepts", "zfsconcepts"]
        {
            assert!(text(name).contains(".SH NAME"), "{name}");
        }
        assert!(text("zfs-program").contains("does not support this verb yet"));
        for (name, table) in [("zpool", unsupported::ZPOOL_VERBS), ("zfs", unsupported::ZFS_VERBS)] {
            let tree = command(name);
            for (verb, _) in table.iter().filter(|(verb, _)| *verb != "recv") {
                let verb = tree.find_subcommand(verb).map_or(*verb, clap::Command::get_name);
                assert!(text(&format!("{name}-{verb}")).contains(".SH SYNOPSIS"), "{name} {verb}");
            }
        }
        let mut names: Vec<&str> = pages.iter().map(|page| page.name.as_str()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        let settings = text("aquifer-settings");
        assert!(LIMITS.iter().all(|info| settings.contains(info.name)));
        assert!(text("zfs-project").contains("\\fBzfs project\\fR"));
        assert!(!pages.iter().any(|page| page.name == "aquifer-zpool"));
    }
}
