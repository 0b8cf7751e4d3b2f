//! Accounting for everything that input from outside can consume.
//!
//! Each resource (git processes, bytes being unpacked, reader time, connections …) is one [`Pool`] with a total. Its
//! consumer is a [`Claimant`]: a client network, an author, or the server itself. Three rules hold for every pool:
//!
//! 1. **Shares.** No client network holds more than half of what would be free without it, at every width: an IPv4 /24
//!    half of the pool, each /32 in it half of what the /24 may have; IPv6 /48, /56 and /64 likewise. So a newcomer
//!    always finds something free, however much one network asks for. An author holds at most a fixed amount.
//! 2. **Reserve.** Claimants without authority never consume the reserve. Claimants with authority (confirmed
//!    maintainers of served repositories, the operator, the server itself) may, and have accounts of their own, so that
//!    strangers in the same network take nothing away from them.
//! 3. **Return.** What was taken is given back: a [`Grant`] to its pool, what a [`Meter`] counted after its period.
//!
//! [`Line`] adds a fair queue for claimants that can wait. Deadlines and the end of a client belong to drivers: they
//! give back what was granted.

mod line;
mod meter;
mod network;
mod pool;

pub use self::line::{Asked, Line};
pub use self::meter::Meter;
pub use self::network::{ClientNetwork, Prefix};
pub use self::pool::{Bounds, Claimant, Grant, Pool, Shortage, Usage};
