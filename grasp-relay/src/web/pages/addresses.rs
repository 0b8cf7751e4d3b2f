//! Addresses that belong to no repository: where the page of an event is, and the name of the service.

use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use grasp_core::resources::{Claimant, ClientNetwork};

use super::{PageError, Pages, Show, Visitor, route};
use crate::web::encoded::insert_text;

/// Leads to the page of an event.
pub(super) async fn lead_to_event(
    State(pages): State<Pages>,
    Path(event): Path<String>,
    network: Option<Extension<ClientNetwork>>,
    headers: HeaderMap,
) -> Response {
    let site = &*pages.0;
    let claimant = Claimant::maybe_at(network.map(|Extension(network)| network));
    let visitor = Visitor { claimant, headers };
    if site.settings.show != Show::Full {
        return site.not_found("e", &visitor).await;
    }
    match site.event_address(&event).await {
        Ok(address) => {
            let mut response = StatusCode::FOUND.into_response();
            insert_text(response.headers_mut(), header::LOCATION, &address);
            response
        }
        Err(PageError::NotFound) => site.not_found("e", &visitor).await,
        Err(error) => {
            tracing::error!(%error, "the page of an event could not be found");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Answers which key has a name here (NIP-05). The only name is `_`, the service itself.
pub(super) async fn names(State(pages): State<Pages>, RawQuery(query): RawQuery) -> Response {
    let site = &*pages.0;
    let name = route::parameter(&query.unwrap_or_default(), "name");
    let key = site.surroundings.service_key;
    let key = key.filter(|_| name.as_deref().is_none_or(|name| name == "_"));
    let scheme = if site.secure { "wss" } else { "ws" };
    let relay = format!("{scheme}://{}", site.host.policy.service());
    let body = match key {
        Some(key) => serde_json::json!({
            "names": { "_": key.to_hex() },
            "relays": { key.to_hex(): [relay] },
        }),
        None => serde_json::json!({ "names": {} }),
    };
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (content_type, body.to_string()).into_response()
}
