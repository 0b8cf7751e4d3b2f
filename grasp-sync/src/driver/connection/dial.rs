//! Opens the websocket to a relay, and fetches its NIP-11 document.

use std::net::IpAddr;

use grasp_core::RelayUrl;
use grasp_core::outbound::Provenance;
use hyper::StatusCode;
use hyper::header::{HeaderValue, USER_AGENT};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Error};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::Limits;
use crate::driver::nip11;
use crate::driver::outbound::{Outbound, Route, Wire};
use crate::engine::{Fault, RelayFacts};

/// A websocket to a relay.
pub(crate) type Socket = WebSocketStream<Wire>;

/// A relay that answered.
pub(crate) struct Opened {
    pub(crate) socket: Socket,
    pub(crate) address: IpAddr,
    pub(crate) facts: RelayFacts,
}

/// Connects to a relay, and learns what it says about itself; both go to the same vetted addresses.
pub(crate) async fn open(
    outbound: &Outbound,
    limits: &Limits,
    relay: &RelayUrl,
    from: Provenance,
) -> Result<Opened, Fault> {
    let dial = async {
        let route = outbound.route(relay, from).await?;
        let (upgraded, facts) =
            tokio::join!(upgrade(&route, relay, limits), nip11::fetch(relay, &route));
        let (socket, address) = upgraded?;
        Ok(Opened { socket, address, facts })
    };
    timeout(limits.handshake_timeout, dial).await.unwrap_or(Err(Fault::Unreachable))
}

async fn upgrade(
    route: &Route,
    relay: &RelayUrl,
    limits: &Limits,
) -> Result<(Socket, IpAddr), Fault> {
    let (wire, address) = route.connect().await?;
    let mut request = relay.as_str().into_client_request().map_err(|_| Fault::Protocol)?;
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(nip11::USER_AGENT_NAME));
    let config = WebSocketConfig::default()
        .read_buffer_size(64 * 1024)
        .max_message_size(Some(limits.message_bytes))
        .max_frame_size(Some(limits.message_bytes));
    let upgraded = client_async_with_config(request, wire, Some(config)).await;
    upgraded.map(|(socket, _)| (socket, address)).map_err(|error| fault(&error))
}

/// Returns the fault of a failed handshake. A server with an error, or one that asks to retry, is there and may come
/// back.
fn fault(error: &tungstenite::Error) -> Fault {
    match error {
        Error::Http(answer) => match answer.status() {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Fault::Unreachable,
            status if status.is_server_error() => Fault::Unreachable,
            _ => Fault::Protocol,
        },
        Error::Io(_) | Error::ConnectionClosed | Error::AlreadyClosed => Fault::Unreachable,
        Error::Protocol(tungstenite::error::ProtocolError::HandshakeIncomplete) => {
            Fault::Unreachable
        }
        _ => Fault::Protocol,
    }
}
