//! The table of properties in the usage of verbs that take properties.

use zcommon::props::{PropInfo, UserQuotaProp, ZfsProp, ZpoolProp};

/// Column widths of a dataset property's name, and of a pool property's.
const WIDTHS: (usize, usize) = (22, 21);

const OF_DATASETS: &str = "
Sizes are specified in bytes with standard units such as K, M, G, etc.

User-defined properties can be specified by using a name containing a colon (:).

The {user|group|project}[obj]{used|quota}@ properties must be appended with
a user|group|project specifier of one of these forms:
    POSIX name      (eg: \"matt\")
    POSIX id        (eg: \"126829\")
    SMB name@domain (eg: \"matt@sun\")
    SMB SID         (eg: \"S-1-234-567-89\")
";

const OF_POOLS: &str = "
The feature@ properties must be appended with a feature name.
See zpool-features(7).
";

/// Text after the usage of a command; empty for most.
#[doc(alias = "usage")]
pub fn after(command: &str) -> String {
    match command {
        "zfs get" | "zfs set" | "zfs inherit" | "zfs list" => of_datasets(),
        "zpool get" | "zpool set" | "zpool list" => of_pools(),
        _ => String::new(),
    }
}

/// Properties that a user may name, read-only ones first, each part sorted by name.
fn sorted<'a>(all: impl Iterator<Item = &'a PropInfo>) -> Vec<(&'a PropInfo, &'a str)> {
    let mut rows: Vec<_> = all.filter_map(|info| Some((info, info.values?))).collect();
    rows.sort_by_key(|(info, _)| (!info.read_only(), info.name));
    rows
}

fn yes(yes: bool) -> &'static str {
    if yes { "YES" } else { "NO" }
}

fn row_of_dataset(name: &str, edit: bool, inherit: bool, values: &str) -> String {
    let width = WIDTHS.0;
    format!("\t{name:width$}{:>4}{:>9}   {values}\n", yes(edit), yes(inherit))
}

fn of_datasets() -> String {
    let mut text = "\nThe following properties are supported:\n\n".to_owned();
    text += &format!("\t{:21} {:>4}  INHERIT   VALUES\n\n", "PROPERTY", "EDIT");
    for (info, values) in sorted(ZfsProp::ALL.iter().map(|prop| prop.info())) {
        let edit = !info.read_only() && !info.set_once();
        text += &row_of_dataset(info.name, edit, info.inheritable(), values);
    }
    for quotas in [false, true] {
        for kind in ["", "obj"] {
            for who in ["user", "group", "project"] {
                let prefix = format!("{who}{kind}{}@", if quotas { "quota" } else { "used" });
                if UserQuotaProp::ALL.iter().any(|prop| prop.prefix() == prefix) {
                    let values = if quotas { "<size> | none" } else { "<size>" };
                    text += &row_of_dataset(&format!("{prefix}..."), quotas, false, values);
                }
            }
        }
    }
    text += &row_of_dataset("written@<snap>", false, false, "<size>");
    text += &row_of_dataset("written#<bookmark>", false, false, "<size>");
    text + OF_DATASETS
}

fn of_pools() -> String {
    let width = WIDTHS.1;
    let mut text = "\nthe following properties are supported:\n\n".to_owned();
    text += &format!("\t{:19}  EDIT   VALUES\n\n", "PROPERTY");
    for (info, values) in sorted(ZpoolProp::ALL.iter().map(|prop| prop.info())) {
        text += &format!("\t{:width$}{:>4}   {values}\n", info.name, yes(!info.read_only()));
    }
    text += &format!("\t{:width$}{:>4}   disabled | enabled | active\n", "feature@...", "YES");
    text + OF_POOLS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_as_openzfs_prints_them() {
        let zfs = after("zfs get");
        for row in [
            "\tPROPERTY              EDIT  INHERIT   VALUES\n\n\tavailable               NO       NO   <size>\n",
            "\twritten                 NO       NO   <size>\n\taclinherit             YES      YES   discard |",
            "\tcasesensitivity         NO      YES   sensitive | insensitive | mixed\n",
            "\tkeyformat               NO       NO   none | raw | hex | passphrase\n",
            "\tprojectobjused@...      NO       NO   <size>\n\tuserquota@...          YES       NO   <size> | none\n",
        ] {
            assert!(zfs.contains(row), "{row}\n{zfs}");
        }
        let zpool = after("zpool set");
        for row in [
            "\tPROPERTY             EDIT   VALUES\n\n\tallocated              NO   <size>\n",
            "\tsize                   NO   <size>\n\taltroot               YES   <path>\n",
            "\tversion               YES   <version>\n\tfeature@...           YES   disabled |",
        ] {
            assert!(zpool.contains(row), "{row}\n{zpool}");
        }
        assert_eq!(after("zfs destroy"), "");
    }
}
