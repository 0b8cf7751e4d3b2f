//! Repositories, refs, objects and addresses, validated when parsed.

mod coordinate;
mod identifier;
mod oid;
mod refname;
mod url;

pub use coordinate::{RepoId, parse_coordinate};
pub use identifier::Identifier;
pub use oid::Oid;
pub use refname::{Namespace, RefName};
pub(crate) use url::UrlParts;
pub use url::{CloneUrl, Host, RelayUrl};
