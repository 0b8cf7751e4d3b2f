//! What the nodes share to serve TLS.

use futures_util::future::BoxFuture;

use super::PostgresStore;
use crate::tls::{TlsItem, TlsStore, TlsStoreError};

impl TlsStore for PostgresStore {
    fn read(&self, item: TlsItem) -> BoxFuture<'_, Result<Option<String>, TlsStoreError>> {
        Box::pin(async move {
            let client = self.0.control().await?;
            let sql = "SELECT text FROM tls WHERE item = $1";
            let statement = client.prepare_cached(sql).await?;
            let row = client.query_opt(&statement, &[&item.name()]).await?;
            Ok(row.map(|row| row.get(0)))
        })
    }

    fn write(
        &self,
        item: TlsItem,
        text: Option<String>,
    ) -> BoxFuture<'_, Result<(), TlsStoreError>> {
        Box::pin(async move {
            let client = self.0.control().await?;
            match text {
                Some(text) => {
                    let sql = "INSERT INTO tls (item, text) VALUES ($1, $2)
                        ON CONFLICT (item) DO UPDATE SET text = excluded.text";
                    client.execute(sql, &[&item.name(), &text]).await?;
                }
                None => {
                    let sql = "DELETE FROM tls WHERE item = $1";
                    client.execute(sql, &[&item.name()]).await?;
                }
            }
            Ok(())
        })
    }
}
