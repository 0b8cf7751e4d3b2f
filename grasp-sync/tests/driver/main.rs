//! The driver on real sockets.
