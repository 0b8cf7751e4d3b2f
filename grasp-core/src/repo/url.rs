//! Addresses of relays and git servers, and the hosts that limits apply to.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ::url::Url;

use crate::text::serde_as_text;

/// The reason for which a URL is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not a URL at all.
    #[error("not a URL")]
    Malformed,
    /// Another scheme than the listed ones.
    #[error("expected {}://", .0.join(":// or "))]
    Scheme(&'static [&'static str]),
    /// A URL without a host.
    #[error("no host")]
    NoHost,
    /// A user name or password, which do not belong in public events.
    #[error("credentials in the URL")]
    Credentials,
    /// Longer than the maximum.
    #[error("longer than {MAX_URL_BYTES} bytes")]
    TooLong,
}

/// Maximum length of a URL.
const MAX_URL_BYTES: usize = 2048;

/// The address of a relay in a canonical spelling, so that equal relays are equal keys.
///
/// Scheme and host are lower case; a trailing dot of the host, the default port, empty path segments, a trailing
/// slash and a fragment are removed.
///
/// ```
/// use grasp_core::RelayUrl;
///
/// let one: RelayUrl = "WSS://Relay.Example.com.:443//sub//".parse().unwrap();
/// let two: RelayUrl = "wss://relay.example.com/sub".parse().unwrap();
/// assert_eq!(one, two);
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayUrl(Arc<str>);

/// The address of a git repository over http or https, without credentials.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CloneUrl(Arc<str>);

/// A server that limits apply to: name and port, independent of path and scheme.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(Arc<str>);

/// The parts of a URL, without spellings that do not distinguish servers.
pub(crate) struct UrlParts {
    pub(crate) url: Url,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) segments: Vec<String>,
}

impl UrlParts {
    /// Parses a URL with one of the schemes.
    pub(crate) fn parse(text: &str, schemes: &'static [&'static str]) -> Result<Self, UrlError> {
        if text.len() > MAX_URL_BYTES {
            return Err(UrlError::TooLong);
        }
        let url = Url::parse(text.trim()).map_err(|_| UrlError::Malformed)?;
        if !schemes.contains(&url.scheme()) {
            return Err(UrlError::Scheme(schemes));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Credentials);
        }
        let host = url.host_str().ok_or(UrlError::NoHost)?;
        let host = host.trim_end_matches('.').to_owned();
        if host.is_empty() {
            return Err(UrlError::NoHost);
        }
        let port = url.port_or_known_default().ok_or(UrlError::NoHost)?;
        let segments = url.path().split('/').filter(|s| !s.is_empty()).map(str::to_owned).collect();
        Ok(Self { url, host, port, segments })
    }

    fn authority(&self) -> String {
        match self.url.port() {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    fn canonical(&self) -> String {
        let mut text = format!("{}://{}", self.url.scheme(), self.authority());
        for segment in &self.segments {
            text.push('/');
            text.push_str(segment);
        }
        if let Some(query) = self.url.query() {
            text.push('?');
            text.push_str(query);
        }
        text
    }
}

const RELAY_SCHEMES: [&str; 2] = ["ws", "wss"];
const CLONE_SCHEMES: [&str; 2] = ["http", "https"];

impl RelayUrl {
    /// Returns the canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the host that limits apply to.
    pub fn host(&self) -> Host {
        Host::of(&self.0)
    }

    /// Returns whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.0.starts_with("wss:")
    }
}

impl CloneUrl {
    /// Returns the URL as it is passed to git.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the host that limits apply to.
    pub fn host(&self) -> Host {
        Host::of(&self.0)
    }
}

impl Host {
    /// Returns the name, with the port if it is not the default.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name without port; an IPv6 address without brackets.
    pub fn name(&self) -> &str {
        if let Some(literal) = self.0.strip_prefix('[') {
            return literal.split_once(']').map_or(literal, |(literal, _)| literal);
        }
        self.0.split_once(':').map_or(&self.0, |(name, _)| name)
    }

    /// Returns the host of a canonical URL.
    fn of(canonical: &str) -> Self {
        let rest = canonical.split_once("://").map_or(canonical, |(_, rest)| rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        Self(rest[..end].into())
    }
}

impl FromStr for RelayUrl {
    type Err = UrlError;
    fn from_str(text: &str) -> Result<Self, UrlError> {
        Ok(Self(UrlParts::parse(text, &RELAY_SCHEMES)?.canonical().into()))
    }
}

impl FromStr for CloneUrl {
    type Err = UrlError;
    fn from_str(text: &str) -> Result<Self, UrlError> {
        Ok(Self(UrlParts::parse(text, &CLONE_SCHEMES)?.canonical().into()))
    }
}

impl FromStr for Host {
    type Err = UrlError;
    /// Parses `name` or `name:port`, as in settings.
    fn from_str(text: &str) -> Result<Self, UrlError> {
        let parts = UrlParts::parse(&format!("https://{text}"), &CLONE_SCHEMES)?;
        if !parts.segments.is_empty() || parts.url.query().is_some() {
            return Err(UrlError::Malformed);
        }
        Ok(Self(parts.authority().into()))
    }
}

macro_rules! impl_display_and_serde {
    ($($type:ident),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        serde_as_text!($type);
    )*};
}
impl_display_and_serde!(RelayUrl, CloneUrl, Host);

macro_rules! impl_debug {
    ($($type:ident),*) => {$(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    )*};
}
impl_debug!(RelayUrl, CloneUrl);

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(text: &str) -> RelayUrl {
        text.parse().unwrap()
    }

    #[test]
    fn spellings_of_a_relay_are_equal() {
        for text in [
            "wss://r.example",
            "wss://r.example/",
            "wss://R.EXAMPLE:443",
            "wss://r.example.//",
            "wss://r.example..",
            " wss://r.example#x ",
        ] {
            assert_eq!(relay(text), relay("wss://r.example"), "{text}");
        }
        assert_eq!(relay("ws://r.example:80/a//b/"), relay("ws://r.example/a/b"));
        assert_eq!(relay("wss://müsli.example"), relay("wss://xn--msli-0ra.example"));
    }

    #[test]
    fn different_relays_differ() {
        let all = [
            "wss://r.example",
            "ws://r.example",
            "wss://r.example:444",
            "wss://r.example/a",
            "wss://r.example/?k=v",
        ];
        for (i, one) in all.iter().enumerate() {
            for other in &all[i + 1..] {
                assert_ne!(relay(one), relay(other));
            }
        }
    }

    #[test]
    fn canonical_text_is_stable() {
        for text in ["wss://r.example", "ws://[::1]:7334/a/b?c=d", "wss://r.example/%E2%9C%93"] {
            assert_eq!(relay(relay(text).as_str()), relay(text));
        }
    }

    #[test]
    fn refuses_other_schemes_and_credentials() {
        let cases = [
            ("https://r.example", UrlError::Scheme(&RELAY_SCHEMES)),
            ("r.example", UrlError::Malformed),
            ("wss://", UrlError::Malformed),
            ("wss://.", UrlError::NoHost),
            ("wss://user:pw@r.example", UrlError::Credentials),
            ("wss://user@r.example", UrlError::Credentials),
        ];
        for (text, why) in cases {
            assert_eq!(text.parse::<RelayUrl>(), Err(why), "{text}");
        }
        let said = UrlError::Scheme(&RELAY_SCHEMES).to_string();
        assert_eq!(said, "expected ws:// or wss://");
        for text in
            ["ext::sh -c x", "file:///etc", "ssh://git@h/x", "git://h/x", "/x", "-oProxyCommand=x"]
        {
            assert!(text.parse::<CloneUrl>().is_err(), "{text}");
        }
        let long = format!("https://h/{}", "x".repeat(MAX_URL_BYTES));
        assert_eq!(long.parse::<CloneUrl>(), Err(UrlError::TooLong));
    }

    #[test]
    fn a_host_is_name_and_port() {
        let clone: CloneUrl = "https://Git.Example:8443/a/b.git".parse().unwrap();
        assert_eq!(clone.host(), "git.example:8443".parse().unwrap());
        let plain: CloneUrl = "https://git.example:443/x".parse().unwrap();
        assert_eq!(plain.host().as_str(), "git.example");
        assert!("git.example/x".parse::<Host>().is_err());
    }
}
