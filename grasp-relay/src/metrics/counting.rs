//! Counts HTTP requests, and received events by verdict.

use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use grasp_core::admission::{Origin, Outcome, Rejection, SyncPath};

use super::Metrics;
use super::table::{EVENTS, INGEST, REJECTIONS, REQUEST_TIME, REQUESTS};

/// Counts the requests to these routes.
pub fn count_requests(routes: Router, metrics: Metrics) -> Router {
    routes.layer(from_fn_with_state(metrics, count))
}

async fn count(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let what = path_label(
        request.uri().path(),
        request.uri().query().unwrap_or_default(),
    );
    let began = Instant::now();
    let response = next.run(request).await;
    metrics.observe(&REQUEST_TIME, &[what], began.elapsed());
    metrics.add(
        &REQUESTS,
        &[what, status_class(response.status().as_u16())],
        1,
    );
    response
}

/// Returns the label of a path, one of a few for any request.
fn path_label(path: &str, query: &str) -> &'static str {
    // The name of a branch or file may be any word that follows below.
    if let Some(page) = page_label(path) {
        return page;
    }
    match path.rsplit('/').next().unwrap_or_default() {
        "git-upload-pack" => "fetch",
        "git-receive-pack" => "push",
        "refs" if query.contains("git-receive-pack") => "push_refs",
        "refs" => "fetch_refs",
        "health" => "health",
        "metrics" => "metrics",
        "status" | "status.json" => "status",
        _ => "page",
    }
}

/// Returns the label of a page below a repository.
fn page_label(path: &str) -> Option<&'static str> {
    Some(match path.split('/').nth(3)? {
        "commit" => "page_commit",
        "file" => "page_file",
        "log" => "page_log",
        "raw" => "page_raw",
        "refs" => "page_refs",
        "tree" => "page_tree",
        _ => return None,
    })
}

fn status_class(status: u16) -> &'static str {
    match status {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}

impl Metrics {
    /// Times an ingest, and counts its outcomes.
    pub(crate) async fn counted(
        &self,
        origin: &Origin,
        ingest: impl Future<Output = Vec<Outcome>>,
    ) -> Vec<Outcome> {
        let began = Instant::now();
        let outcomes = ingest.await;
        self.observe(&INGEST, &[], began.elapsed());
        self.count_outcomes(origin, &outcomes);
        outcomes
    }

    /// Counts received events by source and outcome.
    pub(crate) fn count_outcomes<'a>(
        &self,
        origin: &Origin,
        outcomes: impl IntoIterator<Item = &'a Outcome>,
    ) {
        for outcome in outcomes {
            self.add(&EVENTS, &[source_label(origin), outcome_label(outcome)], 1);
            if let Outcome::Refused { reason, .. } = outcome {
                self.add(&REJECTIONS, &[reason_label(reason)], 1);
            }
        }
    }
}

fn source_label(origin: &Origin) -> &'static str {
    match origin {
        Origin::Client { .. } => "client",
        Origin::Sync {
            path: SyncPath::Live,
            ..
        } => "live",
        Origin::Sync {
            path: SyncPath::CatchUp,
            ..
        } => "catch_up",
        Origin::Sync {
            path: SyncPath::Daily,
            ..
        } => "daily",
    }
}

fn outcome_label(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Stored => "stored",
        Outcome::Held => "held",
        Outcome::Broadcast => "broadcast",
        Outcome::Superseded => "superseded",
        Outcome::Duplicate(_) => "duplicate",
        Outcome::Refused { .. } => "refused",
    }
}

fn reason_label(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Forged => "forged",
        Rejection::NotMember => "not_member",
        Rejection::Malformed(_) => "malformed",
        Rejection::Expired => "expired",
        Rejection::TooFarAhead => "too_far_ahead",
        Rejection::Protected => "protected",
        Rejection::ProtectedRepost => "protected_repost",
        Rejection::Deleted => "deleted",
        Rejection::Vanished => "vanished",
        Rejection::Banned => "banned",
        Rejection::RefusedKind => "refused_kind",
        Rejection::NotAllowed => "not_allowed",
        Rejection::Withheld => "withheld",
        Rejection::NotListed { .. } => "not_listed",
        Rejection::Delisted => "delisted",
        Rejection::NoAnnouncement => "no_announcement",
        Rejection::NotMaintainer(_) => "not_maintainer",
        Rejection::Unrelated => "unrelated",
        Rejection::UnknownAuthor => "unknown_author",
        Rejection::NeverStored => "never_stored",
        Rejection::ForeignDeletion => "foreign_deletion",
        Rejection::TooManyTargets => "too_many_targets",
        Rejection::RepositoryQuota => "repository_quota",
        Rejection::Quota => "quota",
        Rejection::RateLimited => "rate_limited",
        Rejection::Busy => "busy",
        Rejection::Internal => "internal",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_of_a_few_labels() {
        for (path, query, label) in [
            (
                "/npub1x/y.git/info/refs",
                "service=git-upload-pack",
                "fetch_refs",
            ),
            (
                "/npub1x/y.git/info/refs",
                "service=git-receive-pack",
                "push_refs",
            ),
            ("/npub1x/y.git/git-upload-pack", "", "fetch"),
            ("/npub1x/y.git/git-receive-pack", "", "push"),
            ("/anything/else", "a=b", "page"),
            ("/npub1x/y.git", "", "page"),
            ("/npub1x/y.git/refs", "", "page_refs"),
            ("/npub1x/y.git/file/main/status", "", "page_file"),
            ("/health", "", "health"),
        ] {
            assert_eq!(path_label(path, query), label, "{path}");
        }
    }

    #[test]
    fn outcomes_are_counted_by_source() {
        let metrics = Metrics::default();
        let banned = Outcome::from(Rejection::Banned);
        metrics.count_outcomes(&Origin::anonymous(), [&banned, &banned]);
        let relay = "wss://relay.example.com".parse().unwrap();
        metrics.count_outcomes(
            &Origin::Sync {
                relay,
                path: SyncPath::Daily,
            },
            [&banned],
        );
        assert_eq!(metrics.value(&EVENTS, &["client", "refused"]), Some(2.0));
        assert_eq!(metrics.value(&EVENTS, &["daily", "refused"]), Some(1.0));
        assert_eq!(metrics.value(&REJECTIONS, &["banned"]), Some(3.0));
    }
}
