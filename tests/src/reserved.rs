//! Addresses of loopback that no other socket gets.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpSocket;

/// Binds an address that other sockets may share as long as at most one of them listens.
///
/// The socket does not listen itself. One that did would occupy the address for a moment after it is closed, if another
/// thread has just started a process: that process holds copies of all sockets until it executes its program.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Returns an address with a free port, which the system gives to no other socket until this process ends. Any server
/// that sets `SO_REUSEADDR` can listen there.
pub fn reserve_address(host: impl Into<IpAddr>) -> SocketAddr {
    let socket = bind((host.into(), 0).into()).expect("a free port");
    Box::leak(Box::new(socket))
        .local_addr()
        .expect("the address of a bound socket")
}
