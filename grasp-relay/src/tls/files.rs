//! A certificate in files that somebody else renews.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Certificates;
use super::certificate::{Certificate, CertificateError};

/// The interval between looks at the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain of certificates, as PEM; the first is that of the server.
    pub certificate: PathBuf,
    /// The key, as PEM. It may be the same file.
    pub key: PathBuf,
}

/// Reasons why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FilesError {
    #[error("could not read {}: {source}", file.display())]
    Unreadable {
        file: PathBuf,
        source: std::io::Error,
    },
    #[error("could not use {}: {source}", file.display())]
    Unusable {
        file: PathBuf,
        source: CertificateError,
    },
}

/// The contents of both files.
#[derive(PartialEq, Eq)]
struct Texts {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Serves the certificate of these files, and a new one as soon as they change, for as long as it is polled. While they
/// cannot be used, the last certificate is served.
pub async fn keep_files(certificates: Certificates, files: CertificateFiles) {
    let mut loaded = None;
    loop {
        match read(&files).await {
            Ok(texts) if loaded.as_ref() == Some(&texts) => {}
            Ok(texts) => {
                match Certificate::from_pem(&texts.certificate, &texts.key) {
                    Ok(certificate) => {
                        tracing::info!(file = %files.certificate.display(), "serving the certificate of this file");
                        certificates.install(certificate);
                    }
                    Err(error) => report(&certificates, unusable(&files, error)),
                }
                loaded = Some(texts);
            }
            Err(error) => {
                loaded = None;
                report(&certificates, error);
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn read(files: &CertificateFiles) -> Result<Texts, FilesError> {
    Ok(Texts {
        certificate: read_file(&files.certificate).await?,
        key: read_file(&files.key).await?,
    })
}

async fn read_file(file: &Path) -> Result<Vec<u8>, FilesError> {
    tokio::fs::read(file)
        .await
        .map_err(|source| FilesError::Unreadable {
            file: file.to_owned(),
            source,
        })
}

/// Names the file that an error is about.
fn unusable(files: &CertificateFiles, source: CertificateError) -> FilesError {
    let file = match &source {
        CertificateError::NoKey | CertificateError::Mismatch(_) => &files.key,
        CertificateError::NoCertificate | CertificateError::Unreadable => &files.certificate,
    };
    FilesError::Unusable {
        file: file.clone(),
        source,
    }
}

/// Logs and shows a problem once.
fn report(certificates: &Certificates, error: FilesError) {
    let problem = error.to_string();
    if certificates.status().problem.as_ref() != Some(&problem) {
        tracing::error!("{problem}");
        certificates.set_problem(Some(problem));
    }
}
