//! The results of calls of administration as text.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;

use super::status::{table, usage_table};
use crate::instance::overview::managed::RepoPage;
use crate::management::rules::{Method, Request};
use crate::web::figures::UsageReport;
use crate::web::{format_age, format_bytes};

/// Returns the result of a call as people read it.
pub fn call_result(call: &Request, result: &Value) -> String {
    if *result == Value::Bool(true) {
        return "done\n".into();
    }
    match call.method.parse() {
        Ok(Method::ListRepos) => match serde_json::from_value::<RepoPage>(result.clone()) {
            Ok(page) => repo_table(&page),
            Err(_) => pretty(result),
        },
        Ok(Method::GetUsage) => match serde_json::from_value::<UsageReport>(result.clone()) {
            Ok(report) => usage_table(&report),
            Err(_) => pretty(result),
        },
        _ => match result {
            Value::Array(rows) => list(rows),
            _ => pretty(result),
        },
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Columns in their order; others follow.
const COLUMNS: [&str; 15] = [
    "seq", "at", "actor", "method", "params", "error", "repo", "pubkey", "ip", "id", "label",
    "since", "until", "by", "reason",
];

/// Returns rows with names as a table.
fn list(rows: &[Value]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        for name in row.as_object().into_iter().flat_map(|row| row.keys()) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    names.sort_by_key(|name| {
        COLUMNS
            .iter()
            .position(|one| one == name)
            .unwrap_or(COLUMNS.len())
    });
    if rows.is_empty() {
        return "none\n".into();
    }
    if names.is_empty() {
        return rows.iter().map(|row| cell("", row) + "\n").collect();
    }
    let mut cells = Vec::new();
    for row in rows {
        let row = names
            .iter()
            .map(|name| cell(name, row.get(*name).unwrap_or(&Value::Null)));
        cells.push(row.collect());
    }
    table(&names, &cells)
}

fn cell(name: &str, value: &Value) -> String {
    let is_time = matches!(name, "at" | "since" | "until");
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(seconds) if is_time => match seconds.as_u64() {
            Some(seconds) if seconds < YEAR_10000 => {
                let time = UNIX_EPOCH + Duration::from_secs(seconds);
                humantime::format_rfc3339_seconds(time).to_string()
            }
            _ => seconds.to_string(),
        },
        other => other.to_string(),
    }
}

/// The first second that a date with a year of four digits cannot name.
const YEAR_10000: u64 = 253_402_300_800;

fn repo_table(page: &RepoPage) -> String {
    let now = nostr::types::Timestamp::now().as_secs();
    let mut rows = Vec::new();
    for row in &page.repos {
        let active_at = Some(row.active_at).filter(|at| *at > 0);
        rows.push(vec![
            format_bytes(row.bytes),
            format!("{:?}", row.state).to_lowercase(),
            format_age(now, active_at),
            row.repo.to_string(),
        ]);
    }
    let mut text = table(&["git data", "state", "last active", "repository"], &rows);
    if let Some(next) = &page.next {
        text.push_str(&format!("there are more: --after {next}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(text: &str) -> Vec<Vec<&str>> {
        let lines = text.lines();
        lines
            .map(|line| line.split_whitespace().collect())
            .collect()
    }

    fn call(method: Method) -> Request {
        Request {
            method: method.name().to_owned(),
            params: Vec::new(),
        }
    }

    #[test]
    fn lists_are_tables_with_every_name_that_a_row_has() {
        let rows =
            json!([{"pubkey": "ab", "reason": "spam"}, {"by": "cd", "pubkey": "ef", "since": 60}]);
        let text = call_result(&call(Method::ListBannedPubkeys), &rows);
        let lines = words(&text);
        assert_eq!(lines[0], ["PUBKEY", "SINCE", "BY", "REASON"]);
        assert_eq!(lines[1], ["ab", "spam"]);
        assert_eq!(lines[2], ["ef", "1970-01-01T00:01:00Z", "cd"]);
        assert_eq!(
            call_result(&call(Method::ListAllowedKinds), &json!([1, 5])),
            "1\n5\n"
        );
        assert_eq!(call_result(&call(Method::ListHeld), &json!([])), "none\n");
        assert_eq!(
            call_result(&call(Method::BanPubkey), &json!(true)),
            "done\n"
        );
    }

    #[test]
    fn repositories_are_shown_with_their_state_and_the_next_page() {
        let repo = format!("30617:{}:x", "ab".repeat(32));
        let row = json!({"repo": repo, "name": "X", "bytes": 3 << 20, "refs": 1, "active_at": 0, "state": "held"});
        let text = call_result(
            &call(Method::ListRepos),
            &json!({"repos": [row], "next": repo}),
        );
        assert!(text.contains("3.0 MiB") && text.contains("held"), "{text}");
        assert!(text.contains(&format!("--after {repo}")), "{text}");
    }
}
