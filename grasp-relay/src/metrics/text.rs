//! Prometheus' text form.

use std::fmt::Write as _;

use super::{BUCKETS, Family, Kind, Metric, Spread, Value};

/// Writes one metric with its head. One without labels is there even before it was touched.
pub(super) fn write(text: &mut String, metric: &Metric, family: Option<&Family>) {
    let (name, help) = (metric.name, metric.help);
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Times => "histogram",
    };
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    let untouched = match metric.kind {
        Kind::Times => Value::Spread(Spread::default()),
        _ => Value::Number(0.0),
    };
    match family {
        None if metric.labels.is_empty() => series(text, metric, &[], &untouched),
        None => {}
        Some(family) => {
            for (labels, value) in family {
                series(text, metric, labels, value);
            }
        }
    }
}

fn series(text: &mut String, metric: &Metric, labels: &[Box<str>], value: &Value) {
    let name = metric.name;
    let labels = pairs(metric, labels);
    match value {
        Value::Number(number) => line(text, name, &labels, *number),
        Value::Spread(spread) => {
            let name = |part: &str| format!("{name}_{part}");
            let ends = BUCKETS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            for (end, count) in ends.zip(spread.buckets.iter().chain([&spread.count])) {
                let labels = [&labels[..], &[format!("le=\"{end}\"")]].concat();
                line(text, &name("bucket"), &labels, *count as f64);
            }
            line(text, &name("sum"), &labels, spread.seconds);
            line(text, &name("count"), &labels, spread.count as f64);
        }
    }
}

fn pairs(metric: &Metric, labels: &[Box<str>]) -> Vec<String> {
    let pairs = metric.labels.iter().zip(labels);
    pairs.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect()
}

fn line(text: &mut String, name: &str, labels: &[String], value: f64) {
    let _ = match labels {
        [] => writeln!(text, "{name} {value}"),
        labels => writeln!(text, "{name}{{{}}} {value}", labels.join(",")),
    };
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
