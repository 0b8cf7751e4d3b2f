//! Addresses of relays and git servers, and the hosts that limits apply to.

use std::sync::Arc;

use ::url::Url;

use crate::text::{ParseError, invalid, validated_text};

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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayUrl(Arc<str>);

/// The address of a git repository over http or https, without credentials.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CloneUrl(Arc<str>);

/// A server that limits apply to: its name, and the port if it is not the default; independent of path and scheme.
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
    pub(crate) fn parse(text: &str, schemes: &[&str]) -> Result<Self, ParseError> {
        if text.len() > MAX_URL_BYTES {
            return invalid(format!("longer than {MAX_URL_BYTES} bytes"));
        }
        let Ok(url) = Url::parse(text.trim()) else {
            return invalid("not a URL");
        };
        if !schemes.contains(&url.scheme()) {
            return invalid(format!("expected {}://", schemes.join(":// or ")));
        }
        // They do not belong in public events.
        if !url.username().is_empty() || url.password().is_some() {
            return invalid("credentials in the URL");
        }
        let host = url
            .host_str()
            .unwrap_or_default()
            .trim_end_matches('.')
            .to_owned();
        let (false, Some(port)) = (host.is_empty(), url.port_or_known_default()) else {
            return invalid("no host");
        };
        let segments = url
            .path()
            .split('/')
            .filter(|s| !s.is_empty())
            .map(str::to_owned)
            .collect();
        Ok(Self {
            url,
            host,
            port,
            segments,
        })
    }

    fn authority(&self) -> String {
        match self.url.port() {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    fn canonical(&self) -> String {
        let path: String = self
            .segments
            .iter()
            .map(|segment| format!("/{segment}"))
            .collect();
        let query = self
            .url
            .query()
            .map(|query| format!("?{query}"))
            .unwrap_or_default();
        format!("{}://{}{path}{query}", self.url.scheme(), self.authority())
    }
}

const RELAY_SCHEMES: [&str; 2] = ["ws", "wss"];
const CLONE_SCHEMES: [&str; 2] = ["http", "https"];

validated_text!(RelayUrl, CloneUrl, Host);

impl RelayUrl {
    fn new(text: &str) -> Result<Self, ParseError> {
        Ok(Self(
            UrlParts::parse(text, &RELAY_SCHEMES)?.canonical().into(),
        ))
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
    fn new(text: &str) -> Result<Self, ParseError> {
        Ok(Self(
            UrlParts::parse(text, &CLONE_SCHEMES)?.canonical().into(),
        ))
    }

    /// Returns the host that limits apply to.
    pub fn host(&self) -> Host {
        Host::of(&self.0)
    }
}

impl Host {
    /// Parses `name` or `name:port`, as in settings.
    fn new(text: &str) -> Result<Self, ParseError> {
        let parts = UrlParts::parse(&format!("https://{text}"), &CLONE_SCHEMES)?;
        if !parts.segments.is_empty() || parts.url.query().is_some() {
            return invalid("not a host");
        }
        Ok(Self(parts.authority().into()))
    }

    /// Returns the name without port; an IPv6 address without brackets.
    pub fn name(&self) -> &str {
        if let Some(literal) = self.0.strip_prefix('[') {
            return literal
                .split_once(']')
                .map_or(literal, |(literal, _)| literal);
        }
        self.0.split_once(':').map_or(&self.0, |(name, _)| name)
    }

    /// Returns the host of a canonical URL.
    fn of(canonical: &str) -> Self {
        let rest = canonical
            .split_once("://")
            .map_or(canonical, |(_, rest)| rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        Self(rest[..end].into())
    }
}

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
        assert_eq!(
            relay("ws://r.example:80/a//b/"),
            relay("ws://r.example/a/b")
        );
        assert_eq!(
            relay("wss://müsli.example"),
            relay("wss://xn--msli-0ra.example")
        );
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
        for text in [
            "wss://r.example",
            "ws://[::1]:7334/a/b?c=d",
            "wss://r.example/%E2%9C%93",
        ] {
            assert_eq!(relay(relay(text).as_str()), relay(text));
        }
    }

    #[test]
    fn refuses_other_schemes_and_credentials() {
        let cases = [
            ("https://r.example", "expected ws:// or wss://"),
            ("r.example", "not a URL"),
            ("wss://", "not a URL"),
            ("wss://.", "no host"),
            ("wss://user:pw@r.example", "credentials in the URL"),
            ("wss://user@r.example", "credentials in the URL"),
        ];
        for (text, why) in cases {
            assert_eq!(text.parse::<RelayUrl>(), invalid(why), "{text}");
        }
        for text in [
            "ext::sh -c x",
            "file:///etc",
            "ssh://git@h/x",
            "git://h/x",
            "/x",
            "-oProxyCommand=x",
        ] {
            assert!(text.parse::<CloneUrl>().is_err(), "{text}");
        }
        let long = format!("https://h/{}", "x".repeat(MAX_URL_BYTES));
        assert_eq!(long.parse::<CloneUrl>(), invalid("longer than 2048 bytes"));
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
