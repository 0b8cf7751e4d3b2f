//! The relay at `/`: NIP-01, 11, 42, 45, 67 and 77 over one websocket.
//!
//! ```text
//!             text frame                          Request
//!   socket ───────────────▶ codec ──────────────────────────────▶ session (pure: limits, state, outputs)
//!      ▲                                                              │ Output
//!      │ EVENT, EOSE, OK …                                            ▼
//!   delivery ◀── history (store) ──── connection (the only place that waits) ──▶ ingest
//!      ▲                                                              │ register
//!      └────────────── live events ◀──── hub (indexed fan-out) ◀──────┘
//! ```
//!
//! One socket is one task with one [`session`](self) state; the hub is one task with one index. Nothing of either
//! is shared or locked, and waiting for a peer happens in that peer's own task only.

pub(crate) mod codec;
pub(crate) mod connection;
pub(crate) mod delivery;
pub mod hub;
mod info;
pub mod limits;
pub(crate) mod negentropy;
pub(crate) mod session;
mod subscriptions;

pub use hub::Hub;
pub use info::{InfoOwner, LiveInfo};
pub(crate) use limits::Allowance;
pub use limits::{Limits, RelayInfo};
