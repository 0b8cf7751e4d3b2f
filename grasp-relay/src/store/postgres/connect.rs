//! Connections: where the database is, how it is trusted, and the settings of a session.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, PoolError, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, Socket, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::store::keys::Keys;
use crate::store::{StoreError, failure};

/// The time that connecting may take, and waiting for a connection of a pool.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const POOL_TIMEOUT: Duration = Duration::from_secs(10);

/// The time after which a silent peer is asked whether it is there, and after which it is given up.
const KEEPALIVE: Duration = Duration::from_secs(10);
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

/// Settings of a session.
///
/// All statements are lookups by an index, in its order. While tables are small, or have not been analysed yet, the
/// planner would read them whole instead, and keep that plan while they grow.
type Settings = &'static [(&'static str, &'static str)];

const SETTINGS: Settings = &[
    ("statement_timeout", "30s"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_memoize", "off"),
];

/// Further settings of a writer's session: its transaction ends soon if it was stopped in the middle of one, or can no
/// longer be reached, so that another can take over.
pub(super) const WRITER_SETTINGS: Settings = &[
    ("idle_in_transaction_session_timeout", "3s"),
    ("tcp_user_timeout", "3s"),
    ("tcp_keepalives_idle", "2"),
    ("tcp_keepalives_interval", "1"),
    ("tcp_keepalives_count", "3"),
];

/// Sets what the server knows of these settings.
async fn set(client: &Client, settings: &[(&str, &str)]) -> Result<(), tokio_postgres::Error> {
    let (names, values): (Vec<_>, Vec<_>) = settings.iter().copied().unzip();
    let sql = "SELECT set_config(s.name, s.value, false)
        FROM unnest($1::TEXT[], $2::TEXT[]) s(name, value) JOIN pg_settings p ON p.name = s.name";
    client.query(sql, &[&names, &values]).await.map(drop)
}

/// The way to a database.
#[derive(Clone)]
pub(super) struct DatabaseConnector {
    config: Config,
    tls: MakeRustlsConnect,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "not the address of a PostgreSQL database, such as postgres://user:password@host:5432/database"
)]
struct InvalidUrl;

/// A database that cannot be reached. Says where it is, and never the password.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to the PostgreSQL database {place}")]
struct Unreachable {
    place: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// A database whose TLS cannot be trusted. Passwords and keys are not sent without.
#[derive(Debug, thiserror::Error)]
#[error(
    "the PostgreSQL database {place} offers TLS that is not trusted; name its certificate authority with sslrootcert, or \
     choose sslmode=disable for a network that nobody else reads"
)]
struct Untrusted {
    place: String,
    source: tokio_postgres::Error,
}

#[derive(Debug, thiserror::Error)]
#[error("the certificates of {path} cannot be read")]
struct UnreadableRoots {
    path: String,
    source: io::Error,
}

impl DatabaseConnector {
    /// Reads an address. The certificate of the server is verified by the usual authorities or those of the file
    /// `sslrootcert`. A server without TLS is refused with `sslmode=require` or `verify-full` only.
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        // A password may contain what otherwise begins the parameters.
        let credentials = url.rfind('@').unwrap_or_default();
        let end = url[credentials..]
            .find('?')
            .map_or(url.len(), |at| credentials + at);
        let (base, query) = url.split_at(end);
        let query = query.trim_start_matches('?');
        let mut kept = Vec::new();
        let mut roots = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("sslrootcert", path)) => roots = Some(path),
                Some(("sslmode", "verify-ca" | "verify-full")) => kept.push("sslmode=require"),
                _ => kept.push(parameter),
            }
        }
        let plain = format!("{base}?{}", kept.join("&"));
        // What the parser says may quote the password.
        let parsed = plain
            .parse::<Config>()
            .ok()
            .filter(|config| !config.get_hosts().is_empty());
        let is_url = ["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| url.starts_with(scheme));
        let mut config = parsed
            .filter(|_| is_url)
            .ok_or_else(|| failure(InvalidUrl))?;
        if config.get_application_name().is_none() {
            config.application_name("grasp");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config
            .keepalives_idle(KEEPALIVE)
            .keepalives_interval(KEEPALIVE / 4);
        config.tcp_user_timeout(PEER_TIMEOUT);
        Ok(Self {
            config,
            tls: tls(roots)?,
        })
    }

    /// Opens one connection. A server on this machine with a certificate that is not trusted is talked to without TLS,
    /// unless it is required.
    pub(super) async fn first(&mut self) -> Result<(Client, JoinHandle<()>), StoreError> {
        let opening = timeout(CONNECT_TIMEOUT * 2, self.open()).await;
        let mut opened = opening.map_err(|error| self.unreachable(error))?;
        if opened.is_err()
            && self.config.get_ssl_mode() == SslMode::Prefer
            && is_local(&self.config)
        {
            let mut plain = self.clone();
            plain.config.ssl_mode(SslMode::Disable);
            if let Ok(connection) = plain.open().await {
                (*self, opened) = (plain, Ok(connection));
            }
        }
        opened.map_err(|source| match is_tls_failure(&source) {
            true => failure(Untrusted {
                place: self.to_string(),
                source,
            }),
            false => self.unreachable(source),
        })
    }

    async fn open(&self) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let (client, connection) = self.config.connect(self.tls.clone()).await?;
        // Its errors are those of the calls that wait for it.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok((client, driver))
    }

    /// Opens one connection, whose messages the caller receives.
    pub(super) async fn listen(
        &self,
    ) -> Result<
        (
            Client,
            tokio_postgres::Connection<Socket, impl tokio_postgres::tls::TlsStream + Unpin + use<>>,
        ),
        tokio_postgres::Error,
    > {
        self.config.connect(self.tls.clone()).await
    }

    /// Returns a pool of this many connections, which are opened when they are needed.
    pub(super) fn pool(&self, size: usize, settings: Settings) -> Result<Pool, StoreError> {
        // The check of a connection that is taken from the pool is that it is open.
        let manager = Manager::from_config(
            self.config.clone(),
            self.tls.clone(),
            ManagerConfig::default(),
        );
        let set = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
            Box::pin(async move {
                set(client, SETTINGS).await.map_err(HookError::Backend)?;
                set(client, settings).await.map_err(HookError::Backend)
            })
        });
        Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(POOL_TIMEOUT))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .recycle_timeout(Some(CONNECT_TIMEOUT))
            .post_create(set)
            .build()
            .map_err(failure)
    }

    fn unreachable(&self, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        failure(Unreachable {
            place: self.to_string(),
            source: Box::new(source),
        })
    }
}

impl fmt::Display for DatabaseConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => String::new(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let user = self.config.get_user().unwrap_or_default();
        let name = self.config.get_dbname().unwrap_or(user);
        write!(f, "{name} at {host}:{port} as {user}")
    }
}

/// Returns whether all addresses of a database are on this machine.
fn is_local(config: &Config) -> bool {
    let addresses = config.get_hostaddrs();
    if !addresses.is_empty() {
        return addresses.iter().all(IpAddr::is_loopback);
    }
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => {
            name == "localhost"
                || name
                    .parse()
                    .is_ok_and(|address: IpAddr| address.is_loopback())
        }
        Host::Unix(_) => true,
    })
}

/// Returns whether a connection failed because TLS did. The kinds of errors are known by their texts only.
fn is_tls_failure(error: &tokio_postgres::Error) -> bool {
    error.to_string().contains("TLS handshake")
}

fn tls(roots: Option<&str>) -> Result<MakeRustlsConnect, StoreError> {
    let mut trusted = RootCertStore::empty();
    match roots {
        Some(path) => {
            let unreadable = |source| {
                failure(UnreadableRoots {
                    path: path.to_owned(),
                    source,
                })
            };
            let mut pem = Vec::new();
            File::open(path)
                .and_then(|file| BufReader::new(file).read_to_end(&mut pem))
                .map_err(unreadable)?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let invalid = |error| unreadable(io::Error::other(error));
                let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
                trusted
                    .add(certificate)
                    .map_err(|error| invalid(error.to_string()))?;
            }
        }
        None => trusted.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failure)?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// Returns the failure to get a connection from a pool.
pub(super) fn pool_failure(error: PoolError) -> StoreError {
    match error {
        PoolError::Closed => StoreError::Closed,
        error => failure(error),
    }
}

/// The steps from each version, by its index, to the next. Released steps never change. All are one transaction. A step that
/// changes or removes what is stored copies it first to a table of its own.
const MIGRATIONS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("schema_tls.sql"),
    include_str!("schema_quotas.sql"),
    include_str!("schema_maintained.sql"),
    include_str!("schema_policy.sql"),
    include_str!("schema_states.sql"),
];

/// The advisory lock under which the schema is migrated and a file imported ("grsp").
pub(super) const LOCK_SQL: &str = "SELECT pg_advisory_xact_lock(1735553904)";

#[derive(Debug, thiserror::Error)]
#[error("the database has tables of another application")]
struct ForeignTables;

/// Tables of the one release whose databases are not migrated. Its versions are 1 and 2, too.
#[derive(Debug, thiserror::Error)]
#[error(
    "the database is of release 0.2.0, in which repositories shared packs; start the nodes with a new database, a new bucket and \
     the same domain: they fetch what other servers have, and pushes bring the rest"
)]
struct SharedPacks;

#[derive(Debug, thiserror::Error)]
#[error("the database has the encoding {0}; it must have UTF8")]
struct WrongEncoding(String);

#[derive(Debug, thiserror::Error)]
#[error("the database's secret is damaged")]
struct BadSecret;

/// Migrates the database to the newest version that this release knows. Others who do so at the same time wait.
pub(super) async fn migrate(client: &mut Client) -> Result<(), StoreError> {
    let tx = client.transaction().await.map_err(failure)?;
    tx.batch_execute(LOCK_SQL).await.map_err(failure)?;
    let found = version(&tx).await?;
    let known = u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX);
    if found > known {
        return Err(StoreError::NewerSchema { found, known });
    }
    if has_shared_packs(&tx).await? {
        return Err(failure(SharedPacks));
    }
    if found == known {
        return Ok(());
    }
    if found == 0 {
        let create = "CREATE TABLE grasp_schema (version BIGINT NOT NULL);
            INSERT INTO grasp_schema (version) VALUES (0);";
        tx.batch_execute(create).await.map_err(failure)?;
    }
    for step in MIGRATIONS.iter().skip(found as usize) {
        tx.batch_execute(step).await.map_err(failure)?;
    }
    if found == 0 {
        let mut salt = [0; 64];
        let mut key = [0; 32];
        let random = getrandom::fill(&mut salt).and_then(|()| getrandom::fill(&mut key));
        random.map_err(failure)?;
        for (sql, secret) in [
            ("INSERT INTO secret (salt) VALUES ($1)", &salt[..]),
            ("INSERT INTO node_key (key) VALUES ($1)", &key),
        ] {
            tx.execute(sql, &[&secret]).await.map_err(failure)?;
        }
    }
    let reached = i64::from(known);
    tx.execute("UPDATE grasp_schema SET version = $1", &[&reached])
        .await
        .map_err(failure)?;
    tx.commit().await.map_err(failure)
}

async fn has_shared_packs(tx: &Transaction<'_>) -> Result<bool, StoreError> {
    let column = "SELECT count(*) FROM information_schema.columns
        WHERE table_schema = current_schema() AND table_name = 'packs' AND column_name = 'is_attic'";
    let row = tx.query_one(column, &[]).await.map_err(failure)?;
    Ok(row.get::<_, i64>(0) > 0)
}

/// Returns the version of a database; zero for an empty one.
async fn version(tx: &Transaction<'_>) -> Result<u32, StoreError> {
    let tables = "SELECT count(*), count(*) FILTER (WHERE table_name = 'grasp_schema'),
            current_setting('server_encoding')
        FROM information_schema.tables WHERE table_schema = current_schema()";
    let row = tx.query_one(tables, &[]).await.map_err(failure)?;
    let encoding: String = row.get(2);
    match (row.get::<_, i64>(0), row.get::<_, i64>(1)) {
        _ if encoding != "UTF8" => Err(failure(WrongEncoding(encoding))),
        (0, _) => Ok(0),
        (_, 0) => Err(failure(ForeignTables)),
        _ => {
            let version = tx.query_one("SELECT version FROM grasp_schema", &[]).await;
            Ok(u32::try_from(version.map_err(failure)?.get::<_, i64>(0)).unwrap_or(u32::MAX))
        }
    }
}

/// Reads the secret of the database, from which the keys of its indexes are made.
pub(super) async fn load_keys(client: &Client) -> Result<Keys, StoreError> {
    let row = client
        .query_one("SELECT salt FROM secret", &[])
        .await
        .map_err(failure)?;
    let salt: &[u8] = row.get(0);
    Ok(Keys::new(salt.try_into().map_err(|_| failure(BadSecret))?))
}

/// Reads the key by which nodes know each other.
pub(super) async fn load_node_key(client: &Client) -> Result<[u8; 32], StoreError> {
    let row = client
        .query_one("SELECT key FROM node_key", &[])
        .await
        .map_err(failure)?;
    let key: &[u8] = row.get(0);
    key.try_into().map_err(|_| failure(BadSecret))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first statement of a step that changes or removes what is stored, and follows no copy of it.
    fn loses(step: &str) -> Option<String> {
        let lines = step
            .lines()
            .map(|line| line.split("--").next().unwrap_or_default());
        let text = lines.collect::<Vec<_>>().join(" ").to_uppercase();
        let mut has_copied = false;
        for statement in text.split(';') {
            let words: Vec<&str> = statement.split_whitespace().collect();
            let has = |word: &str| words.contains(&word);
            let adds = match words.first() {
                None | Some(&"CREATE" | &"INSERT" | &"COMMENT") => !has("REPLACE"),
                Some(&"ALTER") => has("ADD") && !has("DROP") && !has("TYPE"),
                Some(_) => false,
            };
            has_copied |= words.starts_with(&["CREATE", "TABLE"]) && words.get(3) == Some(&"AS");
            if !adds && !has_copied {
                return Some(words.join(" "));
            }
        }
        None
    }

    #[test]
    fn migrations_only_add_unless_they_copy_first() {
        for step in MIGRATIONS {
            assert_eq!(loses(step), None);
        }
        for bad in [
            "DROP TABLE events",
            "CREATE TABLE x (a INT); DELETE FROM events;",
            "UPDATE events SET kind = 1 -- AS SELECT",
            "ALTER TABLE events ADD a INT, DROP COLUMN b",
            "ALTER TABLE events ALTER COLUMN a TYPE INT",
            "TRUNCATE events",
        ] {
            assert!(loses(bad).is_some(), "{bad}");
        }
        let copies = "CREATE TABLE old_events AS TABLE events; ALTER TABLE events DROP COLUMN a";
        assert_eq!(loses(copies), None);
        assert_eq!(loses("ALTER TABLE events ADD COLUMN a INT"), None);
    }

    #[test]
    fn only_addresses_of_this_machine_are_local() {
        let is_local = |url: &str| is_local(&DatabaseConnector::new(url).unwrap().config);
        for url in [
            "127.0.0.1",
            "localhost:5433",
            "[::1]",
            "%2Frun%2Fpostgresql",
        ] {
            assert!(is_local(&format!("postgres://grasp@{url}/grasp")), "{url}");
        }
        for url in [
            "db.example",
            "10.0.0.1",
            "0.0.0.0",
            "localhost.example",
            "127.0.0.1,10.0.0.1",
        ] {
            assert!(!is_local(&format!("postgres://grasp@{url}/grasp")), "{url}");
        }
        assert!(!is_local(
            "postgres://grasp@localhost/grasp?hostaddr=10.0.0.1"
        ));
        assert!(is_local(
            "postgres://grasp@db.example/grasp?hostaddr=127.0.0.1"
        ));
    }
}
