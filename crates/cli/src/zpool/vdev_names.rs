//! How the user wants vdevs to be called: options that several verbs have.

use clap::Args;
use zutil::names::NameStyle;

/// `-g`, `-L` and `-P`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct VdevNames {
    /// Guids instead of names of vdevs.
    #[arg(short = 'g')]
    pub guids: bool,
    /// Where symbolic links lead.
    #[arg(short = 'L')]
    pub follow_links: bool,
    /// Whole paths of disks.
    #[arg(short = 'P')]
    pub full_paths: bool,
}

impl VdevNames {
    /// The same for printing names.
    pub fn style(self) -> NameStyle {
        NameStyle { guids: self.guids, full_paths: self.full_paths, follow_links: self.follow_links }
    }
}
