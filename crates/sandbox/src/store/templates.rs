//! Templates in the database.

use rusqlite::{Connection, OptionalExtension, Row, params};

use protocol::api::Timestamp;

use super::{Store, StoreError, from_json, timestamp, to_json};
use crate::record::{TemplateContent, TemplateRecord};

const COLUMNS: &str =
    "id, name, build_id, created_at_us, updated_at_us, build_count, spawn_count, last_spawned_at_us, content";

/// A pull that is to be recorded.
#[derive(Debug, Clone)]
pub(crate) struct TemplateBuild {
    /// Id if the name is new.
    pub(crate) fresh_id: String,
    pub(crate) name: String,
    pub(crate) build_id: String,
    pub(crate) built_at: Timestamp,
    pub(crate) content: TemplateContent,
}

impl Store {
    /// Records a pull: a new template, or new content of the one with that name.
    pub(crate) async fn put_template(&self, build: TemplateBuild) -> Result<TemplateRecord, StoreError> {
        let content = to_json("template content", &build.content)?;
        self.call(move |connection| {
            let transaction = connection.transaction()?;
            transaction.execute(
                "INSERT INTO templates (id, name, build_id, created_at_us, updated_at_us, build_count, content)
                 VALUES (?1, ?2, ?3, ?4, ?4, 1, ?5)
                 ON CONFLICT (name) DO UPDATE SET build_id = excluded.build_id, updated_at_us = excluded.updated_at_us,
                 build_count = build_count + 1, content = excluded.content",
                params![build.fresh_id, build.name, build.build_id, build.built_at.unix_us(), content],
            )?;
            let record = find(&transaction, &build.name)?
                .ok_or_else(|| StoreError::Damaged(format!("template {} vanished while it was written", build.name)))?;
            transaction.commit()?;
            Ok(record)
        })
        .await
    }

    /// The template with this id or name.
    pub(crate) async fn template(&self, id_or_name: String) -> Result<Option<TemplateRecord>, StoreError> {
        self.call(move |connection| find(connection, &id_or_name)).await
    }

    /// Every template, by name.
    pub(crate) async fn templates(&self) -> Result<Vec<TemplateRecord>, StoreError> {
        self.call(|connection| {
            let mut statement =
                connection.prepare(&format!("SELECT {COLUMNS} FROM templates ORDER BY name"))?;
            let mut rows = statement.query([])?;
            let mut templates = Vec::new();
            while let Some(row) = rows.next()? {
                templates.push(read(row)?);
            }
            Ok(templates)
        })
        .await
    }

    /// How many templates there are.
    pub(crate) async fn template_count(&self) -> Result<u32, StoreError> {
        self.call(|connection| {
            Ok(connection.query_row("SELECT count(*) FROM templates", [], |row| row.get(0))?)
        })
        .await
    }

    /// Forgets the template with this id or name. Its layers stay as long as a sandbox uses them.
    pub(crate) async fn delete_template(&self, id_or_name: String) -> Result<bool, StoreError> {
        self.call(move |connection| {
            Ok(connection.execute("DELETE FROM templates WHERE id = ?1 OR name = ?1", [id_or_name])? > 0)
        })
        .await
    }
}

/// Names and ids cannot be confused: an id that is also a name belongs to the id.
pub(super) fn find(connection: &Connection, id_or_name: &str) -> Result<Option<TemplateRecord>, StoreError> {
    let query =
        format!("SELECT {COLUMNS} FROM templates WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC LIMIT 1");
    connection.query_row(&query, [id_or_name], |row| Ok(read(row))).optional()?.transpose()
}

fn read(row: &Row<'_>) -> Result<TemplateRecord, StoreError> {
    let content: String = row.get("content")?;
    let last_spawned_at: Option<i64> = row.get("last_spawned_at_us")?;
    Ok(TemplateRecord {
        id: row.get("id")?,
        name: row.get("name")?,
        build_id: row.get("build_id")?,
        created_at: timestamp(row.get("created_at_us")?)?,
        updated_at: timestamp(row.get("updated_at_us")?)?,
        build_count: row.get("build_count")?,
        spawn_count: row.get("spawn_count")?,
        last_spawned_at: last_spawned_at.map(timestamp).transpose()?,
        content: from_json("template content", &content)?,
    })
}
