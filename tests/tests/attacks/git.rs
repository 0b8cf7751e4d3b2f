//! Attacks through git: uploads, fetches, and git servers that are hunted.

use crate::attacks;

attacks![];
