//! The node's durable state: one SQLite database, used by one thread.
//!
//! SQLite blocks, so the connection lives on a thread of its own, which runs one closure after another from a bounded
//! queue. Every change is on stable storage before its call returns (`synchronous=FULL`).

mod sandboxes;
mod schema;
mod templates;

pub(crate) use templates::TemplateBuild;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

/// Calls that may wait for the thread.
const QUEUE_LENGTH: usize = 256;
/// Longest wait for a call, its place in the queue included; a disk that is slower than this is broken.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Why durable state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened or prepared.
    #[error("the node's database {path} cannot be opened: {reason}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The file was written by a newer program.
    #[error(
        "the node's database {path} has version {found}, this program knows up to {supported}; use a newer one"
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Latest version known here.
        supported: u32,
    },
    /// SQLite refused.
    #[error("the node's database: {0}")]
    Database(#[from] rusqlite::Error),
    /// A row holds something that was never written by this program.
    #[error("the node's database is damaged: {0}")]
    Damaged(String),
    /// The thread is gone or did not answer in time.
    #[error("the node's database did not answer: {0}")]
    Unavailable(&'static str),
}

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// Handle to the database; clones share the thread, which ends with the last of them.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    jobs: mpsc::Sender<Job>,
}

impl Store {
    /// Opens or makes the database, and brings it to the current version.
    pub(crate) async fn open(path: PathBuf) -> Result<Self, StoreError> {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE_LENGTH);
        let (opened, result) = oneshot::channel();
        let thread_error = {
            let path = path.clone();
            move |error: std::io::Error| StoreError::Open { path, reason: error.to_string() }
        };
        std::thread::Builder::new()
            .name("node-database".to_owned())
            .spawn(move || match schema::open(&path) {
                Ok(mut connection) => {
                    let _ = opened.send(Ok(()));
                    while let Some(job) = queue.blocking_recv() {
                        job(&mut connection);
                    }
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            })
            .map_err(thread_error)?;
        result.await.map_err(|_| StoreError::Unavailable("its thread ended"))??;
        Ok(Self { jobs })
    }

    /// Runs `job` on the thread. When the caller gives up waiting, the job may still happen.
    async fn call<T, F>(&self, job: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, result) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let _ = reply.send(job(connection));
        });
        let exchange = async {
            self.jobs.send(job).await.map_err(|_| StoreError::Unavailable("its thread ended"))?;
            result.await.map_err(|_| StoreError::Unavailable("its thread ended"))?
        };
        tokio::time::timeout(CALL_TIMEOUT, exchange)
            .await
            .map_err(|_| StoreError::Unavailable("it was busy for 30 s; is the disk healthy?"))?
    }

    /// The stored node tag, or `fresh`, which is stored then. A tag once stored stays: ids in use begin with it.
    pub(crate) async fn node_tag(&self, fresh: String) -> Result<String, StoreError> {
        self.call(move |connection| {
            let transaction = connection.transaction()?;
            transaction.execute(
                "INSERT INTO settings (name, value) VALUES ('node_tag', ?1) ON CONFLICT DO NOTHING",
                [fresh],
            )?;
            let tag =
                transaction
                    .query_row("SELECT value FROM settings WHERE name = 'node_tag'", [], |row| row.get(0))?;
            transaction.commit()?;
            Ok(tag)
        })
        .await
    }
}

/// Reads a JSON column.
fn from_json<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Damaged(format!("{what}: {error}")))
}

/// Writes a JSON column.
fn to_json<T: serde::Serialize>(what: &str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Damaged(format!("{what}: {error}")))
}

/// Reads a column with microseconds since the Unix epoch.
fn timestamp(microseconds: i64) -> Result<protocol::api::Timestamp, StoreError> {
    protocol::api::Timestamp::from_unix_us(microseconds)
        .map_err(|error| StoreError::Damaged(error.to_string()))
}

fn open_error(path: &Path, error: impl std::fmt::Display) -> StoreError {
    StoreError::Open { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
