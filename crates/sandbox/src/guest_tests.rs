use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// A server that answers each connection with `answer` and returns what it was sent.
async fn serve_once(answer: &'static [u8]) -> (HttpGuestDaemon, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let length = stream.read(&mut buffer).await.unwrap();
            received.extend_from_slice(&buffer[..length]);
            let text = String::from_utf8_lossy(&received);
            let wanted = if text.starts_with("POST") { "}" } else { "\r\n\r\n" };
            if length == 0 || text.ends_with(wanted) {
                break;
            }
        }
        stream.write_all(answer).await.unwrap();
        String::from_utf8(received).unwrap()
    });
    let daemon = HttpGuestDaemon {
        port,
        connect_timeout: Duration::from_secs(5),
        answer_timeout: Duration::from_secs(5),
    };
    (daemon, served)
}

const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn health_is_a_get_without_a_token() {
    let (daemon, served) = serve_once(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    daemon.health(Ipv4Addr::LOCALHOST, PATIENCE).await.unwrap();
    let request = served.await.unwrap().to_ascii_lowercase();
    assert!(request.starts_with("get /health http/1.1\r\n"), "{request}");
    assert!(!request.contains("x-access-token"));
}

#[tokio::test]
async fn init_sends_the_names_that_the_daemon_expects() {
    let (daemon, served) = serve_once(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let init = InitRequest {
        env_vars: Some([("A".to_owned(), "1".to_owned())].into()),
        access_token: Some("secret".to_owned()),
        default_user: Some("user".to_owned()),
        ..InitRequest::default()
    };
    daemon.init(Ipv4Addr::LOCALHOST, &init).await.unwrap();
    let request = served.await.unwrap();
    let body: serde_json::Value = serde_json::from_str(request.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"envVars": {"A": "1"}, "accessToken": "secret", "defaultUser": "user"})
    );
}

#[tokio::test]
async fn a_refusal_carries_the_daemons_words() {
    let (daemon, _served) =
        serve_once(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 5\r\nConnection: close\r\n\r\nnope!").await;
    let error = daemon.metrics(Ipv4Addr::LOCALHOST, "t").await.unwrap_err().to_string();
    assert!(error.contains("401") && error.contains("nope!"), "{error}");
}

#[tokio::test]
async fn metrics_are_read_with_the_token() {
    let (daemon, served) = serve_once(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"ts\":7,\"cpu_count\":2,\"mem_total\":9,\"unknown\":true}",
    )
    .await;
    let metrics = daemon.metrics(Ipv4Addr::LOCALHOST, "t0k3n").await.unwrap();
    assert_eq!((metrics.ts, metrics.cpu_count, metrics.mem_total), (7, 2, 9));
    assert!(served.await.unwrap().to_ascii_lowercase().contains("x-access-token: t0k3n"));
}

#[tokio::test]
async fn an_endless_answer_is_cut() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // An answer before the request would be a protocol error of its own.
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    });
    let daemon = HttpGuestDaemon { port, ..HttpGuestDaemon::default() };
    let error = daemon.metrics(Ipv4Addr::LOCALHOST, "t").await.unwrap_err().to_string();
    assert!(error.contains("limit"), "{error}");
}

#[tokio::test]
async fn a_closed_port_is_a_connection_error() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let daemon = HttpGuestDaemon { port, ..HttpGuestDaemon::default() };
    let error = daemon.health(Ipv4Addr::LOCALHOST, PATIENCE).await.unwrap_err();
    assert!(matches!(error, GuestError::Connect { .. }), "{error}");
}
