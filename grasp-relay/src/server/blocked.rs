//! Networks that the operator blocks: their connections are closed, open ones too.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use grasp_core::admission::Policy;

use super::limiter::ConnectionLimiter;
use crate::policy::LivePolicy;

/// The address of the client that a request is from; behind a trusted proxy, what that says.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientAddress(pub(super) IpAddr);

/// Decides which addresses are blocked.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    policy: LivePolicy,
    limiter: ConnectionLimiter,
}

impl Blocks {
    pub(super) fn new(policy: LivePolicy, limiter: ConnectionLimiter) -> Self {
        Self { policy, limiter }
    }

    /// Returns whether an address is blocked now.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.is_blocked(&self.policy.now(), address)
    }

    /// Waits until an address is blocked.
    pub(super) async fn until(&self, address: IpAddr) {
        let policy = self.policy.clone();
        policy
            .until(|policy| self.is_blocked(policy, address))
            .await;
    }

    /// Blocking this machine or a proxy would shut out everybody, so it has no effect.
    fn is_blocked(&self, policy: &Policy, address: IpAddr) -> bool {
        policy.blocks(address)
            && !address.to_canonical().is_loopback()
            && !self.limiter.is_trusted(address)
    }
}

/// Refuses requests of blocked clients.
pub(super) async fn refuse(State(blocks): State<Blocks>, request: Request, next: Next) -> Response {
    let client = request.extensions().get::<ClientAddress>().copied();
    if client.is_some_and(|ClientAddress(address)| blocks.has(address)) {
        return StatusCode::FORBIDDEN.into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use grasp_core::policy::PolicySubject;

    use super::*;

    #[test]
    fn this_machine_and_trusted_proxies_are_never_blocked() {
        let everything = ["0.0.0.0/0", "::/0"]
            .map(|network| PolicySubject::BlockedNetwork(network.parse().unwrap()));
        let policy = Policy::new("us.example".parse().unwrap()).with(&everything);
        let proxies = vec!["10.0.0.0/8".parse().unwrap()];
        let blocks = Blocks::new(policy.into(), ConnectionLimiter::new(8, 64, proxies));
        let has = |address: &str| blocks.has(address.parse().unwrap());
        assert!(has("192.0.2.1") && has("2001:db8::1") && has("::ffff:192.0.2.1"));
        assert!(!has("127.0.0.1") && !has("::1") && !has("::ffff:127.0.0.1") && !has("10.1.2.3"));
    }
}
