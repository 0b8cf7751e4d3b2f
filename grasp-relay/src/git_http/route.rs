//! What a request asks of which repository.

use axum::http::{Method, Uri};
use grasp_core::RepoId;
use grasp_core::service::{Endpoint, GitPath};
use grasp_purgatory::git::Service;

/// What is asked of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Its page.
    Page,
    /// What it has, for a service.
    Advertise(Service),
    /// Objects from it.
    Upload,
    /// Objects into it.
    Receive,
    /// The dumb protocol, which is not spoken.
    Dumb,
    /// The right place, the wrong method.
    Refuse {
        /// What would be right.
        allow: &'static str,
    },
    /// Nothing that a repository has.
    NotFound,
}

/// The repository, by which endpoint it is entered, and the action; `None` if the path names no repository.
pub(super) fn route(method: &Method, uri: &Uri) -> Option<(RepoId, Endpoint, Action)> {
    let GitPath { repo, endpoint, rest } = GitPath::parse(uri.path())?;
    Some((repo, endpoint, action(method, &rest, uri.query().unwrap_or_default())))
}

fn action(method: &Method, rest: &str, query: &str) -> Action {
    let reads = *method == Method::GET || *method == Method::HEAD;
    let posts = *method == Method::POST;
    match rest {
        "" if reads => Action::Page,
        "info/refs" if reads => service(query).map_or(Action::Dumb, Action::Advertise),
        "git-upload-pack" if posts => Action::Upload,
        "git-receive-pack" if posts => Action::Receive,
        "" | "info/refs" => Action::Refuse { allow: "GET, HEAD" },
        "git-upload-pack" | "git-receive-pack" => Action::Refuse { allow: "POST" },
        "HEAD" => Action::Dumb,
        _ if rest.starts_with("objects/") => Action::Dumb,
        _ => Action::NotFound,
    }
}

/// The service that a query names, whatever else it says.
fn service(query: &str) -> Option<Service> {
    let pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs.filter(|(key, _)| key == "service").find_map(|(_, value)| Service::parse(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_methods() {
        let cases = [
            (Method::GET, "", "", Action::Page),
            (
                Method::HEAD,
                "info/refs",
                "service=git-upload-pack",
                Action::Advertise(Service::UploadPack),
            ),
            (
                Method::GET,
                "info/refs",
                "x=y&service=git-receive-pack&z",
                Action::Advertise(Service::ReceivePack),
            ),
            (Method::GET, "info/refs", "", Action::Dumb),
            (Method::GET, "info/refs", "service=git-upload-archive", Action::Dumb),
            (Method::GET, "info/refs", "xservice=git-upload-pack", Action::Dumb),
            (Method::GET, "HEAD", "", Action::Dumb),
            (Method::GET, "objects/info/packs", "", Action::Dumb),
            (Method::POST, "git-upload-pack", "", Action::Upload),
            (Method::POST, "git-receive-pack", "", Action::Receive),
            (Method::GET, "git-receive-pack", "", Action::Refuse { allow: "POST" }),
            (Method::PUT, "", "", Action::Refuse { allow: "GET, HEAD" }),
            (Method::GET, "config", "", Action::NotFound),
        ];
        for (method, rest, query, expected) in cases {
            assert_eq!(action(&method, rest, query), expected, "{method} {rest}?{query}");
        }
    }
}
