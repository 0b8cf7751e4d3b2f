//! The words for a repository and its parts. Each is checked once, where it enters.

mod coordinate;
mod identifier;
mod oid;
mod refname;
mod url;

pub(crate) use coordinate::parse_pubkey;
pub use coordinate::{CoordinateError, RepoId, parse_coordinate};
pub use identifier::{Identifier, IdentifierError};
pub use oid::{Oid, OidError};
pub use refname::{Namespace, RefName, RefNameError};
pub(crate) use url::Parts;
pub use url::{CloneUrl, Host, RelayUrl, UrlError};
