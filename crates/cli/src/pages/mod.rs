//! `aquifer pages DIR`: man pages, completions and the list of links, as a package installs them.
//!
//! ```text
//! DIR/man/man8/zpool.8 …  DIR/man/man5/aquifer-settings.5
//! DIR/bash/zpool …  DIR/zsh/_zpool …  DIR/fish/zpool.fish …  DIR/links
//! ```

mod about;
pub mod complete;
mod help;
mod man;
mod topic;
mod topics;

pub use help::help;

use std::fs;
use std::io;
use std::path::Path;

use clikit::ctx::Ctx;
use clikit::names::NAMES;
use clikit::verb::{Exit, Failure, Outcome, Verb, strerror};

use crate::command::Pages;

/// All names: the program's own, and its links'.
fn names() -> impl Iterator<Item = &'static str> {
    std::iter::once("aquifer").chain(NAMES)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, bytes)
}

impl Pages {
    fn write_all(&self) -> io::Result<()> {
        for page in man::pages()? {
            let folder = self.dir.join(format!("man/man{}", page.section));
            write(&folder.join(format!("{}.{}", page.name, page.section)), &page.text)?;
        }
        let bindir = self.bindir.clone().unwrap_or_default();
        for name in names() {
            for (shell, file) in complete::SHELLS {
                let script = complete::script(shell, name, &bindir.join(name))?;
                write(&self.dir.join(shell).join(file.replace('*', name)), &script)?;
            }
        }
        let links: String = NAMES.iter().map(|name| format!("{name}\n")).collect();
        write(&self.dir.join("links"), links.as_bytes())
    }
}

impl Verb for Pages {
    fn run(self, _: &mut Ctx) -> Outcome {
        let cannot =
            |e| Failure::failed(format!("cannot write below {}: {}", self.dir.display(), strerror(&e)));
        self.write_all().map_err(cannot)?;
        Ok(Exit::OK)
    }
}
