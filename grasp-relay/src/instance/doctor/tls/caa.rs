//! CAA records, which say who may issue certificates for a domain (RFC 8659).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

/// Largest datagram that is read; resolvers without EDNS send at most 512 bytes.
const MAX_DATAGRAM_BYTES: usize = 4096;

/// The number of queries. Each has a socket of its own, which receives from the resolver only.
const QUERY_ID: u16 = 0x6772;

/// The bit of an answer's flags that says that it is not all (TC), in their first byte.
const TRUNCATED: u8 = 0x02;

/// The flag of a record that an authority must understand.
const CRITICAL: u8 = 0x80;

/// The tags of records that authorities understand and that do not restrict ordinary certificates.
const KNOWN_TAGS: [&str; 5] = [
    "issuewild",
    "iodef",
    "contactemail",
    "contactphone",
    "issuemail",
];

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

/// Returns who may issue certificates for a domain: the records of the nearest name that has some count, whatever they say.
pub(super) async fn issuers_of(resolver: SocketAddr, domain: &str) -> io::Result<Caa> {
    let mut name = Some(domain);
    while let Some(here) = name.filter(|name| !name.is_empty()) {
        if let Some(issuers) = issuers_at(resolver, here).await? {
            return Ok(issuers);
        }
        name = here.split_once('.').map(|(_, parent)| parent);
    }
    Ok(Caa::Anyone)
}

/// Returns what the records of a name say; `None` if it has none.
async fn issuers_at(resolver: SocketAddr, name: &str) -> io::Result<Option<Caa>> {
    let mut query = Packet::new_query(QUERY_ID);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    query.questions.push(Question::new(
        Name::new(name).map_err(io::Error::other)?,
        QTYPE::TYPE(TYPE::CAA),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    let query = query.build_bytes_vec().map_err(io::Error::other)?;
    let mut answer = ask(resolver, &query).await?;
    if is_truncated(&answer) {
        answer = ask_by_tcp(resolver, &query).await?;
    }
    let answer = Packet::parse(&answer).map_err(io::Error::other)?;
    match answer.rcode() {
        RCODE::NoError => Ok(issuers_in(&answer)),
        RCODE::NameError => Ok(None),
        failure => Err(io::Error::other(format!("{name}: {failure:?}"))),
    }
}

async fn ask(resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match resolver {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Only answers from there are received.
    socket.connect(resolver).await?;
    socket.send(query).await?;
    let mut answer = vec![0; MAX_DATAGRAM_BYTES];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

/// Asks again for an answer that is too long for a datagram. Query and answer follow their lengths.
async fn ask_by_tcp(resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(resolver).await?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    let mut message = length.to_be_bytes().to_vec();
    message.extend_from_slice(query);
    stream.write_all(&message).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Returns whether an answer says that it is not all. Such an answer may end within a record, so that it cannot be parsed.
fn is_truncated(answer: &[u8]) -> bool {
    answer.get(2).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// Returns the authorities that an answer names; `None` if it has no record.
fn issuers_in(answer: &Packet<'_>) -> Option<Caa> {
    let mut records = answer
        .answers
        .iter()
        .filter_map(|record| match &record.rdata {
            RData::CAA(caa) => Some(caa),
            _ => None,
        })
        .peekable();
    records.peek()?;
    let mut issuers = None;
    for record in records {
        let tag = record.tag.to_string().to_ascii_lowercase();
        if tag != "issue" {
            // An authority that does not know what it must know does not issue.
            if record.flag & CRITICAL != 0 && !KNOWN_TAGS.contains(&tag.as_str()) {
                return Some(Caa::Only(Vec::new()));
            }
            continue;
        }
        let named = issuers.get_or_insert_with(Vec::new);
        let value = String::from_utf8_lossy(&record.value);
        // Parameters follow a semicolon; a value without a name allows nobody.
        let issuer = value.split(';').next().unwrap_or_default().trim();
        if !issuer.is_empty() {
            named.push(issuer.to_ascii_lowercase());
        }
    }
    Some(issuers.map_or(Caa::Anyone, Caa::Only))
}

#[cfg(test)]
mod tests {
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::CAA;
    use tokio::net::TcpListener;

    use super::*;

    /// What the server of a test says about a name.
    #[derive(Clone, Copy)]
    enum Says {
        Records(&'static [(u8, &'static str, &'static str)]),
        Nothing,
        Fails,
        TooLong,
    }

    const NAMES: &[(&str, Says)] = &[
        (
            "example.com",
            Says::Records(&[
                (0, "issue", "letsencrypt.org; validationmethods=tls-alpn-01"),
                (0, "issue", ";"),
            ]),
        ),
        ("nobody.example", Says::Records(&[(0, "issue", ";")])),
        // Its parent allows one authority, but a record of its own counts, whatever it is about.
        (
            "told.example.com",
            Says::Records(&[(0, "iodef", "mailto:operator@example.com")]),
        ),
        ("odd.example.com", Says::Records(&[(128, "later", "yes")])),
        ("failing.example.com", Says::Fails),
        ("long.example.com", Says::TooLong),
        ("org", Says::Records(&[(0, "issue", "other.example")])),
    ];

    fn answer(query: &[u8], by_tcp: bool) -> Vec<u8> {
        let query = Packet::parse(query).unwrap();
        let name = query.questions[0].qname.clone();
        let known = NAMES.iter().find(|(known, _)| *known == name.to_string());
        let mut answer = Packet::new_reply(query.id());
        let mut records: &[(u8, &str, &str)] = &[];
        match known.map_or(Says::Nothing, |(_, says)| *says) {
            Says::Records(of_name) => records = of_name,
            Says::Nothing => *answer.rcode_mut() = RCODE::NameError,
            Says::Fails => *answer.rcode_mut() = RCODE::ServerFailure,
            Says::TooLong if by_tcp => records = &[(0, "issue", "long.example")],
            Says::TooLong => answer.set_flags(PacketFlag::TRUNCATION),
        }
        for (flag, tag, value) in records {
            let caa = CAA {
                flag: *flag,
                tag: (*tag).try_into().unwrap(),
                value: value.as_bytes().into(),
            };
            let record = ResourceRecord::new(name.clone(), CLASS::IN, 60, RData::CAA(caa));
            answer.answers.push(record);
        }
        answer.build_bytes_vec().unwrap()
    }

    /// Answers queries on a port, both by datagrams and by connections.
    async fn dns_server() -> SocketAddr {
        let (listener, socket) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            // The port may be taken for datagrams only.
            if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()).await {
                break (listener, socket);
            }
        };
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut query = vec![0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query).await {
                let answer = answer(&query[..length], false);
                socket.send_to(&answer, client).await.unwrap();
            }
        });
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut query).await.unwrap();
                let answer = answer(&query, true);
                let length = u16::try_from(answer.len()).unwrap();
                stream.write_u16(length).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        address
    }

    async fn issuers(domain: &str) -> io::Result<Caa> {
        issuers_of(dns_server().await, domain).await
    }

    fn only(issuer: &str) -> Caa {
        Caa::Only(vec![issuer.to_owned()])
    }

    #[tokio::test]
    async fn the_records_of_the_nearest_parent_count() {
        let found = issuers("git.example.com").await.unwrap();
        assert_eq!(found, only("letsencrypt.org"));
        let found = issuers("git.example.org").await.unwrap();
        assert_eq!(found, only("other.example"));
        let found = issuers("git.example.net").await.unwrap();
        assert_eq!(found, Caa::Anyone);
    }

    #[tokio::test]
    async fn records_about_something_else_end_the_search_too() {
        let found = issuers("git.told.example.com").await.unwrap();
        assert_eq!(found, Caa::Anyone);
    }

    #[tokio::test]
    async fn a_semicolon_or_an_unknown_critical_record_allows_nobody() {
        for domain in ["nobody.example", "odd.example.com"] {
            let found = issuers(domain).await.unwrap();
            assert_eq!(found, Caa::Only(Vec::new()), "{domain}");
        }
    }

    #[tokio::test]
    async fn a_failing_resolver_allows_nothing_to_be_concluded() {
        let failure = issuers("git.failing.example.com").await.unwrap_err();
        assert!(failure.to_string().contains("ServerFailure"), "{failure}");
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_for_a_datagram_is_asked_for_again() {
        let found = issuers("long.example.com").await.unwrap();
        assert_eq!(found, only("long.example"));
    }
    #[tokio::test]
    async fn the_operator_is_told_who_may_issue_and_how_to_change_that() {
        let resolver = Some(dns_server().await);
        let lets_encrypt = "acme-v02.api.letsencrypt.org";
        let cases = [
            (
                "git.example.com",
                lets_encrypt,
                "ok",
                "letsencrypt.org may issue",
            ),
            (
                "git.example.net",
                lets_encrypt,
                "ok",
                "any authority may issue",
            ),
            (
                "nobody.example",
                lets_encrypt,
                "failed",
                "only nobody may issue",
            ),
            (
                "git.example.org",
                lets_encrypt,
                "failed",
                "only other.example may",
            ),
            (
                "git.example.org",
                "acme.other.example",
                "ok",
                "only other.example may",
            ),
            (
                "failing.example.com",
                lets_encrypt,
                "ok",
                "the resolver failed",
            ),
        ];
        for (domain, directory, outcome, detail) in cases {
            let domain = domain.parse().unwrap();
            let finding = super::super::issuers(resolver, &domain, directory).await;
            assert_eq!(finding.is_failed(), outcome == "failed", "{finding}");
            assert!(finding.detail.contains(detail), "{finding}");
        }
        let domain = "git.example.com".parse().unwrap();
        let without = super::super::issuers(None, &domain, lets_encrypt).await;
        assert!(without.detail.contains("names no resolver"), "{without}");
    }
}
