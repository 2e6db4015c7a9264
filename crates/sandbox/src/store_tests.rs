use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::record::RecordState;

#[tokio::test]
async fn the_database_is_for_its_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.db");
    let store = Store::open(path.clone()).await.unwrap();
    store.node_tag("abc".to_owned()).await.unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", entry.path().display());
    }
}

#[tokio::test]
async fn a_database_of_a_newer_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.db");
    drop(Store::open(path.clone()).await.unwrap());
    // The thread closes the database when the last handle is gone; opening waits for the lock.
    let connection = Connection::open(&path).unwrap();
    connection.busy_timeout(Duration::from_secs(5)).unwrap();
    connection.pragma_update(None, "user_version", 1000).unwrap();
    drop(connection);
    let error = Store::open(path).await.unwrap_err();
    assert!(matches!(error, StoreError::TooNew { found: 1000, .. }), "{error}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.db");
    std::fs::write(
        &path,
        "this is not a database, but it is long enough to be one of SQLite's headers: ".repeat(50),
    )
    .unwrap();
    let error = Store::open(path).await.unwrap_err();
    assert!(matches!(error, StoreError::Open { .. }), "{error}");
}

#[test]
fn states_are_read_as_they_are_written() {
    for state in [RecordState::Creating, RecordState::Running, RecordState::Killing] {
        assert_eq!(RecordState::parse(state.as_str()), Some(state));
    }
    assert_eq!(RecordState::parse("paused"), None);
}
