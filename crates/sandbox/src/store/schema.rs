//! The database's tables and their versions.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::{StoreError, open_error};

/// Step `n` brings a database from version `n` to `n + 1`. Steps are only added, never changed.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE settings (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT;
    CREATE TABLE templates (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        build_id TEXT NOT NULL,
        created_at_us INTEGER NOT NULL,
        updated_at_us INTEGER NOT NULL,
        build_count INTEGER NOT NULL,
        spawn_count INTEGER NOT NULL DEFAULT 0,
        last_spawned_at_us INTEGER,
        content TEXT NOT NULL       -- JSON of TemplateContent
    ) STRICT;
    CREATE TABLE sandboxes (
        id TEXT PRIMARY KEY,
        state TEXT NOT NULL,        -- creating, running, killing
        created_at_us INTEGER NOT NULL,
        started_at_us INTEGER,
        end_at_us INTEGER NOT NULL,
        slot TEXT,                  -- JSON of network::SlotRecord
        machine TEXT,               -- JSON of vmm::MachineRecord
        spec TEXT NOT NULL          -- JSON of SandboxSpec
    ) STRICT;
"];

/// Version of the database that this program writes.
fn supported() -> u32 {
    u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX)
}

pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    // SQLite would create the file readable for all; it holds tokens and environments.
    std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| open_error(path, error))?;
    let mut connection = Connection::open(path).map_err(|error| open_error(path, error))?;
    prepare(&mut connection).map_err(|error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy) => {
            open_error(path, "another node uses it already; stop that one or give this one its own data_dir")
        }
        _ => open_error(path, error),
    })?;
    migrate(path, &mut connection)?;
    Ok(connection)
}

fn prepare(connection: &mut Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(Duration::from_secs(5))?;
    // One node per database: a second one would adopt the same sandboxes.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(())
}

fn migrate(path: &Path, connection: &mut Connection) -> Result<(), StoreError> {
    let found: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let supported = supported();
    if found > supported {
        return Err(StoreError::TooNew { path: path.to_owned(), found, supported });
    }
    for (version, step) in (0..supported).zip(MIGRATIONS).skip(found as usize) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "user_version", version + 1)?;
        transaction.commit()?;
        tracing::info!(path = %path.display(), version = version + 1, "database migrated");
    }
    Ok(())
}
