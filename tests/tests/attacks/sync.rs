//! Attacks by relays that are followed.

use crate::attacks;

attacks![];
