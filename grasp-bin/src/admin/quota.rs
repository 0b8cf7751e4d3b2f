//! `grasp usage` and `grasp quota`.

use std::path::Path;

use anyhow::Result;
use grasp_core::quota::QuotaSubject;
use grasp_relay::web::figures::{UsageReport, UsageRow};
use grasp_relay::web::format_bytes;
use nostr::key::PublicKey;

use super::show::{print, table};
use super::{AdminRequest, request};
use crate::cli::QuotaArg;

/// Prints the git data of all owners, or of one with its repositories.
pub(crate) fn usage(socket: &Path, owner: Option<PublicKey>, json: bool) -> Result<()> {
    let report: UsageReport = request(socket, AdminRequest::Usage(owner))?;
    print(&report, json, usage_table)
}

/// Gives an owner or a repository a quota of its own, or takes it back.
pub(crate) fn set_quota(socket: &Path, subject: QuotaSubject, quota: QuotaArg) -> Result<()> {
    let bytes = quota.0;
    let row: UsageRow = request(socket, AdminRequest::SetQuota { subject, bytes })?;
    println!(
        "{} may have {} of git data, and has {}",
        row.name(),
        format_bytes(row.quota),
        format_bytes(row.bytes)
    );
    Ok(())
}

pub(super) fn usage_table(report: &UsageReport) -> String {
    let mut rows = Vec::new();
    for row in &report.rows {
        let source = match row.is_given {
            true => "given",
            false => "",
        };
        rows.push(vec![
            format_bytes(row.bytes),
            format_bytes(row.quota),
            source.to_owned(),
            row.repositories.to_string(),
            row.name(),
        ]);
    }
    let head = ["used", "quota", "", "repositories", "of"];
    let limit = match report.total_quota {
        Some(limit) => format!(" of {}", format_bytes(limit)),
        None => String::new(),
    };
    let total = format_bytes(report.total_bytes);
    format!("{}all repositories: {total}{limit}\n", table(&head, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_shown_with_quota_and_whose_it_is() {
        let row = UsageRow {
            owner: "npub1x".into(),
            bytes: 3 << 20,
            quota: 2 << 30,
            is_given: true,
            repositories: 4,
            ..UsageRow::default()
        };
        let repository = UsageRow {
            repository: Some("hello".into()),
            is_given: false,
            ..row.clone()
        };
        let text = usage_table(&UsageReport {
            total_bytes: 5 << 30,
            total_quota: Some(10 << 30),
            rows: vec![row, repository],
        });
        let lines: Vec<_> = text.lines().collect();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(lines[1]), "3.0 MiB 2.0 GiB given 4 npub1x");
        assert_eq!(words(lines[2]), "3.0 MiB 2.0 GiB 4 npub1x/hello");
        assert_eq!(lines[3], "all repositories: 5.0 GiB of 10.0 GiB");
    }
}
