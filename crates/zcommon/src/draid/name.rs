//! `draid1:2d:5c:1s`: parity, data disks of a group, children, distributed spares.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{MAX_CHILDREN, MAX_PARITY, MAX_SPARES};

/// The numbers in a draid vdev's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraidConfig {
    /// Parity disks of a group, 1 to 3.
    pub parity: u64,
    /// Data disks of a group.
    pub data: u64,
    /// Disks in the vdev, including those that provide the space of the spares.
    pub children: u64,
    /// Distributed spares.
    pub spares: u64,
}

impl DraidConfig {
    /// Groups of a slice: as many as it takes for whole groups to fill whole rows.
    #[doc(alias = "draid_ngroups")]
    pub fn groups(&self) -> Option<u64> {
        let (width, disks) = (self.parity.checked_add(self.data)?, self.children.checked_sub(self.spares)?);
        if width == 0 || disks == 0 {
            return None;
        }
        let (mut a, mut b) = (width, disks);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Some(disks / a)
    }
}

/// Shows the name as `zpool status` and `zpool create` have it.
impl fmt::Display for DraidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "draid{}:{}d:{}c:{}s", self.parity, self.data, self.children, self.spares)
    }
}

/// A name that isn't a draid's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DraidNameError {
    /// Not of the form `draid[P][:Dd][:Cc][:Ss]`.
    #[error("'{0}' is not of the form draid[PARITY][:DATAd][:CHILDRENc][:SPARESs]")]
    Form(String),
    /// A number is outside the range that OpenZFS allows.
    #[error("{what} of '{name}' must be between {min} and {max}")]
    Range {
        /// The name.
        name: String,
        /// Which number.
        what: &'static str,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
}

/// Reads a full name: parity defaults to 1, data and children are required, spares default to 0.
impl FromStr for DraidConfig {
    type Err = DraidNameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let bad = || DraidNameError::Form(name.into());
        let mut parts = name.strip_prefix("draid").ok_or_else(bad)?.split(':');
        let parity = match parts.next() {
            Some("") | None => 1,
            Some(digits) => digits.parse().map_err(|_| bad())?,
        };
        let (mut data, mut children, mut spares) = (None, None, Some(0));
        for part in parts {
            let unit = part.chars().next_back().ok_or_else(bad)?;
            let number: u64 = part.strip_suffix(unit).and_then(|n| n.parse().ok()).ok_or_else(bad)?;
            match unit.to_ascii_lowercase() {
                'd' => data = Some(number),
                'c' => children = Some(number),
                's' => spares = Some(number),
                _ => return Err(bad()),
            }
        }
        let (Some(data), Some(children), Some(spares)) = (data, children, spares) else {
            return Err(bad());
        };
        let config = Self { parity, data, children, spares };
        config.check(name)
    }
}

impl DraidConfig {
    fn check(self, name: &str) -> Result<Self, DraidNameError> {
        let range = |what, value: u64, min, max| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(DraidNameError::Range { name: name.into(), what, min, max })
        };
        range("parity", self.parity, 1, MAX_PARITY)?;
        range("children", self.children, self.parity + 1, MAX_CHILDREN)?;
        range("spares", self.spares, 0, MAX_SPARES.min(self.children - self.parity - 1))?;
        range("data", self.data, 1, self.children - self.spares - self.parity)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back() {
        for name in ["draid1:2d:5c:1s", "draid2:8d:50c:3s", "draid3:1d:4c:0s"] {
            assert_eq!(name.parse::<DraidConfig>().unwrap().to_string(), name);
        }
        assert_eq!("draid:4d:6c".parse::<DraidConfig>().unwrap().to_string(), "draid1:4d:6c:0s");
    }

    #[test]
    fn groups_fill_whole_rows() {
        // The example of vdev_draid.c: 14 children, 2 of them spare space, groups of 9.
        let config: DraidConfig = "draid1:8d:14c:2s".parse().unwrap();
        assert_eq!(config.groups(), Some(4));
        assert_eq!("draid1:2d:5c:1s".parse::<DraidConfig>().unwrap().groups(), Some(4));
        assert_eq!("draid1:3d:5c:1s".parse::<DraidConfig>().unwrap().groups(), Some(1));
    }

    #[test]
    fn impossible_names_are_refused() {
        for name in [
            "raidz1",
            "draid4:1d:9c:0s",
            "draid1:9d:5c:0s",
            "draid1:2d:5c:9s",
            "draid1:xd:5c",
            "draid1",
            "draid1:2d:300c",
        ] {
            assert!(name.parse::<DraidConfig>().is_err(), "{name}");
        }
    }
}
