//! The data plane.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fakes::within;
use crate::{Answer, Door, KEY, door, upstream};

const UNKNOWN: &str = "i0000000000000000000";
const PORT: u16 = 8000;

/// The three ways to name a sandbox.
#[derive(Clone, Copy)]
enum Way {
    Headers,
    Path,
    Host,
}

const WAYS: [Way; 3] = [Way::Headers, Way::Path, Way::Host];

async fn ask(
    door: &Door,
    way: Way,
    id: &str,
    port: u16,
    method: &str,
    path: &str,
    body: &'static [u8],
) -> Answer {
    let port = port.to_string();
    match way {
        Way::Headers => {
            let headers = [("e2b-sandbox-id", id), ("e2b-sandbox-port", &port)];
            door.request(method, path, &headers, body).await
        }
        Way::Path => door.request(method, &format!("/proxy/{id}/{port}{path}"), &[], body).await,
        Way::Host => {
            let host = format!("{port}-{id}.sandbox.test:3000");
            door.request(method, path, &[("host", &host)], body).await
        }
    }
}

#[tokio::test]
async fn a_request_goes_in_and_its_answer_comes_out_unchanged() {
    let door = door().await;
    let info = door.sandbox().await;
    upstream::serve(&door.node, &info, PORT).await;
    for way in WAYS {
        let answer = ask(&door, way, info.id.as_str(), PORT, "POST", "/teapot?x=1&y=%20z", b"body").await;
        assert_eq!(answer.status, 418);
        assert_eq!(answer.headers["x-echo"], "yes");
        let seen = answer.json();
        assert_eq!(seen["method"], "POST");
        assert_eq!(seen["path"], "/teapot?x=1&y=%20z");
        assert_eq!(seen["body"], "body");
    }
}

#[tokio::test]
async fn control_routes_belong_to_the_guest_when_a_sandbox_is_named() {
    let door = door().await;
    let info = door.sandbox().await;
    upstream::serve(&door.node, &info, PORT).await;
    for way in WAYS {
        for path in ["/health", "/sandboxes", "/openapi.json", "/proxy/x/1/y"] {
            assert_eq!(ask(&door, way, info.id.as_str(), PORT, "GET", path, b"").await.json()["path"], path);
        }
    }
}

#[tokio::test]
async fn the_nodes_key_stays_out_of_the_guest() {
    let door = door().await;
    let info = door.sandbox().await;
    upstream::serve(&door.node, &info, PORT).await;
    let headers = [
        ("e2b-sandbox-id", info.id.as_str()),
        ("e2b-sandbox-port", "8000"),
        ("x-api-key", KEY),
        ("connection", "x-private, keep-alive"),
        ("x-private", "1"),
        ("te", "trailers"),
        ("x-access-token", "for the guest"),
    ];
    let seen = door.request("GET", "/", &headers, "").await.json();
    for name in ["x-api-key", "x-private", "te", "connection"] {
        assert_eq!(seen["headers"].get(name), None, "{name}");
    }
    assert_eq!(seen["headers"]["x-access-token"], "for the guest");
}

#[tokio::test]
async fn unknown_sandboxes_and_closed_ports_have_the_texts_that_clients_know() {
    let door = door().await;
    let info = door.sandbox().await;
    for way in WAYS {
        let answer = ask(&door, way, UNKNOWN, 49983, "GET", "/health", b"").await;
        assert_eq!(answer.error(502), "The sandbox was not found");
        assert_eq!(answer.json()["sandboxId"], UNKNOWN);
        let answer = ask(&door, way, info.id.as_str(), 8123, "GET", "/", b"").await;
        assert_eq!(answer.error(502), "The sandbox is running but port is not open");
        assert_eq!(
            answer.json(),
            json!({"sandboxId": info.id.as_str(), "port": 8123, "code": 502,
            "message": "The sandbox is running but port is not open"})
        );
        assert_eq!(answer.headers["access-control-allow-origin"], "*");
    }
}

#[tokio::test]
async fn a_person_gets_a_page_and_a_script_gets_json() {
    let door = door().await;
    let page = [("accept", "text/html"), ("sec-fetch-mode", "navigate"), ("user-agent", "Mozilla/5.0")];
    let answer = door.request("GET", &format!("/proxy/{UNKNOWN}/80/"), &page, "").await;
    assert_eq!(answer.status, 502);
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/html"));
    assert!(String::from_utf8_lossy(&answer.body).contains("was not found"));
    let script = [("accept", "text/html"), ("sec-fetch-mode", "cors"), ("user-agent", "Mozilla/5.0")];
    door.request("GET", &format!("/proxy/{UNKNOWN}/80/"), &script, "").await.error(502);
}

#[tokio::test]
async fn the_guest_daemons_internal_routes_are_not_there() {
    let door = door().await;
    let info = door.sandbox().await;
    upstream::serve(&door.node, &info, 49983).await;
    for way in WAYS {
        for path in ["/init", "//init", "/%69nit", "/init/", "/freeze", "/upgrade"] {
            ask(&door, way, info.id.as_str(), 49983, "POST", path, b"{}").await.error(404);
        }
        assert_eq!(ask(&door, way, info.id.as_str(), 49983, "GET", "/files?path=x", b"").await.status, 200);
    }
}

#[tokio::test]
async fn requests_that_name_a_sandbox_wrongly_are_refused() {
    let door = door().await;
    let info = door.sandbox().await;
    assert!(
        door.request("POST", "/files", &[("e2b-sandbox-id", "x")], "")
            .await
            .error(400)
            .contains("E2b-Sandbox-Port")
    );
    for port in ["0", "65536", "x", "-1"] {
        door.request("GET", &format!("/proxy/{}/{port}/", info.id), &[], "").await.error(400);
    }
}

/// Begins an endless answer and reads its first bytes.
async fn begin_stream(door: &Door, id: &str) -> TcpStream {
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let request = format!("GET /proxy/{id}/{PORT}/stream HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    within("the first tick", async {
        while !String::from_utf8_lossy(&seen).contains("tick 0") {
            let length = stream.read_buf(&mut seen).await.unwrap();
            assert_ne!(length, 0, "{seen:?}");
        }
    })
    .await;
    stream
}

#[tokio::test]
async fn an_answer_streams_and_ends_with_the_sandbox_but_not_as_if_it_were_whole() {
    let door = door().await;
    let info = door.sandbox().await;
    upstream::serve(&door.node, &info, PORT).await;
    let mut stream = begin_stream(&door, info.id.as_str()).await;
    door.node.kill(info.id.as_str()).await.unwrap();
    let mut rest = Vec::new();
    // FIN: the read ends without an error. A reset would be one.
    within("the end", stream.read_to_end(&mut rest)).await.unwrap();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the body must not look complete");
    let after = ask(&door, Way::Headers, info.id.as_str(), PORT, "GET", "/", b"").await;
    assert_eq!(after.error(502), "The sandbox was not found");
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place() {
    let door = door().await;
    let info = door.sandbox().await;
    upstream::serve(&door.node, &info, PORT).await;
    let streams = [begin_stream(&door, info.id.as_str()).await, begin_stream(&door, info.id.as_str()).await];
    drop(streams);
    // A guest that is closed on ends its own side; a kept connection would hold the sandbox's port.
    let answer = ask(&door, Way::Path, info.id.as_str(), PORT, "GET", "/after", b"").await;
    assert_eq!(answer.json()["path"], "/after");
}

#[tokio::test]
async fn a_large_body_passes_without_being_held() {
    let door = door().await;
    let info = door.sandbox().await;
    upstream::serve(&door.node, &info, PORT).await;
    const CHUNKS: usize = 512;
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let head = format!(
        "POST /proxy/{}/{PORT}/count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
        info.id
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut chunk = b"10000\r\n".to_vec();
    chunk.resize(7 + 65536, b'x');
    chunk.extend_from_slice(b"\r\n");
    within("the upload", async {
        for _ in 0..CHUNKS {
            stream.write_all(&chunk).await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    })
    .await;
    let mut answer = String::new();
    within("the answer", stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.contains(&(CHUNKS * 65536).to_string()), "{answer}");
}

#[tokio::test]
async fn an_upgraded_connection_carries_both_ways_and_ends_with_the_sandbox() {
    let door = door().await;
    let info = door.sandbox().await;
    upstream::serve(&door.node, &info, PORT).await;
    let request = Request::builder()
        .uri(format!("/proxy/{}/{PORT}/upgrade", info.id))
        .header("host", "x")
        .header("connection", "Upgrade")
        .header("upgrade", "echo")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let response = door.send(request).await;
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "echo");
    let mut stream = TokioIo::new(within("the upgrade", hyper::upgrade::on(response)).await.unwrap());
    let mut buffer = [0; 5];
    for word in [b"hello", b"world"] {
        stream.write_all(word).await.unwrap();
        within("the echo", stream.read_exact(&mut buffer)).await.unwrap();
        assert_eq!(&buffer, word);
    }
    door.node.kill(info.id.as_str()).await.unwrap();
    assert_eq!(within("the end", stream.read(&mut buffer)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_request_that_waits_for_its_answer_ends_with_the_sandbox() {
    let door = door().await;
    let info = door.sandbox().await;
    // Takes connections and says nothing.
    let guest = door.node.route(info.id.as_str()).unwrap().guest;
    let listener = tokio::net::TcpListener::bind((guest, PORT)).await.unwrap();
    let kill = async {
        let _held = listener.accept().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        door.node.kill(info.id.as_str()).await.unwrap();
        std::future::pending::<()>().await;
    };
    let answer = tokio::select! {
        answer = ask(&door, Way::Path, info.id.as_str(), PORT, "GET", "/", b"") => answer,
        () = kill => unreachable!(),
    };
    assert_eq!(answer.error(502), "The sandbox was not found");
}

#[tokio::test]
async fn no_connection_is_used_twice() {
    let door = door().await;
    let info = door.sandbox().await;
    let guest = door.node.route(info.id.as_str()).unwrap().guest;
    let listener = tokio::net::TcpListener::bind((guest, PORT)).await.unwrap();
    let accepted = tokio::spawn(async move {
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            // Kept open: a proxy that pools would send the next request here, and get no answer.
            std::mem::forget(stream);
        }
    });
    // One client connection for all.
    let stream = TcpStream::connect(door.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        let request = Request::builder()
            .uri(format!("/proxy/{}/{PORT}/", info.id))
            .header("host", "x")
            .body(Full::new(Bytes::new()))
            .unwrap();
        let response = within("an answer", sender.send_request(request)).await.unwrap();
        assert_eq!(response.status(), 204);
        response.into_body().collect().await.unwrap();
    }
    within("three connections", accepted).await.unwrap();
}
