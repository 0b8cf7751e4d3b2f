//! Ids of git objects.

use std::fmt;
use std::str::FromStr;

use crate::text::{ParseError, hex_bytes, invalid, serde_as_text};

/// The id of a git object: 40 hex digits (SHA-1) or 64 (SHA-256).
///
/// Upper-case digits are accepted and written in lower case, as git does. `{:.8}` writes the first eight digits.
///
/// ```
/// use grasp_core::Oid;
///
/// let oid: Oid = "DEADBEEFdeadbeefdeadbeefdeadbeefdeadbeef".parse().unwrap();
/// assert_eq!(oid.to_string(), "deadbeefdeadbeefdeadbeefdeadbeefdeadbeef");
/// assert!("abc123".parse::<Oid>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Oid {
    /// An object of a SHA-1 repository.
    Sha1([u8; 20]),
    /// An object of a SHA-256 repository.
    Sha256([u8; 32]),
}

impl Oid {
    /// The id that git writes for "no object".
    pub const ZERO: Self = Self::Sha1([0; 20]);

    /// Returns whether this is the id for "no object".
    pub fn is_zero(&self) -> bool {
        self.as_bytes().iter().all(|byte| *byte == 0)
    }

    /// Returns the bytes of the hash.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Sha1(bytes) => bytes,
            Self::Sha256(bytes) => bytes,
        }
    }
}

impl FromStr for Oid {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let oid = hex_bytes(text).map(Self::Sha1).or_else(|| hex_bytes(text).map(Self::Sha256));
        oid.map_or_else(|| invalid("not an object id of 40 or 64 hex digits"), Ok)
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&faster_hex::hex_string(self.as_bytes()))
    }
}

impl fmt::Debug for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Oid({self})")
    }
}

serde_as_text!(Oid);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_ids_of_both_hashes_only() {
        assert!(matches!("0".repeat(40).parse(), Ok(Oid::Sha1(_))));
        assert!(matches!("f".repeat(64).parse(), Ok(Oid::Sha256(_))));
        for text in ["", "abc123", &"0".repeat(41), &"g".repeat(40), &"é".repeat(20)] {
            assert!(text.parse::<Oid>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_first_digits_are_written_by_precision() {
        let oid: Oid = "0123456789abcdef0123456789abcdef01234567".parse().unwrap();
        assert_eq!(format!("{oid:.8}"), "01234567");
    }

    #[test]
    fn zero_of_either_length_is_no_object() {
        assert!(Oid::ZERO.is_zero());
        assert!("0".repeat(64).parse::<Oid>().unwrap().is_zero());
        assert!(!"1".repeat(40).parse::<Oid>().unwrap().is_zero());
    }
}
