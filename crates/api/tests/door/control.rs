//! The control plane.

use std::time::Duration;

use serde_json::json;

use crate::fakes::Step;
use crate::{KEY, door, door_with, until};

const UNKNOWN: &str = "i0000000000000000000";

#[tokio::test]
async fn without_the_key_only_health_and_the_document_answer() {
    let door = door().await;
    for (method, path) in [
        ("GET", "/sandboxes"),
        ("POST", "/v2/sandboxes"),
        ("DELETE", "/sandboxes/x"),
        ("GET", "/aenv/v1/status"),
        ("POST", "/aenv/v1/templates/pull"),
        ("GET", "/no/such/route"),
    ] {
        assert!(door.request(method, path, &[], "").await.error(401).contains("missing"), "{path}");
        let wrong = [("x-api-key", "e2b_wrong")];
        assert!(door.request(method, path, &wrong, "").await.error(401).contains("wrong"), "{path}");
    }
    for path in ["/health", "/openapi.json"] {
        assert_eq!(door.request("GET", path, &[], "").await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn both_generations_make_and_reach_sandboxes() {
    let door = door().await;
    for (version, timeout_s) in [("", 15), ("/v2", 300)] {
        let created = door.control("POST", &format!("{version}/sandboxes"), r#"{"templateID":"base"}"#).await;
        assert_eq!(created.status, 201);
        let created = created.json();
        let id = created["sandboxID"].as_str().unwrap();
        assert_eq!(created["alias"], "base");
        assert_eq!(created["domain"], "sandbox.test:3000");
        assert_eq!(created["envdAccessToken"].as_str().unwrap().len(), 64);

        let detail = door.control("GET", &format!("/sandboxes/{id}"), "").await.json();
        let time = |name: &str| protocol::api::Timestamp::parse(detail[name].as_str().unwrap()).unwrap();
        assert_eq!(time("endAt").saturating_since(time("startedAt")), Duration::from_secs(timeout_s));
        assert_eq!(detail["state"], "running");

        let connected =
            door.control("POST", &format!("{version}/sandboxes/{id}/connect"), r#"{"timeout":900}"#).await;
        assert_eq!(connected.status, 200);
        assert_eq!(connected.json(), created);
        assert_eq!(door.control("DELETE", &format!("/sandboxes/{id}"), "").await.status, 204);
        assert!(door.control("DELETE", &format!("/sandboxes/{id}"), "").await.error(404).contains(id));
    }
}

#[tokio::test]
async fn a_connect_without_a_body_is_possible_in_version_2_only() {
    let door = door().await;
    let id = door.sandbox().await.id;
    assert_eq!(door.control("POST", &format!("/v2/sandboxes/{id}/connect"), "").await.status, 200);
    assert_eq!(door.control("POST", &format!("/v2/sandboxes/{id}/connect"), "{}").await.status, 200);
    assert!(
        door.control("POST", &format!("/sandboxes/{id}/connect"), "{}").await.error(400).contains("timeout")
    );
}

#[tokio::test]
async fn timeouts_are_set_extended_and_refused() {
    let door = door().await;
    let id = door.sandbox().await.id;
    let end_at = || door.node.get(id.as_str()).unwrap().end_at;
    let before = end_at();
    assert_eq!(
        door.control("POST", &format!("/sandboxes/{id}/timeout"), r#"{"timeout":60}"#).await.status,
        204
    );
    let shortened = end_at();
    assert!(shortened < before);
    assert_eq!(
        door.control("POST", &format!("/sandboxes/{id}/refreshes"), r#"{"duration":10}"#).await.status,
        204
    );
    assert_eq!(end_at(), shortened);
    assert_eq!(
        door.control("POST", &format!("/sandboxes/{id}/refreshes"), r#"{"duration":100}"#).await.status,
        204
    );
    assert!(end_at() > shortened);
    let message =
        door.control("POST", &format!("/sandboxes/{id}/timeout"), r#"{"timeout":90000}"#).await.error(400);
    assert_eq!(message, "Timeout cannot be greater than 24 hours");
    assert_eq!(
        door.control("POST", &format!("/sandboxes/{id}/timeout"), r#"{"timeout":-5}"#).await.status,
        204
    );
    until("it is gone", || door.node.get(id.as_str()).is_none()).await;
}

#[tokio::test]
async fn creates_that_cannot_be_are_refused() {
    let door = door().await;
    for body in [
        "{}",
        "[]",
        "{not json",
        r#"{"templateID":5}"#,
        r#"{"templateID":"base","timeout":0}"#,
        r#"{"templateID":"base","timeout":"soon"}"#,
        r#"{"templateID":"base","metadata":{"a":1}}"#,
        r#"{"templateID":"base","envVars":["A=B"]}"#,
        r#"{"templateID":"base","envVars":{"A=B":"x"}}"#,
        r#"{"templateID":"base","timeout":90000}"#,
    ] {
        door.control("POST", "/v2/sandboxes", body).await.error(400);
    }
    let message =
        door.control("POST", "/v2/sandboxes", r#"{"templateID":"base","autoPause":true}"#).await.error(400);
    assert!(message.starts_with("autoPause:"), "{message}");
    let message = door.control("POST", "/sandboxes", r#"{"templateID":"nope"}"#).await.error(404);
    assert!(message.contains("nope"), "{message}");
    let large = format!(r#"{{"templateID":"base","x":"{}"}}"#, "x".repeat(2 << 20));
    door.control("POST", "/v2/sandboxes", &large).await.error(413);
    assert_eq!(door.node.counts(), sandbox::NodeCounts::default());
}

#[tokio::test]
async fn a_failed_create_tells_clients_not_to_repeat_it() {
    let door = door().await;
    door.world.fail(Step::Boot, 1);
    let answer = door.control("POST", "/v2/sandboxes", r#"{"templateID":"base"}"#).await;
    assert!(answer.error(500).contains("Boot was made to fail"));
    assert_eq!(answer.headers["should-retry"], "false");
    assert_eq!(answer.json()["error_code"], "sandbox_create_failed");
}

#[tokio::test]
async fn a_full_node_tells_clients_when_to_come_back() {
    let door = door_with(|config| config.sandbox_limit = 1).await;
    door.sandbox().await;
    let answer = door.control("POST", "/v2/sandboxes", r#"{"templateID":"base"}"#).await;
    answer.error(429);
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(answer.json()["error_code"], "sandbox_capacity_unavailable");
}

#[tokio::test]
async fn lists_are_pages_with_filters_and_show_no_token() {
    let door = door().await;
    let mut ids = Vec::new();
    for number in 0..3 {
        let body =
            json!({"templateID": "base", "metadata": {"mark": "x", "odd key": format!("a&b={number}")}});
        let created = door.control("POST", "/v2/sandboxes", &body.to_string()).await.json();
        ids.insert(0, created["sandboxID"].as_str().unwrap().to_owned());
    }
    let first = door.control("GET", "/v2/sandboxes?limit=2&metadata=mark%3Dx", "").await;
    let token = first.headers["x-next-token"].to_str().unwrap().to_owned();
    let second =
        door.control("GET", &format!("/v2/sandboxes?limit=2&metadata=mark%3Dx&nextToken={token}"), "").await;
    assert!(!second.headers.contains_key("x-next-token"));
    let found: Vec<String> = [first.json(), second.json()]
        .iter()
        .flat_map(|page| page.as_array().unwrap().clone())
        .map(|item| item["sandboxID"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(found, ids);
    let one =
        door.control("GET", "/v2/sandboxes?metadata=odd%252520key%3Da%252526b%25253D1", "").await.json();
    assert_eq!(one.as_array().unwrap().len(), 1);
    assert_eq!(one[0]["sandboxID"], ids[1]);
    assert_eq!(one[0].get("envdAccessToken"), None);
    assert_eq!(door.control("GET", "/sandboxes", "").await.json().as_array().unwrap().len(), 3);
    door.control("GET", "/v2/sandboxes?limit=0", "").await.error(400);
}

#[tokio::test]
async fn what_is_not_there_is_json_too() {
    let door = door().await;
    assert!(door.control("GET", "/no/such/route", "").await.error(404).contains("E2b-Sandbox-Id"));
    door.control("PATCH", "/v2/sandboxes", "").await.error(405);
    for (method, path, body) in [
        ("GET", format!("/sandboxes/{UNKNOWN}"), ""),
        ("DELETE", format!("/sandboxes/{UNKNOWN}"), ""),
        ("POST", format!("/sandboxes/{UNKNOWN}/timeout"), r#"{"timeout":5}"#),
        ("POST", format!("/v2/sandboxes/{UNKNOWN}/connect"), ""),
        ("GET", format!("/sandboxes/{UNKNOWN}/metrics"), ""),
        ("POST", format!("/sandboxes/{UNKNOWN}/pause"), "{}"),
        ("GET", format!("/aenv/v1/sandboxes/{UNKNOWN}/console"), ""),
        ("GET", "/sandboxes/..%2F..%2Fetc".to_owned(), ""),
    ] {
        door.control(method, &path, body).await.error(404);
    }
}

#[tokio::test]
async fn features_that_are_not_there_say_so() {
    let door = door().await;
    let id = door.sandbox().await.id;
    for (method, action) in
        [("POST", "pause"), ("POST", "resume"), ("POST", "snapshots"), ("POST", "fork"), ("PUT", "network")]
    {
        let answer = door.control(method, &format!("/sandboxes/{id}/{action}"), "{}").await;
        assert!(answer.error(501).contains("not available"), "{action}");
        assert_eq!(answer.headers["should-retry"], "false");
    }
    assert_eq!(door.control("GET", "/snapshots", "").await.json(), json!([]));
}

#[tokio::test]
async fn metrics_are_those_of_the_guest() {
    let door = door().await;
    let id = door.sandbox().await.id;
    let metrics = door.control("GET", &format!("/sandboxes/{id}/metrics"), "").await.json();
    assert_eq!(metrics[0]["timestampUnix"], 1_788_000_000);
    assert_eq!(metrics[0]["timestamp"], "2026-08-29T10:40:00Z");
    assert_eq!(metrics[0]["memTotal"], 512 << 20);
    let past = door.control("GET", &format!("/sandboxes/{id}/metrics?start=0&end=5"), "").await.json();
    assert_eq!(past, json!([]));
    door.control("GET", &format!("/sandboxes/{id}/metrics?start=x"), "").await.error(400);
}

#[tokio::test]
async fn a_pull_tells_its_progress_line_by_line() {
    let door = door().await;
    let answer = door.control("POST", "/aenv/v1/templates/pull", r#"{"source":"a","name":"other"}"#).await;
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let lines: Vec<serde_json::Value> = answer
        .body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(lines[0]["progress"]["phase"], "fetch");
    assert_eq!(lines[1]["template"]["name"], "other");
    assert_eq!(lines[1]["template"]["layerCount"], 2);
    let id = lines[1]["template"]["templateID"].as_str().unwrap();

    let names = |value: serde_json::Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(door.control("GET", "/aenv/v1/templates", "").await.json()), ["base", "other"]);
    let listed = door.control("GET", "/templates", "").await.json();
    assert_eq!(listed[1]["names"], json!(["other"]));
    assert_eq!(listed[1]["buildStatus"], "ready");
    assert_eq!(door.control("GET", "/templates/aliases/other", "").await.json()["templateID"], id);
    assert_eq!(door.control("DELETE", "/templates/other%3Adefault", "").await.status, 204);
    assert!(door.control("DELETE", "/templates/other", "").await.error(404).contains("other"));
    door.control("GET", "/templates/aliases/other", "").await.error(404);
}

#[tokio::test]
async fn a_failed_pull_ends_with_an_error_line() {
    let door = door().await;
    door.world.fail(Step::Import, 1);
    let answer = door.control("POST", "/aenv/v1/templates/pull", r#"{"source":"a","name":"other"}"#).await;
    let last = answer.body.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap();
    let last: serde_json::Value = serde_json::from_slice(last).unwrap();
    assert_eq!(last["error"]["code"], 500);
    door.control("POST", "/aenv/v1/templates/pull", r#"{"source":"a","name":"Bad Name"}"#).await.error(400);
    door.control("POST", "/aenv/v1/templates/pull", r#"{"source":"a","nam":"x"}"#).await.error(400);
}

#[tokio::test]
async fn the_console_is_plain_text() {
    let door = door().await;
    let id = door.sandbox().await.id;
    let answer = door.control("GET", &format!("/aenv/v1/sandboxes/{id}/console"), "").await;
    assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(answer.body, "aenv-init: hello\n");
}

#[tokio::test]
async fn the_status_counts() {
    let door = door().await;
    door.sandbox().await;
    let status = door.control("GET", "/aenv/v1/status", "").await.json();
    assert_eq!((&status["running"], &status["templates"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&status["nodeTag"], &status["vmm"], &status["storageFrontEnd"]),
        (&json!("tst"), &json!("fake"), &json!("fake"))
    );
}

#[tokio::test]
async fn browsers_on_other_origins_may_ask() {
    let door = door().await;
    let headers = [("origin", "https://app.example"), ("access-control-request-method", "POST")];
    let preflight = door.request("OPTIONS", "/v2/sandboxes", &headers, "").await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.headers["access-control-allow-origin"], "*");
    let listed = door
        .request("GET", "/v2/sandboxes", &[("x-api-key", KEY), ("origin", "https://app.example")], "")
        .await;
    assert_eq!(listed.headers["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let door = door().await;
    let answer = door.control("HEAD", "/v2/sandboxes", "").await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
}
