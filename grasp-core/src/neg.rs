//! Validation and encoding of negentropy messages (NIP-77).

/// Bytes of an id.
const ID_BYTES: usize = 32;
const FINGERPRINT_BYTES: usize = 16;

/// Returns whether a message consists of whole ranges.
///
/// The library reads numbers that overflow or are cut off as small ones, and so concludes from a malformed message
/// that both sides are equal.
///
/// ```
/// use grasp_core::neg::is_well_formed;
///
/// assert!(is_well_formed(&[0x61]) && is_well_formed(&[0x61, 0, 0, 2, 0]));
/// assert!(!is_well_formed(&[]) && !is_well_formed(&[0x61, 0xff]) && !is_well_formed(&[0x61, 0, 0, 2, 1, 7]));
/// ```
pub fn is_well_formed(message: &[u8]) -> bool {
    let Some((_version, mut rest)) = message.split_first() else {
        return false;
    };
    while !rest.is_empty() {
        if skip_range(&mut rest).is_none() {
            return false;
        }
    }
    true
}

/// Encodes a message as lower-case hex.
pub fn to_hex(message: &[u8]) -> String {
    faster_hex::hex_string(message)
}

/// Decodes a message from hex.
///
/// ```
/// use grasp_core::neg::{from_hex, to_hex};
///
/// assert_eq!(from_hex(&to_hex(&[0x61, 0xff])), Some(vec![0x61, 0xff]));
/// assert_eq!(from_hex("61FF"), Some(vec![0x61, 0xff]));
/// assert_eq!((from_hex("6"), from_hex("6g"), from_hex("\u{e9}")), (None, None, None));
/// ```
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let mut message = vec![0; text.len() / 2];
    faster_hex::hex_decode(text.as_bytes(), &mut message)
        .ok()
        .map(|()| message)
}

/// Skips one range: its upper bound and its content.
fn skip_range(rest: &mut &[u8]) -> Option<()> {
    let _time = read_number(rest)?;
    let prefix = read_number(rest)?;
    skip(
        rest,
        usize::try_from(prefix)
            .ok()
            .filter(|length| *length <= ID_BYTES)?,
    )?;
    match read_number(rest)? {
        0 => Some(()),
        1 => skip(rest, FINGERPRINT_BYTES),
        2 => {
            let ids = read_number(rest)?;
            skip(rest, usize::try_from(ids).ok()?.checked_mul(ID_BYTES)?)
        }
        _ => None,
    }
}

fn skip(rest: &mut &[u8], length: usize) -> Option<()> {
    *rest = rest.get(length..)?;
    Some(())
}

/// Reads a number in base 128, most significant digit first; all digits but the last have their high bit set.
fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number: u64 = 0;
    loop {
        let (digit, after) = rest.split_first()?;
        *rest = after;
        number = number.checked_mul(128)? | u64::from(digit & 0x7f);
        if digit & 0x80 == 0 {
            return Some(number);
        }
    }
}
