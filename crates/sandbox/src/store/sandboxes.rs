//! Sandboxes in the database.

use std::collections::BTreeSet;
use std::path::PathBuf;

use network::SlotRecord;
use protocol::api::Timestamp;
use rusqlite::{Row, params};
use vmm::MachineRecord;

use super::{Store, StoreError, from_json, templates, timestamp, to_json};
use crate::SandboxId;
use crate::record::{RecordState, SandboxRecord, SandboxSpec, TemplateContent, TemplateRecord};

impl Store {
    /// Finds the template and records a sandbox made of it, in one transaction: from here on its layers are in use.
    /// Nothing when there is no such template.
    pub(crate) async fn begin_sandbox<F>(
        &self,
        id: SandboxId,
        template: String,
        created_at: Timestamp,
        end_at: Timestamp,
        spec: F,
    ) -> Result<Option<SandboxRecord>, StoreError>
    where
        F: FnOnce(&TemplateRecord) -> SandboxSpec + Send + 'static,
    {
        self.call(move |connection| {
            let transaction = connection.transaction()?;
            let Some(template) = templates::find(&transaction, &template)? else { return Ok(None) };
            let record = SandboxRecord {
                id,
                state: RecordState::Creating,
                created_at,
                started_at: None,
                end_at,
                slot: None,
                machine: None,
                spec: spec(&template),
            };
            transaction.execute(
                "INSERT INTO sandboxes (id, state, created_at_us, end_at_us, spec) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    record.id.as_str(),
                    record.state.as_str(),
                    created_at.unix_us(),
                    end_at.unix_us(),
                    to_json("sandbox", &record.spec)?
                ],
            )?;
            transaction.execute(
                "UPDATE templates SET spawn_count = spawn_count + 1, last_spawned_at_us = ?2 WHERE id = ?1",
                params![template.id, created_at.unix_us()],
            )?;
            transaction.commit()?;
            Ok(Some(record))
        })
        .await
    }

    /// The sandbox's network exists.
    pub(crate) async fn set_slot(&self, id: &SandboxId, slot: &SlotRecord) -> Result<(), StoreError> {
        self.update(id, "slot = ?2", to_json("slot", slot)?).await
    }

    /// The sandbox's machine exists.
    pub(crate) async fn set_machine(
        &self,
        id: &SandboxId,
        machine: &MachineRecord,
    ) -> Result<(), StoreError> {
        self.update(id, "machine = ?2", to_json("machine", machine)?).await
    }

    /// The sandbox is ready for clients.
    pub(crate) async fn set_running(
        &self,
        id: &SandboxId,
        started_at: Timestamp,
        end_at: Timestamp,
    ) -> Result<(), StoreError> {
        let id = id.as_str().to_owned();
        self.call(move |connection| {
            connection.execute(
                "UPDATE sandboxes SET state = 'running', started_at_us = ?2, end_at_us = ?3 WHERE id = ?1",
                params![id, started_at.unix_us(), end_at.unix_us()],
            )?;
            Ok(())
        })
        .await
    }

    /// The sandbox lives until then.
    pub(crate) async fn set_end(&self, id: &SandboxId, end_at: Timestamp) -> Result<(), StoreError> {
        self.update(id, "end_at_us = ?2", end_at.unix_us()).await
    }

    /// The sandbox's removal has begun.
    pub(crate) async fn set_killing(&self, id: &SandboxId) -> Result<(), StoreError> {
        self.update(id, "state = ?2", RecordState::Killing.as_str()).await
    }

    async fn update<T>(&self, id: &SandboxId, assignment: &'static str, value: T) -> Result<(), StoreError>
    where
        T: rusqlite::ToSql + Send + 'static,
    {
        let id = id.as_str().to_owned();
        self.call(move |connection| {
            connection
                .execute(&format!("UPDATE sandboxes SET {assignment} WHERE id = ?1"), params![id, value])?;
            Ok(())
        })
        .await
    }

    /// Nothing of the sandbox is left. Says whether its layers may now be unused: no template has its build any more.
    pub(crate) async fn delete_sandbox(&self, id: &SandboxId, build_id: &str) -> Result<bool, StoreError> {
        let (id, build_id) = (id.as_str().to_owned(), build_id.to_owned());
        self.call(move |connection| {
            connection.execute("DELETE FROM sandboxes WHERE id = ?1", [id])?;
            let query = "SELECT NOT EXISTS (SELECT 1 FROM templates WHERE build_id = ?1)";
            Ok(connection.query_row(query, [build_id], |row| row.get(0))?)
        })
        .await
    }

    /// Every sandbox, oldest first.
    pub(crate) async fn sandboxes(&self) -> Result<Vec<SandboxRecord>, StoreError> {
        self.call(|connection| {
            let mut statement = connection.prepare("SELECT * FROM sandboxes ORDER BY created_at_us, id")?;
            let mut rows = statement.query([])?;
            let mut sandboxes = Vec::new();
            while let Some(row) = rows.next()? {
                sandboxes.push(read(row)?);
            }
            Ok(sandboxes)
        })
        .await
    }

    /// Layers that a template or a sandbox needs.
    pub(crate) async fn layers_in_use(&self) -> Result<Vec<PathBuf>, StoreError> {
        self.call(|connection| {
            let mut layers = BTreeSet::new();
            let mut statement = connection.prepare("SELECT content FROM templates")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let content: String = row.get(0)?;
                layers.extend(from_json::<TemplateContent>("template content", &content)?.layer_paths);
            }
            let mut statement = connection.prepare("SELECT spec FROM sandboxes")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let spec: String = row.get(0)?;
                layers.extend(from_json::<SandboxSpec>("sandbox", &spec)?.layer_paths);
            }
            Ok(layers.into_iter().collect())
        })
        .await
    }
}

fn read(row: &Row<'_>) -> Result<SandboxRecord, StoreError> {
    let id: String = row.get("id")?;
    let state: String = row.get("state")?;
    let started_at: Option<i64> = row.get("started_at_us")?;
    let slot: Option<String> = row.get("slot")?;
    let machine: Option<String> = row.get("machine")?;
    let spec: String = row.get("spec")?;
    let damaged = |what: &str| StoreError::Damaged(format!("sandbox {id}: {what}"));
    Ok(SandboxRecord {
        state: RecordState::parse(&state).ok_or_else(|| damaged("unknown state"))?,
        created_at: timestamp(row.get("created_at_us")?)?,
        started_at: started_at.map(timestamp).transpose()?,
        end_at: timestamp(row.get("end_at_us")?)?,
        slot: slot.map(|text| from_json("slot", &text)).transpose()?,
        machine: machine.map(|text| from_json("machine", &text)).transpose()?,
        spec: from_json("sandbox", &spec)?,
        id: SandboxId::parse(&id).ok_or_else(|| damaged("no sandbox id"))?,
    })
}
