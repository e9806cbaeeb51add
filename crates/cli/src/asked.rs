//! The request of a command line: the pools and datasets that it names, and its effect on them.
//!
//! An ordinary user may have pools of their own beside the system's. This classification selects the daemon of
//! their commands.

/// The effect of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// Prints information about pools.
    Look,
    /// Creates or imports a pool; holds its future name, if known.
    Bring(Option<String>),
    /// Changes pools or datasets.
    Change,
}

/// The classification of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Its effect.
    pub deed: Deed,
    /// The pools, datasets and paths that it names.
    pub names: Vec<String>,
    /// Whether it repeats until it is stopped.
    pub repeats: bool,
    /// Whether it reads its standard input.
    pub reads: bool,
}
