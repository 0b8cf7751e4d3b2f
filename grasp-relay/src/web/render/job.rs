//! What workers are sent, and what they answer: frames of a length and as many bytes.

#![cfg_attr(
    not(feature = "pages"),
    allow(dead_code, reason = "without workers nothing is sent to them")
)]

use std::io::{self, Read, Write};
use std::time::Duration;

/// The largest text that is rendered.
pub(crate) const MAX_TEXT: usize = 256 * 1024;

/// The largest HTML that is taken from a worker.
pub(crate) const MAX_HTML: usize = 2 * 1024 * 1024;

/// Where a text is, so that links in it lead somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// The path of the repository, as `/<npub>/<name>.git`.
    pub(crate) base: &'a str,
    /// The branch, tag or commit, as paths have it.
    pub(crate) rev: &'a str,
    /// The directory, empty or like `docs/images`, as paths have it.
    pub(crate) directory: &'a str,
}

/// A text to render.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job<'a> {
    /// Markdown, as a document.
    Markdown { place: Place<'a>, text: &'a str },
    /// Markdown, as a comment: its lines stay lines, and it has no places to link to, since there are many on one page.
    Note { place: Place<'a>, text: &'a str },
    /// Source code: one line of HTML for each line.
    Code { file_name: &'a str, text: &'a str },
}

impl Job<'_> {
    /// Returns the text to render.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Markdown { text, .. } | Self::Note { text, .. } | Self::Code { text, .. } => text,
        }
    }

    /// Encodes the job as it is sent to a worker.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Markdown { place, text } | Self::Note { place, text } => {
                bytes.push(if matches!(self, Self::Note { .. }) {
                    b'n'
                } else {
                    b'm'
                });
                for part in [place.base, place.rev, place.directory, text] {
                    push_frame(&mut bytes, part.as_bytes());
                }
            }
            Self::Code { file_name, text } => {
                bytes.push(b'c');
                for part in [*file_name, "", "", *text] {
                    push_frame(&mut bytes, part.as_bytes());
                }
            }
        }
        bytes
    }
}

fn push_frame(bytes: &mut Vec<u8>, part: &[u8]) {
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(part);
}

/// A job as a worker reads it.
pub(super) struct ReceivedJob {
    kind: u8,
    parts: [String; 4],
}

impl ReceivedJob {
    /// Reads a job; `None` at the end of the input.
    pub(super) fn read(input: &mut impl Read) -> io::Result<Option<Self>> {
        let mut kind = [0];
        if input.read(&mut kind)? == 0 {
            return Ok(None);
        }
        let mut parts = <[String; 4]>::default();
        for part in &mut parts {
            *part = read_frame(input)?;
        }
        let [kind] = kind;
        Ok(Some(Self { kind, parts }))
    }

    pub(super) fn job(&self) -> Option<Job<'_>> {
        let [first, rev, directory, text] = &self.parts;
        let place = Place {
            base: first,
            rev,
            directory,
        };
        match self.kind {
            b'm' => Some(Job::Markdown { place, text }),
            b'n' => Some(Job::Note { place, text }),
            b'c' => Some(Job::Code {
                file_name: first,
                text,
            }),
            _ => None,
        }
    }
}

fn read_frame(input: &mut impl Read) -> io::Result<String> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_TEXT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Bytes before the HTML of an answer: the CPU time in microseconds, and the length.
pub(super) const ANSWER_HEAD: usize = 12;

/// Writes the answer of a worker; without HTML the text is shown as it is.
pub(super) fn write_answer(
    output: &mut impl Write,
    cpu: Duration,
    html: Option<&str>,
) -> io::Result<()> {
    let html = html.unwrap_or_default();
    let microseconds = u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX);
    output.write_all(&microseconds.to_be_bytes())?;
    let length = u32::try_from(html.len()).unwrap_or(u32::MAX);
    output.write_all(&length.to_be_bytes())?;
    output.write_all(html.as_bytes())?;
    output.flush()
}

/// Returns the CPU time and the length of an answer; `None` if it is longer than allowed.
pub(super) fn parse_head(head: [u8; ANSWER_HEAD]) -> Option<(Duration, usize)> {
    let (microseconds, length) = head.split_at(8);
    let microseconds = u64::from_be_bytes(microseconds.try_into().ok()?);
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
    let cpu = Duration::from_micros(microseconds);
    (length <= MAX_HTML).then_some((cpu, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_arrive_as_they_were_sent() {
        let place = Place {
            base: "/npub1x/y.git",
            rev: "main",
            directory: "docs",
        };
        let jobs = [
            Job::Markdown {
                place,
                text: "# ü\n",
            },
            Job::Note { place, text: "a" },
            Job::Code {
                file_name: "a.rs",
                text: "",
            },
        ];
        let bytes: Vec<u8> = jobs.iter().flat_map(Job::encode).collect();
        let mut input = bytes.as_slice();
        for job in jobs {
            let received = ReceivedJob::read(&mut input).unwrap().unwrap();
            assert_eq!(received.job(), Some(job));
        }
        assert!(ReceivedJob::read(&mut input).unwrap().is_none());
        let mut cut = bytes.get(..9).unwrap();
        assert!(ReceivedJob::read(&mut cut).is_err());
    }

    #[test]
    fn an_answer_that_is_too_long_is_refused() {
        let mut answer = Vec::new();
        write_answer(&mut answer, Duration::from_millis(3), Some("<p>")).unwrap();
        let head: [u8; ANSWER_HEAD] = answer[..ANSWER_HEAD].try_into().unwrap();
        assert_eq!(parse_head(head), Some((Duration::from_millis(3), 3)));
        assert_eq!(parse_head([0xff; ANSWER_HEAD]), None);
    }
}
