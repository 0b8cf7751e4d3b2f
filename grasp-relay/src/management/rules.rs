//! Administration of a server by key (NIP-86): the methods, who may call them, and what is refused to everybody.
//!
//! ```text
//! body ─▶ Request::parse ─▶ Call::parse ─▶ authorize(caller, facts) ─▶ AuthorizedCall ─▶ the driver carries it out
//! ```
//!
//! ```
//! use grasp_relay::management::rules::{
//!     Actor, CallProof, CallRefusal, Caller, Request, RightsFacts, authorize,
//! };
//! use nostr::key::PublicKey;
//!
//! let operator = PublicKey::from_byte_array([1; 32]);
//! let facts = RightsFacts { operator: Some(operator), ..RightsFacts::of_service(PublicKey::from_byte_array([2; 32])) };
//! let body = format!(r#"{{"method":"banpubkey","params":["{operator}","spam"]}}"#);
//! let call = Request::parse(body.as_bytes()).unwrap().call().unwrap();
//! let caller = Caller::new(Actor::Key(operator), CallProof::Signed, &facts);
//! assert_eq!(authorize(&caller, call, &facts).unwrap_err(), CallRefusal::Operator);
//! ```

mod authorize;
mod call;
mod method;
mod params;
mod roles;
mod session;
#[cfg(test)]
mod tests;
mod text;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::authorize::{
    Actor, AuthorizedCall, CallProof, CallRefusal, Caller, RightsFacts, allowed_kinds, authorize,
    judge_restore, judge_target,
};
pub use self::call::{AuditQuery, Call, RelayText, RepoQuery, RepoState};
pub use self::method::{Method, MethodInfo};
pub use self::roles::{Rank, RoleId, RoleInfo};
pub use self::session::SessionKey;
use self::text::invalid;
use grasp_core::ParseError;

/// A request as it was sent, with unread parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The name of the method.
    pub method: String,
    /// Its parameters, by position.
    #[serde(default)]
    pub params: Vec<Value>,
}

impl Request {
    /// The content type of requests.
    pub const CONTENT_TYPE: &str = "application/nostr+json+rpc";

    /// Largest request in bytes.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Parses the body of a request.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        if body.len() > Self::MAX_BYTES {
            return invalid("the request has more than 64 KiB");
        }
        match serde_json::from_slice(body) {
            Ok(request) => Ok(request),
            Err(_) => invalid("expected {\"method\": …, \"params\": […]}"),
        }
    }

    /// Reads the method and its parameters.
    pub fn call(&self) -> Result<Call, ParseError> {
        Call::parse(&self.method, &self.params)
    }
}

/// Returns the text of an answer.
pub fn response(result: Result<&Value, &str>) -> String {
    match result {
        Ok(result) => json!({"result": result}),
        Err(error) => json!({"result": null, "error": error}),
    }
    .to_string()
}
