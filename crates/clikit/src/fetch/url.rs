//! The URL of a key.

use std::io;

use super::bad;

/// A URL of one of the two schemes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// `https`
    pub tls: bool,
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// 443 or 80 unless the URL has a port.
    pub port: u16,
    /// The path with the query; at least `/`.
    pub path: String,
}

impl Url {
    /// Parses a URL. The part after `#` is not sent.
    pub fn parse(text: &str) -> io::Result<Self> {
        let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(bad("neither https nor http")),
        };
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad("invalid character in URL"));
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(bad("names and passwords in a URL are not supported"));
        }
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => authority.rsplit_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = match port.filter(|port| !port.is_empty()) {
            Some(port) => port.parse().map_err(|_| bad("no port"))?,
            None if tls => 443,
            None => 80,
        };
        if host.is_empty() {
            return Err(bad("no host"));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { tls, host: host.to_owned(), port, path })
    }

    /// Host and port in the form of a request.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// The target of a redirect. Never from an encrypted to an unencrypted location.
    pub fn follow(&self, to: &str) -> io::Result<Self> {
        let scheme = if self.tls { "https" } else { "http" };
        let to = match to {
            _ if to.contains("://") => Self::parse(to)?,
            _ if to.starts_with("//") => Self::parse(&format!("{scheme}:{to}"))?,
            _ if to.starts_with('/') => Self::parse(&format!("{scheme}://{}{to}", self.authority()))?,
            _ => return Err(bad("invalid redirect target")),
        };
        if self.tls && !to.tls {
            return Err(bad("a redirect from https to http"));
        }
        Ok(to)
    }
}
