//! NIP-42 authentication, at most once per connection.

use std::time::Duration;

use grasp_core::Mono;

use super::super::context::RelayContext;
use super::super::ids::{JobId, LiveId};
use super::super::io::Frame;
use super::super::job::{JobPhase, Method};
use super::super::layer::Layer;
use super::super::suspended::RequestMode;
use super::live::LivePhase;
use super::session::Session;

/// Time that a relay may take to send a challenge, or to answer our authentication.
const AUTH_TIMEOUT: Duration = Duration::from_secs(60);

/// The state of authentication on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Auth {
    /// Not required so far. Many relays challenge every client.
    Unasked {
        /// True if there is a challenge to answer.
        challenged: bool,
    },
    /// Required, but there is no challenge yet.
    Wanted(Mono),
    /// The challenge is answered.
    Answered(Mono),
    /// The relay accepted it.
    Done,
    /// The relay refused it, or did not answer.
    Refused,
}

/// The reaction to a request that was refused for want of authentication.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum AuthDecision {
    /// Answer the challenge, and wait.
    Answer,
    Wait,
    /// Send it again: it was sent before we authenticated.
    Resend,
    /// Give up: authenticating does not help.
    Policy,
}

impl Auth {
    /// Handles a refusal; `again` if the request had been sent after authenticating.
    pub(in crate::engine) fn wanted(&mut self, now: Mono, can: bool, again: bool) -> AuthDecision {
        match *self {
            _ if !can => AuthDecision::Policy,
            Self::Unasked { challenged: true } => {
                *self = Self::Answered(now);
                AuthDecision::Answer
            }
            Self::Unasked { challenged: false } => {
                *self = Self::Wanted(now);
                AuthDecision::Wait
            }
            Self::Wanted(_) | Self::Answered(_) => AuthDecision::Wait,
            Self::Done if !again => AuthDecision::Resend,
            Self::Done | Self::Refused => AuthDecision::Policy,
        }
    }

    /// Handles a challenge; returns whether to answer it.
    #[must_use]
    pub(in crate::engine) fn challenged(&mut self, now: Mono) -> bool {
        match *self {
            Self::Unasked { .. } => {
                *self = Self::Unasked { challenged: true };
                false
            }
            Self::Wanted(_) => {
                *self = Self::Answered(now);
                true
            }
            Self::Answered(_) | Self::Done | Self::Refused => false,
        }
    }

    /// Handles the relay's answer; returns whether it was awaited.
    #[must_use]
    pub(in crate::engine) fn answered(&mut self, accepted: bool) -> bool {
        let is_news = matches!(self, Self::Answered(_));
        if is_news {
            *self = if accepted { Self::Done } else { Self::Refused };
        }
        is_news
    }

    /// Returns whether the relay took too long; authentication is refused then.
    #[must_use]
    pub(in crate::engine) fn timed_out(&mut self, now: Mono) -> bool {
        let is_over = self.deadline().is_some_and(|due| now >= due);
        if is_over {
            *self = Self::Refused;
        }
        is_over
    }

    pub(in crate::engine) fn is_pending(self) -> bool {
        matches!(self, Self::Wanted(_) | Self::Answered(_))
    }

    pub(in crate::engine) fn deadline(self) -> Option<Mono> {
        match self {
            Self::Wanted(since) | Self::Answered(since) => Some(since + AUTH_TIMEOUT),
            Self::Unasked { .. } | Self::Done | Self::Refused => None,
        }
    }
}

impl Session {
    pub(super) fn require_auth(&mut self, ctx: &mut RelayContext<'_>, again: bool) -> AuthDecision {
        let can = ctx.shared.config.can_authenticate;
        let decision = self.auth.wanted(ctx.mono(), can, again);
        if decision == AuthDecision::Answer {
            ctx.send(self.conn, Frame::Authenticate);
        }
        decision
    }

    pub(super) fn job_wants_auth(&mut self, ctx: &mut RelayContext<'_>, id: JobId, method: Method) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let (again, layer) = (job.once.authenticated, job.layer);
        let decision = self.require_auth(ctx, again);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.once.authenticated = true;
        match decision {
            AuthDecision::Answer | AuthDecision::Wait => job.phase = JobPhase::AwaitingAuth(method),
            AuthDecision::Resend => self.queue(id, method),
            AuthDecision::Policy => {
                self.suspend(ctx, layer, RequestMode::History);
                self.queue(id, method);
            }
        }
    }

    pub(super) fn live_wants_auth(&mut self, ctx: &mut RelayContext<'_>, id: LiveId) {
        let Some(again) = self.live.requests.get(&id).map(|one| one.authenticated) else { return };
        let decision = self.require_auth(ctx, again);
        let Some(request) = self.live.requests.get_mut(&id) else { return };
        request.authenticated = true;
        match decision {
            AuthDecision::Answer | AuthDecision::Wait => request.interrupt(LivePhase::AwaitingAuth),
            AuthDecision::Resend => request.interrupt(LivePhase::Queued),
            AuthDecision::Policy => {
                request.interrupt(LivePhase::Queued);
                let layer = request.layer;
                self.suspend(ctx, layer, RequestMode::Live);
            }
        }
    }

    pub(super) fn challenged(&mut self, ctx: &mut RelayContext<'_>) {
        if self.auth.challenged(ctx.mono()) {
            ctx.send(self.conn, Frame::Authenticate);
        }
    }

    pub(super) fn authenticated(&mut self, ctx: &mut RelayContext<'_>, accepted: bool) {
        if self.auth.answered(accepted) {
            self.auth_ended(ctx, accepted);
        }
    }

    /// Continues the requests that waited for authentication: sent again, or suspended.
    pub(super) fn auth_ended(&mut self, ctx: &mut RelayContext<'_>, accepted: bool) {
        let waiting = self.jobs.iter().filter_map(|(id, job)| match job.phase {
            JobPhase::AwaitingAuth(method) => Some((*id, method, job.layer)),
            _ => None,
        });
        for (id, method, layer) in waiting.collect::<Vec<_>>() {
            if !accepted {
                self.suspend(ctx, layer, RequestMode::History);
            }
            self.queue(id, method);
        }
        let mut refused: Vec<Layer> = Vec::new();
        for request in self.live.requests.values_mut() {
            if request.phase == LivePhase::AwaitingAuth {
                request.phase = LivePhase::Queued;
                refused.push(request.layer);
            }
        }
        for layer in refused.into_iter().filter(|_| !accepted) {
            self.suspend(ctx, layer, RequestMode::Live);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Mono = Mono::from_secs(1);

    #[test]
    fn a_challenge_is_answered_when_something_was_refused_and_only_once() {
        let mut auth = Auth::Unasked { challenged: false };
        assert!(!auth.challenged(T0), "not required");
        assert_eq!(auth.wanted(T0, true, false), AuthDecision::Answer);
        assert!(!auth.challenged(T0), "a loop of challenges leads nowhere");
        assert_eq!(auth.wanted(T0, true, false), AuthDecision::Wait);
        assert!(auth.answered(true) && !auth.answered(false));
        assert_eq!(auth.wanted(T0, true, false), AuthDecision::Resend);
        assert_eq!(auth.wanted(T0, true, true), AuthDecision::Policy);
    }

    #[test]
    fn a_late_challenge_is_awaited_until_the_timeout() {
        let mut auth = Auth::Unasked { challenged: false };
        assert_eq!(auth.wanted(T0, true, false), AuthDecision::Wait);
        assert!(!auth.timed_out(T0));
        let mut other = auth;
        assert!(other.challenged(T0));
        assert!(auth.timed_out(T0 + AUTH_TIMEOUT));
        assert_eq!(auth.wanted(T0, true, false), AuthDecision::Policy);
    }

    #[test]
    fn without_keys_authentication_is_not_attempted() {
        let mut auth = Auth::Unasked { challenged: true };
        assert_eq!(auth.wanted(T0, false, false), AuthDecision::Policy);
        assert_eq!(auth, Auth::Unasked { challenged: true });
    }
}
