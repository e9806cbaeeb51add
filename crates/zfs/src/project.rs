//! `zfs project`: which project files belong to, and whether directories hand theirs on.
//!
//! Works on files of a mount, as the user who calls it may: it asks no daemon. Entries of a directory are taken in the
//! order of their names.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};
use clikit::ctx::Ctx;
use clikit::verb::{Failure, Outcome, Verb, each, strerror};
use stdx::os::{FileAttributes, PROJECT_INHERIT};

/// List, check and set projects of files.
#[derive(Debug, Args)]
pub struct Project {
    /// Check: list files with another project, and directories that do not pass their project on.
    #[arg(short = 'c')]
    pub check: bool,
    /// Clear: reset the project to 0, and do not pass it on.
    #[arg(short = 'C')]
    pub clear: bool,
    /// With -C: keep the project.
    #[arg(short = 'k')]
    pub keep: bool,
    /// With -c: print only names, each followed by a NUL.
    #[arg(short = '0')]
    pub nul: bool,
    /// Change directories themselves, not their contents.
    #[arg(short = 'd', overrides_with = "recurse")]
    pub directory: bool,
    /// Include everything below directories.
    #[arg(short = 'r', overrides_with = "directory", action = ArgAction::SetTrue)]
    pub recurse: bool,
    /// The project to set, or to compare with.
    #[arg(short = 'p', value_name = "ID")]
    pub project: Option<String>,
    /// Let directories pass their project on to new files.
    #[arg(short = 's')]
    pub inherit: bool,
    /// Files and directories.
    #[arg(value_name = "FILE|DIRECTORY", required = true)]
    pub paths: Vec<PathBuf>,
}

/// The operation on each file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    List,
    Check { project: Option<u32>, nul: bool },
    Clear { keep: bool },
    Set { project: Option<u32>, inherit: bool },
}

impl Project {
    fn work(&self) -> Result<Work, Failure> {
        let usage = |what: &str| Err(Failure::usage(what));
        if usize::from(self.check) + usize::from(self.clear) + usize::from(self.inherit) > 1 {
            return usage("cannot specify '-C' '-c' '-s' together");
        }
        if self.keep && !self.clear {
            return usage("'-k' is only valid together with '-C'");
        }
        if self.nul && !self.check {
            return usage("'-0' is only valid together with '-c'");
        }
        let project = self.project.as_deref().map(|text| match text.parse::<u32>() {
            // The largest number means: none.
            Ok(id) if id != u32::MAX => Ok(id),
            _ => Err(Failure::usage(format!("invalid project ID '{text}'"))),
        });
        let project = project.transpose()?;
        if self.clear {
            return match (self.directory, project) {
                (true, _) => usage("'-d' is not valid together with '-C'"),
                (_, Some(_)) => usage("'-p' is not valid together with '-C'"),
                _ => Ok(Work::Clear { keep: self.keep }),
            };
        }
        if self.check {
            return Ok(Work::Check { project, nul: self.nul });
        }
        if self.inherit || project.is_some() {
            return match self.directory {
                true => usage("'-d' is not valid when a project is set"),
                false => Ok(Work::Set { project, inherit: self.inherit }),
            };
        }
        Ok(Work::List)
    }
}

impl Verb for Project {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let work = self.work()?;
        each(&self.paths, ctx, |path, ctx| self.target(path, work, ctx))
    }
}

fn cannot(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let text = format!("failed to {what} {}", path.display());
    move |e| Failure::failed(format!("{text}: {}", strerror(&e)))
}

impl Project {
    /// Works on one of the given names, and on its content.
    fn target(&self, path: &Path, work: Work, ctx: &mut Ctx) -> Result<(), Failure> {
        let data = fs::metadata(path).map_err(|e| cannot("stat", path)(e).as_minus_one())?;
        let kind = data.file_type();
        if !kind.is_file() && !kind.is_dir() {
            return Err(Failure::failed("only support project quota on regular file or directory"));
        }
        for (given, letter) in [(self.directory, 'd'), (self.recurse, 'r')] {
            if given && !kind.is_dir() {
                return Err(Failure::failed(format!(
                    "'-{letter}' option on non-dir target {}",
                    path.display()
                )));
            }
        }
        let (file, attributes) = look(path)?;
        // Without a number the target's own project is meant.
        let own = attributes.project;
        let work = match work {
            Work::Check { project, nul } => Work::Check { project: project.or(Some(own)), nul },
            Work::Set { project, inherit } => Work::Set { project: project.or(Some(own)), inherit },
            other => other,
        };
        work.on(path, &file, attributes, ctx)?;
        let looks_in = self.recurse || matches!(work, Work::List | Work::Check { .. });
        if !kind.is_dir() || self.directory || !looks_in {
            return Ok(());
        }
        let mut dirs = std::collections::VecDeque::from([path.to_owned()]);
        while let Some(dir) = dirs.pop_front() {
            self.entries(&dir, work, &mut dirs, ctx)?;
        }
        Ok(())
    }

    fn entries(
        &self,
        dir: &Path,
        work: Work,
        dirs: &mut std::collections::VecDeque<PathBuf>,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        let listed = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut listed = listed.map_err(cannot("opendir", dir))?;
        listed.sort_by_key(fs::DirEntry::file_name);
        for entry in listed {
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            let path = entry.path();
            // Entries removed meanwhile are ignored; only files and directories have a project.
            let Ok(kind) = entry.file_type() else { continue };
            if !kind.is_file() && !kind.is_dir() {
                continue;
            }
            match look(&path) {
                Err(_) if !path.exists() => continue,
                Err(why) => return Err(why),
                Ok((file, attributes)) => work.on(&path, &file, attributes, ctx)?,
            }
            if self.recurse && kind.is_dir() {
                dirs.push_back(path);
            }
        }
        Ok(())
    }
}

fn look(path: &Path) -> Result<(File, FileAttributes), Failure> {
    const O_NONBLOCK_NOCTTY: i32 = 0o4400;
    let open = OpenOptions::new().read(true).custom_flags(O_NONBLOCK_NOCTTY).open(path);
    let file = open.map_err(cannot("open", path))?;
    let attributes = FileAttributes::of(&file).map_err(cannot("get xattr for", path))?;
    Ok((file, attributes))
}

impl Work {
    fn on(self, path: &Path, file: &File, have: FileAttributes, ctx: &mut Ctx) -> Result<(), Failure> {
        let inherits = have.flags & PROJECT_INHERIT != 0;
        let name = path.as_os_str().as_bytes();
        let mut wanted = have;
        match self {
            Self::List => {
                let letter = if inherits { 'P' } else { '-' };
                write!(ctx.out, "{:5} {letter} ", have.project)?;
                ctx.out.write_all(&[name, b"\n"].concat())?;
                return Ok(());
            }
            Self::Check { project, nul } => {
                let project = project.unwrap_or(have.project);
                let differs = project != have.project;
                match nul {
                    true if differs || !inherits => ctx.out.write_all(&[name, b"\0"].concat())?,
                    true => {}
                    false => {
                        if differs {
                            let ids = format!("({}/{project})", have.project);
                            ctx.out.write_all(name)?;
                            writeln!(ctx.out, " - project ID is not set properly {ids}")?;
                        }
                        if !inherits {
                            ctx.out.write_all(name)?;
                            writeln!(ctx.out, " - project inherit flag is not set")?;
                        }
                    }
                }
                return Ok(());
            }
            Self::Clear { keep } => {
                wanted.flags &= !PROJECT_INHERIT;
                wanted.project = if keep { have.project } else { 0 };
            }
            Self::Set { project, inherit } => {
                wanted.flags |= if inherit { PROJECT_INHERIT } else { 0 };
                wanted.project = project.unwrap_or(have.project);
            }
        }
        if wanted == have { Ok(()) } else { wanted.set(file).map_err(cannot("set xattr for", path)) }
    }
}

#[cfg(test)]
mod tests {
    use clikit::testing;
    use clikit::verb::Exit;

    use crate::Zfs;

    #[test]
    fn options_that_contradict_each_other_are_usage_errors() {
        let lines: [&[&str]; 7] = [
            &["-c", "-C"],
            &["-k"],
            &["-0"],
            &["-C", "-p", "1"],
            &["-C", "-d"],
            &["-p", "x"],
            &["-p", "4294967295"],
        ];
        for options in lines {
            let argv: Vec<&str> = ["zfs", "project"].iter().chain(options).chain(&["/"]).copied().collect();
            assert_eq!(testing::run::<Zfs>(&argv).exit, Exit::USAGE, "{argv:?}");
        }
        assert_eq!(testing::run::<Zfs>(&["zfs", "project"]).exit, Exit::USAGE);
        let run = testing::run::<Zfs>(&["zfs", "project", "-d", "/etc/hostname-that-is-not"]);
        assert_eq!((run.exit, run.err.contains("failed to stat")), (Exit(255), true));
    }
}
