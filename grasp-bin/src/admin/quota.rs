//! `grasp usage` and `grasp quota`.

use std::path::Path;

use anyhow::Result;
use grasp_core::quota::QuotaSubject;
use grasp_relay::instance::admin::{AdminRequest, request};
use grasp_relay::instance::text::usage_table;
use grasp_relay::web::figures::{UsageReport, UsageRow};
use grasp_relay::web::format_bytes;
use nostr::key::PublicKey;

use super::show::print;
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
