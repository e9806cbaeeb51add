//! Parses `draid2:4d:11c:1s`: everything but the word `draid` is optional.
//!
//! Source: `draid_config_by_type`, zpool_vdev.c, OpenZFS 2.3.

use zcommon::draid::{DraidConfig, MAX_CHILDREN, MAX_PARITY, MAX_SPARES};

/// Default number of data disks of a group.
#[doc(alias = "VDEV_DRAID_DEFAULT_DATA")]
const DEFAULT_DATA: u64 = 8;

/// The parsed word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraidWord {
    /// Parity disks of a group.
    pub parity: u64,
    data: Option<u64>,
    children: Option<u64>,
    spares: u64,
}

impl DraidWord {
    /// Reads a word; `None`: it is no draid.
    pub fn parse(word: &str) -> Option<Result<Self, String>> {
        let mut parts = word.strip_prefix("draid")?.split(':');
        let digits = parts.next().unwrap_or_default();
        let parity = if digits.is_empty() { 1 } else { digits.parse().ok()? };
        if !(1..=MAX_PARITY).contains(&parity) {
            let what = format!("invalid dRAID parity level {parity}; must be between 1 and {MAX_PARITY}");
            return Some(Err(what));
        }
        let mut draid = Self { parity, data: None, children: None, spares: 0 };
        Some(parts.try_for_each(|part| draid.take(part)).map(|()| draid))
    }

    fn take(&mut self, part: &str) -> Result<(), String> {
        let bad = || format!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{part}'");
        let (at, letter) = part.char_indices().next_back().ok_or_else(bad)?;
        let number: u64 = part.get(..at).and_then(|digits| digits.parse().ok()).ok_or_else(bad)?;
        match letter {
            'd' => self.data = Some(number),
            'c' => self.children = Some(number),
            's' => self.spares = number,
            _ => return Err(bad()),
        }
        Ok(())
    }

    /// The whole configuration for that many disks.
    pub fn with(self, disks: usize) -> Result<DraidConfig, String> {
        let Self { parity, data, children, spares } = self;
        let disks = u64::try_from(disks).unwrap_or(u64::MAX);
        let left = disks.saturating_sub(spares.saturating_add(parity));
        let data = data.unwrap_or(left.min(DEFAULT_DATA));
        if let Some(wanted) = children.filter(|wanted| *wanted != disks) {
            return Err(format!("invalid number of dRAID children; {wanted} required but {disks} provided"));
        }
        if disks > MAX_CHILDREN {
            return Err(format!(
                "{disks} disks were provided, but dRAID only supports up to {MAX_CHILDREN} disks"
            ));
        }
        if spares > MAX_SPARES || spares.saturating_add(parity) >= disks {
            let what = "additional disks would be required";
            return Err(format!("invalid number of dRAID spares {spares}; {what}"));
        }
        if data == 0 || data > left {
            return Err(format!(
                "requested number of dRAID data disks per group {data} is too high,\nat most {left} disks are available for data"
            ));
        }
        Ok(DraidConfig { parity, data, children: disks, spares })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(word: &str, disks: usize) -> Result<String, String> {
        DraidWord::parse(word).unwrap().and_then(|word| word.with(disks)).map(|config| config.to_string())
    }

    #[test]
    fn omitted_numbers_follow_from_the_disks() {
        assert_eq!(name("draid", 3), Ok("draid1:2d:3c:0s".into()));
        assert_eq!(name("draid2", 14), Ok("draid2:8d:14c:0s".into()));
        assert_eq!(name("draid2:4d:1s:11c", 11), Ok("draid2:4d:11c:1s".into()));
        assert!(name("draid:5c", 4).unwrap_err().starts_with("invalid number of dRAID children"));
        assert!(name("draid:3s", 4).unwrap_err().starts_with("invalid number of dRAID spares"));
        assert!(name("draid4", 9).unwrap_err().starts_with("invalid dRAID parity level 4"));
        assert!(name("draid:x10", 9).unwrap_err().starts_with("invalid dRAID syntax"));
        assert!(DraidWord::parse("draidx").is_none());
    }
}
