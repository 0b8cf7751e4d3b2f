//! Bytes as lower-case hexadecimal text.

const DIGITS: [char; 16] =
    ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];

/// The bytes that a text of hex digits stands for.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = (text.as_bytes().chunks_exact(2), text.len() % 2);
    if rest != 0 {
        return None;
    }
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

/// Appends bytes as hex digits.
pub(super) fn encode(bytes: &[u8], text: &mut String) {
    text.reserve(bytes.len().saturating_mul(2));
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
}

const fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_odd_lengths_and_foreign_digits() {
        assert_eq!(decode("6"), None);
        assert_eq!(decode("6g"), None);
        assert_eq!(decode("é"), None);
        assert_eq!(decode(""), Some(vec![]));
    }

    proptest::proptest! {
        #[test]
        fn decoding_undoes_encoding(bytes: Vec<u8>) {
            let mut text = String::new();
            encode(&bytes, &mut text);
            proptest::prop_assert_eq!(decode(&text), Some(bytes));
        }
    }
}
