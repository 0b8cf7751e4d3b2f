//! Tells systemd how far we are, if it started us (`sd_notify`).

use std::time::Duration;

use tokio::task::JoinHandle;

/// How far the service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It listens and answers.
    Ready,
    /// It lets everybody finish.
    Stopping,
    /// It is still there.
    Alive,
}

impl Stage {
    fn message(self) -> &'static str {
        match self {
            Self::Ready => "READY=1\nSTATUS=serving",
            Self::Stopping => "STOPPING=1\nSTATUS=letting everybody finish",
            Self::Alive => "WATCHDOG=1",
        }
    }
}

/// Says that the service is there, and goes on saying so if that is wanted, until what is returned is dropped.
pub(crate) fn ready() -> Heartbeat {
    tell(Stage::Ready);
    Heartbeat(watchdog().map(|pause| tokio::spawn(say_that_we_are_there(pause))))
}

/// Tells the service manager now and then that the service is alive.
pub(crate) struct Heartbeat(Option<JoinHandle<()>>);

impl Drop for Heartbeat {
    fn drop(&mut self) {
        if let Some(beating) = &self.0 {
            beating.abort();
        }
    }
}

async fn say_that_we_are_there(pause: Duration) {
    let mut ticks = tokio::time::interval(pause);
    loop {
        ticks.tick().await;
        tell(Stage::Alive);
    }
}

/// Tells the service manager, if there is one. That nobody listens is no reason to stop.
pub(crate) fn tell(stage: Stage) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, stage) {
        tracing::warn!(%error, "could not tell the service manager");
    }
}

/// How often it wants to hear that we are there: half of what it waits.
fn watchdog() -> Option<Duration> {
    let micros: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    let ours = std::env::var("WATCHDOG_PID").ok();
    let ours = ours.is_none_or(|pid| pid == std::process::id().to_string());
    (ours && micros > 0).then(|| Duration::from_micros(micros / 2))
}

#[cfg(target_os = "linux")]
fn send(socket: &std::ffi::OsStr, stage: Stage) -> std::io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(stage.message().as_bytes(), &address)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn send(_: &std::ffi::OsStr, _: Stage) -> std::io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn each_stage_is_one_datagram() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        for (stage, begins) in [(Stage::Ready, "READY=1"), (Stage::Stopping, "STOPPING=1")] {
            send(path.as_os_str(), stage).unwrap();
            let mut text = [0; 100];
            let length = manager.recv(&mut text).unwrap();
            assert!(std::str::from_utf8(&text[..length]).unwrap().starts_with(begins));
        }
    }
}
