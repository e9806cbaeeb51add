//! `aquifer find`: finds files by their attributes.

use std::ffi::OsString;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::source::PoolSource;
use clikit::verb::{Failure, Outcome, Verb};

use super::access::Access;
use super::find_eval::{Finder, Outcomes};
use super::find_parse::Expression;
use super::report::Report;
use super::target::Target;
use super::walk::{Order, Step, Walk};

/// Find files.
///
/// Tests: -name -iname -path -ipath -lname -type -size -empty -links -inum -uid -gid -user -group -perm
/// -mtime -atime -ctime -mmin -amin -cmin -newermt -newerct -newerat -xattr -true -false; -maxdepth
/// -mindepth -prune; `!` -not -a -o ( ). Actions: -print -print0 -printf -ls -quit.
#[derive(Debug, Args)]
pub struct Find {
    #[command(flatten)]
    source: PoolSource,
    /// POOL/DATASET[@SNAPSHOT]:PATH, then the expression, as find(1) takes it
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "START EXPRESSION"
    )]
    words: Vec<OsString>,
}

impl Verb for Find {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let starts = self.words.iter().take_while(|w| !is_expression(w)).count();
        let (starts, words) = self.words.split_at_checked(starts).unwrap_or((&self.words, &[]));
        if starts.is_empty() {
            return Err(Failure::usage(
                "find: missing starting point: POOL/DATASET[@SNAPSHOT]:PATH comes first",
            ));
        }
        let expression = Expression::parse(words)?;
        let finder = Finder::new(&expression, ctx.out_is_terminal);
        let mut access = Access::new(&self.source);
        let mut report = Report::default();
        for start in starts {
            let (inode, path) = access.open_file(&Target::parse(start), false, ctx)?;
            let mut walk = Walk::new(&inode, &path, Order::Name);
            while let Some(step) = walk.next() {
                if ctx.interrupt.is_set() {
                    return Err(Failure::Interrupted);
                }
                match step {
                    Step::Enter(found) => {
                        let outcome = match finder.visit(&found, &path, &mut ctx.out) {
                            Ok(outcome) => outcome,
                            // The expression needs an unreadable part of this file; others may be readable.
                            Err(Failure::Failed(why)) => {
                                report.failed(&found.path, why, None);
                                continue;
                            }
                            Err(other) => return Err(other),
                        };
                        if outcome == Outcomes::Quit {
                            ctx.out.flush()?;
                            return Ok(report.finish("find", ctx));
                        }
                        if outcome == Outcomes::Prune && found.inode.is_dir() {
                            walk.prune();
                        }
                    }
                    Step::Leave(_) => {}
                    Step::Failed(path, e) => report.unreadable(&path, &e, None),
                }
            }
        }
        ctx.out.flush()?;
        Ok(report.finish("find", ctx))
    }
}

fn is_expression(word: &OsString) -> bool {
    let text = word.to_string_lossy();
    text.starts_with('-') || matches!(text.as_ref(), "!" | "(" | ")")
}
