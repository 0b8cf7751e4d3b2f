//! Signals that stop the process, and notifications to systemd (`sd_notify`).

use std::ffi::OsStr;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

/// Listens for SIGTERM and Ctrl-C. Signals between two waits are kept.
pub(crate) struct Signals(Option<[Signal; 2]>);

impl Signals {
    /// Starts to listen; from now on neither signal ends the process by itself.
    pub(crate) fn listen() -> Self {
        let listen = || {
            Ok([
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            ])
        };
        let signals: io::Result<_> = listen();
        Self(signals.ok())
    }

    /// Resolves at the first signal; the second one ends the process at once.
    pub(crate) async fn stop_requested(mut self) {
        self.next().await;
        notify(STOPPING);
        tracing::info!("stopping; a second signal stops at once");
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(130);
        });
    }

    async fn next(&mut self) {
        let Some([term, int]) = &mut self.0 else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    }
}

const READY: &str = "READY=1\nSTATUS=serving";
const STOPPING: &str = "STOPPING=1\nSTATUS=finishing open requests";
const ALIVE: &str = "WATCHDOG=1";

/// Reports that the service is ready and, at the watchdog's interval, alive until the result is dropped.
pub(crate) fn report_ready() -> JoinSet<()> {
    notify(READY);
    let mut heartbeat = JoinSet::new();
    if let Some(interval) = watchdog_interval() {
        heartbeat.spawn(report_alive(interval));
    }
    heartbeat
}

async fn report_alive(interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    loop {
        ticks.tick().await;
        notify(ALIVE);
    }
}

/// Sends a message to the service manager, if there is one. A failure is logged and stops nothing.
fn notify(message: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&socket, message) {
        tracing::warn!(%error, "could not notify the service manager");
    }
}

/// Returns half of the watchdog's timeout, if the watchdog is for this process.
fn watchdog_interval() -> Option<Duration> {
    let micros: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    let pid = std::env::var("WATCHDOG_PID").ok();
    let is_for_us = pid.is_none_or(|pid| pid == std::process::id().to_string());
    (is_for_us && micros > 0).then(|| Duration::from_micros(micros / 2))
}

#[cfg(target_os = "linux")]
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn send(_: &OsStr, _: &str) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    fn received(socket: &OsStr, manager: &UnixDatagram) -> String {
        send(socket, STOPPING).unwrap();
        let mut text = [0; 100];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    #[test]
    fn sends_to_paths_and_to_abstract_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        assert_eq!(received(path.as_os_str(), &manager), STOPPING);
        let name = format!("grasp-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        assert_eq!(
            received(OsStr::new(&format!("@{name}")), &manager),
            STOPPING
        );
    }
}
