//! The text format of Prometheus.

use std::fmt::Write as _;

use super::{BUCKET_BOUNDS, Histogram, Kind, Metric, SeriesMap, Value};

/// Writes one metric with its header lines. A metric without labels is written even before its first update.
pub(super) fn write(text: &mut String, metric: &Metric, family: Option<&SeriesMap>) {
    let (name, help) = (metric.name, metric.help);
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    let initial = match metric.kind {
        Kind::Histogram => Value::Histogram(Histogram::default()),
        _ => Value::Number(0.0),
    };
    match family {
        None if metric.labels.is_empty() => series(text, metric, &[], &initial),
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
    let labels = label_pairs(metric, labels);
    match value {
        Value::Number(number) => line(text, name, &labels, *number),
        Value::Histogram(histogram) => {
            let name = |part: &str| format!("{name}_{part}");
            let bounds = BUCKET_BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            for (bound, count) in bounds.zip(histogram.buckets.iter().chain([&histogram.count])) {
                let labels = [&labels[..], &[format!("le=\"{bound}\"")]].concat();
                line(text, &name("bucket"), &labels, *count as f64);
            }
            line(text, &name("sum"), &labels, histogram.seconds);
            line(text, &name("count"), &labels, histogram.count as f64);
        }
    }
}

fn label_pairs(metric: &Metric, labels: &[Box<str>]) -> Vec<String> {
    let pairs = metric.labels.iter().zip(labels);
    pairs.map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect()
}

fn line(text: &mut String, name: &str, labels: &[String], value: f64) {
    let _ = match labels {
        [] => writeln!(text, "{name} {value}"),
        labels => writeln!(text, "{name}{{{}}} {value}", labels.join(",")),
    };
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
