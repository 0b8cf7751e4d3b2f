//! The status page.

use grasp_core::limits::ConnectionStatus;
use grasp_core::limits::Health;
use maud::{Markup, html};

use super::charts;
use super::encoded::Caching;
use super::figures::{Figure, NodeStatus, PurgatoryFigures, RelayRow, Status};
use super::frame::{Frame, Page};

const SCRIPT: &str = include_str!("status.js");

/// Returns the status page. A script replaces its content at intervals.
pub fn status(name: &str, frame: &Frame, status: &Status) -> Page {
    let (ready, class) = match (status.ready, status.damaged.is_empty()) {
        (false, _) => ("not ready", "bad"),
        (true, true) => ("working", "good"),
        (true, false) => ("degraded", "odd"),
    };
    let title = format!("Status of {name}");
    Page::new(
        &title,
        frame,
        html! {
            h1 { (title) }
            p {
                "This server is " strong id="ready" class=(class) { (ready) } ", up for "
                span id="uptime" { (format_duration(status.now.saturating_sub(status.started))) } "."
                span id="following" hidden[status.relays.is_empty()] {
                    " " span id="connected" { (status.connected()) } " of "
                    span id="followed" { (status.relays.len()) } " followed relays are connected."
                }
                " " span id="freshness" class="small" role="status" {}
            }
            div id="damage" hidden[status.damaged.is_empty()] {
                h2 { "Damaged repositories" }
                p { "Git objects of these repositories are missing on disk. The log says more." }
                ul id="damaged" { @for address in &status.damaged { li { (address) } } }
            }
            (charts::history(&status.history))
            @for (title, figures) in status.sections() { h2 { (title) } (figure_list(&figures)) }
            @if let Some(progress) = status.purgatory.hunt_progress() {
                (hunt(&status.purgatory, &progress))
            }
            div hidden[status.nodes.is_empty()] {
                h2 { "Nodes" }
                (nodes(&status.nodes))
            }
            (charts::neighbours(status))
            h2 { "Relays" }
            (relays(status))
        },
    )
    .cached(Caching::NoStore)
    .with_script(SCRIPT)
}

fn figure_list(figures: &[Figure]) -> Markup {
    html! {
        dl class="figures" {
            @for Figure { label, key, text } in figures {
                div { dt { (label) } dd data-figure=(key) { (text) } }
            }
        }
    }
}

fn hunt(held: &PurgatoryFigures, progress: &str) -> Markup {
    html! {
        p {
            label for="hunt-progress" { "Git data fetched " }
            progress id="hunt-progress" max=(held.fetched + held.hunting) value=(held.fetched) {}
            " " (progress)
        }
    }
}

fn relays(status: &Status) -> Markup {
    if status.relays.is_empty() {
        return html! { p { "No other relay is followed." } };
    }
    html! {
        div class="wide" tabindex="0" role="region" aria-label="Relays" {
            table {
                caption { "Relays that events are fetched from" }
                thead {
                    tr {
                        @for (label, _) in RelayRow::default().cells(status.now) {
                            th scope="col" class=[number_class(label)] { (label) }
                        }
                    }
                }
                tbody id="relays" {
                    @for relay in &status.relays { (relay_row(status.now, relay)) }
                }
            }
        }
    }
}

fn nodes(nodes: &[NodeStatus]) -> Markup {
    html! {
        table {
            caption { "Nodes of this server" }
            thead {
                tr {
                    @for (label, _) in NodeStatus::default().cells() { th scope="col" { (label) } }
                }
            }
            tbody id="nodes" { @for node in nodes { (node_row(node)) } }
        }
    }
}

fn node_row(node: &NodeStatus) -> Markup {
    let class = |label| (label == "role").then_some(if node.is_up { "good" } else { "bad" });
    html! {
        tr {
            @for (label, text) in node.cells() {
                td data-label=(label) class=[class(label)] { (text) }
            }
        }
    }
}

fn relay_row(now: u64, relay: &RelayRow) -> Markup {
    let class = |label| match (label, relay.state, relay.health) {
        ("state", ConnectionStatus::Connected, _) | ("health", _, Health::Healthy) => Some("good"),
        ("state", ConnectionStatus::Disconnected, _) | ("health", _, Health::Dead) => Some("bad"),
        ("state" | "health", ..) => Some("odd"),
        _ => number_class(label),
    };
    html! {
        tr {
            @for (label, text) in relay.cells(now) {
                td data-label=(label) class=[class(label)] { (text) }
            }
        }
    }
}

fn number_class(label: &str) -> Option<&'static str> {
    ["backlog", "new events", "gaps", "up", "coverage"]
        .contains(&label)
        .then_some("number")
}

/// Formats the time since a date, in Unix seconds.
pub fn format_age(now: u64, then: Option<u64>) -> String {
    then.map_or_else(
        || "never".into(),
        |then| format!("{} ago", format_duration(now.saturating_sub(then))),
    )
}

/// Formats a duration in its largest unit; in months and years only if it has two of them.
pub fn format_duration(seconds: u64) -> String {
    const YEAR: u64 = 31_557_600;
    let steps = [
        (YEAR, 2, "year"),
        (YEAR / 12, 2, "month"),
        (86_400, 1, "day"),
        (3_600, 1, "hour"),
        (60, 1, "minute"),
    ];
    let mut steps = steps.into_iter();
    let step = steps.find(|(length, least, _)| seconds >= length * least);
    let (length, _, unit) = step.unwrap_or((1, 1, "second"));
    let count = seconds / length;
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// Formats a number of bytes in its largest unit.
pub fn format_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (bytes.max(1).ilog2() / 10).min(4);
    match units.get(step as usize) {
        Some(unit) if step > 0 => {
            format!("{:.1} {unit}", bytes as f64 / f64::from(step * 10).exp2())
        }
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::branding::Branding;
    use super::super::figures::MissingRow;
    use super::*;

    fn frame() -> Frame {
        Frame::new("/", "x", &Branding::default())
    }

    #[test]
    fn durations_and_bytes_are_formatted_in_their_largest_unit() {
        assert_eq!(
            (format_duration(0), format_duration(1), format_duration(59)),
            ("0 seconds".into(), "1 second".into(), "59 seconds".into())
        );
        assert_eq!(
            (
                format_duration(60),
                format_duration(7_200),
                format_duration(86_400)
            ),
            ("1 minute".into(), "2 hours".into(), "1 day".into())
        );
        let days = |days: u64| format_duration(days * 86_400);
        assert_eq!(
            (days(60), days(61), days(800)),
            ("60 days".into(), "2 months".into(), "2 years".into())
        );
        assert_eq!(
            (format_age(10, Some(20)), format_age(10, None)),
            ("0 seconds ago".into(), "never".into())
        );
        assert_eq!(
            (format_bytes(0), format_bytes(1_023), format_bytes(1_536)),
            ("0 B".into(), "1023 B".into(), "1.5 KiB".into())
        );
        assert_eq!(format_bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn every_figure_of_the_page_is_in_the_json() {
        let json = serde_json::to_value(Status::default()).unwrap();
        let page = status("x", &frame(), &Status::default()).html();
        let figures = page
            .split("data-figure=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        for figure in figures {
            let places = [&json, &json["intake"], &json["purgatory"]];
            assert!(
                places.iter().any(|place| place.get(figure).is_some()),
                "{figure}"
            );
        }
    }

    #[test]
    fn a_live_relay_is_synced_now_and_others_show_their_last_time() {
        let synced = |state| {
            let relay = RelayRow {
                state,
                synced_at: Some(40),
                ..RelayRow::default()
            };
            relay.cells(100)[3].1.clone()
        };
        assert_eq!(synced(ConnectionStatus::Connected), "now");
        assert_eq!(synced(ConnectionStatus::Disconnected), "1 minute ago");
    }

    #[test]
    fn connected_relays_are_shown_only_if_there_are_relays() {
        let hidden = |relays| {
            let page = status(
                "x",
                &frame(),
                &Status {
                    relays,
                    ..Status::default()
                },
            )
            .html();
            page.contains("id=\"following\" hidden>")
        };
        assert!(hidden(Vec::new()) && !hidden(vec![RelayRow::default()]));
    }

    #[test]
    fn damaged_repositories_are_named_and_the_server_is_degraded() {
        let damaged = vec!["/npub1x/a.git".to_owned()];
        let page = status(
            "x",
            &frame(),
            &Status {
                ready: true,
                damaged,
                ..Status::default()
            },
        )
        .html();
        assert!(
            page.contains(">degraded<") && page.contains("<li>/npub1x/a.git</li>"),
            "{page}"
        );
        let page = status(
            "x",
            &frame(),
            &Status {
                ready: true,
                ..Status::default()
            },
        )
        .html();
        assert!(
            page.contains(">working<") && page.contains("id=\"damage\" hidden"),
            "{page}"
        );
    }

    #[test]
    fn missing_events_are_shown_by_repository() {
        let row = |name: &str, events| MissingRow {
            repository: format!("30617:ab:{name}"),
            events,
        };
        let missing = vec![
            row("a:b", 7),
            row("two", 3),
            row("three", 2),
            row("four", 1),
        ];
        let relay = RelayRow {
            missing,
            coverage: Some(0.98765),
            ..RelayRow::default()
        };
        let page = status(
            "x",
            &frame(),
            &Status {
                relays: vec![relay],
                ..Status::default()
            },
        )
        .html();
        assert!(
            page.contains("13 (a:b 7, two 3, three 2, …)") && page.contains("98.7 %"),
            "{page}"
        );
        let empty = RelayRow::default().cells(0);
        assert!(
            empty[7..].iter().all(|(_, text)| text.is_empty()),
            "{empty:?}"
        );
    }

    #[test]
    fn nodes_are_shown_with_their_role_if_there_are_several() {
        let node = |address: &str, is_writer, is_up| NodeStatus {
            address: address.into(),
            is_writer,
            is_up,
            cache_hits: 3,
            cache_misses: 1,
            ..NodeStatus::default()
        };
        let nodes = vec![node("http://a", true, true), node("http://b", true, false)];
        let page = status(
            "x",
            &frame(),
            &Status {
                nodes,
                ..Status::default()
            },
        )
        .html();
        for text in [
            ">http://a<",
            ">writer<",
            ">http://b<",
            ">down<",
            "75 % hits",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(
            status("x", &frame(), &Status::default())
                .html()
                .contains("<div hidden><h2>Nodes")
        );
    }

    #[test]
    fn relay_addresses_are_escaped() {
        let relay = RelayRow {
            url: "wss://x/<b>".into(),
            ..RelayRow::default()
        };
        let page = status(
            "x",
            &frame(),
            &Status {
                relays: vec![relay],
                ..Status::default()
            },
        )
        .html();
        assert!(page.contains("wss://x/&lt;b&gt;") && !page.contains("<b>"));
    }
}
