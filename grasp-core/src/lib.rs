//! The words and the rules of GRASP. Opens nothing, reads no clock, takes no lock.

pub mod admission;
pub mod deletion;
pub mod kinds;
pub mod limits;
pub mod maintainers;
pub mod nip34;
pub mod push;
pub mod repo;
pub mod service;
pub mod sync;
#[cfg(test)]
mod testing;
mod text;
mod time;
mod verified;
mod version;

pub use nostr;

pub use maintainers::{MaintainerModel, Maintainers};
pub use repo::{
    CloneUrl, CoordinateError, Host, Identifier, IdentifierError, Namespace, Oid, OidError,
    RefName, RefNameError, RelayUrl, RepoId, UrlError, parse_coordinate,
};
pub use service::ServiceIdentity;
pub use time::{Mono, Now};
pub use verified::{Forged, Verified};
pub use version::Version;
