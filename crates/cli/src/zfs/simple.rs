//! Verbs of `zfs` that have little to do: `wait`, `share`, `unshare`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};

/// Wait until something is done.
#[derive(Debug, Args)]
pub struct Wait {
    /// Activities, comma separated: deleteq.
    #[arg(short = 't', value_name = "ACTIVITY,…", value_delimiter = ',')]
    pub activities: Vec<String>,
    /// The file system.
    pub name: String,
}

impl Verb for Wait {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if let Some(bad) = self.activities.iter().find(|a| *a != "deleteq") {
            return Err(Failure::usage(format!("invalid activity '{bad}'")));
        }
        let target = Target::of(&self.name, ctx)?;
        target.dataset()?;
        // Files that were removed while open go when they are closed; nothing is left to work off later.
        target.pool.spa()?.sync()?;
        Ok(Exit::OK)
    }
}

/// Share file systems: none are.
#[derive(Debug, Args)]
pub struct Share {
    /// All file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// Load keys that are needed.
    #[arg(short = 'l')]
    pub load_keys: bool,
    /// File systems.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

impl Verb for Share {
    fn run(self, _: &mut Ctx) -> Outcome {
        match self.names.first() {
            None if self.all => Ok(Exit::OK),
            None => Err(Failure::usage("missing filesystem argument")),
            Some(_) => Err(Failure::failed("zfs share: not supported yet: sharing over NFS or SMB")),
        }
    }
}

/// Stop sharing file systems: none are shared.
#[derive(Debug, Args)]
pub struct Unshare {
    /// All file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// File systems.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

impl Verb for Unshare {
    fn run(self, _: &mut Ctx) -> Outcome {
        match self.names.first() {
            None if self.all => Ok(Exit::OK),
            None => Err(Failure::usage("missing filesystem argument")),
            Some(name) => Err(Failure::cannot("unshare", name, "not currently shared")),
        }
    }
}
