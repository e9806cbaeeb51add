//! How the user wants vdevs to be called: options that several verbs have, and variables of the environment.

use std::cell::Cell;

use clap::Args;
use zutil::names::NameStyle;

thread_local! {
    /// The wishes in the environment of the client that this thread serves; `None`: the process's environment counts.
    static OF_CLIENT: Cell<Option<NameStyle>> = const { Cell::new(None) };
}

/// Makes this thread heed the environment of the client that it serves; `get` returns a variable's value.
pub fn use_environment(get: impl Fn(&str) -> Option<String>) {
    OF_CLIENT.set(Some(of_environment(get)));
}

/// A variable counts if it is a word for yes, or a number above 0.
#[doc(alias("zpool_vdev_name", "libzfs_envvar_is_set"))]
fn of_environment(get: impl Fn(&str) -> Option<String>) -> NameStyle {
    let is_set = |name: &str| {
        let value = get(name).unwrap_or_default().to_ascii_uppercase();
        matches!(value.as_str(), "YES" | "ON") || value.parse::<u64>().is_ok_and(|n| n > 0)
    };
    NameStyle {
        guids: is_set("ZPOOL_VDEV_NAME_GUID"),
        full_paths: is_set("ZPOOL_VDEV_NAME_PATH"),
        follow_links: is_set("ZPOOL_VDEV_NAME_FOLLOW_LINKS"),
    }
}

/// `-g`, `-L` and `-P`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct VdevNames {
    /// Print guids instead of names of vdevs.
    #[arg(short = 'g')]
    pub guids: bool,
    /// Print the targets of symbolic links.
    #[arg(short = 'L')]
    pub follow_links: bool,
    /// Print full paths of devices.
    #[arg(short = 'P')]
    pub full_paths: bool,
}

impl VdevNames {
    /// The same for printing names.
    pub fn style(self) -> NameStyle {
        let wishes = OF_CLIENT.get().unwrap_or_else(|| of_environment(|name| std::env::var(name).ok()));
        NameStyle {
            guids: self.guids || wishes.guids,
            full_paths: self.full_paths || wishes.full_paths,
            follow_links: self.follow_links || wishes.follow_links,
        }
    }
}
