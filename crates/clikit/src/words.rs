//! Why a name belongs to no pool or dataset: the fault of the name, if it can belong to none.

use zcommon::names::{check_entity, check_pool};

/// Why no imported pool has this name. A pool may be named by its guid, too.
pub fn why_no_pool(name: &str) -> String {
    let is_guid = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    match check_pool(name) {
        Err(fault) if !is_guid => fault.of_pool(),
        _ => "no such pool".to_owned(),
    }
}

/// Why no dataset has this name.
#[doc(alias("zfs_open", "zfs_validate_name"))]
pub fn why_no_dataset(name: &str) -> String {
    match check_entity(name) {
        Err(fault) => fault.to_string(),
        Ok(()) => "dataset does not exist".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_a_name_is_told() {
        for (name, why) in [
            ("tank", "no such pool"),
            ("tank/a", "invalid character '/' in pool name"),
            ("t\u{e4}nk", "invalid character '\u{e4}' in pool name"),
            ("1tank", "name must begin with a letter"),
            ("123", "no such pool"),
            ("mirror", "name is reserved"),
            ("", "name must begin with a letter"),
        ] {
            assert_eq!(why_no_pool(name), why, "{name}");
        }
        for (name, why) in [
            ("tank/a", "dataset does not exist"),
            ("/tank", "leading slash in name"),
            ("tank/", "trailing slash in name"),
            ("tank//a", "empty component or misplaced '@' or '#' delimiter in name"),
            ("tank/t\u{20ac}", "invalid character '\u{20ac}' in name"),
            ("tank/./a", "self reference, '.' is found in name"),
            ("tank/..", "parent reference, '..' is found in name"),
            ("tank@a@b", "multiple '@' and/or '#' delimiters in name"),
        ] {
            assert_eq!(why_no_dataset(name), why, "{name}");
        }
    }
}
