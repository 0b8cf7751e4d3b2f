//! S3 and directories, through the `object_store` crate.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload,
    RetryConfig, WriteMultipart,
};
use tokio::io::AsyncWriteExt;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use url::Url;

use super::{Backend, PackStorageError, PackStorageOptions, StorageFuture};

/// Bytes of one request. A pack of more is sent and fetched in parts, so that each request has a short time limit.
const PART: usize = 8 * 1024 * 1024;

/// Parts of one upload that are sent at a time.
const PARTS_AT_ONCE: usize = 3;

/// Time for connecting to a pack storage.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Pauses between repeated requests.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A pack storage below an address.
pub(super) struct Remote {
    store: Arc<dyn ObjectStore>,
    /// The directory, if it is one.
    directory: Option<PathBuf>,
}

impl Remote {
    pub(super) fn open(url: &str, options: &PackStorageOptions) -> Result<Self, PackStorageError> {
        const FORMS: &str = "the address is s3://bucket/prefix or file:///directory";
        let wrong = |why: &str| PackStorageError::Address(why.to_owned());
        let url = Url::parse(url).map_err(|_| wrong(FORMS))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(
                "credentials belong into variables of the environment",
            ));
        }
        match (url.scheme(), url.host_str()) {
            ("s3", Some(bucket)) => {
                let prefix = object_store::path::Path::from_url_path(url.path());
                let prefix = prefix.map_err(|error| wrong(&error.to_string()))?;
                let store = Arc::new(PrefixStore::new(open_s3(bucket, options)?, prefix));
                Ok(Self {
                    store,
                    directory: None,
                })
            }
            ("file", None) => {
                let directory = url.to_file_path().map_err(|()| wrong(FORMS))?;
                let store = LocalFileSystem::new_with_prefix(&directory);
                let store = store.map_err(|_| PackStorageError::NoBucket)?;
                let store = Arc::new(store.with_fsync(true).with_automatic_cleanup(true));
                Ok(Self {
                    store,
                    directory: Some(directory),
                })
            }
            _ => Err(wrong(FORMS)),
        }
    }

    /// Creates the directories of an object such that only their owner can read them, as the data directory is.
    fn create_directories(&self, key: &str) -> Result<(), PackStorageError> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let object = directory.join(key);
        let parent = object.parent().unwrap_or(directory);
        Ok(DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?)
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<(), PackStorageError> {
        self.create_directories(key)?;
        let mut file = File::open(file)?;
        let key = object_store::path::Path::from(key);
        let bytes = file.metadata()?.len();
        if bytes <= PART as u64 {
            let (_, content) = read_part(file).await?;
            self.store
                .put(&key, PutPayload::from(content))
                .await
                .map_err(failed)?;
            return Ok(());
        }
        let upload = self.store.put_multipart(&key).await.map_err(failed)?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART);
        loop {
            let read = read_part(file).await;
            let ready = upload
                .wait_for_capacity(PARTS_AT_ONCE)
                .await
                .map_err(failed);
            let content = match ready.and(read) {
                Ok((rest, content)) => {
                    file = rest;
                    content
                }
                Err(error) => {
                    _ = upload.abort().await;
                    return Err(error);
                }
            };
            if content.is_empty() {
                return upload.finish().await.map(drop).map_err(failed);
            }
            upload.put(content.into());
        }
    }

    async fn download(&self, key: &str, file: &Path) -> Result<bool, PackStorageError> {
        let key = object_store::path::Path::from(key);
        let mut target = None;
        let mut at = 0;
        loop {
            let range = Some(GetRange::Bounded(at..at + PART as u64));
            let options = GetOptions {
                range,
                ..GetOptions::default()
            };
            let found = match self.store.get_opts(&key, options).await {
                Err(error) if is_no_object(&error) => return Ok(false),
                found => found.map_err(failed)?,
            };
            let bytes = found.meta.size;
            let content = found.bytes().await.map_err(failed)?;
            let mut to = match target.take() {
                Some(target) => target,
                None => tokio::fs::File::create_new(file).await?,
            };
            to.write_all(&content).await?;
            at += content.len() as u64;
            if content.is_empty() || at >= bytes {
                to.flush().await?;
                return Ok(true);
            }
            target = Some(to);
        }
    }
}

impl Backend for Remote {
    fn put<'a>(&'a self, key: &'a str, file: &'a Path) -> StorageFuture<'a, ()> {
        Box::pin(self.upload(key, file))
    }

    fn get<'a>(&'a self, key: &'a str, file: &'a Path) -> StorageFuture<'a, bool> {
        Box::pin(self.download(key, file))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        keep: &'a (dyn Fn(&str) -> bool + Send + Sync),
    ) -> StorageFuture<'a, BTreeMap<String, u64>> {
        Box::pin(async move {
            let prefix = object_store::path::Path::from(prefix);
            let mut found = self.store.list(Some(&prefix));
            let mut kept = BTreeMap::new();
            while let Some(object) = found.try_next().await.map_err(failed)? {
                if keep(object.location.as_ref()) {
                    kept.insert(object.location.into(), object.size);
                }
            }
            Ok(kept)
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StorageFuture<'a, ()> {
        Box::pin(async move {
            match self.store.delete(&key.into()).await {
                Err(error) if is_no_object(&error) => Ok(()),
                deleted => deleted.map_err(failed),
            }
        })
    }

    fn read<'a>(&'a self, key: &'a str) -> StorageFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            match self.store.get(&key.into()).await {
                Err(error) if is_no_object(&error) => Ok(None),
                found => Ok(Some(
                    found.map_err(failed)?.bytes().await.map_err(failed)?.into(),
                )),
            }
        })
    }

    fn write<'a>(&'a self, key: &'a str, content: &'static [u8]) -> StorageFuture<'a, ()> {
        Box::pin(async move {
            self.store
                .put(&key.into(), content.into())
                .await
                .map(drop)
                .map_err(failed)
        })
    }
}

/// Reads the next part of a file; none at its end.
async fn read_part(file: File) -> Result<(File, Vec<u8>), PackStorageError> {
    let read = move || {
        let mut content = Vec::new();
        (&file).take(PART as u64).read_to_end(&mut content)?;
        Ok((file, content))
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
}

fn open_s3(
    bucket: &str,
    options: &PackStorageOptions,
) -> Result<impl ObjectStore, PackStorageError> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in &options.variables {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: FIRST_PAUSE,
            max_backoff: LONGEST_PAUSE,
            ..BackoffConfig::default()
        },
        max_retries: usize::MAX,
        retry_timeout: options.timeout,
    };
    let client = client(options)?;
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(retry)
        .with_http_connector(Connector(client));
    store
        .build()
        .map_err(|error| PackStorageError::Address(error.to_string()))
}

/// Makes the client of all requests.
#[derive(Debug)]
struct Connector(reqwest::Client);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}

/// A client that trusts the usual certificate authorities, and those of the operator.
fn client(options: &PackStorageOptions) -> Result<reqwest::Client, PackStorageError> {
    let mut roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    if let Some(file) = options.variables.get("AWS_CA_BUNDLE") {
        let wrong = |error: String| PackStorageError::Address(format!("AWS_CA_BUNDLE: {error}"));
        let certificates = CertificateDer::pem_file_iter(file);
        for certificate in certificates.map_err(|error| wrong(error.to_string()))? {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| wrong(error.to_string()))?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| PackStorageError::Address(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .connect_timeout(CONNECT_TIMEOUT.min(options.timeout))
        .timeout(options.timeout);
    client
        .build()
        .map_err(|error| PackStorageError::Address(error.to_string()))
}

/// Returns whether there is no such object in a bucket that there is.
fn is_no_object(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotFound { .. }) && !names_no_bucket(error)
}

fn names_no_bucket(error: &object_store::Error) -> bool {
    error.to_string().contains("NoSuchBucket")
}

/// Returns an error without the answer of the server, which may repeat parts of the request.
fn failed(error: object_store::Error) -> PackStorageError {
    use object_store::Error;

    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => PackStorageError::Denied,
        error if names_no_bucket(&error) => PackStorageError::NoBucket,
        error => {
            let text = error.to_string();
            let code = text
                .split_once("<Code>")
                .and_then(|(_, rest)| rest.split_once('<'));
            let code = code
                .map(|(code, _)| format!("{code}: "))
                .unwrap_or_default();
            let text = text.split('<').next().unwrap_or_default();
            PackStorageError::Failed(format!("{code}{text}").chars().take(400).collect())
        }
    }
}
