//! Git's packets, made by hand.

/// What every client of today says that it can do.
pub const CAPABILITIES: &str = "report-status side-band-64k object-format=sha1";

/// The id of nothing.
pub const NOTHING: &str = "0000000000000000000000000000000000000000";

/// One packet.
pub fn pkt(data: impl AsRef<[u8]>) -> Vec<u8> {
    let data = data.as_ref();
    [format!("{:04x}", data.len() + 4).as_bytes(), data].concat()
}

/// The commands of a push, each `(old, new, name)`, and the pack that follows.
pub fn push(commands: &[(&str, &str, &str)], pack: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    for (position, (old, new, name)) in commands.iter().enumerate() {
        let capabilities = if position == 0 { format!("\0{CAPABILITIES}") } else { String::new() };
        request.extend(pkt(format!("{old} {new} {name}{capabilities}")));
    }
    request.extend(b"0000");
    request.extend(pack);
    request
}
