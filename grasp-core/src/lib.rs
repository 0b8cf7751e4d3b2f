//! The words and the rules of GRASP. Opens nothing, reads no clock, takes no lock.

pub mod kinds;
pub mod limits;
pub mod repo;
pub mod service;
pub mod sync;
mod text;
mod time;

pub use repo::{
    CloneUrl, CoordinateError, Host, Identifier, IdentifierError, Namespace, Oid, OidError,
    RefName, RefNameError, RelayUrl, RepoId, UrlError, parse_coordinate,
};
pub use service::ServiceIdentity;
pub use time::{Mono, Now};
