//! Verbs of `zfs` that have little to do: `wait`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::target::{NOT_OF_THIS_TYPE, Target};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use zcommon::props::DatasetTypes;

/// Wait until an activity completes.
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
        let target = Target::head_of(&self.name, ctx)?;
        if target.types()? == DatasetTypes::VOLUME {
            return Err(Failure::cannot("open", &self.name, NOT_OF_THIS_TYPE));
        }
        // Files that were removed while open go when they are closed; nothing is left to work off later.
        target.pool.spa()?.sync()?;
        Ok(Exit::OK)
    }
}
