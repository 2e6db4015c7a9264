//! What is kept durably about sandboxes and templates.

use std::collections::BTreeMap;
use std::path::PathBuf;

use network::SlotRecord;
pub use protocol::api::ImageDefaults;
use protocol::api::Timestamp;
use serde::{Deserialize, Serialize};
use vmm::MachineRecord;

use crate::SandboxId;

/// A template: a name for layers and for how to start in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRecord {
    /// Random id; stays when the same name is pulled again.
    pub id: String,
    /// Unique name.
    pub name: String,
    /// Random UUID of this content; changes with every pull.
    pub build_id: String,
    /// First pull.
    pub created_at: Timestamp,
    /// Last pull.
    pub updated_at: Timestamp,
    /// How many times it was pulled.
    pub build_count: u64,
    /// How many sandboxes were made from it.
    pub spawn_count: u64,
    /// When the last of them was made.
    pub last_spawned_at: Option<Timestamp>,
    /// What sandboxes are made of.
    pub content: TemplateContent,
}

/// What a pull replaces as a whole. Stored as JSON, so fields are only added, with a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateContent {
    /// Where the image came from.
    pub source: String,
    /// Digest of its manifest.
    pub manifest_digest: String,
    /// Layers, bottom first.
    pub layer_paths: Vec<PathBuf>,
    /// Size of the disk in bytes.
    pub virtual_size_bytes: u64,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// What the image says about its processes.
    pub image: ImageDefaults,
}

/// What is decided when a sandbox is made and never changes. Stored as JSON, so fields are only added, with a default.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    pub(crate) template_id: String,
    pub(crate) template_name: String,
    /// Build of the template that its layers belong to.
    pub(crate) build_id: String,
    pub(crate) layer_paths: Vec<PathBuf>,
    pub(crate) virtual_size_bytes: u64,
    pub(crate) vcpus: u32,
    pub(crate) memory_mib: u32,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) default_user: Option<String>,
    pub(crate) default_workdir: Option<String>,
    pub(crate) access_token: String,
    pub(crate) envd_version: String,
}

impl std::fmt::Debug for SandboxSpec {
    /// Leaves out token, environment and metadata: they are users' secrets.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SandboxSpec")
            .field("template_name", &self.template_name)
            .field("vcpus", &self.vcpus)
            .field("memory_mib", &self.memory_mib)
            .finish_non_exhaustive()
    }
}

/// How far a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// Being made; undone when its node starts again.
    Creating,
    /// Shown to clients; adopted when its node starts again.
    Running,
    /// Being removed; finished when its node starts again.
    Killing,
}

impl RecordState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Killing => "killing",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Creating, Self::Running, Self::Killing].into_iter().find(|state| state.as_str() == text)
    }
}

/// A sandbox as the database knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxRecord {
    pub(crate) id: SandboxId,
    pub(crate) state: RecordState,
    pub(crate) created_at: Timestamp,
    /// Set when it becomes running.
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) end_at: Timestamp,
    /// Set when its network exists.
    pub(crate) slot: Option<SlotRecord>,
    /// Set when its machine exists.
    pub(crate) machine: Option<MachineRecord>,
    pub(crate) spec: SandboxSpec,
}
