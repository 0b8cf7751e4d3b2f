//! NIP-42 authentication, at most once per connection.

use std::time::Duration;

use grasp_core::Mono;

use super::io::{ConnId, Frame};
use super::relay::RelayContext;

/// Time that a relay may take to send a challenge, or to answer our authentication.
const AUTH_TIMEOUT: Duration = Duration::from_secs(60);

/// The state of authentication on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Auth {
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

impl Auth {
    /// Handles a refusal; returns whether it helps to send the request once more.
    fn wanted(&mut self, now: Mono, can: bool, again: bool) -> bool {
        match *self {
            _ if !can => return false,
            Self::Unasked { challenged: true } => *self = Self::Answered(now),
            Self::Unasked { challenged: false } => *self = Self::Wanted(now),
            Self::Wanted(_) | Self::Answered(_) => {}
            Self::Done => return !again,
            Self::Refused => return false,
        }
        true
    }

    /// Handles a refusal; `again` if the request had been sent after authenticating. Returns whether to send it once
    /// more, as soon as authentication is not pending.
    #[must_use]
    pub(super) fn require(
        &mut self,
        ctx: &mut RelayContext<'_>,
        conn: ConnId,
        again: bool,
    ) -> bool {
        let is_challenged = *self == Self::Unasked { challenged: true };
        let helps = self.wanted(ctx.mono(), ctx.shared.config.can_authenticate, again);
        if helps && is_challenged {
            ctx.send(conn, Frame::Authenticate);
        }
        helps
    }

    /// Handles a challenge; returns whether to answer it.
    #[must_use]
    pub(super) fn challenged(&mut self, now: Mono) -> bool {
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
    pub(super) fn answered(&mut self, accepted: bool) -> bool {
        let is_news = matches!(self, Self::Answered(_));
        if is_news {
            *self = if accepted { Self::Done } else { Self::Refused };
        }
        is_news
    }

    /// Returns whether the relay took too long; authentication is refused then.
    #[must_use]
    pub(super) fn timed_out(&mut self, now: Mono) -> bool {
        let is_over = self.deadline().is_some_and(|due| now >= due);
        if is_over {
            *self = Self::Refused;
        }
        is_over
    }

    /// Returns whether it will be decided soon; requests that need it wait until then.
    pub(super) fn is_pending(self) -> bool {
        self.deadline().is_some()
    }

    pub(super) fn deadline(self) -> Option<Mono> {
        match self {
            Self::Wanted(since) | Self::Answered(since) => Some(since + AUTH_TIMEOUT),
            Self::Unasked { .. } | Self::Done | Self::Refused => None,
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
        assert!(auth.wanted(T0, true, false));
        assert_eq!(auth, Auth::Answered(T0));
        assert!(!auth.challenged(T0), "repeated challenges are not answered");
        assert!(auth.wanted(T0, true, false));
        assert!(auth.answered(true) && !auth.answered(false));
        assert!(auth.wanted(T0, true, false) && !auth.wanted(T0, true, true));
    }

    #[test]
    fn a_late_challenge_is_awaited_until_the_timeout() {
        let mut auth = Auth::Unasked { challenged: false };
        assert!(auth.wanted(T0, true, false));
        assert!(auth.is_pending() && !auth.timed_out(T0));
        let mut other = auth;
        assert!(other.challenged(T0));
        assert!(auth.timed_out(T0 + AUTH_TIMEOUT));
        assert!(!auth.wanted(T0, true, false));
    }

    #[test]
    fn without_keys_authentication_is_not_attempted() {
        let mut auth = Auth::Unasked { challenged: true };
        assert!(!auth.wanted(T0, false, false));
        assert_eq!(auth, Auth::Unasked { challenged: true });
    }
}
