//! Git's pkt-line framing, and the results of a push in it, as `git push` shows them.

use super::command::Capabilities;
use crate::repo::RefName;
use crate::text::{ParseError, hex_bytes, invalid};

/// Maximum length of a packet's data.
pub(super) const MAX_PKT_DATA: usize = 65_516;

/// Maximum length of a packet.
const MAX_PKT: usize = MAX_PKT_DATA + 4;

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pkt<'a> {
    /// The payload.
    Data(&'a [u8]),
    /// `0000`
    Flush,
    /// `0001`
    Delimiter,
    /// `0002`
    ResponseEnd,
}

/// Reads the first packet and returns it with the bytes after it; `None` if it is incomplete.
pub fn read_pkt(bytes: &[u8]) -> Result<Option<(Pkt<'_>, &[u8])>, ParseError> {
    let Some((digits, rest)) = bytes.split_at_checked(4) else {
        return Ok(None);
    };
    let Some(length) = std::str::from_utf8(digits).ok().and_then(hex_bytes) else {
        return invalid("a packet length is not four hex digits");
    };
    match usize::from(u16::from_be_bytes(length)) {
        0 => Ok(Some((Pkt::Flush, rest))),
        1 => Ok(Some((Pkt::Delimiter, rest))),
        2 => Ok(Some((Pkt::ResponseEnd, rest))),
        length @ 4..=MAX_PKT => Ok(rest
            .split_at_checked(length - 4)
            .map(|(data, rest)| (Pkt::Data(data), rest))),
        _ => invalid("a packet of impossible length"),
    }
}

/// Appends one data packet of at most 65,516 bytes.
pub fn encode_pkt(data: &[u8], out: &mut Vec<u8>) {
    debug_assert!(data.len() <= MAX_PKT_DATA, "one packet at a time");
    out.extend_from_slice(format!("{:04x}", data.len() + 4).as_bytes());
    out.extend_from_slice(data);
}

/// The result for one ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefReport {
    /// Name of the ref.
    pub name: RefName,
    /// The reason in one line, or `None` on success.
    pub refusal: Option<String>,
}

/// Maximum data of a side-band packet.
const MAX_BAND_DATA: usize = MAX_PKT_DATA - 1;

/// Encodes the answer to a valid push: a line per ref in the negotiated form.
///
/// Always sent with status 200: git reads a bare error as a broken stream and an HTTP error as a broken server. Only
/// this form is shown as `! [remote rejected] main -> main (reason)`.
pub fn encode_report(refs: &[RefReport], capabilities: Capabilities) -> Vec<u8> {
    if !(capabilities.report_status || capabilities.report_status_v2) {
        // The first reason, as an error.
        let refusal = refs.iter().find_map(|report| report.refusal.as_deref());
        return refusal.map_or(b"0000".to_vec(), |why| encode_error(why, capabilities));
    }
    let mut report = Vec::new();
    encode_pkt(b"unpack ok\n", &mut report);
    for RefReport { name, refusal } in refs {
        let line = match refusal {
            Some(why) => format!("ng {name} {}\n", one_line(why)),
            None => format!("ok {name}\n"),
        };
        encode_pkt(line.as_bytes(), &mut report);
    }
    report.extend_from_slice(b"0000");
    if !capabilities.side_band_64k {
        return report;
    }
    let mut out = Vec::new();
    encode_band(1, &report, &mut out);
    out.extend_from_slice(b"0000");
    out
}

/// Encodes a progress message, shown as `remote: …`; empty for a client without side-band.
pub fn encode_progress(text: &str, capabilities: Capabilities) -> Vec<u8> {
    let mut out = Vec::new();
    if capabilities.side_band_64k {
        encode_band(2, format!("{}\n", one_line(text)).as_bytes(), &mut out);
    }
    out
}

/// Encodes the answer to an invalid push, which has no refs to report.
pub fn encode_error(why: &str, capabilities: Capabilities) -> Vec<u8> {
    let mut out = Vec::new();
    if capabilities.side_band_64k {
        encode_band(3, one_line(why).as_bytes(), &mut out);
    } else {
        encode_pkt(format!("ERR {}\n", one_line(why)).as_bytes(), &mut out);
    }
    out.extend_from_slice(b"0000");
    out
}

/// Splits data into packets of a band.
fn encode_band(band: u8, data: &[u8], out: &mut Vec<u8>) {
    for chunk in data.chunks(MAX_BAND_DATA) {
        let packet: Vec<u8> = std::iter::once(band).chain(chunk.iter().copied()).collect();
        encode_pkt(&packet, out);
    }
}

/// Shortens a text to one line without control characters, so that it cannot imitate another line.
fn one_line(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_CHARS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_and_reading_round_trip() {
        let mut bytes = Vec::new();
        encode_pkt(b"hello", &mut bytes);
        bytes.extend_from_slice(b"0000rest");
        let (first, rest) = read_pkt(&bytes).unwrap().unwrap();
        assert_eq!(first, Pkt::Data(b"hello"));
        assert_eq!(read_pkt(rest), Ok(Some((Pkt::Flush, &b"rest"[..]))));
    }

    #[test]
    fn tells_incomplete_from_malformed_packets() {
        for waiting in ["", "0", "000", "0009hell"] {
            assert_eq!(read_pkt(waiting.as_bytes()), Ok(None), "{waiting}");
        }
        for broken in ["00 4", "+004", "xxxx", "é00"] {
            assert_eq!(
                read_pkt(broken.as_bytes()),
                invalid("a packet length is not four hex digits"),
                "{broken}"
            );
        }
        for broken in ["0003", "ffff"] {
            assert_eq!(
                read_pkt(broken.as_bytes()),
                invalid("a packet of impossible length"),
                "{broken}"
            );
        }
    }

    fn reports() -> Vec<RefReport> {
        vec![
            RefReport {
                name: "refs/heads/a".parse().unwrap(),
                refusal: None,
            },
            RefReport {
                name: "refs/heads/b".parse().unwrap(),
                refusal: Some("no\nok refs/heads/b".into()),
            },
        ]
    }

    fn packets(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Some((pkt, rest)) = read_pkt(bytes).unwrap() {
            packets.push(match pkt {
                Pkt::Data(data) => data.to_vec(),
                _ => b"flush".to_vec(),
            });
            bytes = rest;
        }
        assert!(bytes.is_empty());
        packets
    }

    const PLAIN: Capabilities = Capabilities {
        report_status: true,
        report_status_v2: false,
        side_band_64k: false,
        atomic: false,
        push_options: false,
    };

    #[test]
    fn each_ref_has_one_line() {
        let packets = packets(&encode_report(&reports(), PLAIN));
        let expected: [&[u8]; 4] = [
            b"unpack ok\n",
            b"ok refs/heads/a\n",
            b"ng refs/heads/b no ok refs/heads/b\n",
            b"flush",
        ];
        assert_eq!(packets, expected);
    }

    #[test]
    fn with_side_band_the_report_is_in_band_one() {
        let capabilities = Capabilities {
            side_band_64k: true,
            ..PLAIN
        };
        let outer = packets(&encode_report(&reports(), capabilities));
        let (band, inner) = outer[0].split_first().unwrap();
        assert_eq!((*band, outer[1].as_slice()), (1, &b"flush"[..]));
        assert_eq!(inner, encode_report(&reports(), PLAIN));
    }

    #[test]
    fn a_report_longer_than_a_packet_is_split() {
        let many: Vec<_> = (0..5_000)
            .map(|n| RefReport {
                name: format!("refs/heads/{n}").parse().unwrap(),
                refusal: None,
            })
            .collect();
        let capabilities = Capabilities {
            side_band_64k: true,
            ..PLAIN
        };
        let outer = packets(&encode_report(&many, capabilities));
        let inner: Vec<u8> = outer
            .iter()
            .filter(|p| p[0] == 1)
            .flat_map(|p| &p[1..])
            .copied()
            .collect();
        assert!(outer.len() > 2);
        assert_eq!(inner, encode_report(&many, PLAIN));
    }

    #[test]
    fn without_report_status_the_first_reason_is_an_error() {
        let none = Capabilities::default();
        assert_eq!(
            packets(&encode_report(&reports(), none))[0],
            b"ERR no ok refs/heads/b\n"
        );
        let banded = Capabilities {
            side_band_64k: true,
            ..none
        };
        assert_eq!(packets(&encode_report(&reports(), banded))[0][0], 3);
    }

    #[test]
    fn progress_needs_side_band() {
        assert!(encode_progress("working", PLAIN).is_empty());
        let capabilities = Capabilities {
            side_band_64k: true,
            ..PLAIN
        };
        assert_eq!(
            packets(&encode_progress("working", capabilities)),
            [b"\x02working\n"]
        );
    }
}
