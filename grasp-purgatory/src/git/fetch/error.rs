//! The cause of a failed fetch, read from git's error output.

use std::io;
use std::time::Duration;

use grasp_core::limits::PeerText;

use crate::git::error::{GitError, says_disk_full};
use crate::hunt::FetchError;

/// Returns the fetch error for a failure of git on this server. The data of the other server may be its cause.
pub(super) fn ours(error: GitError) -> FetchError {
    match error {
        GitError::Timeout { .. } => FetchError::Stalled,
        GitError::TooLarge { .. } => FetchError::TooLarge,
        GitError::TooMany { limit } => FetchError::TooManyObjects { limit },
        GitError::Spawn { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => {
            FetchError::TooLarge
        }
        GitError::BadPack(said) => FetchError::Broken(PeerText::new(&said)),
        error @ (GitError::LongChain { .. } | GitError::TooExpensive { .. }) => {
            FetchError::Broken(PeerText::new(&error.to_string()))
        }
        GitError::Incomplete { .. } => incomplete(),
        other => FetchError::Internal(other.to_string()),
    }
}

/// Returns the error for a server that reported success and left history out.
pub(super) fn incomplete() -> FetchError {
    FetchError::Broken(PeerText::new("history is missing"))
}

/// Returns the error for a host name without an address.
pub(super) fn unresolved(error: &io::Error) -> FetchError {
    FetchError::Unreachable(PeerText::new(&format!("no address: {error}")))
}

/// Message of git at the limit of a file's size.
const FILE_BOUND: &str = "File too large";

/// The subject of an error message.
type Meaning = fn(PeerText) -> FetchError;

/// Words, and what they are about. The first that is found decides.
const WORDS: &[(&[&str], Meaning)] = &[
    (
        &[FILE_BOUND, "signal 25", "ut of memory", "exceeds maximum"],
        |_| FetchError::TooLarge,
    ),
    (&["too slow", "Operation timed out"], |_| {
        FetchError::Stalled
    }),
    (
        &["not our ref", "unadvertised object", "find remote ref"],
        FetchError::Refused,
    ),
    (
        &[
            "Could not resolve",
            "connect to",
            "Connection",
            "SSL",
            "certificate",
            "TLS",
        ],
        FetchError::Unreachable,
    ),
    (
        &[
            "returned error",
            "not found",
            "not valid",
            "Authentication",
            "Username",
        ],
        FetchError::Answered,
    ),
    (
        &[
            "index-pack",
            "fsck",
            "early EOF",
            "disconnect",
            "corrupt",
            "bad object",
            "necessary",
        ],
        FetchError::Broken,
    ),
];

/// Returns the failure that git's error output tells.
pub(super) fn theirs(words: &str) -> FetchError {
    // A fetch has a file size limit of its own; data above it is too large, however empty the disk is.
    if says_disk_full(words) && !words.contains(FILE_BOUND) {
        return FetchError::Internal(String::from("no space left on disk"));
    }
    if asks_for_less(words) {
        return FetchError::RateLimited {
            retry_after: retry_after(words),
        };
    }
    let said = words.lines().filter(|line| !is_trace(line));
    let complaint = |line: &&str| line.starts_with("fatal:") || line.starts_with("error:");
    let text = PeerText::new(said.clone().find(complaint).unwrap_or("git gave no reason"));
    let found = WORDS.iter().find(|(words, _)| {
        said.clone()
            .any(|line| words.iter().any(|word| line.contains(word)))
    });
    found.map_or(FetchError::Answered(text.clone()), |(_, error)| {
        error(text.clone())
    })
}

fn asks_for_less(words: &str) -> bool {
    let said = words
        .lines()
        .filter(|line| !is_trace(line))
        .map(str::to_ascii_lowercase);
    let phrases = [
        "returned error: 429",
        "returned error: 503",
        "too many requests",
        "rate limit",
    ];
    said.into_iter()
        .any(|line| phrases.iter().any(|phrase| line.contains(phrase)))
}

/// Returns whether a line is a status message of git, such as a header, and no error. Lines of a server never begin like
/// this: git puts `remote:` before them.
fn is_trace(line: &str) -> bool {
    let mut parts = line.split_whitespace();
    let time = parts.next().unwrap_or_default();
    let place = parts.next().unwrap_or_default();
    time.starts_with(|c: char| c.is_ascii_digit()) && time.contains(':') && place.contains(".c:")
}

/// Returns the pause that a server asks for, in seconds or until a date by its own clock.
///
/// It may have been asked more than once, and the last answer counts.
fn retry_after(words: &str) -> Option<Duration> {
    let wish = last_header(words, "retry-after")?;
    if let Ok(seconds) = wish.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(wish).ok()?;
    let now = httpdate::parse_http_date(last_header(words, "date")?).ok()?;
    Some(until.duration_since(now).unwrap_or_default())
}

/// The last value of a header among git's last words.
fn last_header<'a>(words: &'a str, wanted: &str) -> Option<&'a str> {
    let headers = words.lines().filter(|line| is_trace(line));
    let headers = headers.filter_map(|line| line.split_once("<= Recv header: "));
    let mut values = headers.filter_map(|(_, header)| {
        let (name, value) = header.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    });
    values.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(words: &str) -> &'static str {
        match theirs(words) {
            FetchError::RateLimited { .. } => "limited",
            FetchError::Refused(_) => "refused",
            FetchError::Unreachable(_) => "unreachable",
            FetchError::Answered(_) => "answered",
            FetchError::Broken(_) => "broken",
            FetchError::TooLarge => "too large",
            FetchError::Stalled => "stalled",
            FetchError::Internal(_) => "ours",
            _ => "other",
        }
    }

    #[test]
    fn error_messages_of_git_are_classified() {
        let at = "fatal: unable to access 'http://h/x.git/':";
        let oid = "1".repeat(40);
        let cases = [
            (
                format!("{at} The requested URL returned error: 429"),
                "limited",
            ),
            (
                String::from("remote: Too many requests, slow down\nfatal: early EOF"),
                "limited",
            ),
            (
                format!("fatal: remote error: upload-pack: not our ref {oid}"),
                "refused",
            ),
            (
                format!("error: Server does not allow request for unadvertised object {oid}"),
                "refused",
            ),
            (
                format!("{at} Failed to connect to h port 9 after 0 ms"),
                "unreachable",
            ),
            (format!("{at} Could not resolve host: h"), "unreachable"),
            (
                format!("{at} SSL certificate problem: self-signed certificate"),
                "unreachable",
            ),
            (
                format!("{at} The requested URL returned error: 503"),
                "limited",
            ),
            (
                format!("{at} The requested URL returned error: 500"),
                "answered",
            ),
            (
                format!("{at} The requested URL returned error: 302"),
                "answered",
            ),
            (
                String::from("fatal: repository 'http://h/x.git/' not found"),
                "answered",
            ),
            (
                String::from(
                    "fatal: could not read Username for 'http://h': terminal prompts disabled",
                ),
                "answered",
            ),
            (
                format!(
                    "{at} Operation too slow. Less than 64 bytes/sec transferred the last 300 seconds"
                ),
                "stalled",
            ),
            (
                String::from("error: index-pack died of signal 25\nfatal: index-pack failed"),
                "too large",
            ),
            (
                String::from("fatal: Out of memory, malloc failed"),
                "too large",
            ),
            (
                String::from("fatal: write error: File too large"),
                "too large",
            ),
            (
                String::from("error: inflate: data stream error\nfatal: index-pack failed"),
                "broken",
            ),
            (
                String::from("fatal: http://h did not send all necessary objects"),
                "broken",
            ),
            (
                String::from("fatal: write error: No space left on device"),
                "ours",
            ),
            (String::new(), "answered"),
        ];
        for (words, expected) in cases {
            assert_eq!(kind(&words), expected, "{words}");
        }
    }

    #[test]
    fn the_length_of_a_pause_is_read_from_the_headers() {
        let trace = "05:26:11.840370 http.c:872   <= Recv header: Retry-After: 77\n";
        let fatal = "fatal: unable to access 'x': The requested URL returned error: 429";
        let pause = |words: &str| match theirs(words) {
            FetchError::RateLimited { retry_after } => retry_after,
            other => panic!("{other}"),
        };
        assert_eq!(
            pause(&format!("{trace}{fatal}")),
            Some(Duration::from_secs(77))
        );
        assert_eq!(pause(fatal), None);
        let date = trace.replace("77", "Mon, 16 Nov 2026 05:26:11 GMT");
        assert_eq!(pause(&format!("{date}{fatal}")), None, "by whose clock?");
        let now =
            "05:26:11.840370 http.c:872   <= Recv header: date: Mon, 16 Nov 2026 05:24:11 GMT\n";
        assert_eq!(
            pause(&format!("{now}{date}{fatal}")),
            Some(Duration::from_secs(120))
        );
        assert_eq!(
            pause(&format!("{}{fatal}", trace.replace("77", "soon"))),
            None
        );
    }

    #[test]
    fn headers_are_not_read_as_messages_of_git() {
        let header = "05:26:11.840370 http.c:872   <= Recv header: X: Too many requests\n";
        assert_eq!(
            kind(&format!("{header}fatal: repository 'x' not found")),
            "answered"
        );
    }
}
