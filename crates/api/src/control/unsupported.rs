//! Fields of a create request that ask for something this node does not have. Ignoring one would give the client a sandbox
//! with another meaning than it asked for; a field that asks for nothing is harmless.

use protocol::api::NewSandbox;
use serde_json::Value;

use crate::ApiError;

pub(super) fn refuse(request: &NewSandbox) -> Result<(), ApiError> {
    let asked: [(&str, bool, &str); 8] = [
        ("autoPause", request.auto_pause == Some(true), "pausing is not available yet; the timeout kills"),
        ("autoPauseMemory", request.auto_pause_memory == Some(false), "pausing is not available yet"),
        ("autoResume", request.auto_resume.as_ref().is_some_and(asks), "pausing is not available yet"),
        (
            "allow_internet_access",
            request.allow_internet_access == Some(false),
            "cutting a sandbox off the internet is not available yet",
        ),
        (
            "network",
            request.network.as_ref().is_some_and(network_asks),
            "network rules are not available yet",
        ),
        ("mcp", request.mcp.as_ref().is_some_and(asks), "the MCP gateway is not available"),
        ("iam", request.iam.as_ref().is_some_and(asks), "workload identity is not available"),
        ("volumeMounts", request.volume_mounts.as_ref().is_some_and(asks), "volumes are not available"),
    ];
    match asked.into_iter().find(|(_, asks, _)| *asks) {
        Some((field, _, reason)) => Err(ApiError::bad_request(format!("{field}: {reason}"))),
        None => Ok(()),
    }
}

/// Whether there is anything in it: null, false, and empty or wholly such lists and objects ask for nothing.
fn asks(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(on) => *on,
        Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => fields.values().any(asks),
    }
}

/// As [`asks`], but public traffic is what every sandbox has.
fn network_asks(network: &Value) -> bool {
    match network {
        Value::Object(fields) => fields.iter().any(|(name, value)| match name.as_str() {
            "allowPublicTraffic" => *value == Value::Bool(false),
            _ => asks(value),
        }),
        other => asks(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> Option<String> {
        let request: NewSandbox = serde_json::from_str(body).unwrap();
        refuse(&request).err().map(|error| error.body().message)
    }

    #[test]
    fn fields_that_ask_for_nothing_are_accepted() {
        let body = r#"{"templateID":"base","secure":true,"autoPause":false,"autoPauseMemory":true,"allow_internet_access":true,
            "autoResume":{"enabled":false},"network":{"allowPublicTraffic":true,"allowOut":[],"rules":{},"maskRequestHost":null},
            "mcp":null,"iam":{"tokens":{}},"volumeMounts":[]}"#;
        assert_eq!(refused(body), None);
    }

    #[test]
    fn each_field_that_asks_for_something_is_refused_by_name() {
        for (field, value) in [
            ("autoPause", "true"),
            ("autoPauseMemory", "false"),
            ("autoResume", r#"{"enabled":true}"#),
            ("allow_internet_access", "false"),
            ("network", r#"{"denyOut":["0.0.0.0/0"]}"#),
            ("network", r#"{"allowPublicTraffic":false}"#),
            ("network", r#"{"rules":{"api.example.com":[{"transform":{"headers":{"A":"b"}}}]}}"#),
            ("mcp", r#"{"browserbase":{"apiKey":"x"}}"#),
            ("iam", r#"{"tokens":{"t":{"audience":"a"}}}"#),
            ("volumeMounts", r#"[{"name":"v","path":"/v"}]"#),
        ] {
            let message = refused(&format!(r#"{{"templateID":"base","{field}":{value}}}"#));
            assert!(
                message.as_ref().is_some_and(|text| text.starts_with(&format!("{field}:"))),
                "{field}: {message:?}"
            );
        }
    }
}
