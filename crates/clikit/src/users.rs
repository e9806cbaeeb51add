//! Names of users and groups, from this machine's own files.
//!
//! Differs from OpenZFS: reads only `/etc/passwd` and `/etc/group`, not the name service; an id from a network
//! directory stays a number.

use std::collections::HashMap;
use std::path::Path;

/// Names by id.
#[derive(Debug, Clone, Default)]
pub struct Names(HashMap<u64, String>);

impl Names {
    /// The users of this machine.
    pub fn users() -> Self {
        Self::read(Path::new("/etc/passwd"))
    }

    /// The groups of this machine.
    pub fn groups() -> Self {
        Self::read(Path::new("/etc/group"))
    }

    /// An unreadable file yields no names.
    fn read(path: &Path) -> Self {
        Self::parse(&String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()))
    }

    fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            let id = fields.nth(1)?.parse().ok()?;
            Some((id, name))
        };
        // The first line of an id wins, as it does for getpwuid.
        Self(text.lines().rev().filter_map(entry).collect())
    }

    /// The id of a name.
    pub fn id(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(_, n)| *n == name).map(|(id, _)| *id)
    }

    /// The name of an id.
    pub fn name(&self, id: u64) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_an_id_wins() {
        let names = Names::parse("root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:\nbroken\nx:y:z\na:x:7:\n");
        assert_eq!((names.name(0), names.name(7), names.name(8)), (Some("root"), Some("a"), None));
    }
}
