//! Git's packet lines, encoded by hand.

/// The capabilities that present git clients send with a push.
pub const CAPABILITIES: &str = "report-status side-band-64k object-format=sha1";

/// The id that stands for no object.
pub const ZERO_ID: &str = "0000000000000000000000000000000000000000";

/// Encodes one packet line.
pub fn pkt(data: impl AsRef<[u8]>) -> Vec<u8> {
    let data = data.as_ref();
    [format!("{:04x}", data.len() + 4).as_bytes(), data].concat()
}

/// Encodes a push: the commands, each `(old, new, name)`, and the pack.
pub fn push(commands: &[(&str, &str, &str)], pack: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    for (position, (old, new, name)) in commands.iter().enumerate() {
        let capabilities = if position == 0 {
            format!("\0{CAPABILITIES}")
        } else {
            String::new()
        };
        request.extend(pkt(format!("{old} {new} {name}{capabilities}")));
    }
    request.extend(b"0000");
    request.extend(pack);
    request
}
