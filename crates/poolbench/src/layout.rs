//! The layouts that a number of devices allows.

/// A layout of all devices of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Its name in tables and for `--layout`.
    pub name: &'static str,
    /// The word before each vdev's devices; empty for a stripe.
    word: &'static str,
    /// Number of vdevs that the devices are divided into.
    groups: usize,
    /// Devices of each vdev whose space holds redundancy; any as many may fail.
    pub parity: usize,
}

impl Layout {
    /// All layouts of `count` devices, each with the least sensible number of devices for it.
    pub fn all(count: usize) -> Vec<Self> {
        let one = |name, word, groups, parity| Self { name, word, groups, parity };
        let mut all = vec![one("stripe", "", 1, 0)];
        match count {
            0 | 1 => {}
            2 | 3 => all.push(one("mirror", "mirror", 1, count - 1)),
            // With an odd number one mirror has three devices.
            _ => all.push(one("mirrors", "mirror", count / 2, 1)),
        }
        let single = [("raidz1", 3, 1), ("raidz2", 4, 2), ("raidz3", 5, 3)];
        all.extend(single.iter().filter(|(_, least, _)| count >= *least).map(|(n, _, p)| one(n, n, 1, *p)));
        let two = [("2xraidz1", "raidz1", 6, 1), ("2xraidz2", "raidz2", 8, 2)];
        all.extend(
            two.iter().filter(|(_, _, least, _)| count >= *least).map(|(n, w, _, p)| one(n, w, 2, *p)),
        );
        all
    }

    /// The layout for the tables that use only one: as safe as usual for that number of devices.
    pub fn usual(count: usize) -> Self {
        let wanted = match count {
            0 | 1 => "stripe",
            2 => "mirror",
            3 => "raidz1",
            _ => "raidz2",
        };
        let all = Self::all(count);
        let stripe = Self { name: "stripe", word: "", groups: 1, parity: 0 };
        all.into_iter().find(|layout| layout.name == wanted).unwrap_or(stripe)
    }

    /// The layout of that name.
    pub fn named(name: &str, count: usize) -> Option<Self> {
        Self::all(count).into_iter().find(|layout| layout.name == name)
    }

    /// The words of `zpool create` for these devices.
    pub fn words(&self, disks: &[String]) -> Vec<String> {
        if self.word.is_empty() {
            return disks.to_vec();
        }
        let (small, larger) = (disks.len() / self.groups.max(1), disks.len() % self.groups.max(1));
        let mut rest = disks.iter().cloned();
        let group = |number: usize| -> Vec<String> {
            let size = small + usize::from(number < larger);
            std::iter::once(self.word.to_owned()).chain(rest.by_ref().take(size)).collect()
        };
        (0..self.groups).flat_map(group).collect()
    }

    /// Number of devices whose space holds data.
    pub fn data_disks(&self, count: usize) -> usize {
        match self.word {
            "mirror" => self.groups,
            _ => count.saturating_sub(self.groups * self.parity).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<&'static str> {
        Layout::all(count).iter().map(|layout| layout.name).collect()
    }

    #[test]
    fn layouts_fit_their_devices() {
        assert_eq!(names(1), ["stripe"]);
        assert_eq!(names(2), ["stripe", "mirror"]);
        assert_eq!(names(4), ["stripe", "mirrors", "raidz1", "raidz2"]);
        assert_eq!(names(8).last(), Some(&"2xraidz2"));
        assert_eq!(Layout::usual(6).name, "raidz2");
        assert_eq!(Layout::named("2xraidz1", 6).unwrap().parity, 1);
        assert_eq!(Layout::named("raidz3", 4), None);
    }

    #[test]
    fn every_device_is_used_once() {
        let words = |name: &str, count: usize| {
            let disks: Vec<String> = (0..count).map(|n| n.to_string()).collect();
            Layout::named(name, count).unwrap().words(&disks).join(" ")
        };
        assert_eq!(words("stripe", 2), "0 1");
        assert_eq!(words("mirrors", 5), "mirror 0 1 2 mirror 3 4");
        assert_eq!(words("2xraidz1", 7), "raidz1 0 1 2 3 raidz1 4 5 6");
        assert_eq!(Layout::named("mirrors", 6).unwrap().data_disks(6), 3);
        assert_eq!(Layout::named("2xraidz2", 8).unwrap().data_disks(8), 4);
    }
}
