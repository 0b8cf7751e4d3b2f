//! Figures beside their targets.

#![allow(dead_code, reason = "each bench uses its part")]

use std::time::Duration;

pub(crate) fn time(what: &str, took: Duration, wanted: Option<Duration>) {
    let met = wanted.map(|max| (took <= max, format!("<= {max:?}")));
    line(what, &format!("{took:.2?}"), met);
}

pub(crate) fn bytes(what: &str, held: usize, wanted: Option<usize>) {
    let mb = |bytes: usize| format!("{:.2} MB", bytes as f64 / 1e6);
    let met = wanted.map(|max| (held <= max, format!("<= {}", mb(max))));
    line(what, &mb(held), met);
}

pub(crate) fn rate(what: &str, values: usize, took: Duration, wanted: Option<f64>) {
    let rate = values as f64 / took.as_secs_f64() / 1e6;
    let met = wanted.map(|min| (rate >= min, format!(">= {min} M values/s")));
    line(what, &format!("{rate:.2} M values/s"), met);
}

fn line(what: &str, figure: &str, wanted: Option<(bool, String)>) {
    let verdict = match wanted {
        None => String::new(),
        Some((true, wanted)) => format!("wanted {wanted}: met"),
        Some((false, wanted)) => format!("wanted {wanted}: MISSED"),
    };
    println!("  {what:<44} {figure:>20}  {verdict}");
}
