//! Push options, which are read and ignored.

use super::command::PushParseError;
use super::pktline::{Pkt, read_pkt};

/// Maximum size of the option list.
const MAX_OPTION_BYTES: usize = 64 * 1024;

/// Skips the option list that follows the commands of a client that announced one.
///
/// Clients pass on their `-o` values and abort if a server does not accept options; no option has a meaning here.
#[derive(Clone, Debug, Default)]
pub struct OptionsReader {
    buffer: Vec<u8>,
    bytes_read: usize,
}

impl OptionsReader {
    /// Parses the next bytes; returns those after the list once it has ended.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, PushParseError> {
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        while let Some((pkt, after)) = read_pkt(rest)? {
            self.bytes_read += rest.len() - after.len();
            rest = after;
            match pkt {
                Pkt::Data(_) if self.bytes_read <= MAX_OPTION_BYTES => {}
                Pkt::Data(_) => return Err(PushParseError::TooManyOptions),
                Pkt::Flush => return Ok(Some(rest.to_vec())),
                Pkt::Delimiter | Pkt::ResponseEnd => return Err(PushParseError::UnexpectedPacket),
            }
        }
        self.buffer = rest.to_vec();
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::encode_pkt;

    #[test]
    fn skips_options_in_any_pieces() {
        let mut bytes = Vec::new();
        encode_pkt(b"ci.skip", &mut bytes);
        encode_pkt(b"x=y", &mut bytes);
        bytes.extend_from_slice(b"0000PACK");
        let whole = OptionsReader::default().feed(&bytes);
        assert_eq!(whole, Ok(Some(b"PACK".to_vec())));
        let mut reader = OptionsReader::default();
        let (first, second) = bytes.split_at(9);
        assert_eq!(reader.feed(first), Ok(None));
        assert_eq!(reader.feed(second), whole);
    }

    #[test]
    fn refuses_too_many_options() {
        let mut packet = Vec::new();
        encode_pkt(&[b'x'; 60_000], &mut packet);
        let mut reader = OptionsReader::default();
        assert_eq!(reader.feed(&packet), Ok(None));
        assert_eq!(reader.feed(&packet), Err(PushParseError::TooManyOptions));
    }
}
