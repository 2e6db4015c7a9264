//! `/health`, `/init`, tokens, `/envs`, `/metrics`, routes.

use std::time::{Duration, SystemTime};

use protocol::timestamp;
use serde_json::json;

use crate::server::Server;

#[test]
fn before_the_first_init_only_health_is_answered() {
    let server = Server::start();
    assert_eq!(server.request("GET", "/health").send().status, 204);
    for (method, target) in
        [("GET", "/metrics"), ("GET", "/envs"), ("GET", "/files?path=/etc/passwd"), ("GET", "/x")]
    {
        let answer = server.request(method, target).send();
        assert_eq!((answer.status, answer.to_json()["code"].as_u64()), (401, Some(401)), "{target}");
    }
    let answer = server.request("POST", "/process.Process/List").json(&json!({})).send();
    assert_eq!(answer.status, 401);
}

#[test]
fn once_a_token_is_set_everything_but_health_needs_it() {
    let server = Server::start();
    let init = json!({"accessToken": "secret"});
    assert_eq!(server.request("POST", "/init").json(&init).send().status, 204);
    assert_eq!(server.request("GET", "/health").send().status, 204);
    for target in ["/metrics", "/envs", "/files?path=/etc/passwd"] {
        assert_eq!(server.request("GET", target).send().status, 401, "{target}");
        let wrong = server.request("GET", target).header("X-Access-Token", "secres").send();
        assert_eq!((wrong.status, wrong.to_json()["code"].as_u64()), (401, Some(401)), "{target}");
        assert_eq!(
            server.request("GET", target).header("X-Access-Token", "secret").send().status,
            200,
            "{target}"
        );
    }
}

#[test]
fn init_may_be_repeated_and_only_who_knows_the_token_may_change_it() {
    let server = Server::start();
    let init = |token: &str| server.request("POST", "/init").json(&json!({"accessToken": token}));
    assert_eq!(init("one").send().status, 204);
    assert_eq!(init("one").send().status, 204);
    assert_eq!(init("two").send().status, 401);
    assert_eq!(server.request("POST", "/init").json(&json!({})).send().status, 401);
    assert_eq!(init("two").header("X-Access-Token", "one").send().status, 204);
    assert_eq!(server.request("GET", "/envs").header("X-Access-Token", "two").send().status, 200);
    assert_eq!(server.request("GET", "/envs").header("X-Access-Token", "one").send().status, 401);
}

#[test]
fn a_daemon_that_crashed_serves_its_owner_again_and_believes_nobody_else() {
    let mut server = Server::start();
    let body = json!({"accessToken": "secret", "envVars": {"A": "1"}});
    assert_eq!(server.request("POST", "/init").json(&body).send().status, 204);
    server.crash_and_restart();
    let takeover = json!({"accessToken": "evil", "defaultUser": "root"});
    assert_eq!(server.request("POST", "/init").json(&takeover).send().status, 401);
    assert_eq!(server.request("GET", "/envs").header("X-Access-Token", "evil").send().status, 401);
    let answer = server.request("GET", "/envs").header("X-Access-Token", "secret").send();
    assert_eq!((answer.status, answer.to_json()), (200, json!({"A": "1"})));
}

#[test]
fn an_older_init_does_not_undo_a_newer_one() {
    let server = Server::start();
    let now = SystemTime::now();
    let init = |time: SystemTime, value: &str| {
        let body = json!({"timestamp": timestamp::format(time), "envVars": {"V": value}});
        assert_eq!(server.request("POST", "/init").json(&body).send().status, 204);
        server.request("GET", "/envs").send().to_json()["V"].as_str().unwrap().to_owned()
    };
    assert_eq!(init(now, "first"), "first");
    assert_eq!(init(now - Duration::from_secs(1), "late"), "first");
    assert_eq!(init(now + Duration::from_micros(1), "newer"), "newer");
}

#[test]
fn init_with_damaged_content_is_refused_and_changes_nothing() {
    let server = Server::start();
    for body in ["{", "5", r#"{"envVars":{"A":1}}"#, r#"{"timestamp":"yesterday"}"#] {
        let answer = server.request("POST", "/init").body("application/json", body).send();
        assert_eq!((answer.status, answer.to_json()["code"].as_u64()), (400, Some(400)), "{body}");
    }
    assert_eq!(server.request("GET", "/envs").send().status, 401);
    // A body is not needed at all.
    assert_eq!(server.request("POST", "/init").send().status, 204);
    assert_eq!(server.request("GET", "/envs").send().body, b"{}");
}

#[test]
fn the_environment_is_replaced_and_reaches_commands_that_may_override_it() {
    let server = Server::ready();
    for (variables, expected) in
        [(json!({"A": "1", "B": "2"}), "1 2 true box"), (json!({"B": "3"}), "- 3 true box")]
    {
        let init = json!({"envVars": variables, "sandboxId": "box", "defaultUser": "root"});
        assert_eq!(server.request("POST", "/init").json(&init).send().status, 204);
        let output = server.run("echo ${A:--} $B $E2B_SANDBOX $E2B_SANDBOX_ID");
        assert_eq!(output.text().trim(), expected);
    }
    let message = json!({
        "process": {"cmd": "/bin/sh", "args": ["-c", "echo $B"], "envs": {"B": "own"}},
        "stdin": false,
    });
    assert_eq!(server.stream_request("Start", &message).open().finish().text(), "own\n");
    assert_eq!(std::fs::read(server.path("markers/.E2B_SANDBOX_ID")).unwrap(), b"box");
}

#[test]
fn metrics_have_all_their_members() {
    let server = Server::ready();
    let metrics = server.request("GET", "/metrics").send().to_json();
    for member in
        ["ts", "cpu_count", "mem_total", "mem_used", "mem_cache", "mem_total_mib", "disk_used", "disk_total"]
    {
        assert!(metrics[member].as_u64().is_some_and(|value| value > 0), "{member}: {metrics}");
    }
    assert!(
        metrics["cpu_used_pct"].as_f64().is_some_and(|percent| (0.0..=100.0).contains(&percent)),
        "{metrics}"
    );
}

#[test]
fn wrong_routes_and_methods_get_json_errors() {
    let server = Server::ready();
    for (method, target, status) in [
        ("GET", "/", 404),
        ("GET", "/nothing", 404),
        ("PUT", "/files?path=/x", 405),
        ("GET", "/process.Process/Start", 405),
        ("POST", "/health", 405),
        ("POST", "/files/compose", 501),
    ] {
        let answer = server.request(method, target).send();
        let body = answer.to_json();
        assert_eq!(
            (answer.status, body["code"].as_u64()),
            (status, Some(status.into())),
            "{method} {target}"
        );
        assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
}

#[test]
fn methods_that_are_not_served_say_so_in_the_form_of_their_kind() {
    let server = Server::ready();
    for method in
        ["process.Process/StreamInput", "filesystem.Filesystem/CreateWatcher", "process.Process/Dance"]
    {
        let (status, code, _) = server.fail(method, &json!({}));
        assert_eq!((status, code.as_str()), (501, "unimplemented"), "{method}");
    }
    let watch = server.request("POST", "/filesystem.Filesystem/WatchDir").envelope(&json!({"path": "/"}));
    assert_eq!(watch.open().finish().error_code(), "unimplemented");
}

#[test]
fn messages_in_a_form_that_is_not_spoken_are_refused() {
    let server = Server::ready();
    let list = |content_type: &str, body: &str| {
        let answer = server.request("POST", "/process.Process/List").body(content_type, body).send();
        (answer.status, answer.to_json()["code"].as_str().unwrap().to_owned())
    };
    assert_eq!(list("application/proto", ""), (501, "unimplemented".into()));
    assert_eq!(list("application/json", "{"), (400, "invalid_argument".into()));
    let gzip =
        server.request("POST", "/process.Process/List").header("Content-Encoding", "gzip").json(&json!({}));
    assert_eq!(gzip.send().status, 501);
    let identity = server.request("POST", "/process.Process/List").header("Content-Encoding", "identity");
    assert_eq!(identity.json(&json!({})).chunked().send().status, 200);
}

#[test]
fn browsers_of_any_origin_are_answered() {
    let server = Server::start();
    let preflight = server
        .request("OPTIONS", "/process.Process/Start")
        .header("Origin", "http://localhost:5173")
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "x-access-token,connect-protocol-version")
        .send();
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("*"));
    assert_eq!(
        preflight.header("access-control-allow-headers"),
        Some("x-access-token,connect-protocol-version")
    );
    assert_eq!(preflight.header("access-control-max-age"), Some("7200"));
    // Also refusals must be readable.
    let refused = server.request("GET", "/metrics").header("Origin", "http://localhost").send();
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, Some("*")));
}

#[test]
fn garbage_on_the_wire_harms_nobody() {
    use std::io::Write as _;
    let server = Server::ready();
    for garbage in [
        &b"\0\xff\xfe garbage\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /init HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ] {
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        stream.write_all(garbage).unwrap();
    }
    let broken = [&b"\0\0\0\0"[..], b"\0\xff\xff\xff\xff", b"\x01\0\0\0\x02{}", b"\0\0\0\0\x01{"];
    for body in broken {
        let request = server.request("POST", "/process.Process/Start").body("application/connect+json", body);
        assert_eq!(request.open().finish().error_code(), "invalid_argument");
    }
    assert_eq!(server.run("echo alive").text(), "alive\n");
}
