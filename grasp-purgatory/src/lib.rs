//! Holds events until their git data is here, and keeps that data.

#[cfg(feature = "driver")]
pub mod git;
