//! CAA records, which say who may issue certificates for a domain (RFC 8659).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, TYPE};
use tokio::net::UdpSocket;

/// Largest answer that is read; resolvers without EDNS send at most 512 bytes.
const MAX_ANSWER_BYTES: usize = 4096;

/// Who may issue certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caa {
    /// There is no record.
    Anyone,
    /// Only these authorities.
    Only(Vec<String>),
}

/// Returns the first resolver of this machine.
pub(super) fn resolver() -> Option<SocketAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    let addresses = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"));
    let address: IpAddr = addresses
        .filter_map(|address| address.trim().parse().ok())
        .next()?;
    Some(SocketAddr::new(address, 53))
}

/// Returns who may issue certificates for a domain: the records of the nearest name that has some count.
pub(super) async fn issuers_of(resolver: SocketAddr, domain: &str) -> io::Result<Caa> {
    let mut name = domain;
    loop {
        let issuers = issuers_at(resolver, name).await?;
        if issuers != Caa::Anyone {
            return Ok(issuers);
        }
        match name.split_once('.') {
            Some((_, parent)) if parent.contains('.') => name = parent,
            _ => return Ok(Caa::Anyone),
        }
    }
}

async fn issuers_at(resolver: SocketAddr, name: &str) -> io::Result<Caa> {
    let any: IpAddr = match resolver {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Only answers from there are received.
    socket.connect(resolver).await?;
    let mut query = Packet::new_query(0x6772);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    query.questions.push(Question::new(
        Name::new(name).map_err(io::Error::other)?,
        QTYPE::TYPE(TYPE::CAA),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    let query = query.build_bytes_vec().map_err(io::Error::other)?;
    socket.send(&query).await?;
    let mut answer = vec![0; MAX_ANSWER_BYTES];
    let length = socket.recv(&mut answer).await?;
    let answer = Packet::parse(&answer[..length]).map_err(io::Error::other)?;
    Ok(issuers_in(&answer))
}

/// Returns the authorities that an answer names.
fn issuers_in(answer: &Packet<'_>) -> Caa {
    let mut issuers = None;
    for record in &answer.answers {
        let RData::CAA(caa) = &record.rdata else {
            continue;
        };
        if !caa.tag.to_string().eq_ignore_ascii_case("issue") {
            continue;
        }
        let named = issuers.get_or_insert_with(Vec::new);
        let value = String::from_utf8_lossy(&caa.value);
        // Parameters follow a semicolon; a value without a name allows nobody.
        let issuer = value.split(';').next().unwrap_or_default().trim();
        if !issuer.is_empty() {
            named.push(issuer.to_ascii_lowercase());
        }
    }
    match issuers {
        Some(issuers) => Caa::Only(issuers),
        None => Caa::Anyone,
    }
}

#[cfg(test)]
mod tests {
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::CAA;

    use super::*;

    /// Answers queries about `example.com` with these records, and others with none.
    async fn dns_server(values: &'static [&'static str]) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut query = vec![0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query).await {
                let query = Packet::parse(&query[..length]).unwrap();
                let name = query.questions[0].qname.clone();
                let mut answer = Packet::new_reply(query.id());
                if name.to_string() == "example.com" {
                    for value in values {
                        let caa = CAA {
                            flag: 0,
                            tag: "issue".try_into().unwrap(),
                            value: value.as_bytes().into(),
                        };
                        let record =
                            ResourceRecord::new(name.clone(), CLASS::IN, 60, RData::CAA(caa));
                        answer.answers.push(record);
                    }
                }
                let answer = answer.build_bytes_vec().unwrap();
                socket.send_to(&answer, client).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn the_records_of_the_nearest_parent_count() {
        let server = dns_server(&["letsencrypt.org; validationmethods=tls-alpn-01", ";"]).await;
        let found = issuers_of(server, "git.example.com").await.unwrap();
        assert_eq!(found, Caa::Only(vec!["letsencrypt.org".into()]));
        let found = issuers_of(server, "git.example.org").await.unwrap();
        assert_eq!(found, Caa::Anyone);
    }

    #[tokio::test]
    async fn a_semicolon_allows_nobody() {
        let server = dns_server(&[";"]).await;
        let found = issuers_of(server, "git.example.com").await.unwrap();
        assert_eq!(found, Caa::Only(Vec::new()));
    }
}
