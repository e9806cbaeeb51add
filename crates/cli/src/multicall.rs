//! One binary, many names: acts as `zpool`, `zfs`, `zdb`, `zinject`, `zstream`, `zed`, `mount.zfs`, `arcstat`, `arc_summary` or
//! `zilstat` if called by that name, otherwise as `aquifer COMMAND …`.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::BorrowedFd;

use clap::FromArgMatches;
use clikit::clean::cleaned;
use clikit::ctx::Ctx;
use clikit::names::{NAMES, called_as, is_ours};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use monitor::arc_summary::ArcSummary;
use monitor::arcstat::Arcstat;
use monitor::zilstat::Zilstat;
use zdb::Zdb;
use zed::Zed;
use zfs::by_path::with_mount_points;
use zfs::mount_helper::MountHelper;
use zfs::{Zfs, ZfsVerb};
use zpool::Zpool;
use zstream::Zstream;

use crate::admit::admit;
use crate::asked::Asked;
use crate::command::{Aquifer, Command, command};
use crate::posix;
use crate::route::{forward, forward_to};
use crate::usage;
use crate::zinject::Zinject;

impl Command {
    fn run_at_home(mut self, argv: &[OsString], ctx: &mut Ctx) -> Outcome {
        ctx.home = self.home();
        if let Some(delegated) = ctx.session.as_ref().and_then(|session| session.delegated.clone()) {
            admit(&mut self, &delegated, ctx)?;
            return self.run(ctx);
        }
        if let Command::Zfs(Zfs { verb: ZfsVerb::Send(send) }) = &self
            && ctx.session.is_none()
        {
            send.check_output()?;
        }
        let scripts = self.scripts().filter(|_| ctx.session.is_none());
        if let Some(scripts) = scripts {
            let (asked, home) = (Asked::by(&self), ctx.home);
            let there = |out: BorrowedFd<'_>| forward_to(home, &asked, argv, out);
            return scripts.report(ctx, there, |ctx| self.run(ctx));
        }
        if ctx.out_is_terminal && matches!(self, Command::Zpool(_) | Command::Zfs(_) | Command::Zdb(_)) {
            let out = std::mem::replace(&mut ctx.out, Box::new(std::io::sink()));
            ctx.out = cleaned(out, true);
        }
        let by_path = match &self {
            Command::Zinject(v) if ctx.may_forward => v.located(argv),
            _ => with_mount_points(argv, self.names_or_paths(), self.names_or_places()),
        };
        let forwarded = if ctx.may_forward { forward(ctx.home, &Asked::by(&self), &by_path) } else { None };
        forwarded.unwrap_or_else(|| self.run(ctx))
    }
}

/// Runs a whole command line, beginning with the program's name, and returns the exit code.
pub fn run(argv: Vec<OsString>, ctx: &mut Ctx) -> Exit {
    let argv = usage::in_own_name(argv);
    let name = argv.first().map(|a| called_as(a)).unwrap_or_default();
    ctx.command = describe(&name, &argv);
    let exit = usage::help(&name, &argv, ctx).unwrap_or_else(|| run_as(&name, argv, ctx));
    ctx.release();
    let exit = match ctx.out.flush() {
        Ok(()) => exit,
        Err(e) => finish(Err(e.into()), ctx),
    };
    // A closed standard error is ignored.
    let _ = ctx.err.flush();
    exit
}

fn run_as(name: &str, argv: Vec<OsString>, ctx: &mut Ctx) -> Exit {
    // The daemon receives words that are already reordered; its own environment is not the user's.
    let in_order = ctx.session.is_none() && std::env::var_os(posix::WORD).is_some();
    let argv = if in_order { posix::end_options(argv, &command(name)) } else { argv };
    let argv = without_help_of_help(with_version_as_verb(name, with_question_mark_as_help(argv)));
    let words = argv.clone();
    let parsed = match name {
        "zpool" => parse::<Zpool>(name, argv).map(Command::Zpool),
        "zfs" => parse::<Zfs>(name, argv).map(Command::Zfs),
        "zdb" => parse::<Zdb>(name, argv).map(Command::Zdb),
        "zinject" => parse::<Zinject>(name, argv).map(Command::Zinject),
        "zstream" => parse::<Zstream>(name, argv).map(Command::Zstream),
        "arcstat" | "zarcstat" => parse::<Arcstat>(name, argv).map(Command::Arcstat),
        "arc_summary" | "zarcsummary" => parse::<ArcSummary>(name, argv).map(Command::ArcSummary),
        "zilstat" => parse::<Zilstat>(name, argv).map(Command::Zilstat),
        "zed" => parse::<Zed>(name, argv).map(Command::Zed),
        "mount.zfs" | "mount.fuse.zfs" => parse::<MountHelper>(name, argv).map(Command::MountHelper),
        _ => parse::<Aquifer>(name, argv).map(|a| a.command),
    };
    match parsed {
        Ok(verb) => finish(verb.run_at_home(&words, ctx), ctx),
        Err(e) => clap_exit(&e, ctx),
    }
}

fn parse<A: FromArgMatches>(name: &str, argv: Vec<OsString>) -> Result<A, clap::Error> {
    let matches = command(name).try_get_matches_from(argv)?;
    A::from_arg_matches(&matches)
}

fn finish(outcome: Outcome, ctx: &mut Ctx) -> Exit {
    match outcome {
        Ok(exit) => exit,
        Err(failure) => {
            match (&failure, failure.message()) {
                (Failure::Usage(_), Some(message)) => usage::refuse(&message, ctx),
                // The failure is a consequence of the stop.
                _ if ctx.interrupt.is_set() && ctx.is_openzfs() => {}
                (_, Some(message)) => ctx.warn(message),
                (_, None) => {}
            }
            failure.exit()
        }
    }
}

/// Help and version are regular output; everything else is a usage error.
fn clap_exit(e: &clap::Error, ctx: &mut Ctx) -> Exit {
    let to_err = e.use_stderr();
    let why = if to_err { usage::why(e, &ctx.command) } else { None };
    if let Some(why) = why {
        usage::refuse(&why, ctx);
        return Exit::USAGE;
    }
    let styled = e.render();
    let terminal = if to_err { ctx.err_is_terminal } else { ctx.out_is_terminal };
    let text = if terminal { styled.ansi().to_string() } else { styled.to_string() };
    let stream = if to_err { &mut ctx.err } else { &mut ctx.out };
    let _ = stream.write_all(text.as_bytes());
    if to_err { Exit::USAGE } else { Exit::OK }
}

/// `zpool list` for both `zpool list -v` and `aquifer zpool list -v`.
fn describe(name: &str, argv: &[OsString]) -> String {
    let words = argv.iter().skip(1).map(|a| a.to_string_lossy().into_owned());
    let own = NAMES.contains(&name);
    let lead = own.then(|| name.to_owned());
    let verb = lead.into_iter().chain(words).take(2).take_while(|word| !word.starts_with('-'));
    verb.collect::<Vec<_>>().join(" ")
}

/// `zpool -?` means help; after a verb it is an unknown option.
fn with_question_mark_as_help(argv: Vec<OsString>) -> Vec<OsString> {
    let before_verb = |word: &OsString| word.to_str().is_some_and(|word| NAMES.contains(&word));
    let first = 1 + usize::from(argv.get(1).is_some_and(before_verb));
    let help =
        |(at, word): (usize, OsString)| if at == first && word == "-?" { "--help".into() } else { word };
    argv.into_iter().enumerate().map(help).collect()
}

/// `aquifer help --help` is `aquifer help`.
fn without_help_of_help(mut argv: Vec<OsString>) -> Vec<OsString> {
    if argv.get(1).is_some_and(|word| word == "help") {
        argv.retain(|word| word != "--help" && word != "-h");
    }
    argv
}

/// `zpool -V` and `zpool --version` are `zpool version`.
fn with_version_as_verb(name: &str, mut argv: Vec<OsString>) -> Vec<OsString> {
    if let Some(word) =
        argv.get_mut(1).filter(|word| is_ours(name) && (*word == "-V" || *word == "--version"))
    {
        *word = "version".into();
    }
    argv
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::captured;
    use clikit::version::level;

    #[test]
    fn every_command_tree_is_sound() {
        for name in NAMES.iter().chain(&["aquifer"]) {
            command(name).debug_assert();
        }
    }

    #[test]
    fn unknown_words_are_usage_errors() {
        assert_eq!(captured(&["aquifer", "nonsense"]).exit, Exit::USAGE);
        assert_eq!(captured(&["zpool"]).exit, Exit::USAGE);
        assert_eq!(captured(&["zpool", "nonsense"]).exit, Exit::USAGE);
        assert_eq!(captured(&["/usr/sbin/zfs", "nonsense"]).exit, Exit::USAGE);
    }

    #[test]
    fn verbs_of_openzfs_that_are_missing_say_so() {
        let run = captured(&["zfs", "jail", "tank@x"]);
        assert_eq!(run.exit, Exit::FAILED);
        assert!(run.err.contains("not supported yet"), "{}", run.err);
        let run = captured(&["aquifer", "zpool", "attach", "-f", "tank", "/dev/x"]);
        assert_eq!(run.exit, Exit::USAGE);
    }

    #[test]
    fn versions_have_openzfs_form() {
        let [zfs, kmod] = ["zfs", "zfs-kmod"].map(|lead| format!("{lead}-{}", level()));
        for line in [["zfs", "version"], ["zpool", "version"], ["zfs", "-V"], ["zpool", "--version"]] {
            assert_eq!(captured(&line).out, format!("{zfs}\n{kmod}\n"), "{line:?}");
        }
        // Scripts split the version like this.
        assert_eq!(zfs.split('-').nth(1), Some("2.4.4"));
        let json: serde_json::Value = serde_json::from_str(&captured(&["zfs", "version", "-j"]).out).unwrap();
        assert_eq!(json["output_version"]["command"], "zfs version");
        assert_eq!([&json["zfs_version"]["userland"], &json["zfs_version"]["kernel"]], [&zfs, &kmod]);
        assert!(captured(&["aquifer", "version"]).out.starts_with("aquifer-"));
    }

    #[test]
    fn help_and_version_are_answers() {
        for line in [["zpool", "-?"], ["zfs", "--help"], ["aquifer", "--version"], ["zpool", "version"]] {
            let run = captured(&line);
            assert_eq!((run.exit, run.err.as_str()), (Exit::OK, ""), "{line:?}");
            assert!(!run.out.is_empty());
        }
    }

    #[test]
    fn each_program_and_verb_answers_a_request_for_help() {
        let verbs = |name| command(name).get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        let mut lines: Vec<Vec<String>> = vec![vec!["aquifer".into(), "help".into(), "--help".into()]];
        for name in NAMES.iter().chain(&["aquifer"]) {
            lines.push(vec![(*name).to_owned(), "--help".into()]);
            let all: Vec<String> = verbs(name);
            lines.extend(all.into_iter().map(|verb| vec![(*name).to_owned(), verb, "--help".into()]));
        }
        for line in lines {
            let words: Vec<&str> = line.iter().map(String::as_str).collect();
            let run = captured(&words);
            assert_eq!((run.exit, run.err.as_str()), (Exit::OK, ""), "{line:?}");
            assert!(run.out.to_lowercase().contains("usage"), "{line:?}: {}", run.out);
        }
    }

    #[test]
    fn scripts_are_asked_for_once() {
        for verb in ["status", "iostat"] {
            let run = captured(&["zpool", verb, "-c", "size", "-c", "vendor"]);
            assert_eq!((run.exit, run.err.as_str()), (Exit::FAILED, "Can't set -c flag twice\n"));
        }
    }
}
