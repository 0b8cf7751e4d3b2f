//! Telling the client what became of each ref, so that `git push` shows it.

use super::command::Capabilities;
use super::pktline::{MAX_PKT_DATA, encode_pkt};
use crate::repo::RefName;

/// What became of one ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefReport {
    /// The ref.
    pub name: RefName,
    /// `None` if it is where the client wanted it; else one line that says why not.
    pub refusal: Option<String>,
}

/// The most text that one side-band packet carries.
const BAND: usize = MAX_PKT_DATA - 1;

/// Encodes the answer to a push that was understood: per-ref lines in the form that the client negotiated.
///
/// Always sent with status 200. A bare error here would be read as a broken stream, and an HTTP error as a broken
/// server; only this reaches people as `! [remote rejected] main -> main (reason)`.
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

/// Encodes one progress message, shown as `remote: …`; nothing for a client without side-band.
pub fn encode_progress(text: &str, capabilities: Capabilities) -> Vec<u8> {
    let mut out = Vec::new();
    if capabilities.side_band_64k {
        encode_band(2, format!("{}\n", one_line(text)).as_bytes(), &mut out);
    }
    out
}

/// Encodes the answer to a push that was not even understood: there are no refs to speak of.
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

/// Splits data over as many packets of a band as it needs.
fn encode_band(band: u8, data: &[u8], out: &mut Vec<u8>) {
    for chunk in data.chunks(BAND) {
        let packet: Vec<u8> = std::iter::once(band).chain(chunk.iter().copied()).collect();
        encode_pkt(&packet, out);
    }
}

/// A client that wants no report still gets the first reason.
fn encode_without_report(refs: &[RefReport], capabilities: Capabilities) -> Vec<u8> {
    match refs.iter().find_map(|report| report.refusal.as_deref()) {
        Some(why) => encode_error(why, capabilities),
        None => b"0000".to_vec(),
    }
}

/// A reason fits one line of a terminal, and cannot pretend to be another.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 400;
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect()
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
        quiet: false,
        push_options: false,
    };

    #[test]
    fn each_ref_has_one_line_that_cannot_forge_another() {
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
    fn with_side_band_the_report_travels_inside_band_one() {
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
    fn progress_is_for_clients_that_can_tell_it_from_data() {
        assert!(encode_progress("working", PLAIN).is_empty());
        let capabilities = Capabilities { side_band_64k: true, ..PLAIN };
        assert_eq!(packets(&encode_progress("working", capabilities)), [b"\x02working\n"]);
    }
}
