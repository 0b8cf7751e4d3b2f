//! Push options: read, bounded, and forgotten.

use super::command::PushParseError;
use super::pktline::{Pkt, read_pkt};

/// More than any option list needs.
const MAX_OPTION_BYTES: usize = 64 * 1024;

/// Passes over the option list that follows the commands of a client that announced one.
///
/// Clients forward their `-o` values and abort if a server does not take them; none of them means anything here, and
/// git is not told of them.
#[derive(Clone, Debug, Default)]
pub struct OptionsReader {
    buffer: Vec<u8>,
    seen: usize,
}

impl OptionsReader {
    /// Takes the next bytes; once the list has ended, what follows it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, PushParseError> {
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        while let Some((pkt, after)) = read_pkt(rest)? {
            self.seen += rest.len() - after.len();
            rest = after;
            match pkt {
                Pkt::Data(_) if self.seen <= MAX_OPTION_BYTES => {}
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
    fn options_are_passed_over_in_any_pieces() {
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
    fn endless_options_are_refused() {
        let mut packet = Vec::new();
        encode_pkt(&[b'x'; 60_000], &mut packet);
        let mut reader = OptionsReader::default();
        assert_eq!(reader.feed(&packet), Ok(None));
        assert_eq!(reader.feed(&packet), Err(PushParseError::TooManyOptions));
    }
}
