//! Whose certificates are believed: by the syncer, which brings the public authorities along, and by git, which asks the
//! system for them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use grasp_sync::Roots;

use crate::settings::Settings;

/// Where systems keep the public authorities in one file; the first that is there counts.
const SYSTEM: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
];

/// Whom the syncer believes.
pub(crate) fn for_relays(settings: &Settings) -> Result<Roots> {
    let Some(file) = &settings.trusted_roots else { return Ok(Roots::default()) };
    Roots::default().with(&read(file)?).with_context(|| format!("{}", file.display()))
}

/// Whom git believes, if the operator adds somebody: git knows one list, so theirs and the system's become one.
pub(crate) fn for_git(settings: &Settings) -> Result<Option<PathBuf>> {
    let Some(file) = &settings.trusted_roots else { return Ok(None) };
    let system = SYSTEM.iter().find_map(|file| fs::read(file).ok());
    if system.is_none() {
        tracing::warn!(
            "this system has no list of public authorities; git believes only those of trusted_roots"
        );
    }
    let mut all = read(file)?;
    all.push(b'\n');
    all.extend(system.unwrap_or_default());
    let list = settings.data_dir.join("roots.pem");
    fs::write(&list, all).with_context(|| format!("could not write {}", list.display()))?;
    let list = fs::canonicalize(&list).with_context(|| format!("{}", list.display()))?;
    Ok(Some(list))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("could not read trusted_roots, {}", file.display()))
}
