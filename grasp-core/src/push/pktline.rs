//! Git's pkt-line framing: four hex digits of length, then the data.

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
        length @ 4..=MAX_PKT => {
            Ok(rest.split_at_checked(length - 4).map(|(data, rest)| (Pkt::Data(data), rest)))
        }
        _ => invalid("a packet of impossible length"),
    }
}

/// Appends one data packet of at most 65,516 bytes.
pub fn encode_pkt(data: &[u8], out: &mut Vec<u8>) {
    debug_assert!(data.len() <= MAX_PKT_DATA, "one packet at a time");
    out.extend_from_slice(format!("{:04x}", data.len() + 4).as_bytes());
    out.extend_from_slice(data);
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
}
