//! Counts requests around a router.

use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;

use super::Metrics;
use super::table::{REQUEST_TIME, REQUESTS, REQUESTS_OPEN};

/// The same routes, whose requests are counted.
pub fn count_requests(routes: Router, metrics: Metrics) -> Router {
    routes.layer(from_fn_with_state(metrics, count))
}

async fn count(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let what = what(request.uri().path(), request.uri().query().unwrap_or_default());
    let began = Instant::now();
    let open = Open::new(metrics, what);
    let response = next.run(request).await;
    open.metrics.took(&REQUEST_TIME, &[what], began.elapsed());
    open.metrics.add(&REQUESTS, &[what, class(response.status().as_u16())], 1);
    response
}

/// A request under way; its client may leave at any time.
struct Open {
    metrics: Metrics,
    what: &'static str,
}

impl Open {
    fn new(metrics: Metrics, what: &'static str) -> Self {
        metrics.change(&REQUESTS_OPEN, &[what], |open| *open += 1.0);
        Self { metrics, what }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.change(&REQUESTS_OPEN, &[self.what], |open| *open -= 1.0);
    }
}

/// What a path asks for: a word of a few, whatever strangers write.
fn what(path: &str, query: &str) -> &'static str {
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

fn class(status: u16) -> &'static str {
    match status {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_one_of_a_few_words() {
        for (path, query, word) in [
            ("/npub1x/y.git/info/refs", "service=git-upload-pack", "fetch_refs"),
            ("/npub1x/y.git/info/refs", "service=git-receive-pack", "push_refs"),
            ("/npub1x/y.git/git-upload-pack", "", "fetch"),
            ("/npub1x/y.git/git-receive-pack", "", "push"),
            ("/anything/else", "a=b", "page"),
            ("/health", "", "health"),
        ] {
            assert_eq!(what(path, query), word, "{path}");
        }
    }

    #[test]
    fn a_request_that_ends_early_is_no_longer_open() {
        let metrics = Metrics::default();
        let open = Open::new(metrics.clone(), "push");
        assert_eq!(metrics.value(&REQUESTS_OPEN, &["push"]), Some(1.0));
        drop(open);
        assert_eq!(metrics.value(&REQUESTS_OPEN, &["push"]), Some(0.0));
    }
}
