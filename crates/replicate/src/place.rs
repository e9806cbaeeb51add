//! Where a side of a replication is: `tank/home`, `ssh://user@host:port/tank/home`, or behind a command.

use std::fmt;

/// A side: how commands reach it, and its dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// How its commands are run.
    pub reach: Reach,
    /// The dataset.
    pub dataset: String,
}

/// How commands are run on a side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// On this machine.
    Here,
    /// Over ssh.
    Ssh {
        /// `user@host` or `host`.
        host: String,
        /// Its port; `None`: the one that ssh chooses.
        port: Option<u16>,
    },
    /// By a command of the shell that gets the command line as its last argument.
    Via(String),
}

impl Place {
    /// Parses a name as it is given on a command line; `via` is a command that reaches it.
    ///
    /// # Errors
    /// A message with the fault of the name.
    pub fn parse(word: &str, via: Option<&str>) -> Result<Self, String> {
        let (reach, dataset) = match word.strip_prefix("ssh://") {
            Some(_) if via.is_some() => return Err(format!("'{word}': both an ssh:// name and a command")),
            Some(rest) => {
                let (host, dataset) =
                    rest.split_once('/').ok_or_else(|| format!("'{word}': no dataset after the host"))?;
                (ssh(host).ok_or_else(|| format!("'{word}': bad host or port"))?, dataset)
            }
            None => (via.map_or(Reach::Here, |via| Reach::Via(via.to_owned())), word),
        };
        let is_part = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
            !part.is_empty() && part.chars().all(known)
        };
        if dataset.starts_with('-') || !dataset.split('/').all(is_part) {
            return Err(format!("'{word}': not a valid dataset name"));
        }
        Ok(Self { reach, dataset: dataset.to_owned() })
    }
}

fn ssh(host: &str) -> Option<Reach> {
    let (name, port) = match host.rsplit_once(':') {
        // An address in brackets has colons of its own.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port.parse().ok()?)),
        _ => (host, None),
    };
    // A host that begins with a dash would be an option of ssh.
    let is_host = !name.is_empty() && !name.starts_with('-') && !name.contains(char::is_whitespace);
    is_host.then(|| Reach::Ssh { host: name.replace(['[', ']'], ""), port })
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reach {
            Reach::Here | Reach::Via(_) => f.write_str(&self.dataset),
            Reach::Ssh { host, port: None } => write!(f, "ssh://{host}/{}", self.dataset),
            Reach::Ssh { host, port: Some(port) } => write!(f, "ssh://{host}:{port}/{}", self.dataset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_parsed() {
        let here = Place::parse("tank/home", None).unwrap();
        assert_eq!((here.reach, here.dataset.as_str()), (Reach::Here, "tank/home"));
        let far = Place::parse("ssh://root@box:2222/tank/a b", None).unwrap();
        assert_eq!(far.reach, Reach::Ssh { host: "root@box".into(), port: Some(2222) });
        assert_eq!(far.dataset, "tank/a b");
        assert_eq!(far.to_string(), "ssh://root@box:2222/tank/a b");
        let far = Place::parse("ssh://[::1]/tank", None).unwrap();
        assert_eq!(far.reach, Reach::Ssh { host: "::1".into(), port: None });
        let via = Place::parse("tank", Some("sh -c")).unwrap();
        assert_eq!(via.reach, Reach::Via("sh -c".into()));
        for bad in [
            "",
            "-r",
            "tank//a",
            "tank@s",
            "tank/$(x)",
            "ssh://host",
            "ssh:///tank",
            "ssh://-oX/tank",
            "ssh://h:x/t",
        ] {
            assert!(Place::parse(bad, None).is_err(), "{bad}");
        }
    }
}
