//! Repositories, refs, objects and addresses, validated when parsed.

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
pub(crate) use url::UrlParts;
pub use url::{CloneUrl, Host, RelayUrl, UrlError};
