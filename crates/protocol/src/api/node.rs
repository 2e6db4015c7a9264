//! Endpoints of our own under `/aenv/v1`.

use serde::{Deserialize, Serialize};

use super::{Error, Template};

/// Body of `POST /aenv/v1/templates/pull`. Unknown fields are refused: a misspelt one would silently do something else.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PullTemplate {
    /// Registry reference, or `oci:DIRECTORY`, `docker-archive:FILE`, `rootfs:FILE.tar` on the node.
    pub source: String,
    /// Name of the template: 1 to 128 characters of `[a-z0-9._-]`, beginning with a letter or digit.
    pub name: String,
    /// Size of the disk in bytes; the node's default when absent.
    #[serde(default, rename = "virtualSizeBytes", skip_serializing_if = "Option::is_none")]
    pub virtual_size_bytes: Option<u64>,
    /// Virtual processors of its sandboxes; the node's default when absent.
    #[serde(default, rename = "cpuCount", skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    /// Memory of its sandboxes in MiB; the node's default when absent.
    #[serde(default, rename = "memoryMB", skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// User at the registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Password at the registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

impl std::fmt::Debug for PullTemplate {
    /// Leaves the credentials out: requests are logged.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("PullTemplate")
            .field("source", &self.source)
            .field("name", &self.name)
            .field("virtual_size_bytes", &self.virtual_size_bytes)
            .field("cpu_count", &self.cpu_count)
            .field("memory_mb", &self.memory_mb)
            .finish_non_exhaustive()
    }
}

/// One line of the answer: any number of `progress`, then one `template` or `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PullTemplateEvent {
    /// Where the import stands.
    Progress(PullProgress),
    /// It is done.
    Template(Box<Template>),
    /// It failed.
    Error(Error),
}

/// Where an import stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PullProgress {
    /// `resolve`, `fetch`, `convert`, `reuse` or `finish`.
    pub phase: String,
    /// Digest of the layer this is about; empty when it is about the image.
    pub layer_digest: String,
    /// Position of the layer, from 0.
    pub layer_index: u32,
    /// How many layers there are.
    pub layer_count: u32,
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in all; 0 when not known.
    pub total_bytes: u64,
}

/// Answer of `GET /aenv/v1/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Version of the node.
    pub version: String,
    /// The tag with which the ids of its sandboxes begin.
    pub node_tag: String,
    /// Virtual machine monitor in use.
    pub vmm: String,
    /// Front end of the storage daemon; empty when the daemon does not answer.
    pub storage_front_end: String,
    /// Sandboxes being made.
    pub creating: u32,
    /// Sandboxes running.
    pub running: u32,
    /// Sandboxes being removed.
    pub killing: u32,
    /// Most sandboxes this node takes.
    pub sandbox_limit: u32,
    /// Templates it has.
    pub templates: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_events_are_one_key_objects() {
        let line = serde_json::to_value(PullTemplateEvent::Progress(PullProgress {
            phase: "fetch".into(),
            layer_count: 3,
            ..PullProgress::default()
        }))
        .unwrap();
        assert_eq!(line["progress"]["phase"], "fetch");
        assert_eq!(line["progress"]["layerCount"], 3);
        let error = r#"{"error":{"code":404,"message":"no such image"}}"#;
        assert!(matches!(
            serde_json::from_str(error).unwrap(),
            PullTemplateEvent::Error(Error { code: 404, .. })
        ));
    }

    #[test]
    fn a_misspelt_field_of_a_pull_is_refused() {
        let body = r#"{"source":"a","name":"b","virtualSize":1}"#;
        assert!(serde_json::from_str::<PullTemplate>(body).unwrap_err().to_string().contains("virtualSize"));
    }

    #[test]
    fn credentials_are_not_printed() {
        let pull: PullTemplate =
            serde_json::from_str(r#"{"source":"a","name":"b","username":"u","password":"hunter2"}"#).unwrap();
        assert!(!format!("{pull:?}").contains("hunter2"));
    }
}
