//! Bodies of `/init`, `/metrics` and `/files`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Body of `POST /init`: what the node tells the daemon after each start or restore. A member that is absent leaves
/// that part of the daemon's state as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InitRequest {
    /// Environment of every command; replaces the previous one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Token that all other requests must carry. Once set it also authorises later `/init` requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    /// The node's time, RFC 3339: orders requests and sets the guest's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// User of commands and files that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_user: Option<String>,
    /// Working directory of commands that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// Our addition: value of `E2B_SANDBOX_ID` in every command; the host name when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// Our addition: value of `E2B_TEMPLATE_ID` in every command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_id: Option<String>,
}

/// Body of `GET /metrics`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Seconds since 1970.
    pub ts: i64,
    /// Processors.
    pub cpu_count: u32,
    /// Use of all processors since the last request, 0 to 100.
    pub cpu_used_pct: f32,
    /// Memory in bytes.
    pub mem_total: u64,
    /// Memory that is neither free nor reclaimable, bytes.
    pub mem_used: u64,
    /// Page cache, bytes.
    pub mem_cache: u64,
    /// `mem_total` in MiB.
    pub mem_total_mib: u64,
    /// `mem_used` in MiB.
    pub mem_used_mib: u64,
    /// Used bytes of the root file system.
    pub disk_used: u64,
    /// Size of the root file system, bytes.
    pub disk_total: u64,
}

/// One entry of the answer to `POST /files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Absolute path.
    pub path: String,
    /// Last component of the path.
    pub name: String,
    /// Always `file`.
    #[serde(rename = "type")]
    pub kind: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_init_body_has_camel_case_names_and_ignores_what_it_does_not_know() {
        let body = r#"{"envVars":{"A":"1"},"accessToken":"t","timestamp":"2026-01-01T00:00:00Z","defaultUser":"user",
            "defaultWorkdir":"/w","hyperloopIP":"1.2.3.4","volumeMounts":[],"lifecycleID":null}"#;
        let init: InitRequest = serde_json::from_str(body).unwrap();
        assert_eq!(init.env_vars.unwrap()["A"], "1");
        assert_eq!(init.default_workdir.as_deref(), Some("/w"));
        assert_eq!(serde_json::to_string(&InitRequest::default()).unwrap(), "{}");
    }
}
