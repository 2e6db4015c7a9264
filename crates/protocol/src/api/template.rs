//! Templates: what a sandbox is made from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Timestamp;

/// A template as our own endpoints show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Its id; stays the same when an image is pulled again under the same name.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Changes with every pull.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// Its name.
    pub name: String,
    /// Where the image came from.
    pub source: String,
    /// Digest of the image manifest.
    #[serde(rename = "manifestDigest")]
    pub manifest_digest: String,
    /// Number of layers.
    #[serde(rename = "layerCount")]
    pub layer_count: u32,
    /// Size of the disk in bytes.
    #[serde(rename = "virtualSizeBytes")]
    pub virtual_size_bytes: u64,
    /// Virtual processors of its sandboxes.
    #[serde(rename = "cpuCount")]
    pub cpu_count: u32,
    /// Memory of its sandboxes in MiB.
    #[serde(rename = "memoryMB")]
    pub memory_mb: u32,
    /// First pull.
    #[serde(rename = "createdAt")]
    pub created_at: Timestamp,
    /// Last pull.
    #[serde(rename = "updatedAt")]
    pub updated_at: Timestamp,
    /// What the image says about processes started in it.
    #[serde(default)]
    pub image: ImageDefaults,
}

/// The parts of an OCI image configuration that concern the processes of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDefaults {
    /// Environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// User, as it stands in the image: a name or number, perhaps with `:group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory.
    #[serde(default, rename = "workingDir", skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Entry point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
}

/// One element of E2B's `GET /templates`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedTemplate {
    /// Its id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Id of the last build.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// Virtual processors.
    #[serde(rename = "cpuCount")]
    pub cpu_count: u32,
    /// Memory in MiB.
    #[serde(rename = "memoryMB")]
    pub memory_mb: u32,
    /// Disk size in MiB.
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    /// Whether other teams may use it; there are no teams here.
    pub public: bool,
    /// Names (deprecated by E2B).
    pub aliases: Vec<String>,
    /// Names.
    pub names: Vec<String>,
    /// When it was made.
    #[serde(rename = "createdAt")]
    pub created_at: Timestamp,
    /// When it was built last.
    #[serde(rename = "updatedAt")]
    pub updated_at: Timestamp,
    /// Who made it; there are no accounts here.
    #[serde(rename = "createdBy")]
    pub created_by: Option<()>,
    /// When a sandbox was last made from it.
    #[serde(rename = "lastSpawnedAt")]
    pub last_spawned_at: Option<Timestamp>,
    /// How many sandboxes were made from it.
    #[serde(rename = "spawnCount")]
    pub spawn_count: u64,
    /// How many times it was built.
    #[serde(rename = "buildCount")]
    pub build_count: u64,
    /// Version of the guest daemon.
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
    /// Status of the last build: `ready`.
    #[serde(rename = "buildStatus")]
    pub build_status: String,
}

/// Answer of `GET /templates/aliases/{alias}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateAlias {
    /// Id of the template of that name.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Whether other teams may use it.
    pub public: bool,
}
