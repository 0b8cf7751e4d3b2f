//! The relay over real sockets, spoken to by hand.

mod support;

mod auth;
mod bad_input;
mod feed;
mod http;
mod limits;
mod negentropy;
mod relay;
mod shutdown;
