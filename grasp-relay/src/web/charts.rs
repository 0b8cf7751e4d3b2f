//! Pictures on the status page, as SVG that needs no script: figures over time, and the servers around this one.

use maud::{Markup, html};

use super::figures::{Neighbour, Status};
use super::history::Series;

/// The size of the picture of one figure over time; it is stretched to the width of its box.
const WIDTH: usize = 240;
const HEIGHT: usize = 40;

/// Servers in the picture; the list below it has all.
const MAX_DRAWN: usize = 14;

/// Returns the figures of the last hour and the last day.
pub(super) fn history(series: &[Series]) -> Markup {
    html! {
        @if !series.is_empty() {
            h2 { "The last hour and the last day" }
            div class="charts" {
                @for one in series {
                    section aria-label=(one.title) {
                        h3 { (one.title) }
                        (bars("last hour", &one.hour))
                        (bars("last day", &one.day))
                    }
                }
            }
        }
    }
}

/// Draws a bar for each value. Times without a value have a mark at the bottom, so that they do not look like zero.
fn bars(period: &str, values: &[Option<u64>]) -> Markup {
    let highest = values.iter().flatten().copied().max();
    let last = values.last().copied().flatten();
    let text = match (highest, last) {
        (None, _) => format!("{period}: nothing recorded"),
        (Some(highest), last) => {
            let last = last.map_or_else(|| "unknown".to_owned(), |last| last.to_string());
            format!("{period}: highest {highest}, now {last}")
        }
    };
    let scale = highest.unwrap_or(0).max(1);
    // In tenths of a unit, so that all bars together are as wide as the picture.
    let step = 10 * WIDTH / values.len().max(1);
    html! {
        figure {
            svg class="bars" viewBox={ "0 0 " (10 * WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(text) {
                @for (at, value) in values.iter().enumerate() {
                    @if let Some(value) = value {
                        @let height = bar_height(*value, scale);
                        @if height > 0 {
                            rect x=(at * step) y=(HEIGHT - height) width=(step.saturating_sub(4).max(1)) height=(height) {}
                        }
                    }
                }
                rect x="0" y=(HEIGHT - 1) width=(10 * WIDTH) height="1" opacity=".35" {}
            }
            figcaption { (text) }
        }
    }
}

/// Returns the height of a bar; what is not zero is seen.
fn bar_height(value: u64, scale: u64) -> usize {
    if value == 0 {
        return 0;
    }
    let share = value as f64 / scale as f64;
    ((share * (HEIGHT - 2) as f64) as usize).clamp(2, HEIGHT - 2)
}

/// Returns the picture of the relays and git servers around this one, and the same as a list.
pub(super) fn neighbours(status: &Status) -> Markup {
    let all = &status.neighbours;
    html! {
        @if !all.is_empty() {
            h2 { "Servers around this one" }
            div class="scroll" tabindex="0" role="region" aria-label="Picture of the servers around this one" {
                (picture(&status.service, all))
            }
            details {
                summary { "As a list" }
                ul {
                    @for one in all { li { code { (one.host) } ": " (one.text()) } }
                }
            }
        }
    }
}

/// Draws this server in the middle and the others around it: a line to those that are connected, a broken one to the others,
/// and a sign for whether they are in step.
fn picture(service: &str, all: &[Neighbour]) -> Markup {
    let drawn = &all[..all.len().min(MAX_DRAWN)];
    let places = places(drawn.len());
    html! {
        svg class="net" width="640" height="320" viewBox="0 0 640 320" role="img"
            aria-label={ (all.len()) " servers around this one" } {
            @for (one, (x, y)) in drawn.iter().zip(&places) {
                line x1="320" y1="160" x2=(x) y2=(y) class=(class(one))
                    stroke-dasharray=[(!one.is_connected).then_some("3 5")] {}
            }
            circle cx="320" cy="160" r="13" class="self" {}
            text x="320" y="192" text-anchor="middle" { (cut(service)) }
            @for (one, (x, y)) in drawn.iter().zip(&places) {
                g class=(class(one)) {
                    title { (one.host) ": " (one.text()) }
                    circle cx=(x) cy=(y) r="10" {}
                    text class="sign" x=(x) y=(y + 4) text-anchor="middle" { (sign(one)) }
                }
                text x=(x) y=(y + 25) text-anchor="middle" { (cut(&one.host)) }
            }
        }
    }
}

/// Returns the places of so many servers on an ellipse around the middle.
fn places(count: usize) -> Vec<(i32, i32)> {
    let mut places = Vec::new();
    for at in 0..count {
        let angle = std::f64::consts::TAU * (at as f64 + 0.5) / count as f64;
        let x = 320.0 + 250.0 * angle.cos();
        let y = 150.0 + 118.0 * angle.sin();
        places.push((x as i32, y as i32));
    }
    places
}

fn class(one: &Neighbour) -> &'static str {
    match sign(one) {
        "✓" => "good",
        "≠" => "odd",
        "✗" => "bad",
        _ => "small",
    }
}

/// Returns the sign of a server, so that colour is not all that tells.
fn sign(one: &Neighbour) -> &'static str {
    let is_relay_only = one.equal + one.different + one.unreachable == 0;
    match one {
        _ if one.unreachable > 0 => "✗",
        _ if one.different > 0 || one.missing > 0 => "≠",
        _ if !is_relay_only => "✓",
        _ if one.is_connected => "✓",
        _ => "?",
    }
}

/// Cuts a name to what fits beside the others.
fn cut(name: &str) -> String {
    super::shortened(name, 22)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(host: &str) -> Neighbour {
        Neighbour {
            host: host.into(),
            ..Neighbour::default()
        }
    }

    #[test]
    fn bars_have_a_text_and_none_where_nothing_is_known() {
        let drawn = bars("last hour", &[None, Some(0), Some(3), Some(10)]).into_string();
        assert!(drawn.contains("last hour: highest 10, now 10"), "{drawn}");
        assert_eq!(drawn.matches("<rect").count(), 3, "two bars and the base");
        let empty = bars("last day", &[None; 96]).into_string();
        assert!(empty.contains("nothing recorded"), "{empty}");
        assert!(bars("x", &[]).into_string().contains("nothing recorded"));
        assert_eq!(bar_height(u64::MAX, u64::MAX), HEIGHT - 2);
        assert_eq!(bar_height(1, u64::MAX), 2);
    }

    #[test]
    fn servers_are_drawn_within_the_picture_and_listed_all() {
        let neighbours: Vec<_> = (0..30).map(|n| neighbour(&format!("h{n}"))).collect();
        let status = Status {
            neighbours,
            ..Status::default()
        };
        let drawn = super::neighbours(&status).into_string();
        assert_eq!(drawn.matches("<line").count(), MAX_DRAWN);
        assert_eq!(drawn.matches("<li>").count(), 30);
        for (x, y) in places(MAX_DRAWN) {
            assert!(
                (20..=620).contains(&x) && (20..=290).contains(&y),
                "{x} {y}"
            );
        }
        let none = super::neighbours(&Status::default()).into_string();
        assert!(none.is_empty());
    }

    #[test]
    fn sign_says_what_colour_does() {
        let of = |change: fn(&mut Neighbour)| {
            let mut one = neighbour("h");
            change(&mut one);
            sign(&one)
        };
        assert_eq!(of(|one| one.equal = 2), "✓");
        assert_eq!(of(|one| (one.equal, one.different) = (2, 1)), "≠");
        assert_eq!(of(|one| (one.equal, one.unreachable) = (2, 1)), "✗");
        assert_eq!(of(|one| one.missing = 3), "≠");
        assert_eq!(of(|one| one.is_connected = true), "✓");
        assert_eq!(of(|_| ()), "?");
    }

    #[test]
    fn names_of_strangers_are_escaped_and_cut() {
        let status = Status {
            neighbours: vec![neighbour("<script>")],
            service: "x".repeat(100),
            ..Status::default()
        };
        let drawn = super::neighbours(&status).into_string();
        assert!(!drawn.contains("<script>") && !drawn.contains(&"x".repeat(30)));
    }
}
