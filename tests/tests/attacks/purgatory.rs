//! Attacks on what waits and on the disk: held events, staged uploads, deletions.

use crate::attacks;

attacks![];
