//! Trusted certificate authorities: sync has the public ones built in, git uses those of the system.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use grasp_sync::Roots;

use crate::settings::Settings;

/// Files with the public authorities on common systems; the first that exists is used.
const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
];

/// Returns the authorities that sync trusts.
pub(crate) fn for_relays(settings: &Settings) -> Result<Roots> {
    let Some(file) = &settings.trusted_roots else { return Ok(Roots::default()) };
    Roots::default().with(&read(file)?).with_context(|| format!("{}", file.display()))
}

/// Writes the file of authorities that git trusts if the operator adds some: git takes one file, so it also has those
/// of the system.
pub(crate) fn for_git(settings: &Settings) -> Result<Option<PathBuf>> {
    let Some(file) = &settings.trusted_roots else { return Ok(None) };
    let system = SYSTEM_BUNDLES.iter().find_map(|file| fs::read(file).ok());
    if system.is_none() {
        tracing::warn!(
            "no file with the public certificate authorities was found; git trusts only those of trusted_roots"
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
    fs::read(file)
        .with_context(|| format!("could not read the file of trusted_roots, {}", file.display()))
}
