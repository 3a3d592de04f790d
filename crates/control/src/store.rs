//! The store: the one place that opens the database, and where every change becomes true.
//!
//! SQLite in WAL mode. This process writes through one connection, so writers queue in
//! order and never poll for the lock; readers have their own. A second process
//! (`hearth key ...`) may use the same file at the same time: writes begin `IMMEDIATE`
//! and wait for the lock. A commit is on disk when it returns (`synchronous=FULL`).
//!
//! The store also keeps the [`Live`] index of running sandboxes in step with the table: it
//! is changed after the commit and before the next writer may start.
//!
//! Not here: decisions. A change of state asks `model::state::step` and nothing else.

pub(crate) mod events;
pub(crate) mod idempotency;
pub(crate) mod keys;
pub(crate) mod metrics;
pub(crate) mod sandboxes;

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    Sqlite, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};

use crate::live::Live;

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("./migrations");

/// Starts a write: takes the write lock at once, so that nothing read inside goes stale.
const WRITE: &str = "BEGIN IMMEDIATE";
/// How long one process waits for another's write.
const BUSY: Duration = Duration::from_secs(10);
/// How long a request waits for a connection of this process.
const ACQUIRE: Duration = Duration::from_secs(30);
const READERS: u32 = 4;
/// The write-ahead log is cut back to this many bytes after a checkpoint.
const WAL_LIMIT: &str = "67108864";

/// A read or write that did not happen. Whose fault: the environment's (disk full, file
/// gone, a damaged row). The same request may be repeated.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store could not {what}")]
    Sql {
        what: &'static str,
        #[source]
        source: sqlx::Error,
    },
    #[error("the store holds a row that cannot be read: {what}")]
    Damaged { what: String },
}

/// Why the store did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    #[error("could not prepare the database file {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("could not open the database {}", path.display())]
    Connect {
        path: PathBuf,
        #[source]
        source: sqlx::Error,
    },
    #[error("could not bring the database {} up to date", path.display())]
    Migrate {
        path: PathBuf,
        #[source]
        source: sqlx::migrate::MigrateError,
    },
}

/// Adds what was attempted to a database error.
pub(crate) trait During<T> {
    fn during(self, what: &'static str) -> Result<T, StoreError>;
}

impl<T> During<T> for Result<T, sqlx::Error> {
    fn during(self, what: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Sql { what, source })
    }
}

/// The open database.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    writer: SqlitePool,
    readers: SqlitePool,
    live: Live,
}

impl Store {
    /// Opens or makes the database, readable by its owner only, and brings it up to date.
    pub(crate) async fn open(path: &Path) -> Result<Self, OpenStoreError> {
        let fault = |source| OpenStoreError::File {
            path: path.to_owned(),
            source,
        };
        // Two processes that start together must not migrate together.
        let lock = lock_beside(path).await.map_err(fault)?;
        make_private(path).map_err(fault)?;

        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY)
            .pragma("journal_size_limit", WAL_LIMIT);
        let connect = |source| OpenStoreError::Connect {
            path: path.to_owned(),
            source,
        };
        let writer = pool(1)
            .connect_with(options.clone())
            .await
            .map_err(connect)?;
        MIGRATIONS
            .run(&writer)
            .await
            .map_err(|source| OpenStoreError::Migrate {
                path: path.to_owned(),
                source,
            })?;
        let readers = pool(READERS)
            .connect_with(options.pragma("query_only", "ON"))
            .await
            .map_err(connect)?;
        drop(lock);
        Ok(Self {
            writer,
            readers,
            live: Live::default(),
        })
    }

    /// The index of running sandboxes.
    pub(crate) fn live(&self) -> &Live {
        &self.live
    }

    /// The connection that writes. Whoever holds it is the only writer of this process.
    pub(crate) async fn writer(&self) -> Result<PoolConnection<Sqlite>, StoreError> {
        self.writer.acquire().await.during("get its writer")
    }

    pub(crate) fn readers(&self) -> &SqlitePool {
        &self.readers
    }

    /// Closes every connection; later calls fail.
    pub(crate) async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .min_connections(1)
        .acquire_timeout(ACQUIRE)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
}

async fn lock_beside(path: &Path) -> std::io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    // Waits for the other process, so not on a thread that runs tasks.
    tokio::task::spawn_blocking(move || lock_file(&name))
        .await
        .map_err(std::io::Error::other)?
}

fn lock_file(name: &std::ffi::OsStr) -> std::io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(name)?;
    file.lock()?;
    Ok(file)
}

/// SQLite gives its side files the mode of the database file.
fn make_private(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))
}

/// An unsigned number as SQLite stores it. What is larger is stored as the largest.
pub(crate) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A stored number that cannot be negative.
pub(crate) fn to_u64(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_file_and_its_side_files_are_private() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("hearth.db");
        std::fs::write(&path, b"").expect("a file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("mode set");
        let store = Store::open(&path).await.expect("it opens");
        let mut seen = 0;
        for entry in std::fs::read_dir(dir.path()).expect("listable") {
            let entry = entry.expect("an entry");
            let mode = entry.metadata().expect("metadata").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{:?}", entry.path());
            seen += 1;
        }
        assert!(seen >= 3, "database, lock and log exist: {seen}");
        store.close().await;
    }

    #[tokio::test]
    async fn many_may_open_a_new_database_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("hearth.db");
        let opened =
            futures::future::join_all((0..8).map(|_| async { Store::open(&path).await })).await;
        for store in opened {
            store.expect("it opens");
        }
    }

    #[tokio::test]
    async fn events_cannot_be_changed_or_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("hearth.db"))
            .await
            .expect("it opens");
        let mut conn = store.writer().await.expect("a writer");
        sqlx::query(
            "INSERT INTO events (ts_ms, kind, actor, data) VALUES (1, 'x', 'system', '{}')",
        )
        .execute(&mut *conn)
        .await
        .expect("appending is allowed");
        for statement in ["UPDATE events SET kind = 'y'", "DELETE FROM events"] {
            let error = sqlx::query(statement)
                .execute(&mut *conn)
                .await
                .expect_err(statement);
            assert!(error.to_string().contains("append-only"), "{error}");
        }
    }
}
