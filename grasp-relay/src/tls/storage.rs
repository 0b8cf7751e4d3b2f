//! Where the account at an ACME server, its certificates and its challenges are kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;

/// What a server keeps to get and renew a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsItem {
    /// The account at the ACME server, with its key.
    Account,
    /// The chain of certificates and the key, as PEM.
    Certificate,
    /// The challenge that is pending, if there is one.
    Challenge,
    /// Past attempts to order, and the time of the renewal.
    Orders,
}

impl TlsItem {
    /// Returns the name of the item in a database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Certificate => "certificate",
            Self::Challenge => "challenge",
            Self::Orders => "orders",
        }
    }

    /// Returns the name of the item's file.
    fn file(self) -> &'static str {
        match self {
            Self::Account => "account.json",
            Self::Certificate => "certificate.pem",
            Self::Challenge => "challenge.json",
            Self::Orders => "orders.json",
        }
    }
}

/// The failure to read or write an item.
pub type TlsStoreError = Box<dyn std::error::Error + Send + Sync>;

/// Keeps what a server needs to get and renew a certificate. All nodes of a server share it.
pub trait TlsStore: Send + Sync + 'static {
    /// Returns an item, if there is one.
    fn read(&self, item: TlsItem) -> BoxFuture<'_, Result<Option<String>, TlsStoreError>>;

    /// Replaces an item durably, or removes it.
    fn write(
        &self,
        item: TlsItem,
        text: Option<String>,
    ) -> BoxFuture<'_, Result<(), TlsStoreError>>;
}

/// A directory whose files only their owner can read, for a server of a single process.
#[derive(Clone, Debug)]
pub struct FileTlsStore(PathBuf);

impl FileTlsStore {
    /// Uses a directory, which is created when something is written.
    pub fn new(dir: PathBuf) -> Self {
        Self(dir)
    }
}

impl TlsStore for FileTlsStore {
    fn read(&self, item: TlsItem) -> BoxFuture<'_, Result<Option<String>, TlsStoreError>> {
        Box::pin(async move {
            match tokio::fs::read(self.0.join(item.file())).await {
                // Damaged text is read like any other that its reader cannot use.
                Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn write(
        &self,
        item: TlsItem,
        text: Option<String>,
    ) -> BoxFuture<'_, Result<(), TlsStoreError>> {
        let dir = self.0.clone();
        Box::pin(async move {
            let written = tokio::task::spawn_blocking(move || match text {
                Some(text) => replace(&dir, item.file(), &text),
                None => remove(&dir.join(item.file())),
            });
            Ok(written.await??)
        })
    }
}

/// Replaces a file durably: a crash leaves the old text or the new one.
fn replace(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(dir)?;
    let unfinished = dir.join(format!("{name}.new"));
    let _ = fs::remove_file(&unfinished);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, dir.join(name))?;
    File::open(dir)?.sync_all()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn items_are_private_files_and_can_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileTlsStore::new(dir.path().join("tls"));
        assert_eq!(store.read(TlsItem::Account).await.unwrap(), None);
        for text in ["first", "second"] {
            store
                .write(TlsItem::Account, Some(text.into()))
                .await
                .unwrap();
            let read = store.read(TlsItem::Account).await.unwrap();
            assert_eq!(read.as_deref(), Some(text));
        }
        let file = dir.path().join("tls/account.json");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for _ in 0..2 {
            store.write(TlsItem::Account, None).await.unwrap();
        }
        assert!(!file.exists());
    }
}
