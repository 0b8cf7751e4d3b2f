//! Ranks and roles.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::text::invalid;
use grasp_core::ParseError;

/// How much a key may do; each rank may do what those before it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// Any key: reads what is its own.
    #[default]
    Anyone,
    /// Reads everything.
    Observer,
    /// Also bans, allows, holds and restores.
    Moderator,
    /// Everything but giving and taking `admin`.
    Admin,
    /// Everything: the operator of the settings, and the user that the server runs as.
    Operator,
}

impl Rank {
    /// Returns the rank that a role gives; labels give none.
    pub fn of_role(role: &RoleId) -> Self {
        match role.as_str() {
            "observer" => Self::Observer,
            "moderator" => Self::Moderator,
            "admin" => Self::Admin,
            _ => Self::Anyone,
        }
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anyone => "any key",
            Self::Observer => "observer",
            Self::Moderator => "moderator",
            Self::Admin => "admin",
            Self::Operator => "operator",
        })
    }
}

/// The id of a role. `observer`, `moderator` and `admin` exist without being created; `operator` is a setting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RoleId(Arc<str>);

impl RoleId {
    /// Validates an id.
    pub fn new(text: &str) -> Result<Self, ParseError> {
        let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > 64 || !text.chars().all(is_allowed) {
            return invalid("the id of a role has 1 to 64 letters, digits, `-`, `_` and `.`");
        }
        Ok(Self(text.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the role has rights, so that it is neither created nor deleted.
    pub fn is_built_in(&self) -> bool {
        matches!(
            self.as_str(),
            "observer" | "moderator" | "admin" | "operator"
        )
    }
}

impl FromStr for RoleId {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::new(text)
    }
}

impl TryFrom<String> for RoleId {
    type Error = ParseError;
    fn try_from(text: String) -> Result<Self, ParseError> {
        Self::new(&text)
    }
}

impl From<RoleId> for String {
    fn from(id: RoleId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for RoleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What people see of a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleInfo {
    /// The id.
    pub id: RoleId,
    /// The name.
    pub label: String,
    /// A sentence about it.
    pub description: String,
    /// The color, for clients that show one.
    pub color: String,
    /// The position in lists.
    pub order: i64,
}
