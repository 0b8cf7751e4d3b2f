//! Encoding of push results, as `git push` shows them.

use super::command::Capabilities;
use super::pktline::{MAX_PKT_DATA, encode_pkt};
use crate::repo::RefName;

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
        return encode_without_report(refs, capabilities);
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

/// Encodes the first reason as an error for a client that wants no report.
fn encode_without_report(refs: &[RefReport], capabilities: Capabilities) -> Vec<u8> {
    match refs.iter().find_map(|report| report.refusal.as_deref()) {
        Some(why) => encode_error(why, capabilities),
        None => b"0000".to_vec(),
    }
}

/// Shortens a text to one line without control characters, so that it cannot imitate another line.
fn one_line(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::{Pkt, read_pkt};

    fn reports() -> Vec<RefReport> {
        vec![
            RefReport { name: "refs/heads/a".parse().unwrap(), refusal: None },
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
        let capabilities = Capabilities { side_band_64k: true, ..PLAIN };
        let outer = packets(&encode_report(&reports(), capabilities));
        let (band, inner) = outer[0].split_first().unwrap();
        assert_eq!((*band, outer[1].as_slice()), (1, &b"flush"[..]));
        assert_eq!(inner, encode_report(&reports(), PLAIN));
    }

    #[test]
    fn a_report_longer_than_a_packet_is_split() {
        let many: Vec<_> = (0..5_000)
            .map(|n| RefReport { name: format!("refs/heads/{n}").parse().unwrap(), refusal: None })
            .collect();
        let capabilities = Capabilities { side_band_64k: true, ..PLAIN };
        let outer = packets(&encode_report(&many, capabilities));
        let inner: Vec<u8> =
            outer.iter().filter(|p| p[0] == 1).flat_map(|p| &p[1..]).copied().collect();
        assert!(outer.len() > 2);
        assert_eq!(inner, encode_report(&many, PLAIN));
    }

    #[test]
    fn without_report_status_the_first_reason_is_an_error() {
        let none = Capabilities::default();
        assert_eq!(packets(&encode_report(&reports(), none))[0], b"ERR no ok refs/heads/b\n");
        let banded = Capabilities { side_band_64k: true, ..none };
        assert_eq!(packets(&encode_report(&reports(), banded))[0][0], 3);
    }

    #[test]
    fn progress_needs_side_band() {
        assert!(encode_progress("working", PLAIN).is_empty());
        let capabilities = Capabilities { side_band_64k: true, ..PLAIN };
        assert_eq!(packets(&encode_progress("working", capabilities)), [b"\x02working\n"]);
    }
}
