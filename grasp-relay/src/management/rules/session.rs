//! Tokens that authorize the reads of a key for some minutes, so that a page need not have each of them signed.

use std::fmt;
use std::time::Duration;

use bitcoin_hashes::hmac::HmacEngine;
use bitcoin_hashes::{Hash as _, HashEngine as _, sha256};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::text::{hex_bytes, parse_pubkey};

/// The key that tokens are made with. It is never shown.
#[derive(Clone)]
pub struct SessionKey([u8; 32]);

impl SessionKey {
    /// The time for which a token is valid.
    pub const LIFETIME: Duration = Duration::from_secs(15 * 60);

    /// Makes a key of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns a token for a key, and when it ends.
    pub fn open(&self, author: &PublicKey, now: Timestamp) -> (String, Timestamp) {
        let expires_at = now + Self::LIFETIME;
        let claim = format!("{}.{}", author.to_hex(), expires_at.as_secs());
        let mac = faster_hex::hex_string(&self.mac(&claim));
        (format!("{claim}.{mac}"), expires_at)
    }

    /// Returns the key that a token was made for, while it is valid.
    pub fn judge(&self, token: &str, now: Timestamp) -> Option<PublicKey> {
        let (claim, mac) = token.rsplit_once('.')?;
        let given = hex_bytes::<32>(mac)?;
        let expected = self.mac(claim);
        let differs = given
            .iter()
            .zip(&expected)
            .fold(0, |sum, (a, b)| sum | (a ^ b));
        let (author, expires_at) = claim.split_once('.')?;
        let expires_at: u64 = expires_at.parse().ok()?;
        let is_valid = differs == 0 && now.as_secs() < expires_at;
        parse_pubkey(author).filter(|_| is_valid)
    }

    fn mac(&self, claim: &str) -> [u8; 32] {
        let mut engine = HmacEngine::<sha256::HashEngine>::new(&self.0);
        engine.input(claim.as_bytes());
        engine.finalize().to_byte_array()
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}
