//! The writer's lease, the nodes, and the feed of what is stored.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use nostr::types::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::AsyncMessage;

use super::connect::DatabaseConnector;
use super::values::{get, position, unsigned};
use super::{Epoch, LEASE, LeaseClaim, NodeRow, PostgresStore};
use crate::store::{StoreError, StoredEvent, failure};

/// The time after which a node that did not report is forgotten.
const NODE_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// The time between checks of the connection that listens, which also bounds how late a lost call is noticed.
const LISTENER_CHECK: Duration = Duration::from_secs(5);

/// The time before a listener that lost its connection opens another.
const LISTENER_BACKOFF: Duration = Duration::from_millis(200);

impl PostgresStore {
    /// Acquires the writer's lease if it is free or expired, or renews it if this store holds it. The time is that of
    /// the database.
    ///
    /// A lease that is acquired is returned once the requests that the last writer did not finish are carried out.
    pub async fn claim_lease(&self, node: &str) -> Result<LeaseClaim, StoreError> {
        let held = self.0.epoch.load(Ordering::SeqCst);
        let claim = self.claim(node, held).await?;
        let LeaseClaim::Held(Epoch(epoch)) = claim else {
            // Another process may have taken it before this one could renew it.
            let _ = self
                .0
                .epoch
                .compare_exchange(held, 0, Ordering::SeqCst, Ordering::SeqCst);
            return Ok(claim);
        };
        self.0.epoch.store(epoch, Ordering::SeqCst);
        if epoch == held {
            return Ok(claim);
        }
        tracing::debug!(node, epoch, "got the lease of the writer");
        while self.0.finish_next().await? {
            let renewed = self.claim(node, epoch).await?;
            if renewed != claim {
                return Ok(renewed);
            }
        }
        Ok(claim)
    }

    async fn claim(&self, node: &str, held: u64) -> Result<LeaseClaim, StoreError> {
        let client = self.0.control().await?;
        let claim =
            "UPDATE lease SET node = $1, expires = clock_timestamp() + $3 * INTERVAL '1 second',
                epoch = CASE WHEN epoch = $2 THEN epoch ELSE epoch + 1 END
            WHERE epoch = $2 OR expires <= clock_timestamp() RETURNING epoch";
        let held = i64::try_from(held).unwrap_or(i64::MAX);
        let seconds = LEASE.as_secs_f64();
        // Nobody holds the lease with which a database begins.
        let held = if held == 0 { -1 } else { held };
        let statement = client.prepare_cached(claim).await.map_err(failure)?;
        let claimed = client
            .query_opt(&statement, &[&node, &held, &seconds])
            .await;
        if let Some(row) = claimed.map_err(failure)? {
            return Ok(LeaseClaim::Held(Epoch(unsigned(&row, 0)?)));
        }
        let holder = "SELECT node, CAST(extract(epoch FROM expires - clock_timestamp()) AS FLOAT8)
            FROM lease";
        let row = client.query_one(holder, &[]).await.map_err(failure)?;
        let remaining = get::<f64>(&row, 1)?.clamp(0.0, LEASE.as_secs_f64());
        Ok(LeaseClaim::HeldBy {
            node: get(&row, 0)?,
            remaining: Duration::from_secs_f64(remaining),
        })
    }

    /// Gives the lease back, if this store holds it, so that another node need not wait until it expires. Waits for a
    /// commit in progress.
    pub async fn release_lease(&self) -> Result<(), StoreError> {
        let held = self.0.epoch.swap(0, Ordering::SeqCst);
        if held == 0 {
            return Ok(());
        }
        let held = i64::try_from(held).unwrap_or(i64::MAX);
        let release = "UPDATE lease SET node = '', expires = 'epoch' WHERE epoch = $1";
        let client = self.0.control().await?;
        client.execute(release, &[&held]).await.map_err(failure)?;
        Ok(())
    }

    /// Returns the epoch of the lease that this store writes under.
    pub fn epoch(&self) -> Option<Epoch> {
        match self.0.epoch.load(Ordering::SeqCst) {
            0 => None,
            epoch => Some(Epoch(epoch)),
        }
    }

    /// Returns the time of the database's clock.
    pub async fn time(&self) -> Result<Timestamp, StoreError> {
        let sql = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS BIGINT)";
        let row = self
            .0
            .control()
            .await?
            .query_one(sql, &[])
            .await
            .map_err(failure)?;
        Ok(Timestamp::from_secs(unsigned(&row, 0)?))
    }

    /// Returns the number of the last event that was stored. Later ones have higher numbers, in the order of commits.
    pub async fn last_seq(&self) -> Result<u64, StoreError> {
        last_seq(&*self.0.control().await?).await
    }

    /// Returns events that were stored after the one of this number and still are, in the order of their commits.
    pub async fn stored_after(
        &self,
        seq: u64,
        max: usize,
    ) -> Result<Vec<(u64, StoredEvent)>, StoreError> {
        let client = self.0.reader().await?;
        let sql = "SELECT seq, newest, id, json FROM events WHERE seq > $1 ORDER BY seq LIMIT $2";
        let seq = i64::try_from(seq).unwrap_or(i64::MAX);
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let statement = client.prepare_cached(sql).await.map_err(failure)?;
        let rows = client
            .query(&statement, &[&seq, &max])
            .await
            .map_err(failure)?;
        let read = |row| {
            let at = position(row, 1)?;
            let json = get::<&str>(row, 3)?.into();
            let event = StoredEvent {
                id: at.event_id(),
                created_at: at.created_at(),
                json,
            };
            Ok((unsigned(row, 0)?, event))
        };
        rows.iter().map(read).collect()
    }

    /// Returns a receiver that changes after each commit of any process, and whenever one may have been missed. Its
    /// value is the [last number](Self::last_seq) that was seen.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.0.commits.subscribe()
    }

    /// Records that a node is alive, and what it says about itself.
    pub async fn report_node(&self, address: &str, report: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO nodes (address, seen, report) VALUES ($1, clock_timestamp(), $2)
            ON CONFLICT (address) DO UPDATE SET seen = excluded.seen, report = excluded.report";
        let client = self.0.control().await?;
        let statement = client.prepare_cached(sql).await.map_err(failure)?;
        client
            .execute(&statement, &[&address, &report])
            .await
            .map_err(failure)?;
        Ok(())
    }

    /// Returns the nodes that reported within a day, by address; others are forgotten.
    pub async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let client = self.0.control().await?;
        let forget = "DELETE FROM nodes WHERE seen < clock_timestamp() - $1 * INTERVAL '1 second'";
        client
            .execute(forget, &[&NODE_RETENTION.as_secs_f64()])
            .await
            .map_err(failure)?;
        let sql = "SELECT address, CAST(extract(epoch FROM clock_timestamp() - seen) AS FLOAT8),
                EXISTS (SELECT 1 FROM lease WHERE node = address AND expires > clock_timestamp()),
                report
            FROM nodes ORDER BY address";
        let read = |row| {
            Ok(NodeRow {
                address: get(row, 0)?,
                seen: Duration::from_secs_f64(get::<f64>(row, 1)?.max(0.0)),
                is_writer: get(row, 2)?,
                report: get(row, 3)?,
            })
        };
        client
            .query(sql, &[])
            .await
            .map_err(failure)?
            .iter()
            .map(read)
            .collect()
    }
}

/// Reads the last number that was given.
pub(super) async fn last_seq(client: &tokio_postgres::Client) -> Result<u64, StoreError> {
    let row = client
        .query_one("SELECT last_seq FROM counters", &[])
        .await
        .map_err(failure)?;
    unsigned(&row, 0)
}

/// Listens for commits for as long as it is polled, with a new connection whenever one is lost.
pub(super) async fn listen(connector: DatabaseConnector, commits: watch::Sender<u64>) {
    loop {
        if let Err(error) = listen_once(&connector, &commits).await {
            tracing::warn!(%error, "the connection that listens for commits was lost");
        }
        sleep(LISTENER_BACKOFF).await;
    }
}

async fn listen_once(
    connector: &DatabaseConnector,
    commits: &watch::Sender<u64>,
) -> Result<(), StoreError> {
    let opened = timeout(LISTENER_CHECK, connector.listen())
        .await
        .map_err(failure)?;
    let (client, mut connection) = opened.map_err(failure)?;
    let told = commits.clone();
    let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
    // Dropping the set ends the task.
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(call) = message {
                tell(&told, call.payload().parse().unwrap_or_default());
            }
        }
    });
    client
        .batch_execute("LISTEN grasp_commits")
        .await
        .map_err(failure)?;
    // A commit before that was not called out.
    tell(commits, last_seq(&client).await?);
    loop {
        tokio::select! {
            _ = driver.join_next() => return Ok(()),
            () = sleep(LISTENER_CHECK) => {}
        }
        let Ok(last) = timeout(LISTENER_CHECK, last_seq(&client)).await else {
            return Ok(());
        };
        let last = last?;
        if last > *commits.borrow() {
            tell(commits, last);
        }
    }
}

fn tell(commits: &watch::Sender<u64>, seq: u64) {
    commits.send_modify(|last| *last = seq.max(*last));
}
