//! Git's pkt-line framing: four hex digits of length, then the data.

/// Maximum length of a packet's data.
pub const MAX_PKT_DATA: usize = 65_516;

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

/// The reason for which bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PktError {
    /// A length that is not four hex digits.
    #[error("a packet length is not four hex digits")]
    Length,
    /// A length of 3, or one above the maximum.
    #[error("a packet of impossible length")]
    Impossible,
}

/// Reads the first packet and returns it with the bytes after it; `None` if it is incomplete.
pub fn read_pkt(bytes: &[u8]) -> Result<Option<(Pkt<'_>, &[u8])>, PktError> {
    let Some((head, rest)) = bytes.split_at_checked(4) else {
        return Ok(None);
    };
    let length = std::str::from_utf8(head)
        .ok()
        .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
        .and_then(|digits| usize::from_str_radix(digits, 16).ok())
        .ok_or(PktError::Length)?;
    match length {
        0 => Ok(Some((Pkt::Flush, rest))),
        1 => Ok(Some((Pkt::Delimiter, rest))),
        2 => Ok(Some((Pkt::ResponseEnd, rest))),
        3 => Err(PktError::Impossible),
        _ if length - 4 > MAX_PKT_DATA => Err(PktError::Impossible),
        _ => Ok(rest.split_at_checked(length - 4).map(|(data, rest)| (Pkt::Data(data), rest))),
    }
}

/// Appends one data packet of at most [`MAX_PKT_DATA`] bytes.
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
            assert_eq!(read_pkt(broken.as_bytes()), Err(PktError::Length), "{broken}");
        }
        for broken in ["0003", "ffff"] {
            assert_eq!(read_pkt(broken.as_bytes()), Err(PktError::Impossible), "{broken}");
        }
    }
}
