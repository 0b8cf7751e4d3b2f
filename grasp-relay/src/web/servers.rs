//! Servers in step: the table, the JSON and the badge of one repository.

use std::collections::BTreeMap;

use grasp_core::in_step::{RefsStep, ServerStep};
use grasp_core::limits::ConnectionStatus;
use grasp_core::nip34::Announcement;
use grasp_core::{CloneUrl, RelayUrl, RepoId, ServiceIdentity};
use maud::{Markup, html};
use serde::Serialize;

use super::figures::RelayRow;
use super::format_age;

/// What is known of the events of a server's relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "state", content = "events")]
pub(crate) enum RelayStep {
    /// It has all events of the repository that are here.
    Complete,
    /// It lacks this many of them.
    Misses(u64),
    /// It was not compared yet, or is not followed.
    Unknown,
}

/// How the refs of a server compare, as the JSON shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub(crate) enum RefsRow {
    Equal,
    Different { refs: usize },
    Unreachable { since: u64 },
    Unknown,
}

/// One announced server of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ServerRow {
    pub(crate) url: String,
    /// It is the one that says so.
    pub(crate) is_this: bool,
    pub(crate) refs: RefsRow,
    pub(crate) relay: RelayStep,
    /// The time of the last comparison of refs, in Unix seconds.
    pub(crate) checked_at: Option<u64>,
}

impl ServerRow {
    /// Returns whether the server has the same refs, and is not known to lack events.
    fn is_in_step(&self) -> bool {
        self.refs == RefsRow::Equal && !matches!(self.relay, RelayStep::Misses(_))
    }
}

/// The announced servers of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ServerRows {
    /// The number of servers in step, this one included.
    pub(crate) in_step: usize,
    pub(crate) servers: Vec<ServerRow>,
}

impl ServerRows {
    /// Returns the rows of the servers that an announcement names, from what was found about them.
    pub(crate) fn of(
        service: &ServiceIdentity,
        announcement: &Announcement,
        steps: &BTreeMap<CloneUrl, ServerStep>,
        relays: &[RelayRow],
    ) -> Self {
        let mut servers = Vec::new();
        for url in &announcement.clone {
            if service.is_own_url(url.as_str()) {
                servers.push(ServerRow {
                    url: url.to_string(),
                    is_this: true,
                    refs: RefsRow::Equal,
                    relay: RelayStep::Complete,
                    checked_at: None,
                });
                continue;
            }
            let Some(step) = steps.get(url) else {
                continue; // more than are compared
            };
            let refs = match step.refs {
                RefsStep::Unknown => RefsRow::Unknown,
                RefsStep::Equal => RefsRow::Equal,
                RefsStep::Different(refs) => RefsRow::Different { refs },
                RefsStep::Unreachable(since) => RefsRow::Unreachable {
                    since: since.as_secs(),
                },
            };
            servers.push(ServerRow {
                url: url.to_string(),
                is_this: false,
                refs,
                relay: relay_step(announcement, url, relays),
                checked_at: step.checked_at.map(|at| at.as_secs()),
            });
        }
        let in_step = servers.iter().filter(|row| row.is_in_step()).count();
        Self { in_step, servers }
    }

    /// Returns the text of the badge.
    pub(crate) fn text(&self) -> String {
        format!("{} of {} servers in step", self.in_step, self.servers.len())
    }

    /// Returns the colour class of the whole: all in step, some known not to be, or too little known.
    fn verdict(&self) -> ServerVerdict {
        if self.in_step == self.servers.len() {
            return ServerVerdict::Good;
        }
        let is_unknown = |row: &ServerRow| !row.is_in_step() && row.refs == RefsRow::Unknown;
        let unknown = self.servers.iter().filter(|row| is_unknown(row)).count();
        if self.in_step + unknown == self.servers.len() {
            ServerVerdict::Unknown
        } else {
            ServerVerdict::Odd
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerVerdict {
    Good,
    Odd,
    Unknown,
}

/// Returns what is known of the relay at the host of a git server, if the announcement names one there.
fn relay_step(announcement: &Announcement, url: &CloneUrl, relays: &[RelayRow]) -> RelayStep {
    let host = url.host();
    let is_there = |relay: &RelayUrl| relay.host() == host;
    if !announcement.relays.iter().any(is_there) {
        return RelayStep::Unknown;
    }
    let named = |row: &&RelayRow| row.url.parse::<RelayUrl>().is_ok_and(|it| is_there(&it));
    let Some(row) = relays.iter().find(named) else {
        return RelayStep::Unknown;
    };
    let name = repository_name(&announcement.repo);
    let missing = row.missing.iter().filter(|it| it.repository == name);
    let missing: u64 = missing.map(|it| it.events).sum();
    match (missing, row.synced_at, row.state) {
        (1.., _, _) => RelayStep::Misses(missing),
        (0, Some(_), _) | (0, None, ConnectionStatus::Connected) => RelayStep::Complete,
        (0, None, _) => RelayStep::Unknown,
    }
}

/// Returns the name of a repository in [`MissingRow`](super::figures::MissingRow).
fn repository_name(repo: &RepoId) -> String {
    repo.to_string().escape_debug().to_string()
}

/// Returns the table of servers.
pub(crate) fn table(rows: &ServerRows, now: u64) -> Markup {
    html! {
        h1 { (rows.text()) }
        p {
            "A server is in step if it serves the same branches and tags as this one, and its relay has the same events. "
            "Other servers are compared at most once an hour after a change or a visit, else once a day."
        }
        table {
            caption { "Servers that the announcement names" }
            thead {
                tr { th scope="col" { "server" } th scope="col" { "refs" } th scope="col" { "events" } th scope="col" { "compared" } }
            }
            tbody {
                @for row in &rows.servers {
                    @let (refs, class) = refs_text(row, now);
                    @let (events, events_class) = events_text(row);
                    tr {
                        td data-label="server" { code { (row.url) } }
                        td data-label="refs" class=(class) { (refs) }
                        td data-label="events" class=(events_class) { (events) }
                        td data-label="compared" {
                            @if row.is_this { "this server" } @else { (format_age(now, row.checked_at)) }
                        }
                    }
                }
            }
        }
        p class="small" {
            "The same as " a href="servers.json" { "JSON" } " and as a badge: "
            img src="badge.svg" alt=(rows.text()) height="20";
        }
    }
}

/// Returns the text about the refs of a server, which begins with a sign, and its class.
fn refs_text(row: &ServerRow, now: u64) -> (String, &'static str) {
    match row.refs {
        RefsRow::Equal => ("✓ equal".into(), "good"),
        RefsRow::Different { refs: 1 } => ("≠ 1 ref differs".into(), "odd"),
        RefsRow::Different { refs } => (format!("≠ {refs} refs differ"), "odd"),
        RefsRow::Unreachable { since } => {
            let age = format_age(now, Some(since));
            (format!("✗ unreachable, noticed {age}"), "bad")
        }
        RefsRow::Unknown => ("? not compared yet".into(), "small"),
    }
}

fn events_text(row: &ServerRow) -> (String, &'static str) {
    match row.relay {
        RelayStep::Complete => ("✓ complete".into(), "good"),
        RelayStep::Misses(1) => ("≠ misses 1 event".into(), "odd"),
        RelayStep::Misses(events) => (format!("≠ misses {events} events"), "odd"),
        RelayStep::Unknown => ("? not compared yet".into(), "small"),
    }
}

/// Returns the rows as JSON.
pub(crate) fn json(rows: &ServerRows) -> String {
    serde_json::to_string(rows).expect("strings and numbers always have a JSON form")
}

/// Returns the badge, in the usual size of badges. It needs no font: the text is fitted into its width.
pub(crate) fn badge(rows: &ServerRows) -> String {
    let text = rows.text();
    let colour = match rows.verdict() {
        ServerVerdict::Good => "#1a7f37",
        ServerVerdict::Odd => "#9a6700",
        ServerVerdict::Unknown => "#59636e",
    };
    let width = 7 * text.chars().count() + 10;
    let markup = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width + 46) height="20" role="img" aria-label=(text) {
            title { (text) }
            rect width="46" height="20" fill="#24292f" {}
            rect x="46" width=(width) height="20" fill=(colour) {}
            g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" {
                text x="6" y="14" textLength="34" { "grasp" }
                text x="51" y="14" textLength=(width - 10) { (text) }
            }
        }
    };
    markup.into_string()
}

#[cfg(test)]
mod tests {
    use nostr::types::Timestamp;

    use super::super::figures::MissingRow;
    use super::*;

    fn url(host: &str) -> CloneUrl {
        format!("https://{host}.example/x.git").parse().unwrap()
    }

    fn announcement() -> Announcement {
        use nostr::event::{EventBuilder, FinalizeEvent as _, Kind, Tag};
        let tag = |values: &[&str]| Tag::parse(values.iter().copied()).unwrap();
        let event = EventBuilder::new(Kind::GitRepoAnnouncement, "")
            .tag(tag(&["d", "x"]))
            .tag(tag(&[
                "clone",
                "https://us.example/x.git",
                "https://a.example/x.git",
                "https://b.example/x.git",
            ]))
            .tag(tag(&["relays", "wss://us.example", "wss://a.example"]))
            .finalize(&nostr::key::Keys::generate())
            .unwrap();
        Announcement::parse(&event).unwrap()
    }

    fn step(refs: RefsStep) -> ServerStep {
        ServerStep {
            refs,
            checked_at: Some(Timestamp::from_secs(40)),
        }
    }

    fn rows(a: RefsStep, b: RefsStep, relays: &[RelayRow]) -> ServerRows {
        let steps = BTreeMap::from([(url("a"), step(a)), (url("b"), step(b))]);
        let service = "us.example".parse().unwrap();
        ServerRows::of(&service, &announcement(), &steps, relays)
    }

    #[test]
    fn servers_with_the_same_refs_are_in_step_with_this_one() {
        let all = rows(RefsStep::Equal, RefsStep::Equal, &[]);
        assert_eq!(all.text(), "3 of 3 servers in step");
        assert!(badge(&all).contains("#1a7f37"));
        let one = rows(RefsStep::Equal, RefsStep::Different(1), &[]);
        assert_eq!(one.text(), "2 of 3 servers in step");
        assert!(badge(&one).contains("#9a6700"));
        assert!(table(&one, 100).into_string().contains("1 ref differs"));
        let none = rows(RefsStep::Unknown, RefsStep::Equal, &[]);
        assert!(
            badge(&none).contains("#59636e"),
            "not known to be out of step"
        );
    }

    #[test]
    fn server_whose_relay_lacks_events_is_not_in_step() {
        let announcement = announcement();
        let missing = MissingRow {
            repository: repository_name(&announcement.repo),
            events: 14,
        };
        let relay = RelayRow {
            url: "wss://a.example".into(),
            missing: vec![missing],
            ..RelayRow::default()
        };
        let steps = BTreeMap::from([(url("a"), step(RefsStep::Equal))]);
        let service = "us.example".parse().unwrap();
        let rows = ServerRows::of(&service, &announcement, &steps, &[relay]);
        assert_eq!(rows.in_step, 1);
        assert_eq!(rows.servers[1].relay, RelayStep::Misses(14));
        assert!(table(&rows, 100).into_string().contains("misses 14 events"));
        assert!(json(&rows).contains(r#""relay":{"state":"misses","events":14}"#));
    }

    #[test]
    fn relay_that_was_never_synced_is_unknown() {
        let of = |synced_at| {
            let relay = RelayRow {
                url: "wss://a.example/".into(),
                synced_at,
                ..RelayRow::default()
            };
            rows(RefsStep::Equal, RefsStep::Equal, &[relay]).servers[1].relay
        };
        assert_eq!(of(None), RelayStep::Unknown);
        assert_eq!(of(Some(5)), RelayStep::Complete);
        assert_eq!(
            rows(RefsStep::Equal, RefsStep::Equal, &[]).servers[2].relay,
            RelayStep::Unknown
        );
    }

    #[test]
    fn unreachable_server_has_the_time_of_the_first_failure() {
        let rows = rows(
            RefsStep::Unreachable(Timestamp::from_secs(40)),
            RefsStep::Equal,
            &[],
        );
        let page = table(&rows, 100).into_string();
        assert!(page.contains("unreachable, noticed 1 minute ago"), "{page}");
        assert!(json(&rows).contains(r#""refs":{"state":"unreachable","since":40}"#));
    }

    #[test]
    fn addresses_are_escaped() {
        let mut rows = rows(RefsStep::Equal, RefsStep::Equal, &[]);
        rows.servers[0].url = "<script>".into();
        assert!(!table(&rows, 0).into_string().contains("<script>"));
    }
}
