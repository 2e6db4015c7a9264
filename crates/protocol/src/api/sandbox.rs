//! Sandboxes as E2B's control plane speaks of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Timestamp;

/// Body of `POST /sandboxes` and `POST /v2/sandboxes`. Unknown fields are ignored.
///
/// Fields whose feature a node may lack are kept as plain JSON: the node accepts them when they ask for nothing, and
/// otherwise refuses them by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NewSandbox {
    /// Template id or name; a name may end in `:default`.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Seconds until the sandbox ends. Defaults: [`super::DEFAULT_TIMEOUT_V1_S`], [`super::DEFAULT_TIMEOUT_V2_S`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// Version 1 only, and without effect: every sandbox has an access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure: Option<bool>,
    /// Pause instead of kill when the timeout is reached.
    #[serde(default, rename = "autoPause", skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
    /// Whether an automatic pause keeps memory.
    #[serde(default, rename = "autoPauseMemory", skip_serializing_if = "Option::is_none")]
    pub auto_pause_memory: Option<bool>,
    /// `{"enabled": bool}`: whether traffic resumes a paused sandbox.
    #[serde(default, rename = "autoResume", skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<Value>,
    /// `false` cuts the sandbox off the internet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// Network rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Value>,
    /// The user's own labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Environment of every process started in the sandbox.
    #[serde(default, rename = "envVars", skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// MCP gateway configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Value>,
    /// Workload identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iam: Option<Value>,
    /// Volumes, a list of `{name, path}`.
    #[serde(default, rename = "volumeMounts", skip_serializing_if = "Option::is_none")]
    pub volume_mounts: Option<Value>,
}

/// Body of `POST /sandboxes/{id}/connect` and its version 2, where it may also be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectSandbox {
    /// Seconds from now until the sandbox ends; never shortens what is left. Required in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// Body of `POST /sandboxes/{id}/timeout`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetTimeout {
    /// Seconds from now until the sandbox ends; negative means now.
    pub timeout: i64,
}

/// Body of `POST /sandboxes/{id}/refreshes`; may be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshSandbox {
    /// Seconds from now that the sandbox lives at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<i64>,
}

/// Answer of create and connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Template it was made from.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// Deprecated by E2B, but its clients fail without it.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// Version of the guest daemon; clients switch features by it.
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
    /// Name of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Token for the guest daemon.
    #[serde(default, rename = "envdAccessToken", skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// Token for the sandbox's other ports; null while those are public.
    #[serde(default, rename = "trafficAccessToken")]
    pub traffic_access_token: Option<String>,
    /// Domain under which `<port>-<sandboxID>.<domain>` reaches the sandbox; may hold a port.
    #[serde(default)]
    pub domain: Option<String>,
}

/// State of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// Its processors run.
    Running,
    /// Its memory is stored and its processors stand still.
    Paused,
}

/// What happens at the end of the timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    /// The sandbox is killed.
    Kill,
    /// The sandbox is paused.
    Pause,
}

/// Policy at the end of the timeout and after a pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifecycle {
    /// Whether traffic resumes a paused sandbox.
    #[serde(rename = "autoResume")]
    pub auto_resume: bool,
    /// What the timeout does.
    #[serde(rename = "onTimeout")]
    pub on_timeout: OnTimeout,
}

/// One element of `GET /sandboxes` and `GET /v2/sandboxes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedSandbox {
    /// Template it was made from.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Name of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// See [`Sandbox::client_id`].
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// When it became ready.
    #[serde(rename = "startedAt")]
    pub started_at: Timestamp,
    /// When it ends.
    #[serde(rename = "endAt")]
    pub end_at: Timestamp,
    /// Virtual processors.
    #[serde(rename = "cpuCount")]
    pub cpu_count: u32,
    /// Memory in MiB.
    #[serde(rename = "memoryMB")]
    pub memory_mb: u32,
    /// Disk size in MiB.
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    /// The user's own labels.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Its state.
    pub state: SandboxState,
    /// Version of the guest daemon.
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
}

/// Answer of `GET /sandboxes/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxDetail {
    /// What a list shows of it too.
    #[serde(flatten)]
    pub listed: ListedSandbox,
    /// Token for the guest daemon.
    #[serde(default, rename = "envdAccessToken", skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// Whether the sandbox reaches the internet.
    #[serde(default, rename = "allowInternetAccess", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// See [`Sandbox::domain`].
    #[serde(default)]
    pub domain: Option<String>,
    /// What happens at the end of the timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
}

/// One element of `GET /sandboxes/{id}/metrics`. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxMetric {
    /// When it was measured.
    pub timestamp: Timestamp,
    /// The same in seconds since the Unix epoch.
    #[serde(rename = "timestampUnix")]
    pub timestamp_unix: i64,
    /// Virtual processors.
    #[serde(rename = "cpuCount")]
    pub cpu_count: u32,
    /// Use of all of them together, 0 to 100.
    #[serde(rename = "cpuUsedPct")]
    pub cpu_used_pct: f64,
    /// Memory in use.
    #[serde(rename = "memUsed")]
    pub mem_used: u64,
    /// Memory of the guest.
    #[serde(rename = "memTotal")]
    pub mem_total: u64,
    /// Memory that holds file contents and could be freed.
    #[serde(rename = "memCache")]
    pub mem_cache: u64,
    /// Bytes used on the guest's root file system.
    #[serde(rename = "diskUsed")]
    pub disk_used: u64,
    /// Size of the guest's root file system.
    #[serde(rename = "diskTotal")]
    pub disk_total: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_python_client_sends() {
        let body = r#"{"templateID":"base","metadata":{},"envVars":{"A":"1"},"secure":true,"autoPause":false,
            "allow_internet_access":true,"mcp":null,"somethingNew":[1]}"#;
        let request: NewSandbox = serde_json::from_str(body).unwrap();
        assert_eq!(request.template_id, "base");
        assert_eq!(request.timeout, None);
        assert_eq!(request.env_vars.unwrap()["A"], "1");
        assert_eq!(request.mcp, None);
    }

    #[test]
    fn the_create_answer_has_every_field_the_clients_require() {
        let sandbox = Sandbox {
            template_id: "t".into(),
            sandbox_id: "s".into(),
            client_id: "c".into(),
            envd_version: "0.6.13".into(),
            alias: None,
            envd_access_token: Some("secret".into()),
            traffic_access_token: None,
            domain: None,
        };
        assert_eq!(
            serde_json::to_value(&sandbox).unwrap(),
            serde_json::json!({"templateID": "t", "sandboxID": "s", "clientID": "c", "envdVersion": "0.6.13",
                "envdAccessToken": "secret", "trafficAccessToken": null, "domain": null})
        );
    }

    #[test]
    fn the_detail_is_flat() {
        let time = Timestamp::from_unix_us(0).unwrap();
        let detail = SandboxDetail {
            listed: ListedSandbox {
                template_id: "t".into(),
                alias: Some("base".into()),
                sandbox_id: "s".into(),
                client_id: "c".into(),
                started_at: time,
                end_at: time,
                cpu_count: 2,
                memory_mb: 512,
                disk_size_mb: 65536,
                metadata: BTreeMap::new(),
                state: SandboxState::Running,
                envd_version: "0.6.13".into(),
            },
            envd_access_token: None,
            allow_internet_access: None,
            domain: None,
            lifecycle: Some(Lifecycle { auto_resume: false, on_timeout: OnTimeout::Kill }),
        };
        let value = serde_json::to_value(&detail).unwrap();
        assert_eq!(value["state"], "running");
        assert_eq!(value["endAt"], "1970-01-01T00:00:00Z");
        assert_eq!(value["lifecycle"]["onTimeout"], "kill");
        assert_eq!(serde_json::from_value::<SandboxDetail>(value).unwrap(), detail);
    }
}
