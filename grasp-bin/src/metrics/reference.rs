//! The reference of all metrics.

use std::fmt::Write as _;

use grasp_relay::metrics::Kind;

use super::GROUPS;

/// Returns the reference of all metrics, as Markdown.
pub(crate) fn markdown() -> String {
    let mut text = String::from(include_str!("opening.md"));
    for group in GROUPS {
        let _ = write!(text, "\n## {}\n\n", group.title);
        text.push_str("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
        for metric in group.metrics {
            let kind = match metric.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let (name, labels, help) = (metric.name, labels.join(", "), metric.help);
            let _ = writeln!(text, "| `{name}` | {kind} | {labels} | {help} |");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::metrics::all;

    fn docs(path: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(path)
    }

    #[test]
    fn the_reference_is_up_to_date() {
        crate::page::hold_to("reference/metrics.md", &markdown());
    }

    #[test]
    fn names_are_unique_and_counters_end_with_total() {
        let names: BTreeSet<_> = all().iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), all().len());
        for metric in all() {
            assert!(metric.name.starts_with("grasp_"), "{}", metric.name);
            let total = metric.name.ends_with("_total");
            assert_eq!(total, metric.kind == Kind::Counter, "{}", metric.name);
        }
    }

    /// Returns the names of our metrics in a file of the monitoring how-to.
    fn mentioned(file: &str) -> BTreeSet<String> {
        let text = std::fs::read_to_string(docs("how-to/monitoring").join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("grasp_")).map(str::to_owned).collect()
    }

    #[test]
    fn dashboard_and_alerts_use_metrics_that_exist() {
        for file in ["dashboard.json", "alerts.yml"] {
            for name in mentioned(file) {
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end))
                    .unwrap_or(&name);
                let known = all().iter().any(|metric| metric.name == base || metric.name == name);
                assert!(known, "{file}: {name}");
            }
        }
    }
}
