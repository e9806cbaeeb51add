//! Options that all listings share.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// The format of lines.
#[derive(Debug, Args)]
pub struct Lines {
    /// Print no header, and separate columns by a single tab.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print exact (parsable) numbers.
    #[arg(short = 'p')]
    pub literal: bool,
}

/// JSON instead of lines.
#[derive(Debug, Args)]
pub struct Json {
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
    /// Print numbers as JSON integers.
    #[arg(long = "json-int", requires = "json")]
    pub json_int: bool,
}

/// Options for JSON that contains pools.
#[derive(Debug, Args)]
pub struct PoolJson {
    /// Whether and how JSON is printed.
    #[command(flatten)]
    pub style: Json,
    /// Use the pools' guids as keys in JSON.
    #[arg(long = "json-pool-key-guid", requires = "json")]
    pub json_pool_key_guid: bool,
}

/// The options `-s` and `-S`, which may be repeated.
#[derive(Debug, Default)]
pub struct SortKeys {
    /// Sort keys with their direction, in the order of the command line: the first key counts most.
    pub keys: Vec<(String, bool)>,
}

/// Names of the two arguments, and whether each sorts the largest first.
const SORTS: [(&str, bool); 2] = [("ascending", false), ("descending", true)];

impl Args for SortKeys {
    fn augment_args(command: Command) -> Command {
        let sort = |name: &'static str, short: char, help: &'static str| {
            Arg::new(name).short(short).value_name("PROPERTY").action(ArgAction::Append).help(help)
        };
        command
            .arg(sort("ascending", 's', "Sort by this property, smallest first; may be repeated"))
            .arg(sort("descending", 'S', "Sort by this property, largest first; may be repeated"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SortKeys {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut keys = Self::default();
        keys.update_from_arg_matches(matches)?;
        Ok(keys)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let mut found: Vec<(usize, String, bool)> = Vec::new();
        for (name, reverse) in SORTS {
            let words = matches.get_many::<String>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            found.extend(places.zip(words).map(|(place, word)| (place, word.clone(), reverse)));
        }
        found.sort_unstable();
        self.keys = found.into_iter().map(|(_, word, reverse)| (word, reverse)).collect();
        Ok(())
    }
}
